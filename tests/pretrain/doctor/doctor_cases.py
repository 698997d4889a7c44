"""`torchrun … doctor_cases.py CASES.json OUT`: the doctor many times over in the same processes.

A case gives arguments, and to rank 1 what differs there: folder, arguments, or a fault of this file's `FAULTS`.
"""

import contextlib
import errno
import fcntl
import io
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from pretrain.doctor.__main__ import main

CASES, OUT = (Path(argument) for argument in sys.argv[1:])
RANK = int(os.environ["RANK"])


@contextlib.contextmanager
def other_numpy(folder: str) -> Iterator[None]:
    """An environment in which another numpy is installed."""
    package = Path(folder) / "numpy-0.0.1.dist-info"
    package.mkdir(exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    with mock.patch.object(sys, "path", [folder, *sys.path]):
        yield


def few_files(_: str) -> Any:
    """A low hard limit, which cannot be raised again: the last case."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    return contextlib.nullcontext()


def late_clock(_: str) -> Any:
    """A clock that is more than a minute slow."""
    clock = time.time

    def late() -> float:
        return clock() - 60.5

    return mock.patch.object(time, "time", late)


def one_card(_: str) -> Any:
    """A host with fewer GPUs than processes."""
    return mock.patch.multiple(torch.cuda, is_available=lambda: True, device_count=lambda: 1)


def broken_link(_: str) -> Any:
    """A card that adds wrongly."""
    add = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, *operation: Any) -> None:
        add(tensor, *operation)
        tensor.view(-1)[-1] += 1

    return mock.patch.object(dist, "all_reduce", all_reduce)


def dead_link(_: str) -> Any:
    """A connection that breaks on one side; the other side hears nothing."""
    return mock.patch.object(dist, "all_reduce", side_effect=RuntimeError("Connection reset by peer\nC++ frames"))


def no_flock(_: str) -> Any:
    """Lustre without `-o flock`."""
    return mock.patch.object(fcntl, "flock", side_effect=OSError(errno.ENOSYS, "Function not implemented"))


def local_flock(_: str) -> Any:
    """Lustre with `-o localflock`: a lock that another host does not see."""
    return mock.patch.object(fcntl, "flock")


FAULTS = {
    fault.__name__: fault
    for fault in (other_numpy, few_files, late_clock, one_card, broken_link, dead_link, no_flock, local_flock)
}

results = {}
for number, (name, case) in enumerate(json.loads(CASES.read_text()).items()):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)  # as after a launcher's restart: keys of its own
    mine = {**case, **case.get("rank_1", {})} if RANK == 1 else case
    os.chdir(mine["folder"])
    printed, complained = io.StringIO(), io.StringIO()
    fault = FAULTS[mine["fault"]](mine["folder"]) if "fault" in mine else contextlib.nullcontext()
    with fault, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        code = main(mine["arguments"])
    results[name] = {"code": code, "out": printed.getvalue(), "err": complained.getvalue()}
(OUT / f"rank_{RANK}.json").write_text(json.dumps(results))
