"""Remote files through fsspec: found by glob, read with retries, never skipped.

A read that fails, or ends before the size that the store told, is tried again from where it stopped, five times with
growing pauses; then it is an error that names the file. fsspec over HTTP does not retry by itself.
"""

import io
import time
from typing import Any, BinaryIO

import fsspec

from data import hashing
from data.files import BUFFER, File

PAUSES = (0.1, 0.5, 2.0, 5.0, 15.0)  # seconds before each new try


def find_remote_files(pattern: str) -> list[File]:
    """The files that a URL (with * or not) stands for, sorted; `time` stands for the store's time or tag."""
    filesystem, path = _filesystem(pattern)
    paths = sorted(filesystem.glob(path)) if "*" in path else [path] if filesystem.isfile(path) else []
    files = []
    for found in paths:
        info = filesystem.info(found)
        if info.get("type") == "directory":
            continue
        stamp = next((str(info[key]) for key in ("ETag", "LastModified", "mtime", "created") if info.get(key)), "")
        files.append(File(filesystem.unstrip_protocol(found), int(info.get("size") or 0), _number(stamp)))
    return files


def _number(stamp: str) -> int:
    return int(hashing.digest(stamp), 16) >> 1 if stamp else 0


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        return fsspec.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ValueError(f"data.sources: cannot open '{url}' ({error})") from None


def open_remote(path: str) -> BinaryIO:
    """Open for reading bytes; seekable where the store serves ranges."""
    return io.BufferedReader(_Retrying(path), BUFFER)


class _Retrying(io.RawIOBase):
    """A remote file that is opened again at the place where reading it failed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._filesystem, self._inner = _filesystem(path)
        self._position = 0
        self._size: int | None = None
        self._file: Any = None
        self._again(self._open)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET or (whence == io.SEEK_CUR and not offset)
        if whence == io.SEEK_SET and offset != self._position:
            self._position = int(self._file.seek(offset))
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._again(lambda: self._read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def _open(self) -> None:
        self._size = self._filesystem.info(self._inner).get("size")
        self._file = self._filesystem.open(self._inner, "rb", block_size=1 << 20, cache_type="readahead")
        if self._file.seekable():
            self._file.seek(self._position)
            return
        passed = 0
        while passed < self._position:
            passed += len(self._file.read(min(BUFFER, self._position - passed)))

    def _read(self, size: int) -> bytes:
        if self._file is None:
            self._open()
        data: bytes = self._file.read(size)
        if not data and self._size is not None and self._position < self._size:
            raise OSError(f"ends after {self._position} of {self._size} bytes")
        self._position += len(data)
        return data

    def _again(self, action: Any) -> Any:
        for pause in (*PAUSES, None):
            try:
                return action()
            except Exception as error:  # the stores' clients have exceptions of their own
                self._file = None
                if pause is None:
                    raise ValueError(
                        f"{self._path}: cannot be read, tried {len(PAUSES) + 1} times ({error})"
                    ) from error
                time.sleep(pause)
        return None
