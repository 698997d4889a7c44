"""The same bytes are the same run, wherever they lie; other bytes are refused by name."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import InputError
from data import BatchLoader, DataConfig, merge_states
from data.config import SourceConfig
from data.sources import identity
from data.sources.formats import plan
from data.sources.identity import first_change, identified, listed
from data.stream import state as state_module
from tests.data.sources.server import serving

Make = Callable[..., DataConfig]
ANY = DataConfig(sources=[SourceConfig(path="x")]).bad_input


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Ten files in two folders, one of them longer than the part that is read."""
    folder = tmp_path / "corpus"
    for number in range(10):
        path = folder / f"part{number % 2}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"deba kula {number} meni {line}\n" for line in range(20 if number else 20_000)))
    return folder


def manifest(path: object) -> str:
    return identified(plan(SourceConfig(path=str(path)), 4, ANY)).manifest


def test_moved_touched_and_copied_files_are_the_same(corpus: Path, tmp_path: Path) -> None:
    first = manifest(corpus)
    assert manifest(f"{corpus}/**/*.txt") == manifest(f"{corpus}/*/*.txt") == first  # names below the fixed part
    for path in corpus.rglob("*.txt"):
        os.utime(path, (1, 1))
    assert manifest(corpus) == first
    shutil.copytree(corpus, tmp_path / "elsewhere" / "of another name")
    assert manifest(tmp_path / "elsewhere" / "of another name") == first
    with serving(tmp_path) as server:  # staged from a server; HTTP lists no folders, so one file
        for name in ("1.txt", "0.txt"):
            folder = f"corpus/part{int(name[0]) % 2}"
            assert manifest(f"{server.url}/{folder}/{name}") == manifest(tmp_path / folder / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(b"X" + path.read_bytes()[1:]), "the contents of the file 'part0/0.txt' changed"),
        (lambda path: path.write_bytes(path.read_bytes()[:-2] + b"X\n"), "contents of the file 'part0/0.txt' changed"),
        (lambda path: path.write_bytes(path.read_bytes() + b"more\n"), r"'part0/0.txt' had \d+ bytes and has \d+"),
        (lambda path: path.unlink(), "the file 'part0/0.txt' is missing"),
        (lambda path: path.rename(path.with_name("00.txt")), "the file 'part0/0.txt' is missing"),
        (lambda path: path.with_name("z.txt").write_text("new\n"), "the file 'part0/z.txt' is new"),
    ],
)
def test_changed_text_is_refused_and_the_file_named(
    corpus: Path, config: Make, tokenizer: str, change: Callable[[Path], Any], message: str
) -> None:
    own = config(sources=[{"path": str(corpus)}])
    state = merge_states([next(iter(BatchLoader(own, tokenizer, 0))).state])
    change(corpus / "part0" / "0.txt")
    with pytest.raises(InputError, match=message):
        BatchLoader(own, tokenizer, 0, state=json.loads(json.dumps(state)))


def test_a_resume_goes_on_in_a_moved_corpus(
    corpus: Path, config: Make, tokenizer: str, run_steps: Any, resumed: Any, hashes: Any
) -> None:
    own = config(sources=[{"path": str(corpus)}])
    straight = run_steps(own, tokenizer, 12)
    corpus.rename(corpus.with_name("moved"))
    moved = config(sources=[{"path": f"{corpus.with_name('moved')}/*/*.txt"}])
    assert hashes(resumed(moved, tokenizer, straight[4], 1, 7)) == hashes(straight[5:])


def test_another_column_is_another_text(tmp_path: Path, config: Make, tokenizer: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "deba kula", "title": "meni"}\n' * 50)
    source = {"path": str(tmp_path / "a.jsonl"), "format": "jsonl"}
    state = merge_states([next(iter(BatchLoader(config(sources=[source]), tokenizer, 0))).state])
    with pytest.raises(InputError, match="another column"):
        BatchLoader(config(sources=[{**source, "text_column": "title"}]), tokenizer, 0, state=state)


def test_a_state_of_the_version_before_knows_files_by_path_and_time(
    corpus: Path, config: Make, tokenizer: str, run_steps: Any, resumed: Any, hashes: Any, monkeypatch: Any
) -> None:
    own = config(sources=[{"path": str(corpus)}])
    straight = run_steps(own, tokenizer, 8)
    header = state_module.state_header

    def of_version_1(*arguments: Any, version: int = 1) -> Any:
        return header(*arguments, version)

    with monkeypatch.context() as patch:
        patch.setattr("data.stream.loader.state_header", of_version_1)
        old = run_steps(own, tokenizer, 4)
    assert old[-1][0].state["header"]["version"] == 1
    assert hashes(resumed(own, tokenizer, old[-1], 1, 4)) == hashes(straight[4:])
    os.utime(corpus / "part1" / "1.txt", (1, 1))
    with pytest.raises(InputError, match="paths, sizes or times"):
        resumed(own, tokenizer, old[-1], 1, 4)


def test_of_many_files_some_are_read_and_all_are_named(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "READ_FILES", 3)
    found = identified(plan(SourceConfig(path=str(corpus)), 4, ANY))
    assert len(listed(found)) == 3
    before = manifest(corpus)
    (corpus / "part1" / "9.txt").write_text("of another size\n")
    assert manifest(corpus) != before
    assert first_change(listed(found), listed(found)) is None
