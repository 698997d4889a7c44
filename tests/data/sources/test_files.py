"""Files: frames and padding of compressed ones, what changes a manifest, what cannot be opened."""

import gzip
from pathlib import Path

import pytest
import zstandard

from configs import InputError
from data.sources.files import BrokenFileError, open_file


def test_several_frames_and_padding_of_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n") + bytes(100))
    (tmp_path / "b.zst").write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    for name in ("a.gz", "b.zst"):
        with open_file(str(tmp_path / name)) as stream:
            assert stream.read() == b"one\ntwo\n"


def test_what_cannot_be_read_to_its_end_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^cannot read .*none\.txt: No such file or directory$"):
        open_file(str(tmp_path / "none.txt"))
    content = gzip.compress(b"some text" * 100)
    for name, damaged, reason in (("a", content[:-9], "is truncated"), ("b", b"xx" + content[2:], "is corrupt")):
        (tmp_path / f"{name}.gz").write_bytes(damaged)
        with open_file(str(tmp_path / f"{name}.gz")) as stream, pytest.raises(BrokenFileError, match=reason):
            stream.read()
