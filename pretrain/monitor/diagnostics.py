"""Every n steps, a closer look: gradient norm and size of the update by group of parameters, attention by layer.

Works on any engine, as it reads only the checkpoint's shards: the gradient of a step follows from the first moment
before and after it, m' = b m + (1 - b) g. Cost: a copy of this rank's weights and first moments during such a step, and
with ZeRO-3 the whole model in fp32 on rank 0, put together tensor by tensor.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from data import Batch
from encoder import MaskedLanguageModel
from encoder.inspection import look_inside
from encoder.layers import Layer
from pretrain.checkpoint.format import gather
from pretrain.engines.base import Engine
from pretrain.processes import Processes

GROUPS = ("embeddings", "attention", "feed_forward", "head")


def group_of(name: str) -> str:
    """The group of a parameter by its name; what is in none of them is a norm."""
    return next((group for group in GROUPS if group in name.split(".")), "norms")


class Before:
    """This rank's weights and first moments before a step."""

    def __init__(self, engine: Engine) -> None:
        self._parts = {s.name: (s.weight.clone(), s.moments["exp_avg"].clone()) for s in engine.shards()}

    def compare(self, engine: Engine, beta1: float, processes: Processes) -> dict[str, float]:
        """`gradient_norm/<group>` (after clipping) and `update_to_weight/<group>`: norm of the change over the norm."""
        sums: dict[str, list[Tensor]] = defaultdict(list)
        for shard in engine.shards():
            weight, moment = self._parts[shard.name]
            gradient = (shard.moments["exp_avg"] - beta1 * moment) / (1 - beta1)
            squares = [t.double().square().sum() for t in (gradient, shard.weight - weight, weight)]
            sums[group_of(shard.name)].append(torch.stack(squares))
        names = sorted({*GROUPS, "norms"})
        empty = torch.zeros(3, dtype=torch.float64, device=processes.device)
        total = torch.cat([torch.stack(sums[name]).sum(0) if sums[name] else empty for name in names])
        # replicated weights are on every rank whole, sharded ones are there once
        values = total.tolist() if engine.replicated else processes.sum_tensor(total)
        line = {}
        for place, name in enumerate(names):
            gradient_norm, change, size = (math.sqrt(value) for value in values[3 * place : 3 * place + 3])
            line[f"gradient_norm/{name}"] = gradient_norm
            line[f"update_to_weight/{name}"] = change / size if size else 0.0
        return line


def whole_model(engine: Engine, processes: Processes) -> MaskedLanguageModel | None:
    """The model with all its weights, on rank 0; None elsewhere. Every rank calls it."""
    if engine.whole_weights:
        return engine.model if processes.is_main else None
    model = MaskedLanguageModel(engine.model.encoder.config).to(processes.device) if processes.is_main else None
    parameters = dict(model.named_parameters()) if model else {}
    for shard in engine.shards():
        whole = gather(shard, shard.weight, processes)
        if model:
            parameters[shard.name].data = whole.view(shard.shape)
    return model


def layer_details(model: MaskedLanguageModel, batch: Batch) -> dict[str, float]:
    """`attention_entropy/<layer>` (nat) and `activation_rms/<layer>`, of the first document of this rank's rows."""
    lengths: Sequence[int] = next((row for row in batch.piece_lengths if row), ())
    if not lengths:
        return {}
    row = next(number for number, pieces in enumerate(batch.piece_lengths) if pieces)
    device = next(model.parameters()).device
    squares: list[Tensor] = []

    def read(module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        squares.append(output.float().square().mean())

    handles = [layer.register_forward_hook(read) for layer in model.modules() if isinstance(layer, Layer)]
    _, views = look_inside(model, batch.input_ids[row, : lengths[0]].to(device))
    for handle in handles:
        handle.remove()
    line = {f"attention_entropy/{number}": float(view.entropy.mean()) for number, view in enumerate(views)}
    return line | {f"activation_rms/{number}": math.sqrt(square) for number, square in enumerate(squares)}
