"""Positions that are computed and not learned: the sinusoidal table and the rotary angles.

Shapes: S or T tokens, H hidden width, D width of a head.
"""

import torch
from torch import Tensor


def sinusoidal_table(num_positions: int, hidden_size: int) -> Tensor:
    """(num_positions, H) float32: sines in the even columns, cosines in the odd ones (Vaswani et al. 2017)."""
    angles = _angles(torch.arange(num_positions), 10_000.0, hidden_size)
    table = torch.empty(num_positions, hidden_size)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles[:, : hidden_size // 2].cos()
    return table


def rotary_angles(positions: Tensor, base: float, head_size: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, (…, D/2) float32, from positions (…) int64."""
    angles = _angles(positions, base, head_size)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn x (…, T, heads, D) by angles (T, D/2): the halves of a head are the two coordinates (half-split RoPE).

    Computed in float32 and returned in x's type: bfloat16 angles would blur positions.
    """
    first, second = x.float().chunk(2, dim=-1)
    cosine, sine = cosine.unsqueeze(-2), sine.unsqueeze(-2)
    turned = torch.addcmul(first * cosine, second, sine, value=-1), torch.addcmul(second * cosine, first, sine)
    return torch.cat(turned, dim=-1).to(x.dtype)


def _angles(positions: Tensor, base: float, size: int) -> Tensor:
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
    return positions[..., None].float() * (1.0 / base**exponents)
