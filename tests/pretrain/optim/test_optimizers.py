"""AdamW equals torch's, StableAdamW a float64 reference; groups; spikes."""

import math

import pytest
import torch
from torch import nn

from pretrain.optim.adamw import OptimizerConfig, build_optimizer
from pretrain.optim.spikes import LossTrend


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def gradients(step: int, module: nn.Module, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [scale * torch.randn(p.shape, generator=generator) for p in module.parameters()]


def test_matrices_decay_and_norms_and_biases_do_not() -> None:
    module = model()
    optimizer = build_optimizer(module, OptimizerConfig(weight_decay=0.1))
    for group in optimizer.param_groups:
        assert all((p.ndim >= 2) == (group["weight_decay"] == 0.1) for p in group["params"])
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(module.parameters()))


@pytest.mark.parametrize("name", ["adamw", "stable_adamw"])
def test_updates_equal_a_float64_reference(name: str) -> None:
    """Twenty steps, the eleventh with a gradient a hundred times larger."""
    config = OptimizerConfig(name=name, learning_rate=1e-2, weight_decay=0.1)
    module = model()
    optimizer = build_optimizer(module, config)
    weights = [p.detach().double() for p in module.parameters()]
    first = [torch.zeros_like(w) for w in weights]
    second = [torch.zeros_like(w) for w in weights]
    (beta1, beta2), eps = config.betas, config.eps
    for step in range(1, 21):
        for i, (p, g) in enumerate(
            zip(module.parameters(), gradients(step, module, 100.0 if step == 11 else 1.0), strict=True)
        ):
            p.grad = g
            g64 = g.double()
            first[i] = beta1 * first[i] + (1 - beta1) * g64
            second[i] = beta2 * second[i] + (1 - beta2) * g64**2
            m, v = first[i] / (1 - beta1**step), second[i] / (1 - beta2**step)
            rate = config.learning_rate
            if name == "stable_adamw":
                rms = float((g64**2 / v.clamp(min=eps**2)).mean().sqrt())
                assert step != 11 or rms > 1
                rate /= max(1.0, rms)
            decay = config.weight_decay if p.ndim >= 2 else 0.0
            weights[i] = weights[i] * (1 - rate * decay) - rate * m / (v.sqrt() + eps)
        optimizer.step()
    for p, w in zip(module.parameters(), weights, strict=True):
        assert torch.allclose(p.detach().double(), w, atol=1e-6)


def test_a_trend_knows_spikes_and_learns_a_new_level() -> None:
    trend = LossTrend()
    for step in range(200):
        assert not trend.is_spike(3.0 + 0.1 * math.sin(step), 5.0)
        trend.add(3.0 + 0.1 * math.sin(step), 5.0)
    assert trend.mean == pytest.approx(3.0, abs=0.05)
    assert trend.is_spike(4.0, 5.0)
    assert not trend.is_spike(4.0, 0.0)
    for _ in range(300):
        trend.add(4.0, 5.0)
    assert not trend.is_spike(4.0, 5.0)
