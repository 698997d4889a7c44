"""CPU time, which a busy machine distorts less than the time on the wall."""

import resource
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """What `action` returns, and the CPU seconds of this process and of those that it started and ended."""
    start = cpu_seconds()
    return action(), cpu_seconds() - start


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
