"""Where the time of a step goes: one clock for data wait, forward, backward, optimizer, evaluation and save."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds by activity since the last `read`. On CUDA a name's seconds are the host's: the device runs behind."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the `with` block to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """Seconds by name, and `seconds` since the last read; starts anew."""
        now = time.perf_counter()
        seconds = {**self._seconds, "seconds": now - self._since}
        self._seconds, self._since = {}, now
        return seconds
