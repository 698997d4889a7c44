"""The line of a step in the history: loss and gradient, tokens, where the time went, how busy the machine was."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from data import Batch
from pretrain.config import PretrainConfig
from pretrain.monitor.hardware import peak_memory_bytes

MEASURED = ("loss", "accuracy", "learning_rate", "grad_norm", "masked_tokens")


def step_line(
    metrics: Mapping[str, Any], batch: Batch, seconds: Mapping[str, float], config: PretrainConfig, tokens: int,
    peak_flops: float | None, device: torch.device,
) -> dict[str, Any]:  # fmt: skip
    """What `train` lines of metrics.jsonl hold; `tokens` real ones so far, `peak_flops` of all processes a second.

    MFU counts the arithmetic of the model (three times the forward pass, without recomputation), for documents as long
    as this rank's; a number that is not finite is written as null.
    """
    step_tokens, shape = metrics["step_tokens"], config.data
    squares = sum(length * length for row in batch.piece_lengths for length in row)
    flops = 3 * config.encoder.flops_per_token(
        squares / max(1, batch.tokens), metrics["masked_tokens"] / max(1, step_tokens)
    )
    return {
        **{key: metrics[key] if math.isfinite(metrics[key]) else None for key in MEASURED},
        "tokens": tokens,
        "batch_hash": metrics["batch_hash"],
        **{key: round(value, 6) for key, value in seconds.items()},
        "tokens_per_second": step_tokens / seconds["seconds"],
        "mfu": flops * step_tokens / seconds["seconds"] / peak_flops if peak_flops else None,
        "fill": step_tokens / (shape.rows_per_step * shape.sequence_length),
        "peak_memory_bytes": peak_memory_bytes(device),
    }
