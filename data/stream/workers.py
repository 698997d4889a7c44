"""Loader processes that end with their parent, and with nothing else.

A scheduler or a terminal signals every process of a job. A worker that died of it would end its training process with
an error before that one could save, so workers have these signals blocked, from their first instant on: the parent
blocks them while it forks. A thread of the worker takes SIGTERM: from the parent, which ends its workers so, it ends
the process at once, wherever that one waits; from anybody else it is ignored. The thread also notices when the parent
is gone.
"""

import functools
import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP}
PARENT_SECONDS = 2.0  # between looks at the parent


def start_workers(steps: "IterableDataset[Any]", num_workers: int, prefetch_steps: int) -> Iterator[Any]:
    """The items of all workers in turn; each worker prepares `prefetch_steps` items ahead."""
    loader: DataLoader[Any] = DataLoader(
        steps,
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=prefetch_steps,
        worker_init_fn=functools.partial(_begin_worker, os.getpid()),
        multiprocessing_context="fork",  # open plans and tokenizers are inherited, not sent; Python 3.14 would not fork
    )
    with _signals_blocked():
        return iter(loader)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(parent: int, _: int) -> None:
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    gc.freeze()  # collections would look through, and so copy, all that the parent has imported
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        taken = signal.sigtimedwait({signal.SIGTERM}, PARENT_SECONDS)
        if taken and taken.si_pid == parent:
            break
    os._exit(0)
