"""Learning curves of all seeds as one picture: training loss and, where there is a dev set, its score."""

from collections.abc import Sequence
from pathlib import Path

from finetune.training import History


def draw_curves(histories: dict[int, History], metric: str, path: Path) -> None:
    """Write a PNG with a line a seed; left the smoothed loss of each step, right the dev score of each evaluation."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for seed, history in histories.items():
        left.plot(
            [step["step"] for step in history.steps],
            _smoothed([s["loss"] for s in history.steps]),
            label=f"seed {seed}",
        )
        right.plot([e["step"] for e in history.evaluations], [e[metric] for e in history.evaluations], marker="o")
    left.set(title="training loss (running mean)", xlabel="step", ylabel="nat")
    right.set(title=f"dev {metric}", xlabel="step")
    left.legend()
    figure.savefig(path, dpi=100)


def _smoothed(values: Sequence[float], window: int = 10) -> list[float]:
    """Mean of each value and the up to `window` - 1 before it."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i + 1 - window) : i + 1])]
