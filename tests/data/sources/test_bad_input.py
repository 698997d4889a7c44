"""Bad input: each kind of fault under each policy; nothing is lost in silence."""

import gzip
from pathlib import Path

import pytest

from tests.data.sources.reading import stream_of

LONG = " ".join(["long"] * 20)
BAD = {
    "json_line": ("jsonl", b'{"text": "a"}\n{broken\n{"text": "b"}\n', None),
    "column": ("jsonl", b'{"text": "a"}\n{"text": 7}\n{"text": "b"}\n', ["7"]),
    "encoding": ("text", b"a\nx\xffy\nb\n", ["x\ufffdy"]),
    "empty": ("text", b"a\n  \nb\n", None),
    "too_long": ("text", f"a\n{LONG}\nb\n".encode(), [LONG[:60], LONG[60:]]),
    "broken_file": ("text", gzip.compress(b"a\nb\n" + bytes(range(128, 256)) * 9, mtime=0)[:-9], None),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_each_policy_of_each_kind(tmp_path: Path, kind: str) -> None:
    format, content, stand_in = BAD[kind]
    path = tmp_path / ("a.gz" if kind == "broken_file" else "a")
    path.write_bytes(content)
    tolerant = {"encoding": "replace"} if kind == "broken_file" else {}
    with pytest.raises(ValueError, match=rf"^{path}:\d+: .*data\.bad_input\.{kind}=skip") as error:
        stream_of(path, format, **{**tolerant, kind: "error"})
    assert "\n" not in str(error.value)
    found, counts = stream_of(path, format, **{**tolerant, kind: "skip"})
    assert found[:2] == ["a", "b"]
    assert counts.skipped[kind] == 1
    assert len(counts.places[kind]) == 1
    assert counts.read == counts.used + sum(counts.skipped.values())
    if stand_in is not None:
        found, counts = stream_of(path, format, **{kind: "replace"})
        assert sorted(found) == sorted(["a", "b", *stand_in])
        assert counts.replaced[kind] == len(stand_in)


def test_a_missing_or_null_column_never_stands_in(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": null}\n{"x": 1}\n{"text": ["l"]}\n')
    found, counts = stream_of(path, "jsonl", column="replace")
    assert found == ["a"]
    assert counts.read == 4
    assert counts.skipped == {"column": 3}


def test_only_the_first_20_places_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{\n" * 50 + '{"text": "a"}\n')
    _, counts = stream_of(path, "jsonl", json_line="skip")
    assert counts.skipped["json_line"] == 50
    assert counts.places["json_line"] == [f"{path}:{2 * i}" for i in range(20)]
