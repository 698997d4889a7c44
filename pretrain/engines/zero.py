"""DeepSpeed ZeRO-1, 2 or 3 over torch's AdamW, initialised directly, so every launcher is the same.

What DeepSpeed calls stage 0 is DDP here. It runs with `managed_gradient_accumulation: false`: `step` is the boundary,
so the number of micro-batches may change from step to step.

This module alone touches what DeepSpeed 0.19 does not document: the flat fp32 partitions of ZeRO and their layout
(`_partitions`), and the table of compiled operations. The public `safe_get_full_fp32_param` and
`safe_get_full_optimizer_state` would serve to save, but they all-reduce every tensor to every rank, and at stages 1 and
2 only the first parameter group's state is linked to them after a step: one rank raises, the others wait for ever.
"""

import logging
import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from encoder import MaskedLanguageModel, MaskedLoss
from pretrain.engines.base import MOMENTS, EngineConfig, Shard, one_token_inputs, zero_moments
from pretrain.optim.adamw import OptimizerConfig, build_optimizer
from pretrain.processes import Processes

LARGEST_BUCKET = 5 * 10**8  # gradients; DeepSpeed's own default


class ZeroEngine:
    """One of DeepSpeed's engines; every rank holds a part of the optimizer's state, and at stage 3 of the weights."""

    shards_are_whole = False

    def __init__(
        self,
        config: EngineConfig,
        model: MaskedLanguageModel,
        optimizer: OptimizerConfig,
        processes: Processes,
        rows_per_device: int,
    ) -> None:
        import deepspeed

        deepspeed.utils.logging.logger.setLevel(logging.WARNING)
        if processes.device.type == "cpu":
            skip_cpu_communication_build()
        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
        self.model = model
        self.stage = config.zero_stage or 1
        self.module_is_whole = self.stage < 3
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.processes = processes
        settings = deepspeed_settings(config, optimizer, rows_per_device, sum(p.numel() for p in model.parameters()))
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=build_optimizer(model, optimizer), config=settings
        )
        self.reset_optimizer(0)
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
        # DeepSpeed leaves an update out in one case only, a gradient that is not finite: so it is made one
        loss = self.forward(one_token_inputs(self.processes.device), last=True).loss_sum
        self.backward(loss * math.nan)
        self.engine.step()
        assert not self.engine.was_step_applied()

    def shards(self) -> Iterator[Shard]:
        by_name = {shard.name: shard for shard in (self._stage_3_shards() if self.stage == 3 else self._flat_shards())}
        for name, shape in self.shapes.items():
            # a parameter of which this rank holds nothing is an empty shard: all ranks walk the same list
            nothing = torch.empty(0, device=self.processes.device)
            yield by_name.get(name) or Shard(name, shape, 0, nothing, dict.fromkeys(MOMENTS, nothing))

    def reset_optimizer(self, update_count: int) -> None:
        for partition in self._partitions():
            self.engine.optimizer.optimizer.state[partition] = zero_moments(partition, update_count)

    def _partitions(self) -> list[Tensor]:
        """This rank's fp32 master weights: one flat tensor a parameter group (several at stage 3)."""
        zero = self.engine.optimizer
        return zero.fp32_partitioned_groups_flat if self.stage == 3 else zero.single_partition_of_fp32_groups

    def _flat_shards(self) -> Iterator[Shard]:
        """Stages 1 and 2: the parameters of a group lie one after another, cut in equal parts over the ranks."""
        zero = self.engine.optimizer
        for group, partition in enumerate(self._partitions()):
            low = self.processes.rank * zero.partition_size[group]
            high = low + zero.partition_size[group]
            parameters, offsets = zero.round_robin_bit16_groups[group], zero.round_robin_bit16_offsets[group]
            for parameter, offset in zip(parameters, offsets, strict=True):
                begin, end = max(low, offset), min(high, offset + parameter.numel())
                if begin < end:
                    yield self._shard(parameter, partition, begin - low, end - begin, begin - offset)

    def _stage_3_shards(self) -> Iterator[Shard]:
        """Stage 3: each parameter cut in equal parts over the ranks, the last one padded."""
        zero = self.engine.optimizer
        for parameter in self.model.parameters():
            group, offset, size = zero.grad_position[zero.get_param_id(parameter)]
            start = self.processes.rank * size
            size = min(size, self.shapes[self.names[id(parameter)]].numel() - start)
            if size > 0:
                yield self._shard(parameter, self._partitions()[group], offset, size, start)

    def _shard(self, parameter: Tensor, partition: Tensor, offset: int, size: int, start: int) -> Shard:
        """`size` values of `parameter` from `start` on, which lie at `offset` of the flat `partition`."""
        name, state = self.names[id(parameter)], self.engine.optimizer.optimizer.state[partition]
        moments = {key: state[key].narrow(0, offset, size) for key in MOMENTS}
        return Shard(name, self.shapes[name], start, partition.detach().narrow(0, offset, size), moments)


def skip_cpu_communication_build() -> None:
    """Keep DeepSpeed from compiling its shared-memory collectives on CPU: 96 s, and a hang after a killed build."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def deepspeed_settings(
    config: EngineConfig, optimizer: OptimizerConfig, rows_per_device: int, num_parameters: int
) -> dict[str, Any]:
    """DeepSpeed's own configuration, derived from ours."""
    zero = {
        "stage": config.zero_stage or 1,
        "overlap_comm": False,
        "reduce_bucket_size": min(LARGEST_BUCKET, num_parameters),  # a bucket is allocated whole
    }
    return {
        "train_micro_batch_size_per_gpu": rows_per_device,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimizer.clip_norm,
        "zero_optimization": zero,
        "bf16": {"enabled": config.precision == "bf16"},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": sys.maxsize,
    }
