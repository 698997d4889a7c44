"""How far a run is; lies in every checkpoint."""

from dataclasses import dataclass, field
from typing import Any

from pretrain.optim.spikes import LossTrend


@dataclass
class Progress:
    """Counters of a run, the same on every rank."""

    step: int = 0
    updates: int = 0  # steps whose update was applied
    tokens: int = 0  # real tokens seen, over all ranks
    skipped_in_a_row: int = 0
    best: dict[str, float] = field(default_factory=dict)  # {"step", "loss"} of the best evaluation
    saved_step: int = 0
    evaluated_step: int = 0
    trend: LossTrend = field(default_factory=LossTrend)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Progress":
        """The progress that a checkpoint's training state holds."""
        known = {key: value for key, value in state.items() if key not in ("run_id", "trend")}
        known.setdefault("evaluated_step", known["step"])  # of a checkpoint written before this was counted
        return cls(**known, trend=LossTrend(**state["trend"]))
