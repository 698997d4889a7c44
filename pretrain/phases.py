"""One plan, many phases: what changes during a run, by step, in one file.

A phase is the run's configuration with a few keys overridden. Only what the exact resume can follow may change: the
mask, the rows of a step (batch-size warm-up), the row's length, the sources' weights, the peak rate, the RoPE base.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import Field

from configs import Config, InputError
from configs.loader import set_key, validate

CHANGEABLE = (
    "data.mask.rate", "data.mask.replace", "data.rows_per_step", "data.sequence_length", "data.sources.N.weight",
    "optimizer.learning_rate", "training.rows_per_device", "training.label_smoothing", "encoder.rope_base",
    "encoder.local_rope_base",
)  # fmt: skip

RunConfig = TypeVar("RunConfig", bound=Config)


class PhaseConfig(Config):
    """A part of the run with some keys of its own."""

    num_steps: int = Field(ge=1, description="optimizer steps of this phase")
    overrides: dict[str, Any] = Field({}, description=f"dotted key: value; of {', '.join(CHANGEABLE)}")


@dataclass(frozen=True)
class Phase(Generic[RunConfig]):
    """Steps start + 1 … end of the run, and the configuration they run with."""

    start: int
    end: int
    config: RunConfig


def cut_into_phases(config: RunConfig, phases: Sequence[PhaseConfig], num_steps: int) -> list[Phase[RunConfig]]:
    """The phases of a run of `num_steps` steps, in order; one where none are given.

    Raises InputError that names the phase and the key.
    """
    if not phases:
        return [Phase(0, num_steps, config)]
    total = sum(phase.num_steps for phase in phases)
    if total != num_steps:
        raise InputError(f"the phases have {total} steps in all, training.num_steps is {num_steps}")
    cut: list[Phase[RunConfig]] = []
    for number, phase in enumerate(phases):
        values = config.model_dump(mode="json", exclude={"phases"})
        for key, value in phase.overrides.items():
            if re.sub(r"\.\d+\.", ".N.", key) not in CHANGEABLE:
                raise InputError(f"phases.{number}.overrides: '{key}' cannot change; allowed: {', '.join(CHANGEABLE)}")
            set_key(values, key, value)
        start = cut[-1].end if cut else 0
        cut.append(Phase(start, start + phase.num_steps, validate(type(config), values, f"phases.{number}")))
    return cut


def phase_after(phases: Sequence[Phase[RunConfig]], step: int) -> Phase[RunConfig]:
    """The phase that step `step` + 1 belongs to; after the last step, the last."""
    return next((phase for phase in phases if step < phase.end), phases[-1])
