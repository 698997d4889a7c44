"""Labels keep their names and order (R32); weights, smoothing, pairs; users' errors."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, pipeline

from configs.loader import validate
from finetune.config import FinetuneConfig
from finetune.evaluate import evaluate
from finetune.folder.load import load_inputs
from finetune.predict import predict
from finetune.run import read_training_rows, run
from finetune.serving import parse_options
from finetune.tasks.classification import label_names
from finetune.tasks.table import TASKS


def configure(folder: Path, model: str, **values: Any) -> FinetuneConfig:
    """A config of one quick classification run."""
    common = {"task": "classification", "model": model, "run_dir": str(folder / "run"), "seeds": [0]}
    return validate(FinetuneConfig, {**common, "training": {"num_epochs": 1}, **values}, "test")


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def twelve(encoder: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]]]:
    """A trained model of 12 numeric classes from a shuffled file, and 100 rows for it."""
    folder = tmp_path_factory.mktemp("twelve")
    rows = [{"text": f"{i % 12} the {i % 12} old {i % 12}", "label": str(i % 12)} for i in range(240)]
    random.Random(0).shuffle(rows)
    train = write(folder / "train.jsonl", rows)
    run(configure(folder, encoder, train=train, training={"num_epochs": 20, "learning_rate": 3e-3}))
    return folder, rows[:100]


def test_r32_twelve_numeric_classes_map_to_themselves(twelve: tuple[Path, list[dict[str, str]]]) -> None:
    config = AutoConfig.from_pretrained(twelve[0] / "run" / "model")
    assert config.id2label == {i: str(i) for i in range(12)}
    assert config.label2id == {str(i): i for i in range(12)}
    assert label_names(["10", "2", 1]) == ["1", "2", "10"]
    assert label_names(["b", "a", "10"]) == ["10", "a", "b"]


def test_r32_pipeline_and_predict_name_the_same_class(twelve: tuple[Path, list[dict[str, str]]]) -> None:
    folder, rows = twelve
    out = folder / "predictions.jsonl"
    predict(str(folder / "run" / "model"), write(folder / "rows.jsonl", rows), str(out), parse_options([]))
    ours = [json.loads(line) for line in out.read_text().splitlines()]
    theirs = pipeline("text-classification", model=str(folder / "run" / "model"))([row["text"] for row in rows])
    assert [row["label"] for row in ours] == [row["label"] for row in theirs]
    assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], abs=1e-5)
    assert len({row["label"] for row in ours}) > 6  # it learned to tell them apart


def test_r32_another_order_of_classes_in_the_scored_file_changes_nothing(
    twelve: tuple[Path, list[dict[str, str]]], encoder: str
) -> None:
    folder, rows = twelve
    scores = []
    for name, ordered in (("a", rows), ("b", sorted(rows, key=lambda row: -int(row["label"])))):
        test = write(folder / f"{name}.jsonl", ordered)
        config = configure(folder, encoder, train=str(folder / "train.jsonl"), test=test)
        scores.append(evaluate(str(folder / "run" / "model"), config)["scores"]["accuracy"])
    assert scores[0] == scores[1] > 0.5


def test_r32_an_unknown_label_is_an_error_naming_the_row(encoder: str, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])
    test = write(tmp_path / "test.jsonl", [{"text": "a", "label": "x"}, {"text": "b", "label": "z"}])
    with pytest.raises(ValueError, match=re.escape(f"{test}:2: unknown label 'z'; allowed: x, y")):
        run(configure(tmp_path, encoder, train=train, test=test))
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows in it"),
        ([{"text": "a"}], r"has the columns text; needed: \(text_a, text_b, label\) or \(text, label\)"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "x"}], "needs two classes"),
        (
            [{"text": "a", "label": "x"}, {"text": 3, "label": "y"}],
            r":2: the column 'text' \(for text\) must be text, not int",
        ),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": None}], r":2: the column 'label' \(for label\) is null"),
        ([{"text": "a", "label": "x"}, {"label": "y"}], r":2: the column 'text' \(for text\) is missing"),
    ],
)
def test_bad_rows_are_named(encoder: str, tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(configure(tmp_path, encoder, train=write(tmp_path / "train.jsonl", rows)))


def test_bad_configs_are_refused(encoder: str, topics: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'body'"):
        run(configure(tmp_path, encoder, **topics, columns={"text": "body", "label": "label"}))
    with pytest.raises(ValueError, match="'txt' is not a role of this task; allowed: text_a, text_b, label, text"):
        run(configure(tmp_path, encoder, **topics, columns={"txt": "text"}))
    with pytest.raises(ValueError, match=r"bert head for classification cannot do 'mean'; allowed: cls"):
        run(configure(tmp_path, encoder, **topics, pooling="mean"))
    with pytest.raises(ValueError, match="has no 'spearman'; allowed: accuracy"):
        run(configure(tmp_path, encoder, **topics, metric="spearman"))
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "thesis.txt").write_text("dear")
    with pytest.raises(ValueError, match="is not a model folder written by finetune"):
        run(configure(tmp_path, encoder, **topics))
    assert (tmp_path / "run" / "model" / "thesis.txt").read_text() == "dear"


def test_the_loss_is_torchs_with_weights_and_smoothing(encoder: str, tmp_path: Path) -> None:
    rows = [{"text_a": "rain", "text_b": f"snow {i}", "label": "rare" if i == 0 else "often"} for i in range(6)]
    options = {"class_weights": "balanced", "label_smoothing": 0.1}
    config = configure(tmp_path, encoder, train=write(tmp_path / "train.jsonl", rows), classification=options)
    inputs = load_inputs(encoder)
    loaded = read_training_rows(config)
    task = TASKS[config.task].from_training_rows(config, inputs, loaded)
    model = task.build(encoder, from_scratch=False).eval()
    examples = task.encode(loaded, training=True)
    ours = task.loss(model, examples) / sum(example.weight for example in examples)
    batch = inputs.tokenizer(
        [r["text_a"] for r in rows], [r["text_b"] for r in rows], padding=True, return_tensors="pt"
    )
    weight = torch.tensor([6 / (2 * 5), 6 / (2 * 1)])  # often, rare
    targets = torch.tensor([1, 0, 0, 0, 0, 0])
    # a row weighs as its class, its smoothed part too
    rows_loss = torch.nn.functional.cross_entropy(model(**batch).logits, targets, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(ours, (rows_loss * weight[targets]).sum() / weight[targets].sum())


def test_a_csv_with_other_column_names_is_read(make_encoder: Callable[[str], str], tmp_path: Path) -> None:
    train = tmp_path / "train.csv"
    train.write_text('id,body,kind\n1,"rain, snow\nand fog",weather\n2,"an ""apple""",fruit\n', encoding="utf-8")
    config = configure(
        tmp_path,
        make_encoder("modernbert"),
        train=str(train),
        columns={"text": "body", "label": "kind"},
        test=str(train),
    )
    results = run(config)
    assert results["train_rows"] == 2
    assert results["seeds"][0]["scores"]["n"] == 2


def test_r36_a_head_that_pools_cls_is_served_with_cls(
    make_encoder: Callable[[str], str], topics: dict[str, str], tmp_path: Path
) -> None:
    """ModernBERT's head can pool the mean too, which is the default of a training that names none."""
    config = configure(tmp_path, make_encoder("modernbert"), **topics, pooling="cls")
    trained = run(config)["seeds"][0]["scores"]
    served = evaluate(str(tmp_path / "run" / "model"), config.model_copy(update={"pooling": None}))["scores"]
    assert served["loss"] == pytest.approx(trained["loss"], abs=1e-6)
