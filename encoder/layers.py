"""The layer: attention and feed-forward, each with its residual, its norm before or after.

Shapes: `…` is S packed tokens or B rows of T, M selected tokens, H hidden width.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from encoder.attention import Attention, Padding, Rotation
from encoder.config import EncoderConfig
from encoder.documents import Documents

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "geglu": F.gelu, "swiglu": F.silu}


def layer_norm(config: EncoderConfig) -> nn.LayerNorm:
    """The LayerNorm of the configuration over the hidden width."""
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.bias)


class FeedForward(nn.Module):
    """Two linear layers with an activation; gated ones compute [activated, gate] in one product."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        inner = config.feed_forward_size
        self.gated = config.gated
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.hidden_size, 2 * inner if self.gated else inner, bias=config.bias)
        self.down = nn.Linear(inner, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (…, H) to (…, H)."""
        inner = self.up(x)
        if self.gated:
            activated, gate = inner.chunk(2, dim=-1)
            return self.down(self.activation(activated) * gate)
        return self.down(self.activation(inner))


class Layer(nn.Module):
    """One layer: x + attention(norm(x)) when pre, norm(x + attention(x)) when post; likewise the feed-forward."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        has_norm = layer > 0 or config.first_attention_norm
        self.attention_norm = layer_norm(config) if has_norm else nn.Identity()
        self.attention = Attention(config, layer)
        self.feed_forward_norm = layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self, x: Tensor, layout: Documents | Padding, rotation: Rotation | None, places: Tensor | None = None
    ) -> Tensor:
        """x (…, H) to (…, H), or to (M, H) of the packed tokens at `places` (M,), computing no other past attention."""
        attended = self.dropout(self.attention(self.attention_norm(x) if self.pre else x, layout, rotation, places))
        x = (x if places is None else x.index_select(0, places)) + attended
        if self.pre:
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x)
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
