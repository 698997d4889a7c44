"""Which rows go together: pure functions of lengths, seed and process, the same on every process.

Training: a global batch is `batch_size` rows of a permutation keyed by (seed, epoch). Where an epoch has many
batches, every eight of them are sorted by length before they are cut, which saves most of the padding and keeps the
order random on the scale of an epoch. Each process takes a stride of the batch and cuts it into micro-batches under a
token budget. Inference: length-sorted batches under the same budget, so a batch costs about the same whatever it holds.
"""

from collections.abc import Sequence

import numpy as np
import torch

CPU_TOKENS = 1024  # of a batch: its activations stay in the caches
DEVICE_TOKENS = 16384  # of a batch: fills an accelerator
FORWARD_PASS_COST = 1 / 16  # of a pass by itself, as a share of the cost of a full batch of tokens
SORTED_TOGETHER = 8  # training batches whose rows are sorted by length as one


def token_budget(asked: int | None, device: torch.device) -> int:
    """Tokens of a batch, padding included: as asked, else what suits the device."""
    return asked or (CPU_TOKENS if device.type == "cpu" else DEVICE_TOKENS)


def epoch_batches(
    lengths: Sequence[int], batch_size: int, seed: int, epoch: int, *, by_length: bool, drop_last: bool
) -> list[list[int]]:
    """Row indices of each global batch of one epoch, every row once.

    `drop_last` leaves out an incomplete last batch (unless it is the only one). `by_length` groups similar lengths
    when the epoch has at least two groups of `SORTED_TOGETHER` batches.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    group = batch_size * SORTED_TOGETHER
    if by_length and len(lengths) >= 2 * group:
        sizes = np.asarray(lengths)
        groups = [order[i : i + group] for i in range(0, len(order), group)]
        order = np.concatenate([rows[np.argsort(sizes[rows], kind="stable")] for rows in groups])
    batches = [order[i : i + batch_size].tolist() for i in range(0, len(order), batch_size)]
    if drop_last and len(batches) > 1 and len(batches[-1]) < batch_size:
        batches.pop()
    random.shuffle(batches)
    return batches


def token_budget_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices sorted by length, longest first, cut so that rows x longest <= `max_tokens` (a longer row is alone).

    Of all such cuts the cheapest: a batch costs its tokens, padding included, and, as a forward pass of its own,
    `FORWARD_PASS_COST` x `max_tokens`. Takes a few microseconds per row.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    sizes = np.maximum(np.asarray(lengths, dtype=np.int64)[order], 1)
    cheapest = np.zeros(len(order) + 1)  # cost of the cheapest cut of the first i rows
    starts = np.zeros(len(order) + 1, dtype=np.int64)  # where its last batch begins
    first = 0
    for end in range(1, len(order) + 1):
        while first < end - 1 and (end - first) * sizes[first] > max_tokens:
            first += 1
        begins = np.arange(first, end)
        costs = cheapest[first:end] + (end - begins) * sizes[first:end]
        best = int(costs.argmin())
        cheapest[end], starts[end] = costs[best] + FORWARD_PASS_COST * max_tokens, first + best
    batches: list[list[int]] = []
    end = len(order)
    while end > 0:
        batches.append(order[starts[end] : end].tolist())
        end = int(starts[end])
    return batches[::-1]
