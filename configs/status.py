"""`status.json` in the folder of a run: the outcome, which launchers replace by an exit code of their own."""

import json
from pathlib import Path
from typing import Any, Literal

from configs.atomic import write_text

State = Literal["starting", "running", "done", "preempted", "bad_input", "failed"]


def write_status(folder: Path, state: State, step: int = 0, reason: str = "") -> None:
    """Replace the status of `folder`, whole or not at all. Raises OSError when it cannot be written."""
    write_text(folder / "status.json", json.dumps({"state": state, "step": step, "reason": reason}) + "\n")


def read_status(folder: Path) -> dict[str, Any]:
    """The status last written; empty when there is none."""
    path = folder / "status.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
