"""One fine-tuning from folder to folder: results.json, model/, baselines, the libraries that open the result."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import pipeline

from configs import InputError
from configs.loader import validate
from finetune.accelerator import make_accelerator
from finetune.config import FinetuneConfig
from finetune.run import run


def configure(**values: Any) -> FinetuneConfig:
    """A validated config."""
    return validate(FinetuneConfig, values, "test")


@pytest.mark.parametrize("architecture", ["bert", "roberta_prelayernorm", "modernbert"])
def test_classification_learns_and_opens_in_pipeline(
    architecture: str, make_encoder: Callable[[str], str], topics: dict[str, str], tmp_path: Path
) -> None:
    config = configure(
        task="classification", model=make_encoder(architecture), run_dir=str(tmp_path / "run"), **topics,
        seeds=[0, 1], baselines=["majority"], training={"learning_rate": 3e-3, "num_epochs": 15, "layer_decay": 1.0},
    )  # fmt: skip
    results = run(config)
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results
    assert [seed["seed"] for seed in results["seeds"]] == [0, 1]
    assert results["mean"] == pytest.approx(np.mean([seed["test"] for seed in results["seeds"]]))
    assert results["mean"] > 0.8 > 0.5 > results["baselines"]["majority"]
    classify = pipeline("text-classification", model=str(tmp_path / "run" / "model"))
    assert classify("we saw the old rain and snow and fog")[0]["label"] == "weather"


def test_from_scratch_baseline_has_its_own_seeds(encoder: str, topics: dict[str, str], tmp_path: Path) -> None:
    config = configure(
        task="classification", model=encoder, run_dir=str(tmp_path / "run"), **topics,
        seeds=[3, 4], baselines=["from_scratch"], training={"num_epochs": 1},
    )  # fmt: skip
    scratch = run(config)["baselines"]["from_scratch"]
    assert [seed["seed"] for seed in scratch["seeds"]] == [3, 4]
    assert {"mean", "standard_deviation"} <= set(scratch)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "first_last"])
def test_unsupervised_matching_opens_in_sentence_transformers(
    pooling: str, encoder: str, topics: dict[str, str], tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in Path(topics["test"]).read_text().splitlines()]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"query": r["text"], "target": r["text"][:30]}) + "\n" for r in rows))
    config = configure(
        task="matching", model=encoder, run_dir=str(tmp_path / "run"), train=topics["train"], test=str(pairs),
        columns={"text": "text", "query": "query", "target": "target"}, seeds=[0], pooling=pooling,
        training={"num_epochs": 2},
    )  # fmt: skip
    results = run(config)
    assert results["metric"] == "mrr"
    assert set(results["before"]) == set(results["after"])
    texts = [row["text"] for row in rows[:20]]
    vectors = SentenceTransformer(str(tmp_path / "run" / "model")).encode(texts)
    assert vectors.shape == (20, 32)


def test_curves_history_and_flags_are_written(
    encoder: str, topics: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A learning rate of nearly nothing leaves the model at one class, or says that it did not."""
    config = configure(
        task="classification", model=encoder, run_dir=str(tmp_path / "run"), **topics, seeds=[0, 1],
        training={"num_epochs": 1, "learning_rate": 1e-12},
    )  # fmt: skip
    results = run(config)
    for seed in results["seeds"]:
        stuck = seed["scores"]["most_frequent_guess"] == 1.0
        assert seed.get("stuck_on_one_class", False) == stuck
        assert (f"seed {seed['seed']}: stuck" in capsys.readouterr().err) == stuck or seed["seed"] == 1
    assert any(seed.get("stuck_on_one_class") for seed in results["seeds"])
    assert (tmp_path / "run" / "learning_curves.png").read_bytes()[:4] == b"\x89PNG"
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert [step["step"] for step in history["0"]["steps"]] == list(range(1, len(history["0"]["steps"]) + 1))
    assert history["0"]["evaluations"][0]["step"] == 1


def test_texts_that_were_cut_or_read_in_windows_are_counted(
    encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In training and test apart, in results.json and in one line each."""
    long = "rain " * 70
    rows = [{"text": text, "label": label} for text, label in (("rain", "x"), (long, "y"), (long, "x"))]
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "test")}
    for name, path in files.items():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[name == "test" :][:2]))
    common = {"model": encoder, "seeds": [0, 1], "training": {"num_epochs": 1, "num_evaluations": 1}}
    paths = {name: str(path) for name, path in files.items()}
    run(configure(task="classification", run_dir=str(tmp_path / "run"), **common, **paths, dev=paths["test"]))
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["truncated_train_texts"] == 1
    assert [seed["scores"]["truncated_texts"] for seed in found["seeds"]] == [2, 2]
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "cut:" in line] == [
        f"{paths['train']}: texts longer than 64 tokens, cut: 1 in 2 rows",
        f"{paths['test']}: texts longer than 64 tokens, cut: 2 in 2 rows",
    ]
    answers = {"question": "what", "context": long, "answers": [{"text": "rain", "answer_start": 0}]}
    files["train"].write_text(json.dumps(answers) + "\n")
    asked = {"train": paths["train"], "test": paths["train"], "answering": {"stride": 30}}
    found = run(configure(task="answering", run_dir=str(tmp_path / "answers"), **common, **asked))
    assert (found["windowed_train_texts"], found["truncated_train_texts"]) == (1, 0)
    assert found["seeds"][0]["scores"]["windowed_texts"] == 1
    assert "texts longer than 64 tokens, read in windows: 1 in 1 rows" in capsys.readouterr().err


@pytest.mark.slow
def test_no_seed_of_five_ends_at_the_majority_class_with_default_settings(
    minilm: str, topics: dict[str, str], tmp_path: Path
) -> None:
    """The stable defaults, on an easy set: 200 rows of three classes that one word tells apart."""
    config = configure(
        task="classification", model=minilm, run_dir=str(tmp_path / "run"), train=topics["train"], dev=topics["dev"],
        test=topics["test"], seeds=[0, 1, 2, 3, 4], max_length=32, training={"num_epochs": 4},
    )  # fmt: skip
    scores = [seed["test"] for seed in run(config)["seeds"]]
    assert min(scores) > 0.9


def check_bf16(encoder: str, topics: dict[str, str], folder: Path) -> None:
    """Autocast learns as well, and the weights stay fp32."""
    config = configure(
        task="classification", model=encoder, run_dir=str(folder / "run"), **topics, seeds=[0], precision="bf16",
        training={"learning_rate": 3e-3, "num_epochs": 15, "layer_decay": 1.0},
    )  # fmt: skip
    AcceleratorState._reset_state()  # one precision a process is accelerate's rule
    try:
        assert run(config)["mean"] > 0.8
    finally:
        AcceleratorState._reset_state()
    weights = load_file(folder / "run" / "model" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_bf16_is_autocast(encoder: str, topics: dict[str, str], tmp_path: Path) -> None:
    check_bf16(encoder, topics, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["bert", "roberta_prelayernorm", "modernbert"])
def test_bf16_on_cuda(
    architecture: str, make_encoder: Callable[[str], str], topics: dict[str, str], tmp_path: Path
) -> None:
    assert make_accelerator().device.type == "cuda"
    check_bf16(make_encoder(architecture), topics, tmp_path)


def test_deepspeed_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    config = FinetuneConfig(
        task="classification", model="nowhere", run_dir=str(tmp_path / "run"), train=["nowhere.csv"]
    )
    with pytest.raises(InputError, match=r"does not run under DeepSpeed.*launch/accelerate_8gpu\.yaml"):
        run(config)
