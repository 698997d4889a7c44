"""What ends a process that hangs.

A hung rank or a dead network leaves the others waiting in a collective, and process-group time-outs do not end every
kind of hang. So each process watches itself: no heartbeat within the limit, and every thread's stack goes to a file,
the reason to the status and to stderr, and the process exits.
"""

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

HUNG = 70  # exit code
REPORT_SECONDS = 5.0  # for writing the report: a full or dead disk must not keep the process


class Watchdog:
    """Ends this process when `beat` was not called for `limit_seconds`."""

    def __init__(self, limit_seconds: float, stacks: Path, on_hang: Callable[[str], None]) -> None:
        self._limit = limit_seconds
        self._stacks = stacks
        self._on_hang = on_hang
        self._last = time.monotonic()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self) -> None:
        """The process is alive."""
        self._last = time.monotonic()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(min(1.0, self._limit / 4)):
            if time.monotonic() - self._last > self._limit:
                report = threading.Thread(target=self._report, daemon=True)
                report.start()
                report.join(REPORT_SECONDS)
                os._exit(HUNG)

    def _report(self) -> None:
        with suppress(OSError), self._stacks.open("w") as file:
            faulthandler.dump_traceback(file)
        self._on_hang(
            f"no progress for {self._limit:g} s (engine.timeout_seconds): this process, another one or the network "
            f"hangs; the stacks of this process are in {self._stacks}"
        )
