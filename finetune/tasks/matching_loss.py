"""Losses over a batch of sentence vectors that is spread over processes.

Every process gathers all vectors with their gradients (`gather`), computes the terms of its own anchors against
everybody's targets, and the terms add up over processes to the loss of one process holding the whole batch: 1 x 64 =
2 x 32 in loss and gradients. Cost: batch x (2 x batch) cosines and one all-gather and all-reduce of batch x width.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)  # the terms of every process depend on these vectors
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gather(local: Tensor) -> Tensor:
    """(rows, …) of each process -> (processes x rows, …), rank by rank, differentiable. Equal numbers of rows."""
    return local if _num_processes() == 1 else _Gather.apply(local)


def _num_processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def contrastive_loss(
    anchors: Tensor, targets: Tensor, negatives: Tensor | None, temperature: float, keys: Sequence[Tensor]
) -> Tensor:
    """InfoNCE: the sum over this process's anchors (n, d) of -log softmax(cosine / temperature) at their targets.

    `targets` (n, d) are the positives, `negatives` (n, d) more wrong ones; those of all processes are candidates.
    `keys` identify the texts: (n,) numbers of anchors, of targets and of negatives. Equal texts are no negatives: a
    candidate that equals the anchor or its target, and the target of another row with an equal anchor, are left out.
    """
    anchors = normalize(anchors.float(), dim=-1)
    candidates = gather(normalize(targets.float(), dim=-1))
    if negatives is not None:
        candidates = torch.cat([candidates, gather(normalize(negatives.float(), dim=-1))])
    first = len(anchors) * (dist.get_rank() if _num_processes() > 1 else 0)
    right = torch.arange(first, first + len(anchors), device=anchors.device)
    anchor_keys, *candidate_keys = [gather(each) for each in keys]
    all_candidates = torch.cat(candidate_keys)[None]
    also_right = (all_candidates == keys[0][:, None]) | (all_candidates == keys[1][:, None])
    also_right[:, : len(anchor_keys)] |= anchor_keys[None] == keys[0][:, None]
    also_right[torch.arange(len(right), device=right.device), right] = False
    cosines = (anchors @ candidates.T / temperature).masked_fill(also_right, float("-inf"))
    return cross_entropy(cosines, right, reduction="sum")


def cosent_loss(left: Tensor, right: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """CoSENT x rows: log(1 + sum over pairs with score_i > score_j of exp((cosine_j - cosine_i) / temperature)).

    Each process returns its share (1 / processes) of the whole, which sums over all pairs of the global batch.
    """
    cosines = gather(torch.cosine_similarity(left.float(), right.float())) / temperature
    scores = gather(scores)
    differences = (cosines[None, :] - cosines[:, None]).masked_fill(scores[:, None] <= scores[None, :], float("-inf"))
    terms = torch.cat([differences.flatten(), differences.new_zeros(1)])
    return torch.logsumexp(terms, 0) * len(cosines) / _num_processes()


def cosine_loss(left: Tensor, right: Tensor, scores: Tensor) -> Tensor:
    """Sum over this process's pairs of (cosine - score)², scores from 0 to 1."""
    return (torch.cosine_similarity(left.float(), right.float()) - scores).square().sum()
