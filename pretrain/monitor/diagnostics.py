"""Every n steps, a closer look: gradient norm and size of the update by group of parameters, attention by layer.

Works on any engine, as it reads only the shards: the gradient of a step follows from the first moment before and after
it, m' = b m + (1 - b) g. Cost: a copy of this rank's weights and first moments during such a step, and with ZeRO-3 the
whole model in fp32 on rank 0, put together tensor by tensor.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor, nn

from data import Batch
from encoder import MaskedLanguageModel
from encoder.inspection import look_inside
from encoder.layers import Layer
from pretrain.checkpoint.save import gather
from pretrain.engines.base import Engine
from pretrain.processes import Processes

GROUPS = ("embeddings", "attention", "feed_forward", "head", "norms")


def group_of(name: str) -> str:
    """The group of a parameter by its name; what is in none of the others is a norm."""
    return next((group for group in GROUPS if group in name.split(".")), "norms")


class UpdateMeter:
    """Measures one update: made before a step, from this rank's weights and first moments, and read after it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = {s.name: (s.weight.clone(), s.moments["exp_avg"].clone()) for s in engine.shards()}

    def read(self, beta1: float, processes: Processes) -> dict[str, float]:
        """`gradient_norm/<group>` (after clipping) and `update_to_weight/<group>`: norm of the change over the norm."""
        squares: dict[str, Tensor] = defaultdict(lambda: torch.zeros(3, dtype=torch.float64, device=processes.device))
        for shard in self._engine.shards():
            weight, moment = self._before[shard.name]
            gradient = (shard.moments["exp_avg"] - beta1 * moment) / (1 - beta1)
            of_shard = [t.double().square().sum() for t in (gradient, shard.weight - weight, weight)]
            squares[group_of(shard.name)] += torch.stack(of_shard).to(
                processes.device
            )  # an offloaded one is on the CPU
        table = torch.stack([squares[group] for group in GROUPS])
        if not self._engine.shards_are_whole and processes.world_size > 1:
            torch.distributed.all_reduce(table)
        line = {}
        for group, (gradient_norm, change, size) in zip(GROUPS, table.sqrt().tolist(), strict=True):
            line[f"gradient_norm/{group}"] = gradient_norm
            line[f"update_to_weight/{group}"] = change / size if size else 0.0
        return line


def whole_model(engine: Engine, processes: Processes) -> MaskedLanguageModel | None:
    """The model with all its weights, on rank 0; None elsewhere. Every rank calls it."""
    if engine.module_is_whole:
        return engine.model if processes.is_main else None
    model = MaskedLanguageModel(engine.model.encoder.config).to(processes.device) if processes.is_main else None
    parameters = dict(model.named_parameters()) if model else {}
    for shard in engine.shards():
        whole = gather(shard, shard.weight, processes)
        if model:
            parameters[shard.name].data = whole.view(shard.shape)
    return model


def layer_diagnostics(model: MaskedLanguageModel, batch: Batch) -> dict[str, float]:
    """`attention_entropy/<layer>` (nat) and `activation_rms/<layer>`, of the first document of this rank's rows."""
    row = next((number for number, pieces in enumerate(batch.piece_lengths) if pieces), None)
    if row is None:
        return {}
    document = batch.input_ids[row, : batch.piece_lengths[row][0]]
    squares: list[Tensor] = []

    def read(module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        squares.append(output.float().square().mean())

    handles = [layer.register_forward_hook(read) for layer in model.modules() if isinstance(layer, Layer)]
    _, views = look_inside(model, document.to(next(model.parameters()).device))
    for handle in handles:
        handle.remove()
    line = {f"attention_entropy/{number}": float(view.entropy.mean()) for number, view in enumerate(views)}
    return line | {f"activation_rms/{number}": math.sqrt(square) for number, square in enumerate(squares)}
