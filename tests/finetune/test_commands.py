"""The commands as a user calls them: memory that stays flat (R34), bad input with exit code 2, whole files or none."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import run_command
from finetune.__main__ import main as finetune_main
from finetune.config import FinetuneConfig
from finetune.embed import embed
from finetune.embed import main as embed_main
from finetune.evaluate import main as evaluate_main
from finetune.predict import main as predict_main
from finetune.predict import predict
from finetune.serving import ServingConfig, parse_options


@pytest.fixture(scope="module")
def classifier(encoder: str, topics: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A trained classifier's folder, and the config that made it, by the command."""
    folder = tmp_path_factory.mktemp("classifier")
    config = folder / "config.yaml"
    lines = [f"{name}: {path}\n" for name, path in {**topics, "model": encoder, "run_dir": folder / "run"}.items()]
    config.write_text("task: classification\nseeds: [0]\n" + "".join(lines) + "training: {num_epochs: 1}\n")
    finetune_main([str(config)])
    assert json.loads((folder / "run" / "status.json").read_text())["state"] == "done"
    return str(folder / "run" / "model"), str(config)


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_r34_memory_does_not_grow_with_the_rows(
    command: str, classifier: tuple[str, str], tmp_path: Path, run_forked: Callable[[list[Any]], None]
) -> None:
    model, config = classifier
    row = {"text": "we saw the old rain and snow and fog " * 4, "label": "weather"}
    cases = []
    for count in (400, 4000):
        path = tmp_path / f"{count}.jsonl"
        path.write_text((json.dumps(row) + "\n") * count)
        out = str(tmp_path / f"out{count}")
        last = {"evaluate": [config, f"test={path}"], "predict": [str(path), f"{out}.jsonl"]}[command]
        cases.append(("memory_case.py", {"CASE": (command, [model, *last], out)}))
    run_forked(cases)
    peaks = [int((tmp_path / f"out{count}").read_text()) for count in (400, 4000)]
    assert peaks[1] <= 1.1 * peaks[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["finetune", "CONFIG", "sseds=[1]"], "unknown key 'sseds'; did you mean 'seeds'?"),
        (["finetune", "CONFIG", "model=/nowhere"], "/nowhere: no such model folder"),
        (["finetune", "CONFIG", "train=missing.jsonl"], "cannot read missing.jsonl: No such file"),
        (["finetune.predict", "MODEL", "missing.csv", "OUT"], "cannot read missing.csv: No such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, classifier: tuple[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    named = {"CONFIG": classifier[1], "MODEL": classifier[0], "OUT": str(tmp_path / "out")}
    command = [named.get(argument, argument) for argument in arguments]
    run_dir = [f"run_dir={tmp_path / 'run'}"] if command[0] == "finetune" else []
    mains = {"finetune": (finetune_main, FinetuneConfig), "finetune.predict": (predict_main, ServingConfig)}
    monkeypatch.setattr(sys, "argv", [*command, *run_dir])
    with pytest.raises(SystemExit) as exit_:
        run_command(*mains[command[0]])
    assert exit_.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert message in lines[0]
    if run_dir and "sseds" not in command[2]:
        assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "bad_input"
    assert not (tmp_path / "out").exists()


def lines_file(folder: Path, lines: list[Any]) -> str:
    """JSON lines."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_predict_names_a_bad_row_before_it_writes(classifier: tuple[str, str], tmp_path: Path) -> None:
    source = lines_file(tmp_path, [{"text": "rain"}, {"text": None}])
    with pytest.raises(ValueError, match=r"rows.jsonl:2: the column 'text' \(for text\) is null"):
        predict(classifier[0], source, str(tmp_path / "out.jsonl"), parse_options([]))
    assert list(tmp_path.iterdir()) == [Path(source)]


def test_predictions_are_in_order_over_many_chunks(
    classifier: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": "rain " * (1 + i % 17)} for i in range(50)]
    source, out = lines_file(tmp_path, rows), tmp_path / "out.jsonl"
    predict(classifier[0], source, str(out), parse_options(["max_tokens_per_device=50"]))
    whole = [json.loads(line) for line in out.read_text().splitlines()]
    monkeypatch.setattr("finetune.inference.ROWS_PER_CHUNK", 7)
    predict(classifier[0], source, str(out), parse_options([]))
    chunked = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(whole) == len(chunked) == 50
    assert [row["score"] for row in chunked] == pytest.approx([row["score"] for row in whole], abs=1e-5)
    assert whole[0] == whole[17] != whole[1]


def test_an_interrupted_embed_leaves_nothing_under_its_name(
    encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lines_file(tmp_path, [{"text": "rain"}] * 20)
    out = tmp_path / "out.npy"
    monkeypatch.setattr("finetune.inference.ROWS_PER_CHUNK", 5)
    calls = []

    def interrupt(*_: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*_)

    from finetune.tasks.matching import Matching

    original = Matching.predict
    monkeypatch.setattr(Matching, "predict", interrupt)
    with pytest.raises(KeyboardInterrupt):
        embed(encoder, source, str(out), parse_options([]))
    assert not out.exists()
    monkeypatch.setattr(Matching, "predict", original)
    assert embed(encoder, source, str(out), parse_options([])) == (20, 32)
    assert np.load(out).shape == (20, 32)


def test_cut_texts_are_counted_and_said(
    classifier: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lines_file(tmp_path, [{"text": "rain " * 500}, {"text": "snow"}])
    predict(classifier[0], source, str(tmp_path / "out.jsonl"), parse_options([]))
    assert "texts longer than 64 tokens, cut: 1 in 2 rows" in capsys.readouterr().err


def test_a_folder_of_another_task_is_refused(classifier: tuple[str, str], encoder: str, tmp_path: Path) -> None:
    source = lines_file(tmp_path, [{"text": "rain"}])
    with pytest.raises(ValueError, match="is a model for classification; embed takes a matching model"):
        embed(classifier[0], source, str(tmp_path / "out.npy"), parse_options([]))
    with pytest.raises(ValueError, match="is an encoder without a head"):
        predict(encoder, source, str(tmp_path / "out.jsonl"), parse_options([]))
    with pytest.raises(ValueError, match=r"is a model for classification, the config's task is matching"):
        evaluate_main([classifier[0], classifier[1], "task=matching"])
    with pytest.raises(ValueError, match="unknown key 'colums'; did you mean 'columns'"):
        predict_main([classifier[0], source, "out", "colums.text=body"])
    for main in (embed_main, predict_main, evaluate_main):
        with pytest.raises(ValueError, match="usage"):
            main([])
