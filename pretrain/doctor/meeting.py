"""How the ranks tell each other what they found: a key-value store, which knows at any time who has answered.

A collective only says that somebody is missing. A store holds one key for each rank and question, so that a rank that
hangs, or never came, has a name. It is the store through which training's process groups find each other, at
MASTER_ADDR:MASTER_PORT: the launcher's own under torchrun and `accelerate launch`, otherwise rank 0's. A process that
is alone talks to a store in its own memory. Cost: a message of a few hundred bytes a rank and question.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]
    DistError,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from configs import InputError
from configs.loader import BAD_INPUT

FAILED = BAD_INPUT  # exit code when a check has failed
OVER = "over"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.001, 0.1  # between looks for another rank's word
GOODBYE_SECONDS = 5.0
WATCHDOG_TIMEOUT = timedelta(seconds=2)


class Meeting:
    """The ranks' exchange of JSON-able values. Waits have no end of their own: the time limit of the doctor ends them.

    Raises InputError when the connection to the store is lost, and SystemExit when rank 0 has given up.
    """

    def __init__(self, rank: int, world_size: int, store: Store, connect_again: Callable[[], Store]) -> None:
        self.rank = rank
        self.world_size = world_size
        self.hosts: dict[int, str] = {}  # of the ranks that have answered; complete on rank 0 after the first answers
        self.heard_topic = ""  # what rank 0 waits to hear of from the others at this moment
        self.is_waiting = False  # for a word of another rank
        self._store = store
        self._connect_again = connect_again
        self._set(f"host/{rank}", socket.gethostname())

    @property
    def is_main(self) -> bool:
        """Rank 0 judges and prints."""
        return self.rank == 0

    def tell(self, topic: str, value: Any) -> None:
        """Leave this rank's answer on a topic."""
        self._set(_key(topic, self.rank), value)

    def hear_all(self, topic: str) -> list[Any]:
        """Every rank's answer on a topic, in rank order; waits for all of them."""
        self.heard_topic, answers = topic, []
        for rank in range(self.world_size):
            answers.append(self._get(_key(topic, rank)))
            if rank not in self.hosts:
                self.hosts[rank] = self._get(f"host/{rank}")
        self.heard_topic = ""
        return answers

    def from_main(self, topic: str, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.is_main:
            self._set(f"of rank 0/{topic}", value)
            return value
        return self._get(f"of rank 0/{topic}")

    def share(self, topic: str, value: Any) -> list[Any]:
        """Every rank's value in rank order, on every rank; none goes on before all have come here."""
        self.tell(topic, value)
        return self.from_main(topic, self.hear_all(topic) if self.is_main else None)

    def who_answered(self, topic: str) -> list[int]:
        """The ranks that have answered a topic by now, over a new connection: for a thread beside one that waits.

        Raises RuntimeError when the store gives no answer.
        """
        store = self._connect_again()
        for rank in range(self.world_size):
            if store.check([f"host/{rank}"]):
                self.hosts[rank] = json.loads(store.get(f"host/{rank}"))
        return [rank for rank in range(self.world_size) if store.check([_key(topic, rank)])]

    def end_for_all(self) -> None:
        """Let the ranks that wait for a word of another end, in silence; over a new connection, if there is one."""
        with suppress(RuntimeError):
            self._connect_again().set(OVER, "")
            time.sleep(2 * LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Leave; rank 0 last, as the store may be its own."""
        if not self.is_main:
            self._store.add("gone", 1)
            return
        until = time.monotonic() + GOODBYE_SECONDS
        while self._store.add("gone", 0) < self.world_size - 1 and time.monotonic() < until:
            time.sleep(0.05)

    def sub_store(self, name: str) -> Store:
        """A part of the store for a process group to meet in."""
        return PrefixStore(name, self._store)

    def _set(self, key: str, value: Any) -> None:
        try:
            self._store.set(key, json.dumps(value))
        except DistError as error:
            raise _lost(error) from None

    def _get(self, key: str) -> Any:
        self.is_waiting, pause = True, FIRST_PAUSE_SECONDS
        try:
            # not the store's own `wait`, which keeps Python from handling signals, and complains when it is cut short
            while not self._store.check([key]):
                if self._store.check([OVER]):
                    raise SystemExit(FAILED)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            value = self._store.get(key)
        except DistError as error:
            raise _lost(error) from None
        self.is_waiting = False
        return json.loads(value)


def _key(topic: str, rank: int) -> str:
    return f"of ranks/{topic}/{rank}"


def _lost(error: Exception) -> InputError:
    return InputError(f"{socket.gethostname()}: the connection to rank 0 is lost ({first_line(error)})")


def first_line(error: BaseException) -> str:
    """The first line of an error's text; those of torch go on with a C++ trace."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def open_meeting(rank: int, world_size: int, timeout_seconds: float) -> Meeting:
    """Reach the store. Raises InputError when that is not possible, or when this rank has come before."""
    if world_size == 1:
        own = HashStore()
        return Meeting(rank, world_size, own, lambda: own)
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not address or not port.isdigit():
        raise InputError(
            f"WORLD_SIZE is {world_size}, so MASTER_ADDR and MASTER_PORT must name rank 0's host and a free port of it;"
            f" they are '{address}' and '{port}'"
        )
    launcher_has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # a launcher's store keeps the keys of earlier ones
    here = f"rank {rank} on {socket.gethostname()}"
    serves = rank == 0 and not launcher_has_store

    def connect(serve: bool, timeout: timedelta) -> Store:
        store = TCPStore(address, int(port), is_master=serve, timeout=timeout, wait_for_workers=False)
        return PrefixStore(f"doctor/{attempt}", store)

    try:
        if serves:
            _check_port_is_free(int(port))
        else:
            _wait_for_listener(address, int(port), timeout_seconds)
        store = connect(serves, timedelta(seconds=timeout_seconds))
        arrivals = store.add(f"arrived/{rank}", 1)
    except (OSError, DistError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        if serves:
            raise InputError(f"{here} cannot listen at MASTER_PORT {port} ({reason}); choose another port") from None
        raise InputError(
            f"{here} does not reach rank 0 at MASTER_ADDR:MASTER_PORT, {address}:{port} ({reason}); is it started, "
            "does the name mean its host here, and does no firewall stand between?"
        ) from None
    if arrivals > 1:
        raise InputError(f"{here} is started twice: give every process a RANK of its own, or use a launcher")
    return Meeting(rank, world_size, store, lambda: connect(False, WATCHDOG_TIMEOUT))


def _check_port_is_free(port: int) -> None:
    """Raise OSError where it is not: the store would print a C++ trace first."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))


def _wait_for_listener(address: str, port: int, timeout_seconds: float) -> None:
    """Wait until somebody listens there. Raises the last OSError when the time is over."""
    until = time.monotonic() + timeout_seconds
    while True:
        remaining = until - time.monotonic()
        try:
            socket.create_connection((address, port), timeout=max(0.1, remaining)).close()
            return
        except OSError:
            if remaining <= 0:
                raise
        time.sleep(min(0.2, max(0.0, remaining)))
