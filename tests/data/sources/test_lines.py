"""Readers: any bytes in, nothing lost in silence; each kind of bad input under each policy."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import BadInputConfig, DataConfig, SourceConfig
from data.sources import lines as readers
from data.sources.files import File, open_file
from data.sources.lines import Record, read
from data.sources.unit import Plan, plan
from data.stream.source_stream import SourceStream

ANY = BadInputConfig(empty_glob="skip")


def records(source: SourceConfig, num_lanes: int = 1, limit: int = 1 << 20, cut_long: bool = True) -> list[Record]:
    """All records of a source, in the order of its units."""
    found: list[Record] = []
    for unit in plan(source, num_lanes, ANY).units:
        found += read(unit, (unit.start, 0, 0), source, limit, cut_long)
    return found


def texts(source: SourceConfig, num_lanes: int = 1, **options: Any) -> list[str]:
    return [record.text for record in records(source, num_lanes, **options) if not record.fault]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300) | st.text(max_size=200).map(str.encode), num_lanes=st.integers(1, 9))
def test_any_bytes_are_read_once_whatever_the_units(tmp_path: Path, content: bytes, num_lanes: int) -> None:
    """Every line becomes one record, in its place, in plain and in compressed files."""
    path = tmp_path / "any.txt"
    path.write_bytes(content)
    (tmp_path / "any.txt.gz").write_bytes(gzip.compress(content))
    (tmp_path / "any.txt.zst").write_bytes(zstandard.compress(content))
    lines = content.split(b"\n") if content else []
    if lines and not lines[-1]:
        lines.pop()
    for name in ("any.txt", "any.txt.gz", "any.txt.zst"):
        found = records(SourceConfig(path=str(tmp_path / name)), num_lanes)
        if not found:
            assert not lines
            continue
        by_place = {int(record.place.rpartition(":")[2]): record for record in found}
        assert len(by_place) == len(found) == len(lines)
        offset = 0
        for line in lines:
            record = by_place[offset]
            expected = line.rstrip(b"\r").decode(errors="replace")
            assert record.fault in ("", "encoding", "empty")
            assert record.fault == "empty" or record.text == (
                expected.removeprefix("\ufeff") if not offset else expected
            )
            offset += len(line) + 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=80), max_size=9
    ),
    limit=st.integers(16, 40),
    num_lanes=st.integers(1, 5),
)
def test_long_lines_are_cut_without_a_loss_and_go_on_from_every_cursor(
    tmp_path: Path, lines: list[str], limit: int, num_lanes: int
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    source = SourceConfig(path=str(path))
    for unit in plan(source, num_lanes, ANY).units:
        found = list(read(unit, (unit.start, 0, 0), source, limit, True))
        for i, record in enumerate(found):
            assert len(record.text.encode()) <= limit
            assert list(read(unit, record.cursor, source, limit, True)) == found[i + 1 :]
    total = "".join(record.text for record in records(source, num_lanes, limit))
    expected = "".join(line for line in lines)
    assert total.replace("\ufeff", "").split() == expected.replace("\ufeff", "").split() or len(total) <= len(expected)
    faults = {record.fault for record in records(source, num_lanes, limit)}
    assert faults <= {"", "too_long", "empty"}


@pytest.mark.parametrize("cut_long", [True, False])
def test_a_giant_line_is_read_in_bounded_memory(tmp_path: Path, cut_long: bool) -> None:
    path = tmp_path / "giant.txt"
    with path.open("wb") as file:
        file.write(b"first\n")
        for _ in range(400):
            file.write(b"word " * 20_000)
        file.write(b"\nlast\n")
    source = SourceConfig(path=str(path))
    tracemalloc.start()
    size, ends, faults = 0, [], 0
    for unit in plan(source, 2, ANY).units:
        for record in read(unit, (unit.start, 0, 0), source, 1 << 16, cut_long):
            size += len(record.text)
            faults += record.fault == "too_long"
            ends += [record.text] if not record.fault else []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    assert ends == ["first", "last"]
    assert (size == 40_000_009) if cut_long else (faults == 1)


def test_long_json_texts_come_in_parts(tmp_path: Path) -> None:
    text = " ".join(f"w{i}" for i in range(100))
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text}) + '\n{"text": "short"}\n')
    source = SourceConfig(path=str(path), format="jsonl")
    found = records(source, limit=64)
    assert "".join(record.text for record in found[:-1]) == text
    assert found[-1].text == "short"
    for unit in plan(source, 1, ANY).units:
        of_unit = list(read(unit, (unit.start, 0, 0), source, 64, True))
        for i, record in enumerate(of_unit):
            assert list(read(unit, record.cursor, source, 64, True)) == of_unit[i + 1 :]
    assert [record.fault for record in records(source, limit=64, cut_long=False)] == ["too_long", ""]


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_a_json_line_too_long_to_be_held_is_skipped_and_counted(
    tmp_path: Path, num_lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MOST_JSON_BYTES", 1000)
    path = tmp_path / "a.jsonl.gz"
    lines = [json.dumps({"text": text}) for text in ("first", "long " * 150, "giant " * 400, "last")]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    source = SourceConfig(path=str(path), format="jsonl")
    found = records(source, num_lanes, limit=600)
    assert sorted(record.text for record in found if not record.fault) == ["first", "last"]
    assert "".join(record.text for record in found if record.fault) == "long " * 150
    [giant] = [record for record in found if record.fault and not record.text]
    assert giant.detail == "the line is longer than 1000 bytes"
    found, counts = stream_of(path, "jsonl", too_long="replace")
    assert counts.skipped == {"too_long": 1}
    assert counts.read == counts.used + 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.lists(
        st.binary(max_size=40)
        | st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=50), st.lists).map(
            lambda value: json.dumps({"text": value}).encode()
        ),
        max_size=8,
    ).map(b"\n".join),
    num_lanes=st.integers(1, 5),
    cut_long=st.booleans(),
)
def test_any_bytes_as_json_lines(tmp_path: Path, content: bytes, num_lanes: int, cut_long: bool) -> None:
    """Every line is a record, with its text as Python's json reads it or with a fault, whatever the units."""
    path = tmp_path / "any.jsonl"
    path.write_bytes(content)
    (tmp_path / "any.jsonl.zst").write_bytes(zstandard.compress(content))
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    for name in ("any.jsonl", "any.jsonl.zst"):
        found = records(SourceConfig(path=str(tmp_path / name), format="jsonl"), num_lanes, 64, cut_long)
        by_place: dict[int, list[Record]] = {}
        for record in found:
            by_place.setdefault(int(record.place.rpartition(":")[2].partition("+")[0]), []).append(record)
        assert len(by_place) == len(lines)
        offset = 0
        for line in lines:
            mine = by_place[offset]
            text = "".join(record.text for record in mine)
            faults = {record.fault for record in mine}
            assert faults <= {"", "json_line", "column", "encoding", "empty", "too_long"}
            if faults == {""} or (faults == {"too_long"} and cut_long):
                assert text == json.loads(line)["text"]
            offset += len(line) + 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200), where=st.floats(0, 1), ending=st.sampled_from(["gz", "zst", "parquet", "arrow"])
)
def test_a_file_with_bytes_changed_is_read_or_told(tmp_path: Path, content: bytes, where: float, ending: str) -> None:
    """Never a crash: rows, or faults that say where."""
    rows = [f"row {i}" for i in range(50)]
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"text": rows}), path, row_group_size=20)
    elif ending == "arrow":
        with pa.ipc.new_file(str(path), pa.table({"text": rows}).schema) as writer:
            writer.write_table(pa.table({"text": rows}), max_chunksize=20)
    else:
        path.write_bytes({"gz": gzip.compress, "zst": zstandard.compress}[ending]("\n".join(rows).encode()))
    good = path.read_bytes()
    at = int(where * len(good))
    path.write_bytes(good[:at] + content + good[at + len(content) :])
    format = ending if ending in ("parquet", "arrow") else "text"
    for record in records(SourceConfig.model_validate({"path": str(path), "format": format}), 2):
        assert record.fault in ("", "broken_file", "encoding", "empty", "column", "too_long")
        assert record.place.startswith(str(path))


