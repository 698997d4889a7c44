"""Multi-head attention over packed documents or padded batches; the T×T matrix is formed only where it must be.

Three kernels compute the same thing:
- `varlen`: torch's variable-length flash kernel; CUDA in half precision, no dropout on the weights.
- `grouped`: scaled_dot_product_attention, one batched call for all documents of a length; everywhere else.
- `padded`: scaled_dot_product_attention with a boolean mask (True = keep), for padded batches.

Shapes: S packed tokens, B rows of T tokens, H hidden width, A heads of width D; `…` is S or B, T.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from encoder.config import EncoderConfig
from encoder.documents import Documents
from encoder.positions import rotate


class Rotation(NamedTuple):
    """Cosine and sine of the rotary angles, (S or T, D/2) float32 each."""

    cosine: Tensor
    sine: Tensor


@dataclass(frozen=True)
class Padding:
    """A padded batch: `keep` (B, T) bool, True at real tokens."""

    keep: Tensor


def attention_kernel(device: torch.device | str, dtype: torch.dtype, config: EncoderConfig) -> str:
    """Name of the kernel that attends over packed documents in training on `device` with activations of `dtype`."""
    half = dtype in (torch.bfloat16, torch.float16)
    fits = config.head_size % 8 == 0 and config.head_size <= 256 and not config.attention_dropout
    return "varlen" if torch.device(device).type == "cuda" and half and fits else "grouped"


class Attention(nn.Module):
    """Self-attention of one layer, global or inside a window, without any causal mask."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.window = config.local_window // 2 if config.local_window and config.is_local(layer) else None
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.bias)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(
        self, x: Tensor, layout: Documents | Padding, rotation: Rotation | None, places: Tensor | None = None
    ) -> Tensor:
        """x (…, H) to (…, H), or to (M, H) of the packed tokens at `places` (M,)."""
        query, key, value = self._heads(x, rotation)
        dropout = self.config.attention_dropout if self.training else 0.0
        if isinstance(layout, Padding):
            attended = padded_attention(query, key, value, layout.keep, self.window, dropout)
        elif attention_kernel(x.device, query.dtype, self.config) == "varlen":
            attended = varlen_attention(query, key, value, layout, self.window)
        else:
            attended = grouped_attention(query, key, value, layout, self.window, dropout)
        attended = attended.flatten(-2)
        return self.output(attended if places is None else attended.index_select(0, places))

    def weights(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The attention weights of one document, x (T, H) to (A, T, T); for looking inside, not for training."""
        query, key, _ = self._heads(x, rotation)
        scores = torch.einsum("qad,kad->aqk", query, key) * self.config.head_size**-0.5
        if self.window is not None:
            scores = scores.masked_fill(~band(len(x), self.window, x.device), -torch.inf)
        return scores.softmax(-1)

    def _heads(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (…, A, D) of x (…, H), the first two turned by their positions."""
        qkv = self.qkv(x).unflatten(-1, (3, self.config.num_heads, self.config.head_size))
        query, key, value = qkv.unbind(-3)
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        return query, key, value


def padded_attention(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, window: int | None, dropout: float
) -> Tensor:
    """(B, T, A, D) each and keep (B, T) to (B, T, A, D); a row without a real token attends to everything.

    Such a row would be 0/0 in some fused kernels; the encoder zeroes its outputs.
    """
    mask = (keep | ~keep.any(-1, keepdim=True))[:, None, None, :]
    if window is not None:
        mask = mask & band(keep.shape[1], window, keep.device)
        mask = mask | ~mask.any(-1, keepdim=True)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, mask, dropout).transpose(1, 2)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def grouped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents,
    window: int | None,
    dropout: float,
) -> Tensor:
    """(S, A, D) each to (S, A, D): documents of a length lie side by side, and are one batch.

    Out of reach of torch.compile, and the only reader of `documents.groups`: the lengths of every batch would be
    compiled anew.
    """
    groups = documents.groups
    sizes = [count * length for count, length in groups]
    attended = []
    for (count, length), *parts in zip(groups, query.split(sizes), key.split(sizes), value.split(sizes), strict=True):
        q, k, v = (part.unflatten(0, (count, length)).transpose(1, 2) for part in parts)
        mask = band(length, window, query.device) if window is not None and length > window + 1 else None
        group = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        attended.append(group.transpose(1, 2).flatten(0, 1))
    return attended[0] if len(attended) == 1 else torch.cat(attended)


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, documents: Documents, window: int | None) -> Tensor:
    """(S, A, D) each, half precision on CUDA, to (S, A, D)."""
    from torch.nn.attention.varlen import varlen_attn

    starts, longest = documents.cu_seqlens, documents.max_length
    if window is None:  # torch before 2.11 has no windows here
        attended = varlen_attn(query, key, value, starts, starts, longest, longest)
    else:
        sides = (window, window)
        attended = varlen_attn(query, key, value, starts, starts, longest, longest, window_size=sides)
    assert isinstance(attended, Tensor)  # a tuple only where auxiliary outputs are asked for
    return attended


def band(length: int, window: int, device: torch.device) -> Tensor:
    """(T, T) bool, True where two positions are at most `window` apart."""
    positions = torch.arange(length, device=device)
    return (positions[:, None] - positions[None, :]).abs() <= window
