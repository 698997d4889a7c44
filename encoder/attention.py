"""Multi-head attention over packed documents or padded batches; a T×T matrix is formed only where it must be.

Three kernels compute the same:
- `varlen`: torch's variable-length FlashAttention; on CUDA from compute capability 8.0 (Ampere) on, in half precision,
  without dropout on the weights.
- `grouped`: one batched scaled_dot_product_attention for all documents of the same length; everywhere else.
- `padded`: scaled_dot_product_attention with a boolean mask (True = attend), for padded batches.

Shapes: S packed tokens, B rows of T tokens, M tokens whose output is wanted, H hidden width, A heads of width D; `…` is
S or B, T.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from encoder.config import EncoderConfig
from encoder.documents import Documents
from encoder.positions import Rotation, rotate

FLASH_CAPABILITY = (8, 0)  # older cards fail in the kernel
LARGEST_FLASH_HEAD = 256
Sequences = Documents | Tensor  # packed, or the attention mask of a padded batch: (B, T) bool, True at real tokens


def attention_kernel(device: torch.device | str, dtype: torch.dtype, config: EncoderConfig) -> str:
    """Name of the kernel that attends over packed documents in training on `device` with activations of `dtype`."""
    return "grouped" if why_not_flash(device, dtype, config) else "varlen"


def why_not_flash(device: torch.device | str, dtype: torch.dtype, config: EncoderConfig) -> str:
    """Why the flash kernel cannot attend on `device` with activations of `dtype`; empty where it can."""
    if torch.device(device).type != "cuda":
        return "the flash kernel needs CUDA"
    if dtype not in (torch.bfloat16, torch.float16):
        return "the flash kernel needs half precision"
    if config.attention_dropout:
        return "the flash kernel has no attention_dropout"
    if config.head_size % 8 or config.head_size > LARGEST_FLASH_HEAD:
        return "the flash kernel needs heads whose width is a multiple of 8, at most 256"
    if _compute_capability(device) < FLASH_CAPABILITY:
        return "the flash kernel needs compute capability 8.0"
    return ""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _compute_capability(device: torch.device | str) -> tuple[int, int]:
    """A constant for torch.compile, which would break its graph here."""
    return torch.cuda.get_device_capability(device)


class Attention(nn.Module):
    """Bidirectional self-attention of one layer: global, or local inside a window."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.window = config.local_window // 2 if config.local_window and config.is_local(layer) else None
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.bias)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(
        self, x: Tensor, sequences: Sequences, rotation: Rotation | None, output_index: Tensor | None = None
    ) -> Tensor:
        """x (…, H) to (…, H); for packed tokens with `output_index` (M,) to (M, H), the output of these tokens only."""
        query, key, value = self._heads(x, rotation)
        dropout = self.config.attention_dropout if self.training else 0.0
        if isinstance(sequences, Tensor):
            attended = padded_attention(query, key, value, sequences, self.window, dropout)
        elif attention_kernel(x.device, query.dtype, self.config) == "varlen":
            attended = varlen_attention(query, key, value, sequences, self.window)
        else:
            attended = grouped_attention(query, key, value, sequences, self.window, dropout)
        attended = attended.flatten(-2)
        return self.output(attended if output_index is None else attended.index_select(0, output_index))

    def weights(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The attention weights of one document, x (T, H) to (A, T, T): for inspection, the kernels never form them."""
        query, key, _ = self._heads(x, rotation)
        scores = torch.einsum("qad,kad->aqk", query, key) * self.config.head_size**-0.5
        if self.window is not None:
            scores = scores.masked_fill(~band(len(x), self.window, x.device), -torch.inf)
        return scores.softmax(-1)

    def _heads(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (…, A, D) of x (…, H), query and key rotated by their positions."""
        qkv = self.qkv(x).unflatten(-1, (3, self.config.num_heads, self.config.head_size))
        query, key, value = qkv.unbind(-3)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        return query, key, value


def padded_attention(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, window: int | None, dropout: float
) -> Tensor:
    """(B, T, A, D) each and keep (B, T) to (B, T, A, D).

    A token that may attend to nothing (a row of padding only) attends to everything: some fused kernels would compute
    0/0 there. The encoder sets the outputs of padding to 0.
    """
    mask = (keep | ~keep.any(-1, keepdim=True))[:, None, None, :]
    if window is not None:
        mask = mask & band(keep.shape[1], window, keep.device)
        mask = mask | ~mask.any(-1, keepdim=True)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, mask, dropout).transpose(1, 2)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, documents: Documents, window: int | None, dropout: float
) -> Tensor:
    """(S, A, D) each to (S, A, D): the documents of one length lie side by side and are one batch.

    Not compiled, and the only reader of `documents.groups`: torch.compile would take these numbers for constants and
    compile anew for every batch.
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
    starts, longest = documents.cu_seqlens, documents.max_length
    window_size = (-1, -1) if window is None else (window, window)
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(query, key, value, starts, starts, longest, longest, window_size=window_size)
    assert isinstance(attended, Tensor)  # a tuple only where auxiliary outputs are asked for
    return attended


def band(length: int, window: int, device: torch.device) -> Tensor:
    """(T, T) bool, True where two positions are at most `window` tokens apart."""
    positions = torch.arange(length, device=device)
    return (positions[:, None] - positions[None, :]).abs() <= window
