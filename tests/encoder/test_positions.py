"""Sinusoids are those of the paper; rotated products depend on distances only."""

import math

import torch

from encoder.positions import rotary_angles, rotate, sinusoidal_table


def test_sinusoidal_table_is_the_papers():
    for width in (8, 7):
        table = sinusoidal_table(5, width)
        for position in range(5):
            for column in range(width):
                angle = position / 10_000 ** ((column - column % 2) / width)
                expected = math.cos(angle) if column % 2 else math.sin(angle)
                assert abs(table[position, column].item() - expected) < 1e-5


def test_rotated_products_depend_on_the_distance_only():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 16)
    angles = rotary_angles(torch.arange(20), 100.0, 16)
    queries, keys = (rotate(x.expand(20, 1, 16), angles)[:, 0] for x in (query, key))
    products = queries @ keys.T
    for distance in range(-19, 20):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4)
    assert torch.allclose(queries.norm(dim=-1), query.norm().expand(20), atol=1e-5)
    assert torch.equal(queries[0], query[0, 0])


def test_half_precision_is_rotated_in_float32():
    x = torch.randn(500, 2, 16)
    angles = rotary_angles(torch.arange(500), 10_000.0, 16)
    half = rotate(x.bfloat16(), angles)
    assert half.dtype == torch.bfloat16
    assert (half.float() - rotate(x.bfloat16().float(), angles)).abs().max() <= 0.02
