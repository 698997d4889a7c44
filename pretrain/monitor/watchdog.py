"""What ends a run before its last step: a scheduler's signal, or a rank that hangs.

A hung rank or a dead network leaves the others waiting in a collective, and process-group time-outs do not end every
kind of hang. So each process watches itself: no heartbeat within the limit, and every thread's stack goes to a file,
the reason to the status and to stderr, and the process exits.
"""

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

PREEMPTED = 75  # exit code: stopped after a whole checkpoint, requeue me
HUNG = 70


class Stop:
    """SIGTERM or SIGUSR1 ask the loop to finish its step, save and exit."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


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
                with self._stacks.open("w") as file:
                    faulthandler.dump_traceback(file)
                self._on_hang(
                    f"no progress for {self._limit:g} s (engine.timeout_seconds): this process, another one or the "
                    f"network hangs; the stacks of this process are in {self._stacks}"
                )
                os._exit(HUNG)
