"""Remote files through fsspec: found by glob, read with retries, never skipped.

What fails (a refused or cut connection, a 503, silence for a minute, an end before the size that the store told) is
tried again from where it stopped, seven times within two minutes; then it is an error that names the file. A file that
is not there, or not allowed, is an error at once. fsspec over HTTP does not retry by itself, and calls every failure
of its first request "not found"; s3fs retries five times before an error comes here. Files are read in blocks of 1 MB
by ranges; where a server has none, a file is read from its start.
"""

import io
import logging
import time
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

import aiohttp
import fsspec

from configs import InputError
from data import hashing
from data.sources.files import BUFFER, File

PAUSES = (0.1, 0.5, 2.0, 5.0, 15.0, 30.0, 60.0)  # seconds before each new try
SILENCE = 60.0  # seconds without a byte over HTTP that count as a failure
BLOCK = 1 << 20
STAMPS = ("ETag", "etag", "LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created")
FINAL = (401, 403, 404, 410)  # answers that stay the same

Result = TypeVar("Result")


def find_remote_files(pattern: str) -> list[File]:
    """The files that a URL (a file, a folder, or with *) stands for, sorted; `time` stands for the store's tag or time.

    Raises InputError where the store cannot be reached, or does not tell a file's size.
    """
    filesystem, path = _filesystem(pattern)
    filesystem.invalidate_cache()
    try:
        infos = retried(pattern, lambda: _infos(filesystem, path), _raise_if_final)
    except FileNotFoundError:
        return []
    files = []
    for name, info in sorted(infos.items()):
        hidden = name.rstrip("/").rpartition("/")[2].startswith(".")
        if hidden or info.get("type") == "directory":
            continue
        stamp = next((str(info[key]) for key in STAMPS if info.get(key)), "")
        time_of_change = int(hashing.digest(stamp), 16) >> 1 if stamp else 0
        files.append(File(filesystem.unstrip_protocol(name), _size(name, info), time_of_change))
    return files


def _size(name: str, info: dict[str, Any]) -> int:
    if info.get("size") is None:
        raise InputError(f"data.sources: the server of '{name}' does not tell its size")
    return int(info["size"])


def _infos(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
    """Name → what the store tells of it."""
    if "*" in path:
        names = filesystem.glob(path)
    elif path.endswith("/") or filesystem.info(path)["type"] == "directory":
        names = filesystem.find(path)
    else:
        names = [path]
    return {name: filesystem.info(name) for name in names}


def _filesystem(url: str) -> tuple[Any, str]:
    over_http = url.startswith(("http://", "https://"))
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)  # aiohttp's own: 5 min in all
    try:
        return fsspec.url_to_fs(url, **({"client_kwargs": {"timeout": timeout}} if over_http else {}))
    except (ImportError, ValueError) as error:
        raise InputError(f"data.sources: cannot open '{url}' ({error})") from None


def open_remote(path: str) -> BinaryIO:
    """Open for reading bytes. Raises InputError naming the file when it is not there, or reading fails for good."""
    return io.BufferedReader(_Retrying(path), BUFFER)


class _Retrying(io.RawIOBase):
    """A remote file that is opened again at the place where reading it failed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._filesystem, self._inner = _filesystem(path)
        self._position = 0
        self._file: Any = None
        self._has_ranges = True
        self._size = _size(path, self._again(lambda: self._filesystem.info(self._inner)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if self._file is not None and position != self._position:
            if self._has_ranges:
                self._file.seek(position)
            else:
                self._close()
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        data = self._again(lambda: self._read(len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._close()
        super().close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self, size: int) -> bytes:
        if self._file is None:
            self._open()
        try:
            data: bytes = self._file.read(size)
        except ValueError:  # the one that fsspec raises: an answer that is not the range asked for
            if not self._has_ranges:
                raise
            logging.getLogger(__name__).warning(
                "%s: its server has no ranges, so it is read from its start", self._path
            )
            self._has_ranges = False
            self._open()
            data = self._file.read(size)
        if not data:
            raise OSError(f"ends after {self._position} of {self._size} bytes")
        return data

    def _open(self) -> None:
        if self._has_ranges:
            self._file = self._filesystem.open(self._inner, "rb", block_size=BLOCK, cache_type="readahead")
            if self._position:
                self._file.seek(self._position)
            return
        self._file = self._filesystem.open(self._inner, "rb", block_size=0)
        passed = 0
        while passed < self._position:
            block = self._file.read(min(BUFFER, self._position - passed))
            if not block:
                raise OSError(f"ends after {passed} of {self._size} bytes")
            passed += len(block)

    def _again(self, action: Callable[[], Result]) -> Result:
        def anew() -> Result:
            try:
                return action()
            except Exception:
                self._close()
                raise

        try:
            return retried(self._path, anew, _raise_if_final)
        except FileNotFoundError:
            raise InputError(f"{self._path}: not found") from None


def retried(name: str, action: Callable[[], Result], raise_if_final: Callable[[str, Exception], None]) -> Result:
    """Do it, up to eight times. Raises InputError naming what was read, or what `raise_if_final` raises."""
    for pause in PAUSES:
        try:
            return action()
        except Exception as error:  # the stores' clients have exceptions of their own
            raise_if_final(name, error)
            logging.getLogger(__name__).warning("%s: %s; trying again in %g s", name, reason(error), pause)
        time.sleep(pause)
    try:
        return action()
    except Exception as error:
        raise InputError(f"{name}: cannot be read, tried {len(PAUSES) + 1} times ({reason(error)})") from error


def _raise_if_final(path: str, error: Exception) -> None:
    """Raise where trying again cannot help. fsspec's HTTP raises FileNotFoundError from the true error."""
    true = error.__cause__ if isinstance(error.__cause__, aiohttp.ClientError | OSError) else error
    status = getattr(true, "status", None)
    if status == 404 or status == 410 or (isinstance(true, FileNotFoundError) and status is None):
        raise FileNotFoundError(path)
    if status in FINAL or isinstance(true, PermissionError):
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    true = error.__cause__ or error
    return " ".join(f"{true}".split()) or type(true).__name__
