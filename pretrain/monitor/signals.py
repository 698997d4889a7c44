"""Signals that ask a run to stop: TERM, INT and USR1, from a scheduler, a launcher or a terminal.

The handler only sets a flag. The loop reads it together with the other ranks', so that all of them finish the same
step, save, and say `preempted`. This module imports nothing heavy: `python -m pretrain` listens before it loads torch.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PREEMPTED = 75  # exit code: stopped after a whole checkpoint, requeue me
INTERRUPT_AGAIN_SECONDS = 3.0  # a later Ctrl-C does not wait; an earlier one is the launcher's copy of the first
LAUNCHERS = (b"torchrun", b"torch.distributed", b"accelerate", b"deepspeed")
_PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)


class Stop:
    """Whether this process was asked to stop; `with stop:` listens, and then gives the handlers back that it found."""

    def __init__(self) -> None:
        self.requested = False
        self._requested_at = 0.0
        self._previous: list[tuple[signal.Signals, Any]] = []

    def listen(self) -> None:
        """Handle the signals from now on."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._request)
        stop_with_launcher()

    def __enter__(self) -> None:
        self._previous = [(number, signal.getsignal(number)) for number in STOP_SIGNALS]
        self.listen()

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self.requested and now - self._requested_at > INTERRUPT_AGAIN_SECONDS:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested, self._requested_at = True, now


def stop_with_launcher() -> None:
    """Have the kernel send SIGTERM to this process when its launcher dies, however it dies (Linux only).

    A launcher that is killed, or that does not handle a signal (torchrun and USR1), would leave its ranks behind. A
    process that was started from a shell is left alone: `nohup python -m pretrain … &` outlives its terminal.
    """
    parent = Path(f"/proc/{os.getppid()}/cmdline")
    if sys.platform == "linux" and parent.exists() and any(name in parent.read_bytes() for name in LAUNCHERS):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
