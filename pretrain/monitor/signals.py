"""Signals that ask a run to stop: TERM, INT and USR1, from a scheduler, a launcher or a terminal.

The handler only sets a flag. The loop reads it together with the other ranks', so that all of them finish the same
step, save, and say `preempted`. This module imports nothing heavy: `python -m pretrain` listens before it loads torch.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PREEMPTED = 75  # exit code: stopped after a whole checkpoint, requeue me
INTERRUPT_AGAIN_SECONDS = 3.0  # a later Ctrl-C does not wait; an earlier one is the launcher's copy of the first
LAUNCHERS = ("torchrun", "torch.distributed", "accelerate", "deepspeed")
ORPHAN_SECONDS = 10.0  # for a rank without its launcher to notice that it is to stop
LAUNCHER_SECONDS = 0.25  # between looks at the launcher


class Stop:
    """Whether this process was asked to stop; `with stop:` listens, and then gives the handlers back that it found."""

    def __init__(self) -> None:
        self.requested = False
        self._requested_at = 0.0
        self.is_training = False  # set once a rank has met the others and built its engine
        self._listens = False
        self._previous: list[tuple[signal.Signals, Any]] = []

    def listen(self) -> None:
        """Handle the signals from now on."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._request)
        if not self._listens:
            self._listens = True
            stop_with_launchers(self)

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


def stop_with_launchers(stop: Stop) -> None:
    """Send SIGTERM to this process when a launcher among its ancestors is gone, however it died.

    A launcher that is killed, that does not pass a signal on (`deepspeed`) or does not handle it (torchrun and USR1)
    would leave its ranks behind. A process that was started from a shell is left alone: `nohup python -m pretrain … &`
    outlives its terminal. torchrun also holds the store by which ranks meet: without it a rank may wait in there, deaf
    to signals, so one that has not begun to train, and so has nothing to save, ends by itself a little later.
    """
    launchers = [parent for parent in psutil.Process().parents() if _is_launcher(parent)]
    if any(_has_lost_its_parent(launcher) for launcher in launchers):
        os.kill(os.getpid(), signal.SIGTERM)
    elif launchers:
        threading.Thread(target=_watch, args=(launchers, stop), daemon=True).start()


def _is_launcher(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        command = process.cmdline()
        program = Path(command[0]).name if command else ""  # not the process's name, which torchrun changes
        is_python = program.startswith(("python", *LAUNCHERS))  # and no shell in a folder of that name
        return is_python and any(name in part for part in command for name in LAUNCHERS)
    return False


def _has_lost_its_parent(launcher: psutil.Process) -> bool:
    """Whether this is `deepspeed`'s inner launcher, the outer one having died before this process could watch it."""
    with suppress(psutil.Error):
        parent = launcher.parent()
        is_inner = any("deepspeed.launcher.launch" in part for part in launcher.cmdline())
        return is_inner and parent is not None and parent.pid == 1 and not _is_launcher(parent)
    return False


def _watch(launchers: list[psutil.Process], stop: Stop) -> None:
    while all(_is_alive(launcher) for launcher in launchers):
        time.sleep(LAUNCHER_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    if not stop.is_training:
        os._exit(PREEMPTED)


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
