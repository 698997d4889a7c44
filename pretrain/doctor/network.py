"""All-reduce as training does it: joined with a time-out, checked against the right sums, timed at a few sizes."""

import functools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from configs import InputError
from pretrain.doctor.examination import CannotLookError, Examination, Finding
from pretrain.doctor.meeting import first_line
from pretrain.doctor.verdict import Verdict, failed, in_bytes, passed, skipped, warned
from pretrain.processes import Processes

MAX_TIMEOUT_SECONDS = 60.0
SIZES = (1 << 10, 1 << 20, 1 << 24, 1 << 28)  # bytes of fp32; the last on CUDA only
LARGEST_ON_CPU = 1 << 24
SECONDS_A_SIZE = 0.2  # about what the repetitions of a size take
MOST_SECONDS = 5.0  # a size that is expected to take longer once is left out
MOST_REPETITIONS = 20
T = TypeVar("T")
SLOW_WITH_NCCL = 1e9  # bytes a second: below it, training on GPUs waits for the network


def look_at_all_reduce(examination: Examination) -> Finding:
    """Number of wrong sums, and seconds of an all-reduce by size. InputError when the ranks do not get through."""
    processes = examination.processes
    kinds = examination.meeting.share("all-reduce/devices", "" if examination.device_fault else processes.device.type)
    if len(set(kinds)) > 1 or not kinds[0]:
        raise CannotLookError("needs the same kind of device on every rank, see 'devices'")
    if processes.world_size == 1:
        return {}
    timeout = min(MAX_TIMEOUT_SECONDS, examination.config.engine.timeout_seconds)
    backend = "nccl" if processes.device.type == "cuda" else "gloo"
    if processes.device.type == "cuda":
        torch.cuda.set_device(processes.device)
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # a time-out raises here, instead of ending the process

    def join() -> None:
        dist.init_process_group(
            backend, store=examination.meeting.sub_store("all-reduce group"), rank=processes.rank,
            world_size=processes.world_size, timeout=timedelta(seconds=timeout),
        )  # fmt: skip

    try:
        attempt(examination, f"joining {backend}", join)
        wrong, seconds = try_sizes(examination)
        return {"backend": backend, "wrong": wrong, "seconds": seconds}
    finally:
        with suppress(RuntimeError, ValueError):
            if dist.is_initialized():
                dist.destroy_process_group()


def attempt(examination: Examination, what: str, action: Callable[[], T]) -> list[T]:
    """What an action gives on every rank, told through the store: a broken network may tell each rank something else.

    InputError where it fails, within the group's time-out; CannotLookError on the other ranks, which would wait.
    """
    mine: dict[str, Any] = {}
    try:
        mine["result"] = action()
    except (RuntimeError, ValueError) as error:
        mine["error"] = f"{what}: {first_line(error)}"
    of_ranks = examination.meeting.share(f"all-reduce/{what}", mine)
    if "error" in mine:
        raise InputError(mine["error"])
    if any("error" in other for other in of_ranks):
        raise CannotLookError("another rank cannot go on")
    return [other["result"] for other in of_ranks]


def try_sizes(examination: Examination) -> tuple[int, dict[str, float]]:
    """(sums that came out wrong on this rank, seconds of one all-reduce by size in bytes, the same on every rank)."""
    wrong, last, found, processes = 0, 0.0, {}, examination.processes
    for size in SIZES:
        on_cpu = processes.device.type == "cpu"
        if (on_cpu and size > LARGEST_ON_CPU) or (size > 1 << 20 and last * 16 > MOST_SECONDS):
            break
        check = functools.partial(count_wrong_sums, processes, size // 4)
        wrong += attempt(examination, f"sums of {in_bytes(size)}", check)[processes.rank]
        tensor = torch.zeros(size // 4, device=processes.device)
        last = max(attempt(examination, in_bytes(size), functools.partial(_seconds, tensor, 1)))
        repetitions = max(1, min(MOST_REPETITIONS, int(SECONDS_A_SIZE / max(last, 1e-6))))
        repeat = functools.partial(_seconds, tensor, repetitions)
        last = max(attempt(examination, f"{in_bytes(size)} again", repeat))
        found[str(size)] = last
    return wrong, found


def count_wrong_sums(processes: Processes, count: int) -> int:
    """Every rank adds its own pattern of small whole numbers, whose sum fp32 holds exactly."""
    pattern = torch.arange(count, device=processes.device) % 7
    factors = [rank % 5 + 1 for rank in range(processes.world_size)]
    tensor = (pattern * factors[processes.rank]).float()
    dist.all_reduce(tensor)
    return int((tensor != (pattern * sum(factors)).float()).sum())


def _seconds(tensor: Tensor, repetitions: int) -> float:
    """Mean seconds of an all-reduce on this rank."""
    began = time.perf_counter()
    for _ in range(repetitions):
        dist.all_reduce(tensor)
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return (time.perf_counter() - began) / repetitions


def judge_all_reduce(examination: Examination, findings: list[Finding]) -> Verdict:
    """Bytes a second, and what a step's gradients would take."""
    if len(findings) == 1:
        return skipped("one process")
    wrong = [rank for rank, finding in enumerate(findings) if finding["wrong"]]
    if wrong:
        return failed(
            f"wrong sums on {examination.name(wrong)}", "leave those hosts out of the job: a card or a link is broken"
        )
    backend, seconds = findings[0]["backend"], {int(size): value for size, value in findings[0]["seconds"].items()}
    largest = max(seconds)
    speed = largest / seconds[largest]
    shown = ", ".join(
        f"{in_bytes(size)} in {1000 * value:.2f} ms ({in_bytes(size / value)}/s)" for size, value in seconds.items()
    )
    found = f"{backend}, sums right; {shown}"
    with suppress(CannotLookError):
        gradients = 4 * examination.completed.encoder.num_parameters()
        found += f"; the gradients of a step, {in_bytes(gradients)}, take about {gradients / speed:.2g} s"
    if backend == "nccl" and speed < SLOW_WITH_NCCL:
        return warned(found, "see with NCCL_DEBUG=INFO which transport is taken, and name one in NCCL_SOCKET_IFNAME")
    return passed(found)
