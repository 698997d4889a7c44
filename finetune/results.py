"""`results.json` and `status.json`: every seed's score, their mean and spread, the baselines; written whole or not at
all.
"""

import json
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs import InputError


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


def is_first_process() -> bool:
    """Whether this process of the launch is the one that writes; known before there is a process group."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def reported(run_dir: Path) -> Iterator[None]:
    """Keep `status.json` true while the body runs: state running, then done, bad_input (InputError) or failed."""

    def write(state: str, reason: str = "") -> None:
        if is_first_process():
            run_dir.mkdir(parents=True, exist_ok=True)
            write_json(run_dir / "status.json", {"state": state, "step": 0, "reason": reason})

    try:
        write("running")
    except OSError as error:
        raise InputError(f"{run_dir}: cannot write there: {error.strerror}") from None
    try:
        yield
    except InputError as error:
        write("bad_input", str(error))
        raise
    except BaseException as error:
        write("failed", f"{type(error).__name__}: {error}")
        raise
    write("done")
