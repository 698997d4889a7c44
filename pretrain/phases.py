"""One plan, many phases: what changes during a run, by step, in one file.

A phase is the run's configuration with a few keys overridden. Only what the exact resume can follow may change: the
mask, the rows of a step (batch-size warm-up), the row's length, the sources' weights, the peak rate, the RoPE base.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from configs import Config, InputError
from configs.loader import set_key, validate

if TYPE_CHECKING:
    from pretrain.config import PretrainConfig

CHANGEABLE = (
    "data.mask.rate", "data.mask.replace", "data.rows_per_step", "data.sequence_length", "data.sources.N.weight",
    "optimizer.learning_rate", "training.rows_per_device", "training.label_smoothing", "encoder.rope_base",
    "encoder.local_rope_base",
)  # fmt: skip


class PhaseConfig(Config):
    """A part of the run with some keys of its own."""

    num_steps: int = Field(ge=1, description="optimizer steps of this phase")
    overrides: dict[str, Any] = Field({}, description=f"dotted key: value; of {', '.join(CHANGEABLE)}")


@dataclass(frozen=True)
class Phase:
    """Steps start + 1 … end of the run, and the configuration they run with."""

    start: int
    end: int
    config: "PretrainConfig"


def phases_of(config: "PretrainConfig") -> list[Phase]:
    """The run's phases in order; one where none are given. InputError naming the phase and the key."""
    if not config.phases:
        return [Phase(0, config.training.num_steps, config)]
    total = sum(phase.num_steps for phase in config.phases)
    if total != config.training.num_steps:
        raise InputError(f"the phases have {total} steps in all, training.num_steps is {config.training.num_steps}")
    phases, start = [], 0
    for number, phase in enumerate(config.phases):
        values = config.model_dump(mode="json", exclude={"phases"})
        for key, value in phase.overrides.items():
            if re.sub(r"\.\d+\.", ".N.", key) not in CHANGEABLE:
                raise InputError(f"phases.{number}.overrides: '{key}' cannot change; allowed: {', '.join(CHANGEABLE)}")
            set_key(values, key, value)
        end = start + phase.num_steps
        phases.append(Phase(start, end, validate(type(config), values, f"phases.{number}")))
        start = end
    return phases


def phase_after(phases: list[Phase], step: int) -> Phase:
    """The phase that step `step` + 1 belongs to; after the last step, the last."""
    return next((phase for phase in phases if step < phase.end), phases[-1])
