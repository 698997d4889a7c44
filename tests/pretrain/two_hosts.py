"""Two hosts on one machine: network namespaces, each with its own name and hosts file, joined by a cable.

Without an own host name and hosts file the launchers' rendezvous hangs. The file system is shared, as on a cluster.
"""

import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

ADDRESSES = {"a": "10.78.0.1", "b": "10.78.0.2"}


def possible() -> bool:
    """Whether this machine lets us: root, `ip`, `unshare`, and the right to make namespaces."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare"))):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


class TwoHosts:
    """Hosts "a" and "b", called hosta and hostb in their network."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex[:6]
        self._space = {host: f"lacuna{mark}{host}" for host in ADDRESSES}
        self._device = {host: f"l{mark}{host}" for host in ADDRESSES}
        self._started: list[subprocess.Popen[str]] = []

    def up(self) -> None:
        """Make both hosts and plug the cable in."""
        for host in ADDRESSES:
            _ip("netns", "add", self._space[host])
            folder = Path("/etc/netns") / self._space[host]
            folder.mkdir(parents=True)
            names = [f"{address} host{other}" for other, address in ADDRESSES.items()]
            (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        a, b = ([self._device[host], "netns", self._space[host]] for host in ADDRESSES)
        _ip("link", "add", *a, "type", "veth", "peer", "name", *b)
        for host, address in ADDRESSES.items():
            _ip("-n", self._space[host], "addr", "add", f"{address}/24", "dev", self._device[host])
            for device in ("lo", self._device[host]):
                _ip("-n", self._space[host], "link", "set", device, "up")

    def start(self, host: str, command: list[str], log: Path, **how: Any) -> "subprocess.Popen[str]":
        """Run `command` on a host, its output in `log`."""
        enter = ["ip", "netns", "exec", self._space[host], "unshare", "--uts", "sh", "-c"]
        with log.open("w") as file:
            process = subprocess.Popen(
                [*enter, f'hostname host{host}; exec "$@"', "_", *command],
                stdout=file, stderr=subprocess.STDOUT, text=True, **how,
            )  # fmt: skip
        self._started.append(process)
        return process

    def cable(self, state: str) -> None:
        """Pull it out of hostb (down), so that nothing arrives any more and nobody is told, or plug it in (up)."""
        _ip("-n", self._space["b"], "link", "set", self._device["b"], state)

    def pids(self, host: str) -> list[int]:
        """What runs on a host."""
        listed = subprocess.run(["ip", "netns", "pids", self._space[host]], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]

    def down(self) -> None:
        """End what runs there and remove both hosts."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in (pid for host in ADDRESSES for pid in self.pids(host)):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + 5
            while any(map(self.pids, ADDRESSES)) and time.monotonic() < deadline:
                time.sleep(0.1)
        for process in self._started:
            process.wait(10)
        for host in ADDRESSES:
            _ip("netns", "del", self._space[host])
            shutil.rmtree(Path("/etc/netns") / self._space[host], ignore_errors=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
