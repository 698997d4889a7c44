"""`results.json` and `status.json`: every seed's score, their mean and spread, the baselines; written whole or not at
all.
"""

import json
import statistics
from pathlib import Path
from typing import Any


def summarize(values: list[float]) -> dict[str, float]:
    """mean and (sample) standard_deviation; 0 for one value."""
    return {
        "mean": statistics.fmean(values),
        "standard_deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
    }


def mean_scores(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each number over several maps of scores of the same keys (maps inside maps too)."""
    first = scores[0]
    return {
        key: mean_scores([s[key] for s in scores])
        if isinstance(first[key], dict)
        else statistics.fmean(s[key] for s in scores)
        for key in first
    }


def write_json(path: Path, value: Any) -> None:
    """Write `value` under a temporary name, then rename."""
    building = path.with_name(path.name + ".building")
    building.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    building.replace(path)


def write_status(run_dir: Path, state: str, step: int = 0, reason: str = "") -> None:
    """`status.json`: state running, done, preempted, bad_input or failed."""
    write_json(run_dir / "status.json", {"state": state, "step": step, "reason": reason})
