"""Files and folders that are whole or absent: written under a temporary name, flushed to the disk, then renamed.

A kill or a full disk at any moment leaves the old one or the new one. Cost: one fsync a file and one a folder.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def write_text(path: Path | str, text: str) -> None:
    """Replace the file `path` by `text` (UTF-8). Raises OSError, and then leaves what was there."""
    with open_replacing(path) as file:
        file.write(text.encode())


@contextmanager
def open_replacing(path: Path | str) -> Iterator[IO[bytes]]:
    """A binary file that takes the name `path` when the block ends, and is removed when the block raises."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush_folder(path.parent)


@contextmanager
def folder_replacing(path: Path | str) -> Iterator[Path]:
    """A new folder that takes the name `path`, in the place of a folder there, when the block ends.

    Every file in it is flushed first; when the block raises, it is removed and what was there stays.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, replaced = (path.with_name(f".{path.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    for leftover in (temporary, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for entry in sorted(temporary.rglob("*")):
            flush_folder(entry) if entry.is_dir() else _flush(entry)
        flush_folder(temporary)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
    except BaseException:
        if replaced.exists() and not path.exists():
            replaced.rename(path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    flush_folder(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def flush_folder(path: Path) -> None:
    """Bring the names in a folder to the disk; a file system that cannot flush folders is left alone."""
    with suppress(OSError):
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
