"""Everything that differs between plain torch (alone or DDP) and DeepSpeed ZeRO-1/2/3, behind one interface.

`forward` and `backward` per micro-batch, `step` per update, `shards` for checkpoints. The caller scales the loss so
that the *mean* over ranks, which both engines take, is the wanted sum. A non-finite gradient is never applied: the norm
is global, so every rank decides the same.

What DeepSpeed calls stage 0 is DDP here. DeepSpeed runs with `managed_gradient_accumulation: false`: `step` is the
boundary, so the number of micro-batches may change from step to step.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from configs import Config, InputError
from encoder import Documents, MaskedLanguageModel, MaskedLoss
from pretrain.optim.adamw import OptimizerConfig, build_optimizer
from pretrain.processes import Processes

MOMENTS = ("exp_avg", "exp_avg_sq")


class EngineConfig(Config):
    """How the step is executed; may change at every resume."""

    name: Literal["ddp", "deepspeed"] = Field("ddp", description="ddp also serves a single process")
    zero_stage: Literal[1, 2, 3] | None = Field(
        None, description="deepspeed: shard the optimizer (1, the default), gradients too (2), weights too (3)"
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="arithmetic; master weights and moments stay fp32")
    compile: bool = Field(False, description="torch.compile the model")
    compile_backend: Literal["inductor", "aot_eager"] = Field(
        "inductor", description="of torch.compile; aot_eager traces, but generates no kernels"
    )
    timeout_seconds: float = Field(900.0, gt=0, description="a collective or a step that takes longer ends the job")

    @model_validator(mode="after")
    def _stage_needs_deepspeed(self) -> "EngineConfig":
        if self.zero_stage and self.name != "deepspeed":
            raise InputError("engine.zero_stage needs engine.name: deepspeed")
        return self


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
    replicated: bool  # every rank holds every parameter and moment whole
    whole_weights: bool  # every rank's module holds every weight

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

    def set_update_count(self, count: int) -> None:
        """Create the moments (zero) with AdamW's step counter at `count`, to be filled from a checkpoint."""


def build_engine(
    config: EngineConfig, model: MaskedLanguageModel, optimizer: OptimizerConfig, processes: Processes, rows: int
) -> Engine:
    """The engine that the configuration names, around `model` (fp32, on its device); `rows` a micro-batch."""
    if config.name == "deepspeed":
        return DeepSpeedEngine(config, model, optimizer, processes, rows)
    return TorchEngine(config, model, optimizer, processes)


