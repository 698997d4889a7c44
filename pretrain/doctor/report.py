"""The lines that the doctor prints as checks end, or the one JSON object that it prints at the end."""

import json
import sys
import threading
import time
from typing import Any

from pretrain.doctor.verdict import Verdict


class Report:
    """Rank 0's record of the verdicts. Ends once: when the checks are over, or when the time is."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()
        self._verdicts: list[tuple[str, Verdict]] = []
        self._ended = False
        self._lock = threading.Lock()

    def add(self, name: str, verdict: Verdict) -> None:
        """Take in a verdict, and print it."""
        one_line = Verdict(verdict.level, *(" ".join(text.split()) for text in verdict[1:]))
        with self._lock:
            if self._ended:
                return
            self._verdicts.append((name, one_line))
            if not self._as_json:
                print(one_line.line(name), flush=True)

    def end(self, world_size: int) -> bool:
        """Print the end of the report, once: on stderr when a check has failed. Returns whether one has."""
        with self._lock:
            failures = self._names("FAIL")
            if self._ended:
                return bool(failures)
            self._ended = True
            if self._as_json:
                print(json.dumps(self._as_object(world_size), ensure_ascii=False), flush=True)
            elif not failures:
                warnings = self._names("warn")
                print("no check failed" + (f", {len(warnings)} warned" if warnings else ""), flush=True)
            if failures:
                summary = f"error: {len(failures)} of {len(self._verdicts)} checks failed: {', '.join(failures)}"
                print(summary, file=sys.stderr, flush=True)
            return bool(failures)

    def _names(self, level: str) -> list[str]:
        return [name for name, verdict in self._verdicts if verdict.level == level]

    def _as_object(self, world_size: int) -> dict[str, Any]:
        return {
            "passed": not self._names("FAIL"),
            "failed": self._names("FAIL"),
            "warned": self._names("warn"),
            "processes": world_size,
            "seconds": round(time.monotonic() - self._began, 2),
            "checks": [{"name": name, **verdict._asdict()} for name, verdict in self._verdicts],
        }
