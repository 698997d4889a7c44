"""Looking inside an encoder: attention and activations of one document, layer by layer.

Forward hooks read what passes through the modules; the attention weights, which the kernels never form, are computed
again. Cost: one forward pass, and an (A, T, T) matrix of weights a layer.

Shapes: T tokens, H hidden width, A heads.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from encoder.layers import Layer
from encoder.model import MaskedLanguageModel


class LayerView(NamedTuple):
    """What one layer does with a document."""

    attention: Tensor  # (A, T, T): weights, the rows sum to 1
    entropy: Tensor  # (A,): mean entropy of the rows in nat; ln T when attention is uniform
    hidden_norm: float  # mean norm of the layer's output vectors
    hidden_max: float  # largest magnitude in them
    attention_share: float  # mean norm of what attention adds, over that of the vectors that it is added to
    feed_forward_share: float  # the same of the feed-forward layer
    active: float  # share of the inner feed-forward units that are above zero before the activation


@torch.no_grad()
def look_inside(model: MaskedLanguageModel, input_ids: Tensor) -> tuple[Tensor, list[LayerView]]:
    """Logits (T, V) of one document, input_ids (T,), and a view of each layer; computed in evaluation mode."""
    was_training = model.training
    model.eval()
    layers = [layer for layer in model.encoder.layers if isinstance(layer, Layer)]
    tensors: list[dict[str, Tensor]] = [{} for _ in layers]
    hooks = [hook for layer, seen in zip(layers, tensors, strict=True) for hook in _add_hooks(layer, seen)]
    try:
        logits = model.logits(input_ids[None])[0]
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return logits, [_view(seen) for seen in tensors]


def _add_hooks(layer: Layer, seen: dict[str, Tensor]) -> list[Any]:
    """Hooks that store in `seen` what passes through `layer`, each (T, …); returns their handles."""

    def read_layer(module: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        seen["input"], seen["output"] = inputs[0][0], output[0]

    def read_attention(module: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, rotation, _ = inputs
        seen["weights"], seen["attention"] = module.weights(x[0], rotation), output[0]

    def read_feed_forward(module: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        seen["feed_forward"] = output[0]

    def read_inner(module: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        seen["inner"] = output[0].chunk(2, dim=-1)[0] if layer.feed_forward.gated else output[0]

    return [
        layer.register_forward_hook(read_layer),
        layer.attention.register_forward_hook(read_attention),
        layer.feed_forward.register_forward_hook(read_feed_forward),
        layer.feed_forward.up.register_forward_hook(read_inner),
    ]


def _view(seen: dict[str, Tensor]) -> LayerView:
    after_attention = seen["input"] + seen["attention"]
    return LayerView(
        attention=seen["weights"],
        entropy=torch.special.entr(seen["weights"]).sum(-1).mean(-1),
        hidden_norm=_mean_norm(seen["output"]),
        hidden_max=float(seen["output"].abs().max()),
        attention_share=_mean_norm(seen["attention"]) / _mean_norm(seen["input"]),
        feed_forward_share=_mean_norm(seen["feed_forward"]) / _mean_norm(after_attention),
        active=float((seen["inner"] > 0).float().mean()),
    )


def _mean_norm(vectors: Tensor) -> float:
    return float(vectors.norm(dim=-1).mean())
