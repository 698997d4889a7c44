"""The doctor ends in time, whatever hangs: a file system, a store, a collective, or a rank that never came.

A thread on every rank waits for the limit. Rank 0's then reports the check at hand, the ranks that have answered it and
those that have not; another rank's says where that rank itself is. Then the process ends, without waiting for anything.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pretrain.doctor.examination import Examination
from pretrain.doctor.meeting import FAILED
from pretrain.doctor.report import Report
from pretrain.doctor.verdict import failed, name_ranks

OTHERS_WAIT_SECONDS = 5.0  # ranks behind rank 0 end later, so that it still finds their answers
LAST_WORDS_SECONDS = 5.0  # for the report: a dead network or disk must not keep the process


class TimeLimit:
    """Ends this process `seconds` after `began` (of `time.monotonic`), unless `lift` is called before."""

    def __init__(self, seconds: float, began: float, examination: Examination, report: Report) -> None:
        self._seconds = seconds
        self._began = began
        self._examination = examination
        self._report = report
        self._lifted = threading.Event()
        self._main_thread = threading.get_ident()
        threading.Thread(target=self._wait, daemon=True).start()

    def lift(self) -> None:
        """The examination is over."""
        self._lifted.set()

    def _wait(self) -> None:
        if self._lifted.wait(max(0.0, self._began + self._seconds - time.monotonic())):
            return
        is_main = self._examination.meeting.is_main
        _within(LAST_WORDS_SECONDS, self._report_hang if is_main else self._say_where)
        if self._examination.clean_up:
            _within(LAST_WORDS_SECONDS, self._examination.clean_up)
        if not is_main and self._lifted.wait(OTHERS_WAIT_SECONDS):
            return
        sys.stdout.flush()
        os._exit(FAILED)

    def _report_hang(self) -> None:
        examination = self._examination
        meeting, topic = examination.meeting, examination.topic
        try:
            answered = meeting.who_answered(meeting.heard_topic or topic)
        except RuntimeError:
            found = "the store does not say which ranks have answered"
        else:
            missing = [rank for rank in range(meeting.world_size) if rank not in answered]
            which = examination.name(answered) if answered else "none"
            found = f"no answer from {examination.name(missing)}; answered: {which}" if missing else "all have answered"
            if not meeting.is_waiting:
                found += f"; rank 0 is in {_place_of(self._main_thread)}"
        remedy = "look at what that check needs on those ranks, or raise --limit-seconds"
        self._report.add(topic, failed(f"not over after {self._seconds:g} s: {found}", remedy))
        self._report.end(meeting.world_size)
        meeting.end_for_all()

    def _say_where(self) -> None:
        if self._examination.meeting.is_waiting:
            return  # another rank is the one that hangs
        rank, topic = self._examination.processes.rank, self._examination.topic
        here, place = name_ranks([rank], {rank: socket.gethostname()}), _place_of(self._main_thread)
        line = f"{here}: '{topic}' is not over after {self._seconds:g} s; this rank is in {place}"
        print(line, file=sys.stderr, flush=True)


def _place_of(thread: int) -> str:
    """Where a thread is: `find_files in files.py, line 43`."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_name} in {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"


def _within(seconds: float, action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
