"""One layer of the encoder, attention and feed-forward with their norms and residuals, and the weights of a new model.

Shapes: `…` is S packed tokens or B rows of T, M tokens whose output is wanted, H hidden width.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from encoder.attention import Attention, Sequences
from encoder.config import EncoderConfig
from encoder.positions import Rotation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "geglu": F.gelu, "swiglu": F.silu}
SMALL_OUTPUT_SCALE = 0.1  # of small_output; our choice, the papers have 0
# The head's norm with `normal`. Its output is multiplied with the word embedding; at 1 the logits would have variance 1
# and the loss would start at ln V + 1/2, half the variance above ln V. At 0.5 it starts at ln V + 1/8.
HEAD_NORM_SCALE = 0.5


def layer_norm(config: EncoderConfig) -> nn.LayerNorm:
    """The LayerNorm of the configuration over the hidden width."""
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.bias)


class FeedForward(nn.Module):
    """Two linear layers with an activation; gated ones (Shazeer 2020) compute [activated, gate] in one product."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        inner = config.feed_forward_size
        self.gated = config.gated
        assert config.activation is not None, "the configuration's validation chooses one"
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
    """Pre-LN: x + attention(norm(x)), Post-LN: norm(x + attention(x)); the feed-forward likewise."""

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
        self, x: Tensor, sequences: Sequences, rotation: Rotation | None, output_index: Tensor | None = None
    ) -> Tensor:
        """x (…, H) to (…, H); for packed tokens with `output_index` (M,) to (M, H), the output of these tokens only.

        Attention still reads all tokens; what follows it is computed for those M.
        """
        attended = self.attention(self.attention_norm(x) if self.pre else x, sequences, rotation, output_index)
        x = (x if output_index is None else x.index_select(0, output_index)) + self.dropout(attended)
        if self.pre:
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x)
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


def initialise(model: nn.Module, config: EncoderConfig) -> None:
    """Fill every weight of `model` in place, from torch's default generator: biases 0, norms 1, and the others by

    - truncated_normal: BERT's normal distribution, cut at three standard deviations; output matrices of attention and
      feed-forward scaled by 1/sqrt(2 num_layers) as in GPT-2 (Radford et al. 2019, section 2.3);
    - xavier: uniform with variance 2 / (inputs + outputs) (Glorot and Bengio 2010);
    - normal: as truncated_normal, but embeddings of variance 1 / hidden_size, as in fairseq's Transformer;
    - small_output: as truncated_normal, but smaller output matrices of feed-forward: a new layer is close to the
      identity, a mild form of Fixup's zeros (Zhang et al. 2019).
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            _fill_matrix(module, name, config)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.LayerNorm) and name == "head.norm" and config.initialisation == "normal":
            nn.init.constant_(module.weight, HEAD_NORM_SCALE)


def _fill_matrix(module: nn.Linear | nn.Embedding, name: str, config: EncoderConfig) -> None:
    if config.initialisation == "xavier":
        nn.init.xavier_uniform_(module.weight)
    elif config.initialisation == "normal" and isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=config.hidden_size**-0.5)
    else:
        std = config.initializer_range
        if name.endswith((".attention.output", ".feed_forward.down")):
            std *= 1 / math.sqrt(2 * config.num_layers)
        if name.endswith(".feed_forward.down") and config.initialisation == "small_output":
            std *= SMALL_OUTPUT_SCALE
        nn.init.trunc_normal_(module.weight, std=std, a=-3 * std, b=3 * std)
