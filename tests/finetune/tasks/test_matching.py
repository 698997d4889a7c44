"""The pooling and the score survive the folder (R30, R36); every kind of training file learns; dropout is checked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from configs.loader import validate
from finetune.config import FinetuneConfig
from finetune.embed import embed
from finetune.evaluate import evaluate
from finetune.folder.load import load_inputs
from finetune.results import failed_training
from finetune.run import read_training_rows, run
from finetune.serving import parse_options
from finetune.tasks.matching_metrics import space_scores
from finetune.tasks.table import TASKS

POOLINGS = ["cls", "mean", "max", "first_last"]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def texts_of(path: str) -> list[str]:
    """The text column."""
    return [json.loads(line)["text"] for line in Path(path).read_text().splitlines()]


@pytest.fixture
def sts(topics: dict[str, str], tmp_path: Path) -> str:
    """Pairs scored 1 when they are of one topic: an untrained encoder cannot know."""
    rows = [json.loads(line) for line in Path(topics["test"]).read_text().splitlines()]
    pairs = [(row, rows[(7 * i + 1) % len(rows)]) for i, row in enumerate(rows)]
    scored = [{"text_a": a["text"], "text_b": b["text"], "score": float(a["label"] == b["label"])} for a, b in pairs]
    return write(tmp_path / "sts.jsonl", scored)


def topic_triples(path: str) -> list[dict[str, str]]:
    """Triples of two texts of one topic and one of another."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    found = []
    for i, row in enumerate(rows):
        later = rows[i + 1 :] + rows[:i]
        same = next(other["text"] for other in later if other["label"] == row["label"])
        other = next(other["text"] for other in later if other["label"] != row["label"])
        found.append({"text_a": row["text"], "text_b": same, "negative": other})
    return found


