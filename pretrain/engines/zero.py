"""DeepSpeed ZeRO-1, 2 or 3 over torch's AdamW, initialised directly, so every launcher is the same.

What DeepSpeed calls stage 0 is DDP here. It runs with `managed_gradient_accumulation: false`: `step` is the boundary,
so the number of micro-batches may change from step to step. Under bf16 the weights of the module and the gradients of
one micro-batch are bf16; their sums over micro-batches and ranks, the master weights and the moments are fp32.

AdamW's state is created here and only ever filled in place: the views of `shards` and DeepSpeed's own lie in it.
This module alone touches what DeepSpeed does not document; `RELIED_ON` lists it.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

import torch
from torch import Tensor

from encoder import MaskedLanguageModel, MaskedLoss
from pretrain.engines.base import MOMENTS, EngineConfig, Shard, StepRows, one_token_inputs, zero_moments
from pretrain.engines.zero_settings import deepspeed_settings
from pretrain.optim.adamw import OptimizerConfig, build_optimizer
from pretrain.processes import Processes


class PrivateNames(NamedTuple):
    """Undocumented names of DeepSpeed that one thing has."""

    owner: str  # `deepspeed.ops`, a `parameter` of the model, its `parameter._hp_mapping`, or the engine's `optimizer`
    names: tuple[str, ...]
    stages: tuple[int, ...]
    reason: str  # what they are for; the public function that was looked for, and why it does not serve


RELIED_ON = (
    PrivateNames(
        "deepspeed.ops", ("__compatible_ops__",), (1, 2, 3),
        "the table of operations to compile: no key and no environment variable keeps init_distributed on CPU from "
        "compiling its shared-memory collectives",
    ),
    PrivateNames(
        "parameter", ("_hp_mapping",), (1, 2),
        "where this rank's fp32 part of a parameter lies: safe_get_local_fp32_param refuses stages 1 and 2; "
        "safe_get_full_fp32_param and safe_get_full_optimizer_state all-reduce a copy of the whole tensor to every "
        "rank, and the latter raises until the first update",
    ),
    PrivateNames(
        "parameter._hp_mapping", ("param_group_index", "hp_fragment_address", "lp_fragment_address"), (1, 2),
        "the same",
    ),
    PrivateNames(
        "optimizer", ("fp32_partitioned_groups_flat",), (3,),
        "the tensors that AdamW updates: param_groups is empty between updates, and nothing public creates the "
        "moments before the first update, when a checkpoint fills them",
    ),
    PrivateNames(
        "optimizer", ("_get_fp32_opt_state_partition",), (3,),
        "this rank's part as a view: safe_get_local_fp32_param and safe_get_local_optimizer_state give the same, but "
        "copy it to the GPU where the optimizer is offloaded, so that a save would hold all of it there",
    ),
)  # fmt: skip


class ZeroEngine:
    """One of DeepSpeed's engines; every rank holds a part of the optimizer's state, and at stage 3 of the weights."""

    shards_are_whole = False

    def __init__(
        self,
        config: EngineConfig,
        model: MaskedLanguageModel,
        optimizer: OptimizerConfig,
        processes: Processes,
        rows: StepRows,
    ) -> None:
        import deepspeed

        deepspeed.utils.logging.logger.setLevel(logging.WARNING)
        if processes.device.type == "cpu":
            skip_cpu_communication_build()
        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
        self.model = model
        self.stage = config.zero_stage or 1
        self.module_is_whole = self.stage < 3
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.processes = processes
        settings = deepspeed_settings(config, optimizer, rows, processes, sum(p.numel() for p in model.parameters()))
        self.optimizer = build_optimizer(model, optimizer)
        unrounded = {name: p.data for name, p in model.named_parameters() if config.precision == "bf16"}
        with redirect_stdout(StringIO()):  # under bf16 at stage 1 it prints its memory use, line after line
            self.engine, *_ = deepspeed.initialize(model=model, optimizer=self.optimizer, config=settings)
        self._check_private_names()
        for partition in self._partitions():
            self.optimizer.state[partition] = zero_moments(partition, update_count=0)
        if unrounded:
            self._fill_master_weights(unrounded)
        if config.compile:
            self.engine.compile(backend=config.compile_backend)

    def _fill_master_weights(self, weights: dict[str, Tensor]) -> None:
        """Set them to the model's `weights`: DeepSpeed makes them from the module, once that is rounded to bf16."""
        for shard in self.shards():
            shard.weight.copy_(weights[shard.name].view(-1)[shard.start : shard.start + shard.weight.numel()])

    def forward(self, inputs: tuple[Any, ...], last: bool) -> MaskedLoss:
        return self.engine(*inputs)

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> tuple[float, bool]:
        for group in self.optimizer.param_groups:
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
        for name, parameter in self.model.named_parameters():
            yield self._stage_3_shard(name, parameter) if self.stage == 3 else self._flat_shard(name, parameter)

    def reset_optimizer(self, update_count: int) -> None:
        for state in self.optimizer.state.values():
            state["step"].fill_(update_count)
            for key in MOMENTS:
                state[key].zero_()

    def _partitions(self) -> list[Tensor]:
        """This rank's fp32 master weights: one flat tensor a parameter group (several at stage 3)."""
        if self.stage == 3:
            return self.engine.optimizer.fp32_partitioned_groups_flat
        return [partition for group in self.optimizer.param_groups for partition in group["params"]]

    def _flat_shard(self, name: str, parameter: Tensor) -> Shard:
        """Stages 1 and 2: the parameters of a group lie one after another, cut in equal parts over the ranks."""
        place = parameter._hp_mapping  # type: ignore[attr-defined]
        if place is None:  # this rank holds nothing of it
            nothing = self._partitions()[0].detach()[:0]
            return Shard(name, self.shapes[name], 0, nothing, dict.fromkeys(MOMENTS, nothing))
        (partition,) = self.optimizer.param_groups[place.param_group_index]["params"]
        state, address = self.optimizer.state[partition], place.hp_fragment_address

        def part(flat: Tensor) -> Tensor:
            return flat.detach().narrow(0, address.start, address.numel)

        moments = {key: part(state[key]) for key in MOMENTS}
        return Shard(name, self.shapes[name], place.lp_fragment_address.start, part(partition), moments)

    def _stage_3_shard(self, name: str, parameter: Tensor) -> Shard:
        """Stage 3: each parameter cut in equal parts over the ranks, the last ones padded."""
        optimizer, numel = self.engine.optimizer, self.shapes[name].numel()
        parts = {
            key: optimizer._get_fp32_opt_state_partition(parameter, release_swap_buffers=False, optim_state_key=key)[0]
            for key in (None, *MOMENTS)
        }
        size = parts[None].numel()
        start = min(numel, self.processes.rank * size)
        weight, *moments = (padded.detach()[: numel - start] for padded in parts.values())
        return Shard(name, self.shapes[name], start, weight, dict(zip(MOMENTS, moments, strict=True)))

    def _check_private_names(self) -> None:
        """RuntimeError when this DeepSpeed lacks a name of `RELIED_ON`, before anything is read without it."""
        import deepspeed

        parameters = list(self.model.parameters())
        mappings = [getattr(parameter, "_hp_mapping", None) for parameter in parameters]
        owners = {
            "deepspeed.ops": deepspeed.ops,
            "parameter": parameters[0],
            "parameter._hp_mapping": next((mapping for mapping in mappings if mapping is not None), None),
            "optimizer": self.engine.optimizer,
        }
        for owner, names, stages, reason in RELIED_ON:
            missing = [name for name in names if owners[owner] is not None and not hasattr(owners[owner], name)]
            if self.stage in stages and missing:
                raise RuntimeError(
                    f"DeepSpeed {deepspeed.__version__} has no {owner}.{missing[0]}, which ZeRO stage {self.stage} "
                    f"needs here ({reason}); install a version that pyproject.toml allows"
                )


def skip_cpu_communication_build() -> None:
    """Keep DeepSpeed from compiling its shared-memory collectives on CPU: 96 s, and a hang after a killed build."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
