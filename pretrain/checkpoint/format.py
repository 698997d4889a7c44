"""Checkpoints that are whole or absent, in one format that any engine on any number of processes reads.

A folder `step_00000100` holds `encoder.json` and `model.safetensors` (fp32; all that export needs),
`optimizer.safetensors` (both moments by parameter name), `training.json`, `data.json`, `config.yaml` and, last, the
marker `COMPLETE` that lists every file's size. Cost: 12 bytes a parameter on disk.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from configs import Config

MARKER = "COMPLETE"
WEIGHTS_FILE, MOMENTS_FILE = "model.safetensors", "optimizer.safetensors"
TRAINING_FILE, DATA_FILE, CONFIG_FILE = "training.json", "data.json", "config.yaml"
BYTES_PER_PARAMETER = 12  # one fp32 weight and two fp32 moments
_NAME = re.compile(r"step_(\d{8,})")


class CheckpointConfig(Config):
    """When to save and what to keep; may change at every resume."""

    save_every: int = Field(1000, ge=1, description="steps between checkpoints; the last step is always saved")
    keep_last: int = Field(3, ge=1, description="number of newest checkpoints kept")
    keep_every: int | None = Field(None, ge=1, description="also keep every checkpoint at a multiple of so many steps")


@dataclass(frozen=True)
class FoundCheckpoints:
    """What lies in a run's `checkpoints` folder."""

    whole: list[Path]  # oldest first
    broken: list[str]  # 'name: why', newest first


def checkpoint_name(step: int) -> str:
    """The folder's name of a step."""
    return f"step_{step:08d}"


def checkpoint_step(folder: Path) -> int:
    """The step in a folder's name."""
    match = _NAME.fullmatch(folder.name)
    assert match, folder
    return int(match.group(1))


def find_checkpoints(folder: Path) -> FoundCheckpoints:
    """Whole checkpoints by number, and why each other `step_…` folder is not one; other names are not looked at."""
    entries = [p for p in folder.iterdir() if _NAME.fullmatch(p.name) and p.is_dir()] if folder.is_dir() else []
    entries.sort(key=checkpoint_step)
    reasons = {path: why_incomplete(path) for path in entries}
    broken = [f"{path.name}: {reason}" for path, reason in reversed(reasons.items()) if reason]
    return FoundCheckpoints([path for path, reason in reasons.items() if not reason], broken)


def why_incomplete(folder: Path) -> str | None:
    """Why `folder` is not a whole checkpoint; None when it is."""
    try:
        sizes = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return f"half-written, it has no valid {MARKER} marker"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return None