JSON_LINES = (
    b'{"text": "good one"}\n{broken\n{"other": 1}\n{"text": null}\n{"text": 5}\n\n[1]\n'
    b'{"text": "b\xffd"}\n{"text": "last"}'
)
KINDS = ["", "json_line", "column", "column", "column", "empty", "json_line", "encoding", ""]


@pytest.mark.parametrize("num_lanes", [1, 3])
@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_faults_of_json_lines_are_told_with_their_places(tmp_path: Path, ending: str, num_lanes: int) -> None:
    pack: Callable[[bytes], bytes] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(pack(JSON_LINES))
    found = records(SourceConfig(path=str(path), format="jsonl"), num_lanes)
    found.sort(key=lambda record: int(record.place.rpartition(":")[2]))
    assert [record.fault for record in found] == KINDS
    offsets = [int(record.place.rpartition(":")[2]) for record in found]
    assert [JSON_LINES[offset : offset + 4] for offset in offsets[:3]] == [b'{"te', b"{bro", b'{"ot']


def stream_of(path: Path, format: str, **policies: str) -> tuple[list[str], Any]:
    """The documents of a file under policies, and the counts."""
    source = SourceConfig.model_validate({"path": str(path), "format": format})
    config = DataConfig.model_validate(
        {"sources": [source], "num_epochs": 1, "num_lanes": 1, "max_document_bytes": 64, "bad_input": policies}
        | {"shuffle": False}
    )
    stream = SourceStream(plan(source, 1, config.bad_input), 0, 0, config, 0)
    found = []
    while (document := stream.next_document()) is not None:
        found.append(document.text)
    return found, stream.counts


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


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_a_path_without_text(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match="matches no file"):
        plan(SourceConfig(path=str(tmp_path / "*.txt")), 4, BadInputConfig())
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="matches only empty files"):
        plan(SourceConfig(path=str(tmp_path / "*.txt")), 4, BadInputConfig())
    (tmp_path / "full.txt").write_bytes(b"some\n" + content)
    assert texts(SourceConfig(path=str(tmp_path / "*.txt")), 4) == ["some"]
    assert texts(SourceConfig(path=str(tmp_path)), 4) == ["some"]


