"""Rows of a user's file, one at a time, each with its place (`file:line`), so that a bad one can be named.

Formats by the end of the name: `.csv`, `.tsv`, `.jsonl`/`.json`/`.ndjson` (JSON lines, or one SQuAD document),
`.parquet`, `.txt` (one text a line); all but parquet also as `.gz`; and `hub:NAME[/CONFIG]:SPLIT` for a data set of
the hub. Every reader streams, except that a SQuAD document is one JSON value and is read whole. Nothing is skipped: a
row that cannot be read is an error that names it. `datasets` reads only hub data sets, as it turns a missing column
into None.
"""

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from configs import InputError

FORMATS = "csv, tsv, jsonl, json, parquet, txt (each but parquet also .gz), or hub:NAME[/CONFIG]:SPLIT"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: `place` is `file:line` (1-based; `file:row` for parquet), `values` by column name."""

    place: str
    values: dict[str, Any]


def read_rows(path: str) -> Iterator[Row]:
    """Yield the rows of `path` in order. InputError for an unknown format, an unreadable file or a broken row."""
    if path.startswith("hub:"):
        yield from _read_hub(path)
        return
    suffix = Path(path.removesuffix(".gz")).suffix
    readers = {
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".jsonl": _read_json_lines,
        ".json": _read_json_lines,
        ".ndjson": _read_json_lines,
        ".parquet": _read_parquet,
        ".txt": _read_text_lines,
    }
    if suffix not in readers:
        raise InputError(f"{path}: cannot tell the format from the name; allowed: {FORMATS}")
    try:
        yield from readers[suffix](path)
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot read: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 ({error.reason})") from None


def column_names(path: str) -> list[str]:
    """The columns of the first row of `path`; InputError when there is none."""
    for row in read_rows(path):
        return list(row.values)
    raise InputError(f"{path}: no rows in it")


@contextmanager
def _open(path: str) -> Iterator[IO[str]]:
    with open(path, "rb") as raw:
        stream = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
        yield io.TextIOWrapper(cast(BinaryIO, stream), encoding="utf-8-sig", newline="")


def _read_csv(path: str) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    with _open(path) as file:
        if path.removesuffix(".gz").endswith(".tsv"):  # a tab-separated file has no quoting: a quote is a character
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


def _read_json_lines(path: str) -> Iterator[Row]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                if number == 1 and line.strip() in ("{", "["):  # one value over many lines
                    file.seek(0)
                    yield from _read_document(path, file)
                    return
                raise InputError(f"{path}:{number}: not valid JSON: {error.msg}") from None
            if not isinstance(values, dict):
                raise InputError(f"{path}:{number}: a row is a JSON object, not a {type(values).__name__}")
            if number == 1 and isinstance(values.get("data"), list):
                yield from _squad_rows(path, values["data"])
                return
            yield Row(f"{path}:{number}", values)


def _read_document(path: str, file: IO[str]) -> Iterator[Row]:
    try:
        document = json.load(file)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        yield from _squad_rows(path, document["data"])
    else:
        raise InputError(f"{path}: neither JSON lines nor a SQuAD document")


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


def _read_parquet(path: str) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for values in batch.to_pylist():
                number += 1
                yield Row(f"{path}:row {number}", values)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path}: not valid parquet: {error}") from None


def _read_text_lines(path: str) -> Iterator[Row]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            yield Row(f"{path}:{number}", {"text": line.rstrip("\r\n")})


def _read_hub(path: str) -> Iterator[Row]:
    from datasets import ClassLabel, load_dataset

    name, separator, split = path.removeprefix("hub:").rpartition(":")
    if not separator:
        raise InputError(f"{path}: a hub data set is written hub:NAME:SPLIT or hub:NAME/CONFIG:SPLIT")
    config: str | None = None
    if name.count("/") == 2:
        name, config = name.rsplit("/", 1)
    number = 0
    try:  # the hub's client raises many kinds, all of them about the user's name, data or network
        rows = load_dataset(name, config, split=split, streaming=True)
        labels = {column: kind for column, kind in (rows.features or {}).items() if isinstance(kind, ClassLabel)}
        for number, values in enumerate(rows, 1):
            given = {column: kind for column, kind in labels.items() if values[column] is not None}
            named = {column: kind.int2str(values[column]) for column, kind in given.items()}
            yield Row(f"{path}:row {number}", {**values, **named})
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        place = f"{path}:row {number + 1}" if number else path
        raise InputError(f"{place}: cannot load from the hub: {reason}") from None
