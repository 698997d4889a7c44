"""Rows of a user's file, one at a time, each with its place (`file:line`), so that a bad one can be named.

`data.sources` opens files (local, remote, compressed), parses lines of JSON, and reads tables and hub data sets; what a
row is, csv and SQuAD documents are this module's. The format is the end of the name. Every reader streams, except that
a SQuAD document is one JSON value and is read whole. A row that cannot be read is an error that names it; none is
skipped.
"""

import csv
import io
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from configs import InputError
from data.config import SourceConfig
from data.sources.files import BrokenFileError, open_file
from data.sources.hub import open_stream
from data.sources.lines import JsonLineError, parse_json_line
from data.sources.remote import reason
from data.sources.tables import record_batches

FORMATS = "csv, tsv, jsonl, json, ndjson, txt (each also .gz or .zst), parquet, arrow, or hub:NAME[/CONFIG]:SPLIT"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: `place` is `file:line` (1-based; `file:row` for tables), `values` by column name."""

    place: str
    values: dict[str, Any]


def read_rows(path: str) -> Iterator[Row]:
    """Yield the rows of `path` in order. InputError for an unknown format, an unreadable file or a broken row."""
    if path.startswith("hub:"):
        yield from _read_hub(path)
        return
    suffix = _suffix(path)
    readers = {
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".jsonl": _read_json,
        ".json": _read_json,
        ".ndjson": _read_json,
        ".parquet": _read_table,
        ".arrow": _read_table,
        ".txt": _read_text_lines,
    }
    if suffix not in readers:
        raise InputError(f"{path}: cannot tell the format from the name; allowed: {FORMATS}")
    try:
        yield from readers[suffix](path)
    except (BrokenFileError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: cannot read: the file {error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 ({error.reason})") from None


def column_names(path: str) -> list[str]:
    """The columns of the first row of `path`; InputError when there is none."""
    for row in read_rows(path):
        return list(row.values)
    raise InputError(f"{path}: no rows in it")


def _suffix(path: str) -> str:
    """The end of the name that tells the format, behind which a compression may stand."""
    return Path(path.removesuffix(".gz").removesuffix(".zst")).suffix


def _open_text(path: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(open_file(path), encoding="utf-8-sig", newline="")


def _read_csv(path: str) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    with _open_text(path) as file:
        if _suffix(path) == ".tsv":  # a tab-separated file has no quoting: a quote is a character
            reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        else:
            reader = csv.DictReader(file, strict=True)
        try:
            for values in reader:
                place = f"{path}:{reader.line_num}"
                if None in values or None in values.values():
                    expected = len(reader.fieldnames or ())
                    raise InputError(f"{place}: the header has {expected} columns, this row has another number")
                yield Row(place, values)
        except csv.Error as error:
            raise InputError(f"{path}:{reader.line_num}: {error}") from None


def _read_text_lines(path: str) -> Iterator[Row]:
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            yield Row(f"{path}:{number}", {"text": line.rstrip("\r\n")})


def _read_json(path: str) -> Iterator[Row]:
    """Lines of JSON, or one SQuAD document on one line or many."""
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(BOM_UTF8)
                if line.strip() in (b"{", b"["):  # one value over many lines
                    line += file.read()
            if not line.strip():
                continue
            try:
                values = parse_json_line(line)
            except JsonLineError as error:
                raise InputError(f"{path}:{number}: {error}") from None
            except UnicodeDecodeError as error:
                raise InputError(f"{path}:{number}: not valid UTF-8 ({error.reason})") from None
            if number == 1 and isinstance(values.get("data"), list):
                yield from _squad_rows(path, values["data"])
                return
            yield Row(f"{path}:{number}", values)


def _squad_rows(path: str, articles: list[Any]) -> Iterator[Row]:
    """One row a question: id, context, question, answers = [{text, answer_start}]; answers == [] means no answer."""
    number = 0
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    number += 1
                    answers = [] if question.get("is_impossible") else question.get("answers", [])
                    values = {"id": str(question["id"]), "question": question["question"], "answers": answers}
                    yield Row(f"{path}:question {number}", values | {"context": paragraph["context"]})
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: not in SQuAD form at question {max(number, 1)}: {error}") from None


def _read_table(path: str) -> Iterator[Row]:
    number = 0
    for batch in record_batches(path, Path(path).suffix.removeprefix(".")):
        batch.validate(full=True)  # pyarrow reads damaged offsets and texts without looking
        for values in batch.to_pylist():
            number += 1
            yield Row(f"{path}:row {number}", values)


def _read_hub(path: str) -> Iterator[Row]:
    """Rows of a hub data set; numbers of classes (ClassLabel) become their names."""
    from datasets import ClassLabel

    name, separator, split = path.removeprefix("hub:").rpartition(":")
    if not separator:
        raise InputError(f"{path}: a hub data set is written hub:NAME:SPLIT or hub:NAME/CONFIG:SPLIT")
    owner, config = name.rsplit("/", 1) if name.count("/") == 2 else (name, "")
    try:
        rows = open_stream(SourceConfig(hub=owner, name=config, split=split))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    classes = {column: kind for column, kind in (rows.features or {}).items() if isinstance(kind, ClassLabel)}
    number = 0
    try:
        for number, values in enumerate(rows, 1):
            known = {column: kind for column, kind in classes.items() if values[column] is not None}
            names = {column: kind.int2str(values[column]) for column, kind in known.items()}
            yield Row(f"{path}:row {number}", {**values, **names})
    except Exception as error:  # the clients of the hub have many kinds, all about the network or the data
        raise InputError(f"{path}:row {number + 1}: cannot be read from the hub: {reason(error)}") from None
