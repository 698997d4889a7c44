"""`python -m pretrain.runs RUN [--json]`: what a run's folder holds: status, checkpoints, evaluations, starts, phases."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from configs import InputError, run_command
from configs.status import read_status
from pretrain.checkpoint.format import TRAINING_FILE, checkpoint_step
from pretrain.monitor.history import read_history
from pretrain.runs.folder import RunFolder

USAGE = "usage: python -m pretrain.runs RUN [--json]"


def describe_run(path: Path) -> dict[str, Any]:
    """What the folder of a run says of it. InputError when it is none."""
    folder = RunFolder(path)
    config = folder.started_config()
    if config is None:
        raise InputError(f"{path} is not the folder of a run: it has no config.yaml")
    found = folder.find_checkpoints()
    history = list(read_history(folder.metrics))
    evaluations = [{"step": e["step"], "loss": e["loss"]} for e in history if e["kind"] == "eval"]
    best = min(evaluations, key=lambda entry: entry["loss"], default=None)
    branch_step = config.last_step_before_decay()
    return {
        "run": str(path),
        "status": read_status(path),
        "num_steps": config.training.num_steps,
        "checkpoints": [
            {
                "step": (step := checkpoint_step(checkpoint)),
                "path": str(checkpoint),
                "bytes": sum(file.stat().st_size for file in checkpoint.iterdir()),
                "tokens": json.loads((checkpoint / TRAINING_FILE).read_text(encoding="utf-8"))["tokens"],
                "is_best": best is not None and step == best["step"],
                "is_before_decay": branch_step is not None and step <= branch_step,
            }
            for checkpoint in found.whole
        ],
        "broken_checkpoints": found.broken,
        "best_evaluation": best,
        "evaluations": len(evaluations),
        "starts": [
            {key: entry.get(key) for key in ("step", "processes", "resumed_from", "kernel")}
            for entry in history
            if entry["kind"] == "start"
        ],
        "skipped_steps": [entry["step"] for entry in history if entry["kind"] == "skip"],
        "phases": [
            {"first_step": cut.start + 1, "last_step": cut.end, "overrides": phase.overrides}
            for cut, phase in zip(config.cut_into_phases(), config.phases, strict=False)
        ],
    }


def _print(run: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    status = run["status"]
    reason = f": {status['reason']}" if status.get("reason") else ""
    console.print(f"{run['run']}: {status.get('state', 'no status')} at step {status.get('step', 0)}{reason}", markup=False)
    table = Table("checkpoint", "tokens", "MB", "", box=None)
    for row in run["checkpoints"]:
        notes = ["best evaluation"] * row["is_best"] + ["before the decay"] * row["is_before_decay"]
        table.add_row(row["path"], f"{row['tokens']:,}", f"{row['bytes'] / 1e6:,.1f}", ", ".join(notes))
    console.print(table)
    for reason in run["broken_checkpoints"]:
        console.print(f"not whole: {reason}", markup=False)
    if run["best_evaluation"]:
        best = run["best_evaluation"]
        console.print(f"best of {run['evaluations']} evaluations: loss {best['loss']:.4f} at step {best['step']}")
    for start in run["starts"]:
        origin = f"from {start['resumed_from']}" if start["resumed_from"] else "from the beginning"
        console.print(f"start on {start['processes']} process(es), {origin}", markup=False)
    for phase in run["phases"]:
        console.print(f"steps {phase['first_step']} to {phase['last_step']}: {phase['overrides'] or 'as configured'}")
    if run["skipped_steps"]:
        console.print(f"skipped steps: {', '.join(map(str, run['skipped_steps']))}")


def main(arguments: list[str]) -> None:
    """List the checkpoints, evaluations, starts and phases of a run.

    usage: python -m pretrain.runs RUN [--json]
    """
    paths = [argument for argument in arguments if argument != "--json"]
    if len(paths) != 1:
        raise InputError(USAGE)
    run = describe_run(Path(paths[0]))
    if "--json" in arguments:
        print(json.dumps(run))
    else:
        _print(run)


if __name__ == "__main__":
    run_command(main)
