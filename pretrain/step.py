"""One optimizer step, a function of the batch, the step number and the seed.

The loss is the sum over masked tokens divided by the masked tokens of all ranks and all micro-batches of the step, so
any cut of the same rows gives the same update. Micro-batch m of M holds the step's rows m::M; its dropout comes from a
generator seeded by (seed, step, m), so one process and many draw the same, and a checkpoint holds no random state.

Shapes: R rows of this rank, T tokens a row.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from configs import IGNORED_LABEL
from data import Batch, format_hash
from encoder import Documents
from pretrain.engines.base import Engine
from pretrain.monitor.clock import Clock
from pretrain.processes import Processes


@dataclass(frozen=True)
class StepSettings:
    """What a step needs to know besides its batch."""

    learning_rate: float
    rows_per_device: int  # of a micro-batch
    seed: int  # of the dropout
    label_smoothing: float = 0.0


def train_step(
    engine: Engine,
    batch: Batch,
    processes: Processes,
    clock: Clock,
    settings: StepSettings,
    *,
    stop: bool = False,
    discard: Callable[[float], bool] = lambda loss: False,
) -> dict[str, Any]:
    """Forward, backward and update of this rank's rows of one global batch.

    Returns `loss`, `accuracy`, `learning_rate`, `grad_norm`, `masked_tokens`, `step_tokens`, `batch_hash`, `applied`,
    and `stop`: whether any rank was asked to. When no row is left on any rank (`step_tokens` 0) nothing is computed.
    `discard` sees the step's loss, and says whether its update is to be dropped.
    """
    masked = int((batch.labels != IGNORED_LABEL).sum())
    low, high = batch.hash & 0xFFFFFFFF, batch.hash >> 32
    masked_total, tokens, low, high, stops = processes.sum([masked, batch.tokens, low, high, int(stop)])
    agreed = {
        "masked_tokens": masked_total,
        "step_tokens": tokens,
        "batch_hash": format_hash((low + (high << 32)) % 2**64),
        "stop": stops > 0,
    }
    if not tokens:
        return agreed
    local = batch.input_ids.shape[0] // settings.rows_per_device
    sums = torch.zeros(2, dtype=torch.float64, device=processes.device)
    for k, inputs in enumerate(micro_batches(batch, local, processes.device, settings.label_smoothing)):
        torch.manual_seed(dropout_seed(settings.seed, batch.step, processes.rank + processes.world_size * k))
        with clock.measure("forward"):
            loss = engine.forward(inputs, last=k == local - 1)
        # a non-finite loss makes the whole gradient NaN, so the gradient's norm decides for every rank
        finite = torch.where(torch.isfinite(loss.loss_sum.detach()), 1.0, torch.nan)
        with clock.measure("backward"):
            engine.backward(loss.loss_sum * (finite * processes.world_size / max(1, masked_total)))
        sums += torch.stack([loss.loss_sum.detach().double(), loss.num_correct.double()])
    loss_sum, correct = processes.sum_tensor(sums)
    mean_loss, grad_norm, applied = loss_sum / max(1, masked_total), math.nan, False
    with clock.measure("optimizer"):
        if discard(mean_loss):
            engine.discard()
        else:
            grad_norm, applied = engine.step(settings.learning_rate)
    return {
        "loss": mean_loss,
        "accuracy": correct / max(1, masked_total),
        "learning_rate": settings.learning_rate,
        "grad_norm": grad_norm,
        "applied": applied,
        **agreed,
    }


def micro_batches(batch: Batch, count: int, device: torch.device, label_smoothing: float) -> Iterator[tuple[Any, ...]]:
    """Cut this rank's rows into `count` micro-batches, local rows k::count, as the model's inputs."""
    for k in range(count):
        yield model_inputs(
            batch.input_ids[k::count], batch.labels[k::count], batch.piece_lengths[k::count], device, label_smoothing
        )


def model_inputs(
    input_ids: Tensor,
    labels: Tensor,
    piece_lengths: list[list[int]],
    device: torch.device,
    label_smoothing: float = 0.0,
) -> tuple[Any, ...]:
    """Rows (R, T) as the model takes them: flat ids (R·T,), documents, masked positions (M,), targets (M,)."""
    documents = Documents.from_piece_lengths(piece_lengths, input_ids.shape[1])
    flat_labels = labels.reshape(-1)
    positions = (flat_labels != IGNORED_LABEL).nonzero().squeeze(1)
    tensors = (input_ids.reshape(-1), positions, flat_labels[positions])
    ids, positions, targets = (tensor.to(device, non_blocking=True) for tensor in tensors)
    return ids, documents.to(device), positions, targets, label_smoothing


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """63 well-mixed bits of (seed, step, micro-batch)."""
    digest = hashlib.blake2b(f"{seed}/{step}/{micro_batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