def configure(folder: Path, model: str, **values: Any) -> FinetuneConfig:
    """A config of one quick matching run."""
    common = {"task": "matching", "model": model, "run_dir": str(folder / "run"), "seeds": [0]}
    return validate(FinetuneConfig, {**common, "training": {"num_epochs": 2, "learning_rate": 1e-3}, **values}, "test")


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_r30_sentence_transformers_gives_our_vectors(
    architecture: str, pooling: str, make_encoder: Callable[[str], str], topics: dict[str, str], tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = configure(
        tmp_path, make_encoder(architecture), train=topics["train"], pooling=pooling, columns={"text": "text"}
    )
    run(config)
    lines = [*texts_of(topics["test"])[:19], "rain and snow " * 60]
    source = write(tmp_path / "lines.jsonl", [{"text": line} for line in lines])
    embed(str(tmp_path / "run" / "model"), source, str(tmp_path / "out.npy"), parse_options([]))
    ours = np.load(tmp_path / "out.npy")
    capfd.readouterr()
    model = SentenceTransformer(str(tmp_path / "run" / "model"))
    theirs = model.encode(lines)
    said = "".join(capfd.readouterr())
    assert "creating a new one" not in said.lower()
    assert model.max_seq_length == 64
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosines.min() >= 0.99999


def test_r36_the_score_after_training_is_the_score_of_the_folder(
    encoder: str, topics: dict[str, str], sts: str, tmp_path: Path, run_forked: Callable[[list[Any]], None]
) -> None:
    """In a new process, with nothing said about pooling; another pooling must be asked for and is printed."""
    config = configure(tmp_path, encoder, train=topics["train"], test=sts, pooling="max", training={"num_epochs": 8})
    results = run(config)
    path = tmp_path / "evaluate.yaml"
    path.write_text(f"task: matching\nmodel: x\nrun_dir: x\ntrain: {topics['train']}\ntest: {sts}\n")
    arguments = [str(tmp_path / "run" / "model"), str(path)]
    run_forked([("memory_case.py", {"CASE": ("evaluate", arguments, str(tmp_path / "out"))})])
    again = json.loads((tmp_path / "out.stdout").read_text())
    assert again["score"] == pytest.approx(results["seeds"][0]["test"], abs=1e-4)
    assert again["pooling"] == "max"
    other = configure(tmp_path, encoder, train=topics["train"], test=sts, pooling="cls")
    assert abs(evaluate(str(tmp_path / "run" / "model"), other)["score"] - again["score"]) > 1e-4


def test_r36_another_pooling_is_printed(
    encoder: str, topics: dict[str, str], sts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(configure(tmp_path, encoder, train=topics["train"], pooling="mean"))
    evaluate(str(tmp_path / "run" / "model"), configure(tmp_path, encoder, train=sts, test=sts, pooling="cls"))
    assert "pooling: cls as asked" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pairs", "triples", "cosent", "cosine"])
def test_every_kind_of_training_file_raises_the_score(
    kind: str, encoder: str, topics: dict[str, str], sts: str, tmp_path: Path
) -> None:
    triples = topic_triples(topics["train"])
    same = [{"text_a": row["text_a"], "text_b": row["text_b"], "score": 1.0} for row in triples]
    other = [{"text_a": row["text_a"], "text_b": row["negative"], "score": 0.0} for row in triples]
    pairs = [{"text_a": row["text_a"], "text_b": row["text_b"]} for row in triples]
    rows = {"pairs": pairs, "triples": triples, "cosent": same + other, "cosine": same + other}[kind]
    config = configure(
        tmp_path, encoder, train=write(tmp_path / "train.jsonl", rows), dev=sts, pooling="mean",
        matching={"scored_loss": kind if kind.startswith("cos") else "cosent"},
        training={"num_epochs": 6, "learning_rate": 3e-3, "layer_decay": 1.0},
    )  # fmt: skip
    results = run(config)
    assert results["after"]["spearman"] > results["before"]["spearman"] + 0.2


def test_several_test_files_are_scored_together_and_apart(
    encoder: str, topics: dict[str, str], sts: str, tmp_path: Path
) -> None:
    half = write(tmp_path / "half.jsonl", [json.loads(line) for line in Path(sts).read_text().splitlines()[:30]])
    config = configure(tmp_path, encoder, train=topics["train"], test=[sts, half], training={"num_epochs": 1})
    scores = run(config)["seeds"][0]["scores"]
    assert scores["n"] == 110
    assert scores["files"][sts]["n"] == 80
    assert scores["files"][half]["n"] == 30


def test_dropout_of_zero_is_refused_or_raised_and_said(
    encoder: str, topics: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"matching.dropout: 0 leaves unsupervised SimCSE without two views"):
        run(configure(tmp_path, encoder, train=topics["train"], matching={"dropout": 0}))
    still = tmp_path / "still"
    still.mkdir()
    for path in Path(encoder).iterdir():
        (still / path.name).write_bytes(path.read_bytes())
    config = json.loads((still / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config))
    run(configure(tmp_path, str(still), train=topics["train"], training={"num_epochs": 1}))
    assert "raised to 0.1" in capsys.readouterr().out
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert saved["hidden_dropout_prob"] == 0.1


def test_the_folder_states_pooling_and_temperature(encoder: str, topics: dict[str, str], tmp_path: Path) -> None:
    run(configure(tmp_path, encoder, train=topics["train"], pooling="max", matching={"temperature": 0.07}))
    description = json.loads((tmp_path / "run" / "model" / "finetune.json").read_text())
    assert (description["pooling"], description["temperature"], description["max_length"]) == ("max", 0.07, 64)
    assert description["kind"] == ["text"]


def test_the_space_is_described_and_its_collapse_is_reported(
    encoder: str, topics: dict[str, str], tmp_path: Path
) -> None:
    space = run(configure(tmp_path, encoder, train=topics["train"], columns={"text": "text"}))["seeds"][0]["space"]
    assert set(space["before"]) == {"alignment", "uniformity", "cosine_of_positives", "cosine_of_random_pairs"}
    assert space["after"]["uniformity"] < space["before"]["uniformity"]  # SimCSE spreads the vectors
    assert failed_training({"space": space}) == {}
    collapsed = failed_training({"space": {"after": {"cosine_of_random_pairs": 0.99}}})
    assert collapsed == {"collapsed": "collapsed, random pairs have a cosine above 0.95"}


def test_the_numbers_of_a_space() -> None:
    same = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert space_scores(same, same) == pytest.approx(
        {"alignment": 0, "uniformity": 0, "cosine_of_positives": 1, "cosine_of_random_pairs": 1}
    )
    spread = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert space_scores(spread, spread)["uniformity"] == pytest.approx(-8.0)


@pytest.mark.parametrize("kind", [("text",), ("text_a", "text_b", "negative"), ("text_a", "text_b", "score")])
def test_a_batch_in_parts_by_length_has_the_loss_of_one_padded_batch(
    kind: tuple[str, ...], encoder: str, topics: dict[str, str], tmp_path: Path
) -> None:
    """And its gradients: what is saved is padding."""
    texts = texts_of(topics["train"])[:12]
    values = {"text": texts, "text_a": texts, "text_b": texts[::-1], "negative": texts[6:] + texts[:6]}
    columns = {**values, "score": [float(i % 5) for i in range(12)]}
    path = write(tmp_path / "t.jsonl", [{role: columns[role][i] for role in kind} for i in range(12)])
    found = []
    for budget in (64, 100_000):
        config = configure(tmp_path, encoder, train=path, training={"max_tokens_per_device": budget})
        rows = read_training_rows(config)
        task = TASKS[config.task].from_training_rows(config, load_inputs(encoder), rows)
        torch.manual_seed(0)
        model = task.build(encoder, from_scratch=False).eval()
        passes: list[int] = []
        model.register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
        loss = task.loss(model, task.encode(rows, training=True))
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((len(passes), loss.detach(), gradients))
    assert found[0][0] > found[1][0] == 1
    torch.testing.assert_close(found[0][1:], found[1][1:], atol=5e-5, rtol=1e-4)
