"""The shape of an encoder: one frozen configuration. Variants of the architecture are values of it, not classes.

A shape that no architecture of transformers computes is refused here, before a run starts, and not when its trained
weights are exported, unless `exportable: false` says that the run is research. Cost: none at run time.
"""

import math
import warnings
from typing import Literal

from pydantic import Field, model_validator

from configs import Config, InputError

Norm = Literal["pre", "post"]
Position = Literal["learned", "sinusoidal", "rope", "none"]
Activation = Literal["gelu", "relu", "geglu", "swiglu"]
Initialisation = Literal["truncated_normal", "xavier", "normal", "small_output"]
Architecture = Literal["RobertaPreLayerNorm", "Bert", "ModernBert"]

NARROW_HEAD = 32  # width below which an attention head is warned of


class EncoderConfig(Config):
    """The encoder's shape; the defaults are a ModernBERT-style Pre-LN encoder with RoPE and GeGLU."""

    num_layers: int = Field(4, ge=1, description="number of layers")
    hidden_size: int = Field(256, ge=1, description="width of the hidden states")
    num_heads: int = Field(4, ge=1, description="attention heads a layer; must divide hidden_size")
    ffn_size: int | None = Field(
        None, ge=1, description="inner width of the feed-forward layer; none: 4 x hidden_size, or 8/3 of it when gated"
    )
    norm: Norm = Field("pre", description="LayerNorm before each sub-layer or after its residual: pre | post")
    position: Position | None = Field(
        None,
        description="learned | sinusoidal | rope | none; left out: rope, or learned with norm: post or gelu | relu",
    )
    activation: Activation | None = Field(
        None, description="gelu | relu | geglu | swiglu; left out: geglu with position: rope, else gelu"
    )
    bias: bool = Field(True, description="biases in linear layers and norms (the output over the vocabulary has one)")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of every LayerNorm")
    embedding_scale: bool = Field(False, description="multiply word embeddings by sqrt(hidden_size)")
    rope_base: float = Field(10_000.0, gt=1, description="base of the rotary angles of global layers")
    local_rope_base: float = Field(10_000.0, gt=1, description="base of the rotary angles of local layers")
    local_window: int | None = Field(
        None, ge=2, description="tokens that a local layer sees in all (half on each side); none: every layer is global"
    )
    global_every: int = Field(3, ge=1, description="with local_window, layers 0, k, 2k, … are global")
    embedding_dropout: float = Field(0.0, ge=0, lt=1, description="probability, after the embeddings")
    hidden_dropout: float = Field(0.0, ge=0, lt=1, description="probability, each sub-layer's output")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="probability, attention weights")
    initialisation: Initialisation = Field(
        "truncated_normal",
        description="truncated_normal (residual outputs scaled by 1/sqrt(2 num_layers)) | xavier | normal (embeddings "
        "N(0, 1/hidden_size)) | small_output (truncated_normal with 10 times smaller outputs of feed-forward layers)",
    )
    initializer_range: float = Field(0.02, gt=0, description="standard deviation of truncated normal weights")
    gradient_checkpointing: int = Field(0, ge=0, description="0: off; k: recompute every k-th layer in the backward")
    exportable: bool = Field(True, description="false: a research shape that no transformers architecture has")
    vocab_size: int | None = Field(
        None, ge=1, description="rows of the word embedding; none: the tokenizer's size rounded up to 64"
    )
    max_length: int | None = Field(None, ge=1, description="longest document in tokens; none: data.sequence_length")
    num_segments: int = Field(0, ge=0, description="rows of a segment embedding (imported models have 1 or 2)")
    pad_id: int = Field(0, ge=0, description="token id of PAD")
    cls_id: int | None = Field(None, ge=0, description="token id of CLS; none: the tokenizer's")
    sep_id: int | None = Field(None, ge=0, description="token id of SEP; none: the tokenizer's")
    mask_id: int | None = Field(None, ge=0, description="token id of MASK; none: the tokenizer's")
    unk_id: int | None = Field(None, ge=0, description="token id of UNK; none: the tokenizer's")

    @model_validator(mode="after")
    def _fill_in_position_and_activation(self) -> "EncoderConfig":
        """Replace None by what the fields' descriptions say; `model_fields_set` goes on naming what was given."""
        is_classic = self.norm == "post" or self.activation in ("gelu", "relu")
        position = self.position or ("learned" if is_classic else "rope")
        activation = self.activation or ("geglu" if position == "rope" else "gelu")
        object.__setattr__(self, "position", position)  # the configuration is frozen for everybody else
        object.__setattr__(self, "activation", activation)
        return self

    @model_validator(mode="after")
    def _check(self) -> "EncoderConfig":
        if self.hidden_size % self.num_heads:
            raise InputError(
                f"num_heads ({self.num_heads}) must divide hidden_size ({self.hidden_size}); "
                f"allowed here: {', '.join(str(n) for n in range(1, 65) if self.hidden_size % n == 0)}"
            )
        if self.position == "rope" and self.head_size % 2:
            raise InputError(f"position: rope rotates pairs: hidden_size / num_heads ({self.head_size}) must be even")
        if self.local_window and self.local_window % 2:
            raise InputError(f"local_window ({self.local_window}) must be even: half of it lies on each side")
        if self.exportable and self.huggingface_architecture is None:
            extras = [key for key in ("local_window", "embedding_scale", "num_segments") if getattr(self, key)]
            raise InputError(
                f"no architecture in transformers computes norm: {self.norm}, position: {self.position}, activation: "
                f"{self.activation}{''.join(', ' + key for key in extras)}. Allowed: learned | sinusoidal positions "
                "with gelu | relu, without local_window; or norm: pre, rope and geglu | swiglu, without num_segments; "
                "both without embedding_scale. exportable: false trains it all the same"
            )
        if self.head_size < NARROW_HEAD:
            warnings.warn(f"attention heads of width {self.head_size} (below {NARROW_HEAD}) learn little", stacklevel=2)
        return self

    @property
    def huggingface_architecture(self) -> Architecture | None:
        """The architecture of transformers that computes exactly this shape; None where there is none."""
        if self.embedding_scale:
            return None
        if self.position == "rope" and self.norm == "pre" and self.gated and not self.num_segments:
            return "ModernBert"
        if self.position not in ("learned", "sinusoidal") or self.gated or self.local_window:
            return None
        return "RobertaPreLayerNorm" if self.norm == "pre" else "Bert"

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def gated(self) -> bool:
        """True for GeGLU and SwiGLU."""
        return self.activation in ("geglu", "swiglu")

    @property
    def feed_forward_size(self) -> int:
        """Inner width of the feed-forward layer: ffn_size or its default (for gated ones rounded up to 64)."""
        default = math.ceil(self.hidden_size * 8 / 3 / 64) * 64 if self.gated else 4 * self.hidden_size
        return self.ffn_size or default

    @property
    def first_attention_norm(self) -> bool:
        """Whether the first layer has an attention norm; in ModernBert the embeddings' norm takes its place."""
        return self.norm == "post" or self.position != "rope"

    def is_local(self, layer: int) -> bool:
        """True when layer number `layer` attends inside the window only."""
        return self.local_window is not None and layer % self.global_every != 0

    def num_parameters(self) -> int:
        """Trainable weights, the tied word embedding once; needs vocab_size, and max_length for learned positions."""
        hidden, inner, bias = self.hidden_size, self.feed_forward_size, int(self.bias)
        norm = hidden * (1 + bias)
        attention = 4 * hidden * (hidden + bias)
        feed_forward = (2 if self.gated else 1) * inner * (hidden + bias) + hidden * (inner + bias)
        layer = attention + feed_forward + 2 * norm
        embeddings = (self.known_vocab_size + self.num_segments) * hidden + norm
        if self.position == "learned":
            embeddings += self.known_max_length * hidden
        final_norm = norm if self.norm == "pre" else 0
        missing = 0 if self.first_attention_norm else norm
        head = hidden * (hidden + bias) + norm + self.known_vocab_size
        return embeddings + self.num_layers * layer - missing + final_norm + head

    def flops_per_token(self, document_length: float, masked_fraction: float = 0.15) -> float:
        """Floating point operations of one forward pass per token; training takes three times as many.

        `document_length`: tokens that a token attends to, on average (sum of squared document lengths over their sum).
        `masked_fraction`: share of tokens on which the head, and the last layer after its attention, are computed.
        As for model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B), a multiply-add counts two, and
        embeddings, norms, softmax, dropout and the recomputation of gradient checkpointing are left out.
        """
        hidden, inner = self.hidden_size, self.feed_forward_size
        outputs = hidden * hidden + (3 if self.gated else 2) * hidden * inner
        linear = 2 * (3 * hidden * hidden * self.num_layers + outputs * (self.num_layers - 1 + masked_fraction))
        local = sum(self.is_local(layer) for layer in range(self.num_layers))
        window = min(document_length, (self.local_window or 0) + 1)
        attention = 4 * hidden * (document_length * (self.num_layers - local) + window * local)
        head = 2 * hidden * (hidden + self.known_vocab_size) * masked_fraction
        return linear + attention + head

    @property
    def known_vocab_size(self) -> int:
        """vocab_size; InputError while it is still to be filled in from the tokenizer."""
        if self.vocab_size is None:
            raise InputError("vocab_size is not known yet: give it, or let the tokenizer fill it in")
        return self.vocab_size

    @property
    def known_max_length(self) -> int:
        """max_length; InputError while it is still to be filled in from data.sequence_length."""
        if self.max_length is None:
            raise InputError("max_length is not known yet: give it, or let data.sequence_length fill it in")
        return self.max_length
