"""One running process a run folder: the operating system's lock, or a lock file where the file system has none.

`flock` is released by the kernel with the process, on any local file system and on most shared ones. Lustre without
`-o flock` refuses it (ENOSYS): there a file that names host and process is touched every ten seconds while the run goes
on, and taken over a minute after it was touched last. Ages are differences of times that the file server gave, so the
hosts' clocks do not matter.
"""

import errno
import fcntl
import json
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from configs import InputError
from configs.atomic import write_text

WITHOUT_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


class FolderLock:
    """The lock of one folder, which exists. Raises OSError where the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None
        self._heartbeat_path = folder / ".lock_holder.json"
        self._released = threading.Event()
        self._beats = False

    def acquire(self) -> None:
        """Take the lock; InputError when another running process has it."""
        self._file = (self._folder / ".lock").open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise InputError(f"run_dir {self._folder} is in use by another running process") from None
        except OSError as error:
            self.release()
            if error.errno not in WITHOUT_FLOCK:
                raise
            self._acquire_by_file()

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file:
            self._file.close()
            self._file = None
        self._released.set()
        if self._beats:
            self._beats = False
            with suppress(OSError):
                self._heartbeat_path.unlink()

    def _acquire_by_file(self) -> None:
        holder = self._living_holder()
        if holder:
            raise InputError(
                f"run_dir {self._folder} is in use by process {holder['pid']} on {holder['host']}; if that one is "
                f"dead, start again in {STALE_SECONDS:.0f} s, or remove {self._heartbeat_path}"
            )
        with suppress(FileNotFoundError):
            self._heartbeat_path.unlink()
        mine = {"host": socket.gethostname(), "pid": os.getpid()}
        try:
            descriptor = os.open(self._heartbeat_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            raise InputError(f"run_dir {self._folder} is in use: another process took it just now") from None
        with os.fdopen(descriptor, "w") as file:
            json.dump(mine, file)
        self._released.clear()
        self._beats = True
        threading.Thread(target=self._beat, daemon=True).start()

    def _living_holder(self) -> dict[str, object] | None:
        """Who has the lock file, unless that process is known to be dead or has been silent for too long."""
        try:
            touched = self._heartbeat_path.stat().st_mtime
            holder: dict[str, object] = json.loads(self._heartbeat_path.read_text())
        except FileNotFoundError:
            return None
        except ValueError:  # killed while it wrote
            holder = {"host": "an unknown host", "pid": "unknown"}
        probe = self._folder / f".now_{socket.gethostname()}_{os.getpid()}"
        write_text(probe, "")
        now = probe.stat().st_mtime
        probe.unlink()
        if holder["host"] == socket.gethostname() and not Path(f"/proc/{holder['pid']}").exists():
            return None
        return holder if now - touched < STALE_SECONDS else None

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(self._heartbeat_path)
