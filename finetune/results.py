"""What a run leaves in its folder beside the model: `results.json`, `history.json`, learning curves, `status.json`.

Each is written whole or not at all.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs import InputError
from configs.atomic import open_replacing, write_text
from configs.status import State, write_status
from finetune.accelerator import is_first_process
from finetune.training import History

COLLAPSED = 0.95  # mean cosine of random pairs from which all sentences look the same


def summarize(values: list[float]) -> dict[str, float]:
    """mean and (sample) standard_deviation; 0 for one value."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "standard_deviation": spread}


def mean_scores(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each number over several maps of scores of the same keys (maps inside maps too)."""
    first = scores[0]
    return {
        key: mean_scores([each[key] for each in scores])
        if isinstance(first[key], dict)
        else statistics.fmean(each[key] for each in scores)
        for key in first
    }


def failed_training(seed_results: dict[str, Any]) -> dict[str, str]:
    """What is wrong with a trained model, by the key that marks it in `results.json`: {} for a sound one."""
    failures = {}
    if seed_results.get("scores", {}).get("most_frequent_guess") == 1.0:
        failures["stuck_on_one_class"] = "stuck, it gives every row the same class"
    if "space" in seed_results and seed_results["space"]["after"]["cosine_of_random_pairs"] > COLLAPSED:
        failures["collapsed"] = f"collapsed, random pairs have a cosine above {COLLAPSED}"
    return failures


def write_json(path: Path, value: Any) -> None:
    """Replace the file `path` by `value`."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def draw_learning_curves(histories: dict[int, History], metric: str, path: Path) -> None:
    """A PNG with one line per seed: left the smoothed loss of each step, right the dev score of each evaluation."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for seed, history in histories.items():
        losses = _running_mean([step["loss"] for step in history.steps])
        left.plot([step["step"] for step in history.steps], losses, label=f"seed {seed}")
        right.plot([e["step"] for e in history.evaluations], [e[metric] for e in history.evaluations], marker="o")
    left.set(title="training loss (running mean)", xlabel="step", ylabel="nat")
    right.set(title=f"dev {metric}", xlabel="step")
    left.legend()
    with open_replacing(path) as file:
        figure.savefig(file, dpi=100, format="png")


def _running_mean(values: Sequence[float], window: int = 10) -> list[float]:
    """Mean of each value and the up to `window` - 1 before it."""
    return [statistics.fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


@contextmanager
def reported_status(run_dir: Path) -> Iterator[None]:
    """Keep `status.json` true while the body runs: state running, then done, bad_input (InputError) or failed."""
    try:
        _report(run_dir, "running")
    except OSError as error:
        raise InputError(f"run_dir {run_dir} cannot be written: {error.strerror}") from None
    try:
        yield
    except InputError as error:
        _report(run_dir, "bad_input", str(error))
        raise
    except BaseException as error:
        _report(run_dir, "failed", f"{type(error).__name__}: {error}")
        raise
    _report(run_dir, "done")


def _report(run_dir: Path, state: State, reason: str = "") -> None:
    if is_first_process():
        run_dir.mkdir(parents=True, exist_ok=True)
        write_status(run_dir, state, reason=reason)