@pytest.mark.parametrize("num_lanes", [1, 4, 40])
@pytest.mark.parametrize("format", ["parquet", "arrow", "arrow_file"])
def test_tables_are_read_once_from_every_cursor(tmp_path: Path, format: str, num_lanes: int) -> None:
    rows = [f"row {i}" for i in range(100)]
    table = pa.table({"id": range(100), "text": rows})
    path = tmp_path / "a.table"
    if format == "parquet":
        pq.write_table(table, path, row_group_size=30)
    else:
        new = pa.ipc.new_stream if format == "arrow" else pa.ipc.new_file
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    source = SourceConfig.model_validate({"path": str(path), "format": format.partition("_")[0]})
    assert sorted(texts(source, num_lanes)) == sorted(rows)
    for unit in plan(source, num_lanes, ANY).units[:5]:
        found = list(read(unit, (unit.start, 0, 0), source, 100, True))
        for i, record in enumerate(found):
            assert list(read(unit, record.cursor, source, 100, True)) == found[i + 1 :]


def test_faults_of_tables(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "", "x" * 40 + " " + "y" * 40]}), tmp_path / "a.parquet")
    source = SourceConfig(path=str(tmp_path / "a.parquet"), format="parquet")
    assert [r.fault for r in records(source, limit=64, cut_long=False)] == ["", "column", "empty", "too_long"]
    assert [r.fault for r in records(source, limit=64)] == ["", "column", "empty", "too_long", "too_long"]
    other = SourceConfig(path=str(tmp_path / "a.parquet"), format="parquet", text_column="body")
    assert [r.detail for r in records(other)] == ["the column 'body' is missing"] * 4
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(content[:-20])
    broken = SourceConfig(path=str(tmp_path / "b.parquet"), format="parquet")
    assert [r.fault for r in records(broken, 5)] == ["broken_file"]
    binary = pa.array([b"ok", b"b\xffd"], pa.binary()).view(pa.binary())
    text = pa.StringArray.from_buffers(2, binary.buffers()[1], binary.buffers()[2])
    pq.write_table(pa.table({"text": text}), tmp_path / "c.parquet")
    invalid = records(SourceConfig(path=str(tmp_path / "c.parquet"), format="parquet"))
    assert [(r.text, r.fault) for r in invalid] == [("ok", ""), ("b\ufffdd", "encoding")]


def test_several_frames_and_padding_of_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n") + bytes(100))
    (tmp_path / "b.zst").write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    for name in ("a.gz", "b.zst"):
        with open_file(str(tmp_path / name)) as stream:
            assert stream.read() == b"one\ntwo\n"


def test_the_manifest_changes_with_the_files() -> None:
    source = SourceConfig(path="x")
    manifests = {Plan(source, [File("a", size, time)], []).manifest for size in (1, 2) for time in (1, 2)}
    assert len(manifests) == 4
