"""Tagging: first pieces, seqeval's F1 for three schemes, cut words, a model that `pipeline` opens."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from seqeval.metrics import f1_score
from transformers import pipeline

from configs.loader import validate
from finetune.config import FinetuneConfig
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_inputs
from finetune.predict import predict
from finetune.reading.rows import Row
from finetune.run import run
from finetune.serving import parse_options
from finetune.tasks.tagging import Tagging

FRUIT, TOOLS = "apple banana cherry grape".split(), "hammer wrench pliers drill".split()  # noqa: SIM905


def tagged_rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Sentences of fillers with one fruit (one word) and one tool (two words)."""
    random_ = random.Random(seed)
    rows = []
    for _ in range(count):
        pieces = [(["the"], ["O"]), (["old"], ["O"]), ([random_.choice(FRUIT)], ["B-FRUIT"])]
        pieces.append((["big", random_.choice(TOOLS)], ["B-TOOL", "I-TOOL"]))
        random_.shuffle(pieces)
        rows.append(
            {"tokens": [t for tokens, _ in pieces for t in tokens], "tags": [t for _, tags in pieces for t in tags]}
        )
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def configure(folder: Path, model: str, **values: Any) -> FinetuneConfig:
    """A config of one quick run."""
    training = {"num_epochs": 12, "learning_rate": 3e-3, "layer_decay": 1.0}
    common = {"task": "tagging", "model": model, "run_dir": str(folder / "run"), "seeds": [0], "training": training}
    return validate(FinetuneConfig, {**common, **values}, "test")


def make_tagging(encoder: str, labels: list[str], max_length: int | None = None) -> Tagging:
    """The task without training rows."""
    return Tagging(ModelDescription(labels=labels), load_inputs(encoder, max_length))


def test_tagging_learns_predicts_and_opens_in_pipeline(encoder: str, tmp_path: Path) -> None:
    train, test = (
        write(tmp_path / "train.jsonl", tagged_rows(0, 150)),
        write(tmp_path / "test.jsonl", tagged_rows(1, 40)),
    )
    results = run(configure(tmp_path, encoder, train=train, dev=test, test=test, baselines=["majority"]))
    assert results["mean"] > 0.9
    assert results["baselines"]["majority"] == 0.0
    model = str(tmp_path / "run" / "model")
    predict(model, test, str(tmp_path / "out.jsonl"), parse_options([]))
    guesses = [json.loads(line)["tags"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    rights = [row["tags"] for row in tagged_rows(1, 40)]
    assert results["mean"] == pytest.approx(f1_score(rights, guesses))
    found = pipeline("token-classification", model=model)("the old apple big drill")
    assert {entry["entity"] for entry in found} >= {"B-FRUIT"}


@pytest.mark.parametrize(
    ("right", "guess"),
    [
        (["B-A", "I-A", "O", "B-B"], ["B-A", "O", "O", "B-B"]),
        (["B-A", "M-A", "E-A", "S-B", "O"], ["B-A", "M-A", "E-A", "O", "S-B"]),
        (["B-A", "I-A", "E-A", "S-B", "O"], ["B-A", "E-A", "O", "S-B", "O"]),
    ],
)
def test_f1_is_seqevals(encoder: str, right: list[str], guess: list[str]) -> None:
    labels = ["O", *sorted({*right, *guess} - {"O"})]
    task = make_tagging(encoder, labels)
    ids = {name: i for i, name in enumerate(labels)}
    ours = task.score([([ids[t] for t in right], [ids[t] for t in guess])])
    read = [[tag.replace("M-", "I-") for tag in tags] for tags in (right, guess)]
    assert ours["f1"] == f1_score([read[0]], [read[1]])
    assert 0 < ours["f1"] < 1


def test_a_word_is_read_at_its_first_piece_and_cut_words_are_outside(encoder: str) -> None:
    task = make_tagging(encoder, ["O", "B-A"], max_length=8)
    words = ["rain", "zzqqxx", "apple", *["old"] * 10]
    example = task.encode([Row("x:1", {"tokens": words, "tags": ["O"] * 13})], training=True)[0]
    tokens = task.inputs.tokenizer.convert_ids_to_tokens(example.encodings[0]["input_ids"])
    assert len(tokens) == 8
    pieces = [piece for piece in example.first_pieces if piece >= 0]
    assert pieces == sorted(set(pieces))
    assert not any(tokens[piece].startswith("##") for piece in pieces)
    assert example.first_pieces[-1] == -1
    assert example.weight == len(pieces)
    assert task.inputs.truncated == 1
    model = task.build(encoder, from_scratch=False).eval()
    assert len(task.predict(model, [example])[0]) == 13


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, ":2: 2 tokens but 1 tags"),
        ({"tokens": "a b", "tags": ["O"]}, ":2: 'tokens' must be a list"),
        ({"tokens": [], "tags": []}, ":2: '(tags|tokens)' must be a list of one or more"),
    ],
)
def test_bad_rows_are_named(encoder: str, tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(configure(tmp_path, encoder, train=write(tmp_path / "train.jsonl", [*tagged_rows(0, 1), row])))


def test_an_unknown_tag_is_named(encoder: str, tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", tagged_rows(0, 4))
    test = write(tmp_path / "test.jsonl", [{"tokens": ["a"], "tags": ["B-CITY"]}])
    with pytest.raises(ValueError, match=r"test.jsonl:1: unknown tag 'B-CITY'; allowed: O, B-FRUIT"):
        run(configure(tmp_path, encoder, train=train, test=test))


def test_tags_that_only_the_scored_file_has_may_be_configured(encoder: str, tmp_path: Path) -> None:
    """They count as what was not found; a training row with a tag that is not configured is named."""
    train = write(tmp_path / "train.jsonl", tagged_rows(0, 4))
    test = write(tmp_path / "test.jsonl", [{"tokens": ["a", "b"], "tags": ["B-CITY", "O"]}])
    labels = ["B-CITY", "B-FRUIT", "B-TOOL", "I-TOOL"]
    found = run(configure(tmp_path, encoder, train=train, test=test, tagging={"labels": labels}))
    assert found["seeds"][0]["scores"]["recall"] == 0.0
    with pytest.raises(ValueError, match=r"train.jsonl:\d: unknown tag 'B-TOOL'; allowed: O, B-CITY, B-FRUIT"):
        run(configure(tmp_path, encoder, train=train, test=test, tagging={"labels": labels[:2]}))
