"""ONNX graphs that take any shape (R31), int8 that is measured and refused when it loses too much."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs.loader import validate
from finetune import compress as module
from finetune.compress import compress, main
from finetune.config import FinetuneConfig
from finetune.embed import embed
from finetune.folder.description import ModelDescription, describe_model
from finetune.folder.load import load_inputs
from finetune.folder.onnx_graph import CHECKED_SHAPES, OnnxModel, export_graph, largest_difference, sample_inputs
from finetune.predict import predict
from finetune.run import run
from finetune.serving import load_task, parse_options


@pytest.fixture(scope="module")
def classifier(encoder: str, topics: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A classifier that knows its task."""
    folder = tmp_path_factory.mktemp("classifier") / "run"
    training = {"learning_rate": 3e-3, "num_epochs": 15, "layer_decay": 1.0}
    values = {"task": "classification", "model": encoder, "run_dir": str(folder), "seeds": [0], "training": training}
    run(validate(FinetuneConfig, {**values, **topics}, "test"))
    return str(folder / "model")


@pytest.mark.parametrize("architecture", ["bert", "roberta_prelayernorm", "modernbert", "deberta"])
def test_r31_any_shape_runs_and_the_sample_leaves_no_trace(
    architecture: str, make_encoder: Callable[[str], str], tmp_path: Path
) -> None:
    folder = make_encoder(architecture)
    assert CHECKED_SHAPES[:2] == ((1, 5), (3, 17))
    task = load_task(folder, ModelDescription(task="matching", pooling="mean"))
    model = task.build(folder, from_scratch=False).eval()
    outputs = []
    for sample in ((2, 8), (3, 13)) if architecture == "bert" else ((2, 8),):
        path = tmp_path / f"{sample[0]}.onnx"
        export_graph(model, task.inputs, task.output_names, path, sample)
        graph = OnnxModel(path, task.output_names)
        assert largest_difference(model, graph, task.inputs, per_token=False) <= 1e-4
        outputs.append(graph(**sample_inputs(task.inputs, 2, 64)))
    torch.testing.assert_close(outputs[0], outputs[-1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["--onnx", "--int8"])
def test_a_compressed_folder_predicts_like_the_model(
    kind: str, classifier: str, topics: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    assert main([classifier, str(out), kind, "--data", topics["test"]]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report == json.loads((out / "report.json").read_text())
    assert report["done"]
    assert report["fp32_graph_difference"] <= 1e-4
    assert report["lost"] <= 0.02
    assert report["score"]["before"] > 0.8
    if kind == "--int8":
        assert report["bytes"]["after"] < report["bytes"]["before"]
    found = []
    for folder in (classifier, str(out)):
        predict(folder, topics["test"], str(tmp_path / "out.jsonl"), parse_options([]))
        found.append([json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()])
    assert np.mean([a["label"] == b["label"] for a, b in zip(*found, strict=True)]) >= (
        1.0 if kind == "--onnx" else 0.9
    )
    if kind == "--onnx":
        assert [row["score"] for row in found[0]] == pytest.approx([row["score"] for row in found[1]], abs=1e-4)


def test_what_loses_too_much_is_not_done(
    classifier: str, topics: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST_LOSS", -1.0)
    report = compress(classifier, str(tmp_path / "small"), False, topics["test"], parse_options([]))
    assert not report["done"]
    assert list(tmp_path.iterdir()) == []


def test_a_matching_model_embeds_from_its_graph(
    encoder: str, topics: dict[str, str], tmp_path: Path, make_encoder: Callable[[str], str]
) -> None:
    values = {"task": "matching", "model": make_encoder("modernbert"), "run_dir": str(tmp_path / "run"), "seeds": [0]}
    options: dict[str, Any] = {"pooling": "first_last", "columns": {"text": "text"}, "training": {"num_epochs": 1}}
    run(validate(FinetuneConfig, {**values, **options, "train": topics["train"]}, "test"))
    model = str(tmp_path / "run" / "model")
    compress(model, str(tmp_path / "small"), False, None, parse_options([]))
    vectors = []
    for folder in (model, str(tmp_path / "small")):
        embed(folder, topics["test"], str(tmp_path / "out.npy"), parse_options([]))
        vectors.append(np.load(tmp_path / "out.npy"))
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-4)


def test_bad_calls_are_refused(classifier: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--int8 needs --data FILE"):
        main([classifier, str(tmp_path / "out"), "--int8"])
    for arguments in ([], [classifier, "out"], [classifier, "out", "--onnx", "--int8"], [classifier, "out", "--onxx"]):
        with pytest.raises(ValueError, match="usage"):
            main(arguments)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(ValueError, match="is not a model folder written by finetune"):
        main([classifier, str(tmp_path / "mine"), "--onnx"])


def test_load_inputs_reads_a_compressed_folder(encoder: str, tmp_path: Path) -> None:
    compress(encoder, str(tmp_path / "small"), False, None, parse_options(["pooling=max"]))
    assert load_inputs(str(tmp_path / "small")).max_length == 64
    assert describe_model(str(tmp_path / "small")).pooling == "max"
