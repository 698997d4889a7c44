"""metrics.jsonl, the history of a run: one JSON object a line, `kind` and `step` in each."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """The lines, in order; one that a kill tore is passed over. Nothing where there is no file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and "kind" in entry:
                yield entry


def close_torn_line(path: Path) -> None:
    """End a last line that a kill left without its end, so that what is appended begins a new one."""
    if path.exists() and path.stat().st_size:
        with path.open("r+b") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
