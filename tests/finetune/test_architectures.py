"""Every family of encoders in every task: trained a few steps, saved, opened again by the libraries of a service."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForQuestionAnswering, pipeline

from configs.loader import validate
from finetune.config import FinetuneConfig
from finetune.embed import embed
from finetune.predict import predict
from finetune.run import run
from finetune.serving import parse_options

ARCHITECTURES = ["bert", "roberta", "roberta_prelayernorm", "modernbert", "deberta"]
WORDS = ["rain", "apple", "hammer", "snow", "banana", "drill"]
TEXTS = [" ".join(WORDS[i % 6 :][: 1 + i % 3]) for i in range(16)]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def trained(folder: Path, task: str, encoder: str, rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The model's folder after two steps, and the file of the rows."""
    path = write(folder / "rows.jsonl", rows)
    values = {"task": task, "model": encoder, "run_dir": str(folder / "run"), "train": path, "seeds": [0]}
    training = {"num_epochs": 1, "batch_size": 8, "learning_rate": 1e-3}
    run(validate(FinetuneConfig, {**values, "training": training}, "test"))
    return str(folder / "run" / "model"), path


def predicted(folder: Path, model: str, path: str) -> list[dict[str, Any]]:
    """What our command writes."""
    predict(model, path, str(folder / "out.jsonl"), parse_options([]))
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_classifier_opens_in_pipeline(architecture: str, make_encoder: Callable[[str], str], tmp_path: Path) -> None:
    rows = [{"text": text, "label": "even" if i % 2 else "odd"} for i, text in enumerate(TEXTS)]
    model, path = trained(tmp_path, "classification", make_encoder(architecture), rows)
    theirs = pipeline("text-classification", model=model)(TEXTS)
    ours = predicted(tmp_path, model, path)
    assert [row["label"] for row in ours] == [row["label"] for row in theirs]
    assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], abs=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_matcher_opens_in_sentence_transformers(
    architecture: str, make_encoder: Callable[[str], str], tmp_path: Path
) -> None:
    model, path = trained(tmp_path, "matching", make_encoder(architecture), [{"text": text} for text in TEXTS])
    embed(model, path, str(tmp_path / "out.npy"), parse_options([]))
    ours, theirs = np.load(tmp_path / "out.npy"), SentenceTransformer(model).encode(TEXTS)
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosines.min() >= 0.99999


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tagger_opens_in_pipeline(architecture: str, make_encoder: Callable[[str], str], tmp_path: Path) -> None:
    rows = [{"tokens": text.split(), "tags": ["B-A" if word == "rain" else "O" for word in text.split()]}
            for text in TEXTS]  # fmt: skip
    model, path = trained(tmp_path, "tagging", make_encoder(architecture), rows)
    theirs = pipeline("token-classification", model=model, ignore_labels=[])(TEXTS)
    assert [row["tags"] for row in predicted(tmp_path, model, path)] == [[e["entity"] for e in row] for row in theirs]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_answerer_gives_slices(architecture: str, make_encoder: Callable[[str], str], tmp_path: Path) -> None:
    answers = [{"text": text.split()[0], "answer_start": 0} for text in TEXTS]
    rows = [{"question": "saw", "context": text, "answers": [a]} for text, a in zip(TEXTS, answers, strict=True)]
    model, path = trained(tmp_path, "answering", make_encoder(architecture), rows)
    _, loading = AutoModelForQuestionAnswering.from_pretrained(model, output_loading_info=True)
    assert not loading["missing_keys"]
    for text, found in zip(TEXTS, predicted(tmp_path, model, path), strict=True):
        assert found["answer"] == text[found["start"] : found["end"]] != ""
