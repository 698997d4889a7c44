"""Lines of text and of JSON: any bytes in, every line one record, in bounded memory, from every cursor."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import SourceConfig
from data.sources import lines as lines_module
from data.sources.formats import plan, read
from data.sources.lines import JsonLineError, parse_json_line
from data.sources.unit import Record
from tests.data.sources.reading import ANY, records, stream_of


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
        by_location = {int(record.location.rpartition(":")[2]): record for record in found}
        assert len(by_location) == len(found) == len(lines)
        offset = 0
        for line in lines:
            record = by_location[offset]
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
        found = list(read(unit, unit.first, source, limit, True))
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
        for record in read(unit, unit.first, source, 1 << 16, cut_long):
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
        of_unit = list(read(unit, unit.first, source, 64, True))
        for i, record in enumerate(of_unit):
            assert list(read(unit, record.cursor, source, 64, True)) == of_unit[i + 1 :]
    assert [record.fault for record in records(source, limit=64, cut_long=False)] == ["too_long", ""]


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_a_json_line_too_long_to_be_held_is_skipped_and_counted(
    tmp_path: Path, num_lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "MAX_JSON_BYTES", 1000)
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
        by_location: dict[int, list[Record]] = {}
        for record in found:
            by_location.setdefault(int(record.location.rpartition(":")[2].partition("+")[0]), []).append(record)
        assert len(by_location) == len(lines)
        offset = 0
        for line in lines:
            mine = by_location[offset]
            text = "".join(record.text for record in mine)
            faults = {record.fault for record in mine}
            assert faults <= {"", "json_line", "column", "encoding", "empty", "too_long"}
            if faults == {""} or (faults == {"too_long"} and cut_long):
                assert text == json.loads(line)["text"]
            offset += len(line) + 1


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
    found.sort(key=lambda record: int(record.location.rpartition(":")[2]))
    assert [record.fault for record in found] == KINDS
    offsets = [int(record.location.rpartition(":")[2]) for record in found]
    assert [JSON_LINES[offset : offset + 4] for offset in offsets[:3]] == [b'{"te', b"{bro", b'{"ot']


@pytest.mark.parametrize(
    ("line", "reason"),
    [(b"{broken", "not a line of JSON (unexpected"), (b"[1]", "not a JSON object"), (b"", "not a line of JSON")],
)
def test_a_line_without_a_json_object_says_why(line: bytes, reason: str) -> None:
    assert parse_json_line(b'{"text": "a", "n": 1}\n') == {"text": "a", "n": 1}
    with pytest.raises(JsonLineError) as error:
        parse_json_line(line)
    assert reason.split(" (")[0] in str(error.value)
    with pytest.raises(UnicodeDecodeError):
        parse_json_line(b'{"text": "\xff"}')