class TorchEngine:
    """One process, or DDP; bf16 by autocast, so weights, gradients and moments are fp32."""

    replicated = True
    whole_weights = True

    def __init__(
        self, config: EngineConfig, model: MaskedLanguageModel, optimizer: OptimizerConfig, processes: Processes
    ) -> None:
        self.model = model
        self.precision = config.precision
        self.clip_norm = optimizer.clip_norm
        self.optimizer = build_optimizer(model, optimizer)
        self.set_update_count(0)
        self.module: nn.Module = model
        if processes.world_size > 1:
            ids = [processes.device.index] if processes.device.type == "cuda" else None
            self.module = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
            self._settle_buckets(processes.device)
        if config.compile:
            model.compile(backend=config.compile_backend)  # in place: adds no prefix to the names

    def _settle_buckets(self, device: torch.device) -> None:
        """One backward of a token that counts nothing: DDP lays its buckets out anew after the first one.

        From three ranks on, the order of a sum depends on its place in a bucket: without this, the first step after a
        resume would add in another order than in the uninterrupted run.
        """
        nothing = torch.zeros(1, dtype=torch.int64, device=device)
        inputs = nothing, Documents.from_lengths([1]).to(device), nothing[:0], nothing[:0]
        self.backward(self.forward(inputs, last=True).loss_sum)
        self.discard()

    def forward(self, inputs: tuple[Any, ...], last: bool) -> MaskedLoss:
        if isinstance(self.module, DistributedDataParallel):
            self.module.require_backward_grad_sync = last
        device = next(self.model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.precision == "bf16"):
            return self.module(*inputs)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> tuple[float, bool]:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm).item()
        applied = math.isfinite(norm)
        if applied:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        self.discard()
        return norm, applied

    def discard(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def shards(self) -> Iterator[Shard]:
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state[parameter]
            moments = {key: state[key].view(-1) for key in MOMENTS}
            yield Shard(name, parameter.shape, 0, parameter.detach().view(-1), moments)

    def set_update_count(self, count: int) -> None:
        for parameter in self.model.parameters():
            self.optimizer.state[parameter] = _fresh_state(parameter, count)


class DeepSpeedEngine:
    """ZeRO-1, 2 or 3 over torch's AdamW, initialised directly, so every launcher is the same."""

    replicated = False

    def __init__(
        self,
        config: EngineConfig,
        model: MaskedLanguageModel,
        optimizer: OptimizerConfig,
        processes: Processes,
        rows: int,
    ) -> None:
        import deepspeed

        deepspeed.utils.logging.logger.setLevel(logging.WARNING)
        if processes.device.type == "cpu":
            skip_cpu_communication_build()
        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
        self.model = model
        self.stage = config.zero_stage or 1
        self.whole_weights = self.stage < 3
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.rank = processes.rank
        settings = deepspeed_settings(config, optimizer, rows, sum(p.numel() for p in model.parameters()))
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=build_optimizer(model, optimizer), config=settings
        )
        self.set_update_count(0)
        if config.compile:
            self.engine.compile(backend=config.compile_backend)

    def forward(self, inputs: tuple[Any, ...], last: bool) -> MaskedLoss:
        return self.engine(*inputs)

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> tuple[float, bool]:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.engine.step()
        applied = self.engine.was_step_applied()
        norm = float(self.engine.get_global_grad_norm()) if applied else math.nan
        return norm, applied

    def discard(self) -> None:
        # DeepSpeed has one way to leave an update out: a gradient norm that is not finite, here on every rank at once
        zero, invalid = self.engine.optimizer, torch.tensor(torch.nan)
        name, value = ("_get_norm_groups", [invalid]) if self.stage == 3 else ("scaled_global_norm", invalid)
        setattr(zero, name, lambda: value)
        try:
            self.engine.step()
        finally:
            delattr(zero, name)  # the method of the class is back
        assert not self.engine.was_step_applied()

    def shards(self) -> Iterator[Shard]:
        by_name = {shard.name: shard for shard in (self._sharded() if self.stage == 3 else self._sliced())}
        for name, shape in self.shapes.items():
            # a parameter of which this rank holds nothing is an empty shard: all ranks walk the same list
            yield by_name.get(name) or Shard(name, shape, 0, torch.empty(0), dict.fromkeys(MOMENTS, torch.empty(0)))

    def _sliced(self) -> Iterator[Shard]:
        """Stages 1 and 2: one flat buffer a parameter group, cut in equal parts over the ranks."""
        zero = self.engine.optimizer
        for group, flat in enumerate(zero.single_partition_of_fp32_groups):
            low = self.rank * zero.partition_size[group]
            high = low + zero.partition_size[group]
            state = zero.optimizer.state[flat]
            for parameter, offset in zip(
                zero.round_robin_bit16_groups[group], zero.round_robin_bit16_offsets[group], strict=True
            ):
                start, end = max(low, offset), min(high, offset + parameter.numel())
                if start < end:
                    yield self._shard(parameter, flat, state, start - low, end - start, start - offset)

    def _sharded(self) -> Iterator[Shard]:
        """Stage 3: each parameter cut in equal parts over the ranks, the last one padded."""
        zero = self.engine.optimizer
        for parameter in self.model.parameters():
            group, offset, size = zero.grad_position[zero.get_param_id(parameter)]
            flat = zero.fp32_partitioned_groups_flat[group]
            start = self.rank * size
            size = min(size, self.shapes[self.names[id(parameter)]].numel() - start)
            if size > 0:
                yield self._shard(parameter, flat, zero.optimizer.state[flat], offset, size, start)

    def _shard(self, parameter: Tensor, flat: Tensor, state: Any, at: int, size: int, start: int) -> Shard:
        name = self.names[id(parameter)]
        moments = {key: state[key].narrow(0, at, size) for key in MOMENTS}
        return Shard(name, self.shapes[name], start, flat.detach().narrow(0, at, size), moments)

    def set_update_count(self, count: int) -> None:
        zero = self.engine.optimizer
        flats = zero.fp32_partitioned_groups_flat if self.stage == 3 else zero.single_partition_of_fp32_groups
        for flat in flats:
            zero.optimizer.state[flat] = _fresh_state(flat, count)


def _fresh_state(parameter: Tensor, count: int) -> dict[str, Tensor]:
    zeros = {key: torch.zeros_like(parameter, requires_grad=False) for key in MOMENTS}
    return {"step": torch.tensor(float(count), device=parameter.device), **zeros}


def skip_cpu_communication_build() -> None:
    """Keep DeepSpeed from compiling its shared-memory collectives on CPU: 96 s, and a hang after a killed build."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def deepspeed_settings(
    config: EngineConfig, optimizer: OptimizerConfig, rows: int, num_parameters: int
) -> dict[str, Any]:
    """DeepSpeed's own configuration, derived from ours."""
    # a bucket is allocated whole, by default for 500 million gradients whatever the size of the model
    zero = {
        "stage": config.zero_stage or 1,
        "overlap_comm": False,
        "reduce_bucket_size": min(5 * 10**8, num_parameters),
    }
    return {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimizer.clip_norm,
        "zero_optimization": zero,
        "bf16": {"enabled": config.precision == "bf16"},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 62,
    }
