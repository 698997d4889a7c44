"""Looking inside an encoder: attention and activations of one document, layer by layer.

Forward hooks read what passes; the attention weights, which the kernels never form, are computed again from it. Cost:
one forward pass and a (heads, T, T) matrix a layer.

Shapes: T tokens, H hidden width, A heads.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from encoder.layers import Layer
from encoder.model import MaskedLanguageModel


class LayerView(NamedTuple):
    """What one layer does with a document."""

    attention: Tensor  # (A, T, T): weights, rows sum to 1
    entropy: Tensor  # (A,): mean entropy of the rows in nat; ln T when uniform
    hidden_norm: float  # mean length of the hidden states that leave the layer
    hidden_max: float  # largest magnitude in them
    attention_share: float  # mean length of what attention adds, over that of what it is added to
    feed_forward_share: float  # the same for the feed-forward layer
    active: float  # share of inner feed-forward units above zero before the activation


@dataclass
class _Seen:
    """What the hooks of one layer have read."""

    entered: Tensor = field(default_factory=lambda: torch.zeros(0))
    left: Tensor = field(default_factory=lambda: torch.zeros(0))
    weights: Tensor = field(default_factory=lambda: torch.zeros(0))
    attended: Tensor = field(default_factory=lambda: torch.zeros(0))
    fed: Tensor = field(default_factory=lambda: torch.zeros(0))
    inner: Tensor = field(default_factory=lambda: torch.zeros(0))


@torch.no_grad()
def look_inside(model: MaskedLanguageModel, input_ids: Tensor) -> tuple[Tensor, list[LayerView]]:
    """Logits (T, V) of one document, input_ids (T,), and a view of each layer. Dropout is off meanwhile."""
    was_training = model.training
    model.eval()
    layers = [layer for layer in model.encoder.layers if isinstance(layer, Layer)]
    seen = [_Seen() for _ in layers]
    handles = [handle for layer, place in zip(layers, seen, strict=True) for handle in _watch(layer, place)]
    try:
        logits = model.logits(input_ids[None])[0]
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training)
    return logits, [_view(place) for place in seen]


def _watch(layer: Layer, seen: _Seen) -> list[Any]:
    """Hooks that write what passes through `layer` into `seen`."""

    def read_layer(module: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        seen.entered, seen.left = inputs[0][0], output[0]

    def read_attention(module: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, rotation, _ = inputs
        seen.weights, seen.attended = module.weights(x[0], rotation), output[0]

    def read_feed_forward(module: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        seen.fed = output[0]

    def read_inner(module: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gated = layer.feed_forward.gated
        seen.inner = output[0].chunk(2, dim=-1)[0] if gated else output[0]

    return [
        layer.register_forward_hook(read_layer),
        layer.attention.register_forward_hook(read_attention),
        layer.feed_forward.register_forward_hook(read_feed_forward),
        layer.feed_forward.up.register_forward_hook(read_inner),
    ]


def _view(seen: _Seen) -> LayerView:
    between = seen.entered + seen.attended
    entropy = torch.special.entr(seen.weights).sum(-1).mean(-1)
    return LayerView(
        attention=seen.weights,
        entropy=entropy,
        hidden_norm=_length(seen.left),
        hidden_max=float(seen.left.abs().max()),
        attention_share=_length(seen.attended) / _length(seen.entered),
        feed_forward_share=_length(seen.fed) / _length(between),
        active=float((seen.inner > 0).float().mean()),
    )


def _length(hidden: Tensor) -> float:
    return float(hidden.norm(dim=-1).mean())
