"""A hub's data set as rows; run by test_rows.py in its own process, with the loopback hub of tests/data/sources."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.sources.over_hub import (  # first: it says where the hub is before anybody asks
    BRANCH,
    ROOT,
    SERVER,
    answer,
)

# isort: split
from datasets import ClassLabel, Dataset, Features, Value

from configs.loader import validate
from finetune.config import FinetuneConfig
from finetune.reading.rows import read_rows
from finetune.run import run

COMMIT = "e" * 40
FEATURES = Features({"text": Value("string"), "label": ClassLabel(names=["weather", "fruit"])})


@pytest.fixture(autouse=True)
def hub() -> Path:
    """Two splits of user/name; returns the folder of its files."""
    folder = ROOT / "datasets" / "user" / "name" / "resolve" / COMMIT
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 40), ("test", 10)):
        rows = {"text": [f"rain {i}" if i % 2 == 0 else f"apple {i}" for i in range(count)]}
        Dataset.from_dict({**rows, "label": [i % 2 for i in range(count)]}, FEATURES).to_parquet(
            folder / f"{split}-0.parquet"
        )
    SERVER.answer, SERVER.faults, SERVER.of_every_request, BRANCH[0] = answer, [], False, COMMIT
    return folder


def test_rows_have_names_for_classes_and_places() -> None:
    rows = list(read_rows("hub:user/name:test"))
    assert [row.values["label"] for row in rows] == ["weather", "fruit"] * 5
    assert (rows[3].place, rows[3].values["text"]) == ("hub:user/name:test:row 4", "apple 3")


def test_a_model_is_trained_and_scored_on_them(make_encoder: Callable[[str], str], tmp_path: Path) -> None:
    values: dict[str, Any] = {"task": "classification", "model": make_encoder("bert"), "run_dir": str(tmp_path / "run")}
    values |= {"train": "hub:user/name:train", "test": "hub:user/name:test", "seeds": [0]}
    values["training"] = {"num_epochs": 20, "learning_rate": 3e-3}
    found = run(validate(FinetuneConfig, values, "test"))
    assert (found["train_rows"], found["seeds"][0]["scores"]["n"]) == (40, 10)
    assert found["mean"] == 1.0
    values["columns"] = {"text": "body", "label": "label"}
    with pytest.raises(ValueError, match=r"no file has the column 'body' \(for text\); hub:user/name:train has: text"):
        run(validate(FinetuneConfig, values, "test"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "hub:user/none:train",
            "the data set 'user/none': Dataset 'user/none' doesn't exist on the Hub or cannot be accessed",
        ),
        ("hub:user/name:dev", "the data set 'user/name': Bad split: dev"),
        ("hub:user/name/other:train", "the data set 'user/name': BuilderConfig 'other' not found"),
    ],
)
def test_what_is_not_there_is_one_line(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(path)}: [^\n]*{message}[^\n]*$"):
        list(read_rows(path))


def test_a_shard_that_breaks_off_is_told_with_its_row(hub: Path) -> None:
    path = hub / "train-0.parquet"
    path.write_bytes(path.read_bytes()[:-300] + b"x" * 300)
    with pytest.raises(ValueError, match=r"^hub:user/name:train(:row \d+)?: [^\n]*$"):
        list(read_rows("hub:user/name:train"))
