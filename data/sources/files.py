"""Files: finding those of a path, folder or glob, and reading one from any byte, compressed or not, local or remote.

Offsets are those of the decompressed bytes. In a compressed file, going to an offset means decompressing all that
comes before it (200-400 MB/s); in others it is a seek.
"""

import glob
import io
import os
import zlib
from typing import Any, BinaryIO

import zstandard

from configs import InputError
from data.config import BadInputConfig, SourceConfig
from data.sources.remote import RemoteFile, find_remote_files
from data.sources.unit import File

BUFFER_BYTES = 1 << 17
COMPRESSED = (".gz", ".zst")
SAMPLE_BYTES = 4 << 20  # decompressed to estimate how well a file is compressed


class BrokenFileError(Exception):
    """A file that cannot be read to its end: "is truncated", "is corrupt (...)", or not what its name says."""


def is_remote(path: str) -> bool:
    return "://" in path


def is_compressed(path: str) -> bool:
    return path.endswith(COMPRESSED)


def files_of(source: SourceConfig, bad_input: BadInputConfig) -> list[File]:
    """The files of a source. Raises InputError where there is none, or only empty ones, by policy `empty_glob`."""
    files = find_files(source.path)
    if sum(file.size for file in files) == 0 and bad_input.empty_glob == "error":
        what = "matches no file" if not files else "matches only empty files"
        raise InputError(f"data.sources: the path '{source.path}' {what}")
    return files


def find_files(pattern: str) -> list[File]:
    """The files of a path, folder or glob, sorted by path; hidden ones and folders are left out."""
    if is_remote(pattern):
        return find_remote_files(pattern)
    if os.path.isdir(pattern):
        pattern = os.path.join(pattern, "**")
    paths = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [path for path in paths if os.path.isfile(path)]
    return [File(path, (stat := os.stat(path)).st_size, stat.st_mtime_ns) for path in files]


def open_file(path: str) -> BinaryIO:
    """Open a local or remote file for reading its bytes, decompressed if its name ends in .gz or .zst.

    Raises InputError that names a file that cannot be opened, or (remote) read; reading raises BrokenFileError where
    the compressed bytes are truncated or corrupt.
    """
    raw: BinaryIO
    if is_remote(path):
        raw = io.BufferedReader(RemoteFile(path), BUFFER_BYTES)
    else:
        try:
            raw = open(path, "rb", buffering=BUFFER_BYTES)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
    if is_compressed(path):
        return io.BufferedReader(_Decompressed(raw, path), BUFFER_BYTES)
    return raw


def seek(stream: BinaryIO, offset: int) -> None:
    """Go to `offset` of the decompressed bytes of a stream just opened."""
    if stream.seekable():
        stream.seek(offset)
        return
    while offset > 0:
        block = stream.read(min(offset, BUFFER_BYTES))
        if not block:
            raise BrokenFileError(f"ends {offset} bytes before the position to resume from")
        offset -= len(block)


def decompressed_size(file: File) -> int:
    """Bytes after decompression; of a compressed file an estimate, from its first 4 MB."""
    if not is_compressed(file.path):
        return file.size
    with open_file(file.path) as stream:
        size = len(stream.read(SAMPLE_BYTES))
        consumed: int = stream.raw.consumed  # type: ignore[attr-defined]
    return round(size * file.size / max(consumed, 1))


class _Decompressed(io.RawIOBase):
    """Frames of gzip or zstd, one after another. A missing end is an error, which zstandard's own reader ignores."""

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
            if not self._decompress_block():
                return 0
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress_block(self) -> bool:
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
