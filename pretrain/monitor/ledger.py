"""The line of a step in the history: loss and gradient, tokens, where the time went, how busy the machine was."""

import math
from collections.abc import Mapping
from typing import Any

from data import Batch, DataConfig
from encoder import EncoderConfig
from pretrain.monitor.clock import Clock
from pretrain.monitor.hardware import peak_flops, peak_memory_bytes
from pretrain.processes import Processes

MEASURED = ("loss", "accuracy", "learning_rate", "grad_norm", "masked_tokens")


class Ledger:
    """The clock of this process and the arithmetic peak of all: what turns a step's result into its line."""

    def __init__(self, processes: Processes) -> None:
        self.clock = Clock()
        self._device = processes.device
        peak = peak_flops(processes.device)
        self._peak_flops = sum(processes.gather(peak)) if peak else None  # of all processes, a second

    def step_line(
        self, metrics: Mapping[str, Any], batch: Batch, encoder: EncoderConfig, data: DataConfig, tokens: int
    ) -> dict[str, Any]:
        """What `train` lines of metrics.jsonl hold; `tokens`: real ones so far. Reads the clock.

        MFU counts the arithmetic of the model (three times the forward pass, without recomputation), for documents as
        long as this rank's; a number that is not finite is written as null.
        """
        seconds, step_tokens = self.clock.read(), metrics["step_tokens"]
        squares = sum(length * length for row in batch.piece_lengths for length in row)
        flops = 3 * encoder.flops_per_token(
            squares / max(1, batch.tokens), metrics["masked_tokens"] / max(1, step_tokens)
        )
        per_second = step_tokens / seconds["seconds"]
        return {
            **{key: metrics[key] if math.isfinite(metrics[key]) else None for key in MEASURED},
            "tokens": tokens,
            "batch_hash": metrics["batch_hash"],
            **{key: round(value, 6) for key, value in seconds.items()},
            "tokens_per_second": per_second,
            "mfu": flops * per_second / self._peak_flops if self._peak_flops else None,
            "fill": step_tokens / (data.rows_per_step * data.sequence_length),
            "peak_memory_bytes": peak_memory_bytes(self._device),
        }
