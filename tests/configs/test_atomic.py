"""Files and folders are whole or absent, whatever happens while they are written."""

import os
from pathlib import Path

import pytest

from configs.atomic import folder_replacing, open_replacing, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    write_text(path, "neu ü\n")
    assert path.read_bytes() == "neu ü\n".encode()
    assert names(tmp_path) == ["a.txt"]


def test_a_file_whose_writing_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def write_half() -> None:
        with open_replacing(path) as file:
            file.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with folder_replacing(folder) as building:
        (building / "sub").mkdir()
        (building / "sub" / "a.txt").write_text("a")
        assert not folder.exists()
    assert (folder / "sub" / "a.txt").read_text() == "a"
    assert names(folder.parent) == ["folder"]


def test_a_folder_takes_the_place_of_the_one_that_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("old", "new"):
        with folder_replacing(folder) as building:
            (building / name).touch()
    assert names(folder) == ["new"]
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("failing", ["the writer", "the last rename"])
def test_a_folder_whose_writing_fails_leaves_what_was_there(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    with folder_replacing(folder) as building:
        (building / "old").touch()
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if target == folder and path.suffix == ".tmp":
            raise OSError("no space")
        return rename(path, target)

    if failing == "the last rename":
        monkeypatch.setattr(Path, "rename", fail)

    def write_folder() -> None:
        with folder_replacing(folder) as building:
            (building / "new").touch()
            if failing == "the writer":
                raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_folder()
    assert names(folder) == ["old"]
    assert names(tmp_path) == ["folder"]


def test_every_file_and_both_names_reach_the_disk_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    flush = os.fsync

    def record(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    with folder_replacing(tmp_path / "folder") as building:
        (building / "a").touch()
        (building / "inner").mkdir()
        (building / "inner" / "b").touch()
    assert flushed == ["a", "inner", "b", f".folder.{os.getpid()}.tmp", tmp_path.name]
    flushed.clear()
    write_text(tmp_path / "c", "c")
    assert flushed == [f".c.{os.getpid()}.tmp", tmp_path.name]
