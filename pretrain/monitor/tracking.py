"""`log(kind, step, metrics)` fans out to metrics.jsonl, the console, TensorBoard and W&B; only rank 0 has a tracker.

metrics.jsonl is the run's history: a line a step, flushed. After a resume the steps that an earlier process had reached
are written again, marked `repeated`. A tracker that fails says so once and is dropped: training goes on.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from configs import Config
from pretrain.monitor.history import close_torn_line, read_history

Metrics = Mapping[str, Any]


class LoggingConfig(Config):
    """Where the numbers go besides metrics.jsonl and the console."""

    trackers: list[Literal["tensorboard", "wandb"]] = Field(
        [], description="tensorboard, wandb (offline without a key)"
    )
    print_every: int = Field(10, ge=1, description="steps between lines on the console")
    details_every: int = Field(0, ge=0, description="steps between diagnostics: gradients by group, attention by layer")
    project: str = Field("lacuna", description="W&B's project")


@dataclass(frozen=True)
class TrackedRun:
    """What the trackers need to know of a run."""

    folder: Path
    run_id: str  # the same after every resume
    num_steps: int
    step: int  # where this process begins


class Tracker:
    """Where rank 0 logs to. `log` never raises."""

    def __init__(self, config: LoggingConfig, run: TrackedRun) -> None:
        self._print_every = config.print_every
        self._num_steps, step = run.num_steps, run.step
        path = run.folder / "metrics.jsonl"
        self._reached = max((entry["step"] for entry in read_history(path) if entry["kind"] == "train"), default=0)
        close_torn_line(path)
        self._file = path.open("a", encoding="utf-8")
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=self._console, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("train", total=run.num_steps, completed=step, loss="")
        self._progress.start()
        self._started, self._first_step = time.monotonic(), step
        self._backends: dict[str, Backend] = {}
        for name in config.trackers:
            try:
                self._backends[name] = _OPEN[name](config, run, self.say)
            except Exception as error:
                self.say(f"{name} is off: {_one_line(error)}")

    def log(self, kind: str, step: int, metrics: Metrics) -> None:
        """Append one line to metrics.jsonl and hand the numbers of `train` and `eval` to every tracker."""
        repeated = {"repeated": True} if kind == "train" and step <= self._reached else {}
        line = {"kind": kind, "step": step, **metrics, **repeated}
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            self.say(f"metrics.jsonl cannot be written: {error.strerror}")
        if kind == "train":
            self._show(step, metrics)
        elif kind == "eval":
            self.say(f"step {step}: held-out loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.3f}")
        if kind in ("train", "eval"):
            numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
            for name in list(self._backends):
                try:
                    self._backends[name].log(kind, step, numbers)
                except Exception as error:
                    del self._backends[name]
                    self.say(f"{name} failed and is off from step {step} on: {_one_line(error)}")

    def say(self, message: str) -> None:
        """A line on the console."""
        self._console.print(message, markup=False)

    def _show(self, step: int, metrics: Metrics) -> None:
        self._progress.update(self._task, completed=step, loss=f"loss {metrics['loss']:.4f}")
        if step % self._print_every == 0 or step == self._num_steps:
            pace = (time.monotonic() - self._started) / max(1, step - self._first_step)
            left = time.strftime("%H:%M:%S", time.gmtime(pace * (self._num_steps - step)))
            self.say(
                f"step {step}/{self._num_steps}  loss {metrics['loss']:.4f}  lr {metrics['learning_rate']:.2e}  "
                f"grad {metrics['grad_norm']:.2f}  {metrics['tokens_per_second']:,.0f} tokens/s  left {left}"
            )

    def close(self) -> None:
        """Close the file and every tracker; a failing one is reported."""
        self._progress.stop()
        self._file.close()
        for name, backend in self._backends.items():
            try:
                backend.close()
            except Exception as error:
                self.say(f"{name} did not close: {_one_line(error)}")


class Backend:
    """One tracker: two functions."""

    def __init__(self, log: Callable[[str, int, Metrics], None], close: Callable[[], None]) -> None:
        self.log = log
        self.close = close


def _open_tensorboard(config: LoggingConfig, run: TrackedRun, say: Callable[[str], None]) -> Backend:
    from torch.utils.tensorboard import SummaryWriter

    # what an earlier process logged behind the step that this one goes on from is hidden: those steps come again
    writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.step + 1 if run.step else None)

    def log(kind: str, step: int, metrics: Metrics) -> None:
        for key, value in metrics.items():
            writer.add_scalar(f"{kind}/{key}", value, step)

    return Backend(log, writer.close)


def _open_wandb(config: LoggingConfig, tracked: TrackedRun, say: Callable[[str], None]) -> Backend:
    """Online with a key; offline without one, or when the server does not answer: every rank waits for this one."""
    import wandb

    def init(mode: Literal["online", "offline"]) -> "wandb.Run":
        patience = float(os.environ.get("WANDB_INIT_TIMEOUT", 30.0))
        settings = wandb.Settings(silent=True, console="off", init_timeout=patience)
        return wandb.init(
            project=config.project,
            dir=str(tracked.folder),
            id=tracked.run_id,
            name=tracked.folder.name,
            resume="allow",
            mode=mode,
            settings=settings,
        )

    if os.environ.get("WANDB_API_KEY") and os.environ.get("WANDB_MODE", "online") == "online":
        try:
            run = init("online")
        except wandb.Error as error:
            say(f"wandb is offline, `wandb sync` sends it later: {_one_line(error)}")
            wandb.teardown()  # its service would take the new run for the failed one and write nothing
            run = init("offline")
    else:
        run = init("offline")
    # our step is a field of its own: W&B's internal counter would drop what is repeated after a resume
    run.define_metric("step")
    run.define_metric("*", step_metric="step")

    def log(kind: str, step: int, metrics: Metrics) -> None:
        run.log({"step": step, **{f"{kind}/{key}": value for key, value in metrics.items()}})

    return Backend(log, run.finish)


_OPEN = {"tensorboard": _open_tensorboard, "wandb": _open_wandb}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
