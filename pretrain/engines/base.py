"""What the training step and the checkpoints ask of an engine: `forward` and `backward` per micro-batch, `step` per
update, `shards` for everything that reads or writes weights and moments.

The caller scales the loss so that the *mean* over ranks, which both engines take, is the wanted sum. A non-finite
gradient is never applied: the norm is global, so every rank decides the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor

from configs import Config, InputError
from encoder import Documents, MaskedLanguageModel, MaskedLoss

MOMENTS = ("exp_avg", "exp_avg_sq")


class EngineConfig(Config):
    """How the step is executed; may change at every resume."""

    name: Literal["ddp", "deepspeed"] = Field("ddp", description="ddp also serves a single process")
    zero_stage: Literal[1, 2, 3] | None = Field(
        None, description="deepspeed: shard the optimizer (1, the default), gradients too (2), weights too (3)"
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="arithmetic; master weights and moments stay fp32")
    offload_optimizer: bool = Field(
        False, description="deepspeed: keep master weights and moments in CPU memory, and update them there"
    )
    deepspeed_config: str | None = Field(
        None, description="deepspeed: JSON file of DeepSpeed's own keys, for what no key here says; read at every start"
    )
    compile: bool = Field(False, description="torch.compile the model")
    compile_backend: Literal["inductor", "aot_eager"] = Field(
        "inductor", description="of torch.compile; aot_eager traces, but generates no kernels"
    )
    timeout_seconds: float = Field(900.0, gt=0, description="a collective or a step that takes longer ends the job")

    @model_validator(mode="after")
    def _check_deepspeeds_keys(self) -> "EngineConfig":
        for key in ("zero_stage", "offload_optimizer", "deepspeed_config"):
            if getattr(self, key) and self.name != "deepspeed":
                raise InputError(f"engine.{key} needs engine.name: deepspeed")
        return self


@dataclass(frozen=True)
class StepRows:
    """How many rows the run's steps have; phases may change both."""

    per_device: int  # of a micro-batch
    per_step: int  # of all micro-batches of all processes


@dataclass(frozen=True)
class Shard:
    """This rank's part of one parameter: `numel` values from `start` on of the flattened tensor, as writable views."""

    name: str
    shape: torch.Size
    start: int
    weight: Tensor
    moments: dict[str, Tensor]


class Engine(Protocol):
    """What the training step and the checkpoints need."""

    model: MaskedLanguageModel
    shards_are_whole: bool  # every rank's shards are whole parameters, equal on all ranks
    module_is_whole: bool  # every rank's module holds every weight (false with ZeRO-3)

    def forward(self, inputs: tuple[Any, ...], last: bool) -> MaskedLoss:
        """Run one micro-batch; `last`: gradients are exchanged after its backward."""

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of one micro-batch."""

    def step(self, learning_rate: float) -> tuple[float, bool]:
        """Clip, update, zero; (gradient norm before clipping, whether the update was applied)."""

    def discard(self) -> None:
        """Forget the accumulated gradients instead of `step`; every rank calls it."""

    def shards(self) -> Iterator[Shard]:
        """Every parameter in the model's order; the union over ranks covers each at least once."""

    def reset_optimizer(self, update_count: int) -> None:
        """Create the moments, zero, with AdamW's step counter at `update_count`, to be filled from a checkpoint."""


def zero_moments(parameter: Tensor, update_count: int) -> dict[str, Tensor]:
    """AdamW's state of one parameter after `update_count` updates, its moments still to be filled."""
    moments = {key: torch.zeros_like(parameter, requires_grad=False) for key in MOMENTS}
    return {"step": torch.tensor(float(update_count), device=parameter.device), **moments}


def one_token_inputs(device: torch.device) -> tuple[Any, ...]:
    """The smallest micro-batch: one document of one token, nothing masked, so every gradient of it is zero."""
    token = torch.zeros(1, dtype=torch.int64, device=device)
    return token, Documents.from_lengths([1]).to(device), token[:0], token[:0]
