"""Learning-rate schedules as pure functions of the step: nothing to save, nothing that a resume can bend.

Step `s` counts optimizer steps from 1; the rate of step `s` is the same on any number of processes.
"""

import math
from typing import Literal

from pydantic import Field

from configs import Config


class ScheduleConfig(Config):
    """Learning-rate schedule over the optimizer steps of the run."""

    name: Literal["wsd", "linear", "cosine"] = Field(
        "wsd", description="shape after the warm-up: flat then 1-sqrt decay (wsd), linear or cosine, all down to 0"
    )
    warmup_fraction: float = Field(0.06, ge=0, le=1, description="linear warm-up, as a fraction of num_steps")
    warmup_steps: int | None = Field(
        None, ge=0, description="linear warm-up in steps, instead of warmup_fraction; the run's config.yaml holds it"
    )
    decay_fraction: float = Field(
        0.2, ge=0, le=1, description="wsd: the last part that decays, a fraction of num_steps"
    )

    def resolved(self, num_steps: int) -> "ScheduleConfig":
        """The same with the warm-up in steps, so that a run that grows does not warm up again."""
        steps = round(self.warmup_fraction * num_steps) if self.warmup_steps is None else self.warmup_steps
        return self.model_copy(update={"warmup_steps": steps})


def decay_start(config: ScheduleConfig, num_steps: int) -> int:
    """The last step with the peak rate of a wsd schedule; the rate of the steps behind it decays."""
    return num_steps - round(config.decay_fraction * num_steps)


def learning_rate(config: ScheduleConfig, peak: float, step: int, num_steps: int) -> float:
    """The rate of optimizer step `step` (1 … num_steps): linear up to `peak`, then the schedule's shape down to 0."""
    warmup_steps = config.resolved(num_steps).warmup_steps or 0
    if step < warmup_steps:
        return peak * step / warmup_steps
    if config.name == "wsd":
        decay_steps = num_steps - decay_start(config, num_steps)
        progress = 1 - (num_steps - step) / decay_steps if decay_steps else 0.0
        return peak * (1 - math.sqrt(min(1.0, max(0.0, progress))))
    progress = min(1.0, (step - warmup_steps) / max(1, num_steps - warmup_steps))
    return peak * (1 - progress if config.name == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))
