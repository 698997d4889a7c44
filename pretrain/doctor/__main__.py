"""`python -m pretrain.doctor CONFIG [key=value …]`: can this machine carry that run? Alone or under any launcher.

Exit codes: 0 no check failed, 2 one did, or the input is wrong.
"""

import os
import signal
import sys
import time
from types import FrameType
from typing import NamedTuple

import torch

from configs import InputError, run_command
from pretrain.doctor.checks import CHECKS
from pretrain.doctor.examination import Examination, run_checks
from pretrain.doctor.meeting import FAILED, open_meeting
from pretrain.doctor.report import Report
from pretrain.doctor.time_limit import TimeLimit
from pretrain.processes import Processes, find_processes

LIMIT_SECONDS = 120.0
USAGE = f"""usage: python -m pretrain.doctor CONFIG [key=value …] [--json] [--limit-seconds N]

Whether this machine, network, folder and data can carry the run of CONFIG; alone, or with the launcher that the run
will have. Trains nothing and leaves nothing behind. Rank 0 prints one line a check for all ranks:
pass|warn|FAIL|skip  name: what was found; what to do. The exit code is 2 when a check fails.

  --json             print one JSON object instead of lines
  --limit-seconds N  give up after so many seconds, naming the check and the ranks that hang [{LIMIT_SECONDS:g}]

Checks:
""" + "\n".join(f"  {check.name:<20} {check.meaning}" for check in CHECKS)


class Options(NamedTuple):
    """The command line."""

    arguments: list[str]  # CONFIG [key=value …]
    as_json: bool
    limit_seconds: float


def read_options(arguments: list[str]) -> Options:
    """Take the options out of the command line. InputError for an unknown one."""
    rest, as_json, limit = [], False, LIMIT_SECONDS
    pending = iter(arguments)
    for argument in pending:
        name, equals, value = argument.partition("=")
        if argument == "--json":
            as_json = True
        elif name == "--limit-seconds":
            limit = _positive(value if equals else next(pending, ""))
        elif argument.startswith("-"):
            raise InputError(f"unknown option {argument}; allowed: --json, --limit-seconds N")
        else:
            rest.append(argument)
    if not rest:
        raise InputError("usage: python -m pretrain.doctor CONFIG [key=value …] [--json] [--limit-seconds N]")
    return Options(rest, as_json, limit)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise InputError(f"--limit-seconds takes a number above 0, not '{text}'")
    return number


def find_place() -> tuple[Processes, str]:
    """This process among the others, and why it has no device: a fault to report, not one to stop at."""
    try:
        return find_processes(), ""
    except InputError as error:
        rank, world_size = (os.environ.get(name) or default for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        if not (rank.isdigit() and world_size.isdigit() and int(rank) < int(world_size)):
            raise
        return Processes(int(rank), int(world_size), torch.device("cpu")), str(error)


def main(arguments: list[str]) -> int:
    """Examine, print and end; every rank returns the same exit code."""
    began = time.monotonic()
    options = read_options(arguments)
    processes, device_fault = find_place()
    meeting = open_meeting(processes.rank, processes.world_size, options.limit_seconds)
    report = Report(options.as_json)
    examination = Examination(options.arguments, processes, device_fault, meeting)
    limit = TimeLimit(options.limit_seconds, began, examination, report)
    handler = signal.signal(signal.SIGTERM, end_by_signal)  # so that the checks clean up on the way out
    try:
        run_checks(examination, CHECKS, report)
        has_failed = meeting.from_main("has failed", meeting.is_main and report.end(processes.world_size))
        meeting.close()
    except BaseException:
        if meeting.is_main:
            meeting.end_for_all()
        raise
    finally:
        limit.lift()
        signal.signal(signal.SIGTERM, handler)
    return FAILED if has_failed else 0


def end_by_signal(number: int, frame: FrameType | None) -> None:
    """End as the signal would, but with everything cleaned up on the way out."""
    sys.exit(128 + number)


if __name__ == "__main__":
    run_command(main, usage=USAGE)
