"""Position encodings that are computed and not learned: the sinusoidal table and rotary embeddings (RoPE).

Shapes: S packed tokens, T tokens of a row, H hidden width, D width of an attention head.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """The rotary angles of each position: cosine and sine, (S or T, D/2) float32 each."""

    cosine: Tensor
    sine: Tensor


def sinusoidal_table(num_positions: int, hidden_size: int) -> Tensor:
    """(num_positions, H) float32: sines in the even columns, cosines in the odd ones (Vaswani et al. 2017)."""
    angles = _angles(torch.arange(num_positions), 10_000.0, hidden_size)
    table = torch.empty(num_positions, hidden_size)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles[:, : hidden_size // 2].cos()
    return table


def rotary_angles(positions: Tensor, base: float, head_size: int) -> Rotation:
    """The angles position · base^(-2i/D) of positions (S or T,) int64 (Su et al. 2021, RoFormer)."""
    angles = _angles(positions, base, head_size)
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries or keys x (…, T, heads, D); a pair of dimensions is one of each half of D, as in ModernBERT.

    Computed in float32 and returned in the type of x: angles in bfloat16 would make nearby positions equal.
    """
    first, second = x.float().chunk(2, dim=-1)
    cosine, sine = rotation.cosine.unsqueeze(-2), rotation.sine.unsqueeze(-2)
    rotated = torch.addcmul(first * cosine, second, sine, value=-1), torch.addcmul(second * cosine, first, sine)
    return torch.cat(rotated, dim=-1).to(x.dtype)


def _angles(positions: Tensor, base: float, size: int) -> Tensor:
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
    return positions[..., None].float() * (1.0 / base**exponents)
