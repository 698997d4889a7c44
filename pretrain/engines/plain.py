"""One process, or DDP; bf16 by autocast, so weights, gradients and moments are fp32."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from encoder import MaskedLanguageModel, MaskedLoss
from pretrain.engines.base import MOMENTS, EngineConfig, Shard, one_token_inputs, zero_moments
from pretrain.optim.adamw import OptimizerConfig, build_optimizer
from pretrain.processes import Processes


class PlainEngine:
    """Plain torch: the whole model and optimizer on every rank."""

    shards_are_whole = True
    module_is_whole = True

    def __init__(
        self, config: EngineConfig, model: MaskedLanguageModel, optimizer: OptimizerConfig, processes: Processes
    ) -> None:
        self.model = model
        self.precision = config.precision
        self.clip_norm = optimizer.clip_norm
        self.optimizer = build_optimizer(model, optimizer)
        self.reset_optimizer(0)
        self.module: nn.Module = model
        if processes.world_size > 1:
            ids = [processes.device.index] if processes.device.type == "cuda" else None
            self.module = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
            self._settle_bucket_order(processes.device)
        if config.compile:
            model.compile(backend=config.compile_backend)  # in place: adds no prefix to the names

    def _settle_bucket_order(self, device: torch.device) -> None:
        """Run one backward with zero gradients, since DDP arranges its buckets anew after the first backward.

        With three or more ranks the order in which an all-reduce adds depends on a value's place in its bucket.
        Without this, the first step after a resume would add in another order than in the uninterrupted run.
        """
        self.backward(self.forward(one_token_inputs(device), last=True).loss_sum)
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

    def reset_optimizer(self, update_count: int) -> None:
        for parameter in self.model.parameters():
            self.optimizer.state[parameter] = zero_moments(parameter, update_count)
