"""Remote files through fsspec: found by glob, read with retries, never skipped.

What fails for a while (a refused or cut connection, a 503, a minute of silence, an end before the size that the store
gave) is tried again from where it stopped, seven times within two minutes, and is then an error that names the file. A
file that is missing or forbidden is an error at once. fsspec over HTTP has no retries, and calls every failure of its
first request "not found"; s3fs retries five times before an error comes here. Files are read in blocks of 1 MB by
ranges; where a server has no ranges, a file is read from its start.
"""

import io
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp
import fsspec

from configs import InputError
from data import hashing
from data.sources.unit import File

PAUSES = (0.1, 0.5, 2.0, 5.0, 15.0, 30.0, 60.0)  # seconds before each new attempt
SILENCE_SECONDS = 60.0  # without a byte over HTTP: a failure
BLOCK_BYTES = 1 << 20
VERSION_KEYS = ("ETag", "etag", "LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created")
FINAL_STATUSES = (401, 403, 404, 410)  # HTTP's refusals, which trying again does not change

Result = TypeVar("Result")


def find_remote_files(pattern: str) -> list[File]:
    """The sorted files of a URL (a file, a folder, or with *). Raises InputError if the store does not answer."""
    filesystem, path = _open_filesystem(pattern)
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
        tag = next((str(info[key]) for key in VERSION_KEYS if info.get(key)), "")
        version = int(hashing.digest(tag), 16) >> 1 if tag else 0
        files.append(File(filesystem.unstrip_protocol(name), _size(name, info), version))
    return files


def read_remote_range(path: str, start: int, end: int) -> bytes:
    """The bytes [start, end) of a remote file, undecompressed. Raises InputError where it cannot be read."""
    filesystem, inner_path = _open_filesystem(path)
    try:
        data: bytes = retried(path, lambda: filesystem.cat_file(inner_path, start=start, end=end), _raise_if_final)
    except FileNotFoundError:
        raise InputError(f"{path}: not found") from None
    return data[start:end] if len(data) > end - start else data  # all of it, from a server without ranges


def retried(name: str, action: Callable[[], Result], raise_if_final: Callable[[str, Exception], None]) -> Result:
    """What `action` returns at one of eight attempts; then InputError that names what was read.

    `raise_if_final(name, error)` raises where another attempt cannot help.
    """
    for pause in PAUSES:
        try:
            return action()
        except Exception as error:  # each store's client has exceptions of its own
            raise_if_final(name, error)
            logging.getLogger(__name__).warning("%s: %s; trying again in %g s", name, reason(error), pause)
        time.sleep(pause)
    try:
        return action()
    except Exception as error:
        raise InputError(f"{name}: cannot be read, tried {len(PAUSES) + 1} times ({reason(error)})") from error


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    true = error.__cause__ or error
    return " ".join(f"{true}".split()) or type(true).__name__


def _raise_if_final(path: str, error: Exception) -> None:
    """Raise where another attempt cannot help. fsspec's HTTP raises FileNotFoundError from the true error."""
    true = error.__cause__ if isinstance(error.__cause__, aiohttp.ClientError | OSError) else error
    status = getattr(true, "status", None)
    if status == 404 or status == 410 or (isinstance(true, FileNotFoundError) and status is None):
        raise FileNotFoundError(path)
    if status in FINAL_STATUSES or isinstance(true, PermissionError):
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None


def _open_filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    over_http = url.startswith(("http://", "https://"))
    # instead of aiohttp's own limit of 5 minutes for a whole file
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
    try:
        return fsspec.url_to_fs(url, **({"client_kwargs": {"timeout": timeout}} if over_http else {}))
    except (ImportError, ValueError) as error:
        raise InputError(f"data.sources: cannot open '{url}' ({error})") from None


def _infos(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
    """What the store says about each file, by name."""
    if "*" in path:
        names = filesystem.glob(path)
    elif path.endswith("/") or filesystem.info(path)["type"] == "directory":
        names = filesystem.find(path)
    else:
        names = [path]
    return {name: filesystem.info(name) for name in names}


def _size(name: str, info: dict[str, Any]) -> int:
    if info.get("size") is None:
        raise InputError(f"data.sources: the server of '{name}' does not tell its size")
    return int(info["size"])


class RemoteFile(io.RawIOBase):
    """The bytes of a remote file, which is opened again where reading it failed; InputError where it fails for good."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._filesystem, self._inner_path = _open_filesystem(path)
        self._position = 0
        self._file: Any = None
        self._has_ranges = True
        self._size = _size(path, self._retried(lambda: self._filesystem.info(self._inner_path)))

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
        data = self._retried(lambda: self._read(len(buffer)))
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
        except ValueError:  # fsspec's, for an answer that is not the range asked for
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
            self._file = self._filesystem.open(self._inner_path, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
            if self._position:
                self._file.seek(self._position)
            return
        self._file = self._filesystem.open(self._inner_path, "rb", block_size=0)
        passed = 0
        while passed < self._position:
            block = self._file.read(min(BLOCK_BYTES, self._position - passed))
            if not block:
                raise OSError(f"ends after {passed} of {self._size} bytes")
            passed += len(block)

    def _retried(self, action: Callable[[], Result]) -> Result:
        def attempt() -> Result:
            try:
                return action()
            except Exception:
                self._close()
                raise

        try:
            return retried(self._path, attempt, _raise_if_final)
        except FileNotFoundError:
            raise InputError(f"{self._path}: not found") from None
