"""StableAdamW: AdamW with AdaFactor's update clipping."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class StableAdamW(torch.optim.Optimizer):
    """AdamW whose rate, tensor by tensor, is divided by max(1, RMS(g / sqrt(v))): AdaFactor's update clipping.

    Algorithm 2 of Wortsman et al. 2023, "Stable and low-precision training for large-scale vision-language models".
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2), eps = self.state[parameter], group["betas"], group["eps"]
        if not state:
            state["step"] = torch.tensor(0.0, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        first_hat = first / (1 - beta1 ** state["step"])
        second_hat = second / (1 - beta2 ** state["step"])
        rms = (gradient.square() / second_hat.clamp(min=eps * eps)).mean().sqrt()
        rate = group["lr"] / rms.clamp(min=1.0)
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.sub_(rate * first_hat / (second_hat.sqrt() + eps))
