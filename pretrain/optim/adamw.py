"""AdamW and StableAdamW in two parameter groups: matrices decay, norms and biases do not.

Both keep the moments under torch's names (`exp_avg`, `exp_avg_sq`, `step`), so a checkpoint serves either.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from configs import Config
from pretrain.optim.stable_adamw import StableAdamW


class OptimizerConfig(Config):
    """The optimizer; its learning rate is the schedule's peak."""

    name: Literal["adamw", "stable_adamw"] = Field(
        "adamw", description="stable_adamw also bounds each tensor's step where its gradient outgrows its moment"
    )
    learning_rate: float = Field(1e-3, gt=0, description="peak rate, per optimizer step")
    weight_decay: float = Field(0.01, ge=0, description="decoupled decay of matrices; norms and biases have none")
    betas: tuple[float, float] = Field((0.9, 0.98), description="decay of the first and second moment")
    eps: float = Field(1e-6, gt=0, description="added to the root of the second moment")
    clip_norm: float = Field(1.0, gt=0, description="largest L2 norm of the whole gradient")


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The configured optimizer over `model`; the learning rate is set by every step."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if config.name == "stable_adamw":
        return StableAdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)
