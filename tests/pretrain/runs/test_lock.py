"""One running process a folder, also where the file system has no flock."""

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

import pytest

from configs import InputError
from pretrain.runs import lock as lock_module
from pretrain.runs.lock import FolderLock

HOLDER = ".lock_holder.json"


def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    with pytest.raises(InputError, match="in use by another running process"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


@pytest.fixture(params=[errno.ENOSYS, errno.ENOLCK])
def without_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre mounted without `-o flock`."""

    def refuse(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(lock_module, "HEARTBEAT_SECONDS", 0.05)


@pytest.mark.usefixtures("without_flock")
def test_without_flock_a_file_with_a_heartbeat_is_the_lock(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    first.acquire()
    began = (tmp_path / HOLDER).stat().st_mtime
    with pytest.raises(InputError, match=f"in use by process {os.getpid()} on {socket.gethostname()}"):
        FolderLock(tmp_path).acquire()
    time.sleep(0.3)
    assert (tmp_path / HOLDER).stat().st_mtime > began
    first.release()
    assert not (tmp_path / HOLDER).exists()
    again = FolderLock(tmp_path)
    again.acquire()
    again.release()


@pytest.mark.usefixtures("without_flock")
@pytest.mark.parametrize(
    ("holder", "age", "taken"),
    [
        ({"host": "elsewhere", "pid": 1}, 5, False),
        ({"host": "elsewhere", "pid": 1}, 120, True),  # silent for too long
        ({"host": socket.gethostname(), "pid": 2**22 + 1}, 5, True),  # known to be dead
        (None, 5, False),  # killed while it wrote
    ],
)
def test_without_flock_a_dead_holder_is_replaced(
    tmp_path: Path, holder: dict[str, object] | None, age: float, taken: bool
) -> None:
    path = tmp_path / HOLDER
    path.write_text(json.dumps(holder) if holder else "")
    os.utime(path, (time.time() - age, time.time() - age))
    lock = FolderLock(tmp_path)
    if taken:
        lock.acquire()
        assert json.loads(path.read_text())["pid"] == os.getpid()
        lock.release()
    else:
        with pytest.raises(InputError, match="start again in 60 s, or remove"):
            lock.acquire()
