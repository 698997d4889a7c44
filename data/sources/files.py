"""Files: what a glob stands for, and opening one for reading from any byte, compressed or not, local or remote.

The offset that readers count is that of the decompressed bytes. In a compressed file, going to an offset means
decompressing all that comes before it (200-400 MB/s); in others it is a seek.
"""

import glob
import io
import os
import zlib
from typing import Any, BinaryIO, NamedTuple

import zstandard

from configs import InputError

BUFFER = 1 << 17
COMPRESSED = (".gz", ".zst")


class BrokenFileError(Exception):
    """A file that cannot be read to its end: truncated, corrupt, or not what its name says."""


class File(NamedTuple):
    """One file of a source, as it was when the run started."""

    path: str
    size: int  # bytes on disk
    time: int  # of the last change, in ns (0 where the store has none)

    @property
    def compressed(self) -> bool:
        return self.path.endswith(COMPRESSED)


def is_remote(path: str) -> bool:
    return "://" in path


def find_files(pattern: str) -> list[File]:
    """The files that a path, folder or glob stands for, sorted by path; hidden ones and folders are left out."""
    if is_remote(pattern):
        from data.sources.remote import find_remote_files

        return find_remote_files(pattern)
    if os.path.isdir(pattern):
        pattern = os.path.join(pattern, "**")
    paths = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [path for path in paths if os.path.isfile(path)]
    return [File(path, (stat := os.stat(path)).st_size, stat.st_mtime_ns) for path in files]


def open_file(path: str) -> BinaryIO:
    """Open for reading bytes, decompressed; errors in the middle are BrokenFileError."""
    raw: BinaryIO
    if is_remote(path):
        from data.sources.remote import open_remote

        raw = open_remote(path)
    else:
        try:
            raw = open(path, "rb", buffering=BUFFER)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
    if path.endswith(COMPRESSED):
        return io.BufferedReader(_Decompressed(raw, path), BUFFER)
    return raw


def seek(stream: BinaryIO, offset: int) -> None:
    """Go to `offset` of the decompressed bytes of a stream just opened."""
    if stream.seekable():
        stream.seek(offset)
        return
    while offset > 0:
        block = stream.read(min(offset, BUFFER))
        if not block:
            raise BrokenFileError(f"ends {offset} bytes before the place to go on from")
        offset -= len(block)


def decompressed_bytes(file: File) -> int:
    """Size after decompression; of a compressed file an estimate, from its first 4 MB."""
    if not file.compressed:
        return file.size
    with open_file(file.path) as stream:
        size = len(stream.read(1 << 22))
        consumed: int = stream.raw.consumed  # type: ignore[attr-defined]
    return round(size * file.size / max(consumed, 1))


class _Decompressed(io.RawIOBase):
    """Frames of gzip or zstd, one after another; a missing end is an error (zstandard's own reader passes over it)."""

    def __init__(self, raw: BinaryIO, path: str) -> None:
        self._raw, self._path = raw, path
        self._frame: Any = None
        self._ready: memoryview = memoryview(b"")
        self._pending = b""  # compressed bytes after the end of a frame
        self.consumed = 0  # compressed bytes read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._advance():
                return 0
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _advance(self) -> bool:
        """Decompress one block; False at the end of the file."""
        block = self._pending or self._raw.read(1 << 15)
        self.consumed += 0 if self._pending else len(block)
        self._pending = b""
        if self._frame is None and self._path.endswith(".gz") and block.strip(b"\0") == b"":
            return bool(block)  # padding behind the last frame
        if not block:
            if self._frame is not None:
                raise BrokenFileError("is truncated")
            return False
        if self._frame is None:
            gz = self._path.endswith(".gz")
            self._frame = zlib.decompressobj(31) if gz else zstandard.ZstdDecompressor().decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(block))
        except (zlib.error, zstandard.ZstdError) as error:
            raise BrokenFileError(f"is corrupt ({error})") from None
        if self._frame.eof:
            self._pending, self._frame = self._frame.unused_data, None
        return True

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
