"""Any number of processes gives the scores and the updates of one: R33, R37. One launch for many cases."""

import importlib.util
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Results = dict[int, list[Any]]
RunForked = Callable[[list[tuple[str, dict[str, Any]]]], None]
LOSSES = ["unsupervised", "pairs", "triples", "repeated", "cosent", "cosine", "classification", "uneven"]


def load_cases_module(root: Path) -> Any:
    """distributed_cases.py as a module, for the one-process results."""
    spec = importlib.util.spec_from_file_location("distributed_cases", root / "tests/finetune/distributed_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def training_config(kind: str, folder: Path, model: str) -> dict[str, Any]:
    """A config whose training file has 64 rows of a kind."""
    texts = [
        f"we saw {'old ' * (i % 5)}{word} {i % 7}" for i in range(64) for word in [["rain", "apple", "saw"][i % 3]]
    ]
    columns = {
        "unsupervised": lambda i: {"text": texts[i]},
        "pairs": lambda i: {"text_a": texts[i], "text_b": texts[i][3:]},
        "triples": lambda i: {"text_a": texts[i], "text_b": texts[i][3:], "negative": texts[(i * 7 + 1) % 64]},
        "repeated": lambda i: {"text_a": texts[i % 9], "text_b": texts[i % 31]},  # equal texts on both ranks
        "cosent": lambda i: {"text_a": texts[i], "text_b": texts[(i * 5) % 64], "score": float(i % 6)},
        "cosine": lambda i: {"text_a": texts[i], "text_b": texts[(i * 5) % 64], "score": float(i % 6)},
        "classification": lambda i: {"text": texts[i], "label": str(i % 3)},
        "uneven": lambda i: {"text": "rain " * (40 if i % 2 else 2), "label": str(i % 3)},  # one rank has the long ones
    }
    path = folder / f"{kind}.jsonl"
    path.write_text("".join(json.dumps(columns[kind](i)) + "\n" for i in range(64)))
    task = "classification" if kind in ("classification", "uneven") else "matching"
    matching = {"scored_loss": kind} if kind in ("cosent", "cosine") else {}
    training = {"max_tokens_per_device": 128, "batch_size": 64}
    return {"task": task, "model": model, "run_dir": "", "train": str(path), "matching": matching, "training": training}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def results(
    root: Path, folder: Path, make_encoder: Callable[[str], str], topics: dict[str, str], run_forked: RunForked
) -> Results:
    """The results of all cases by number of processes."""
    module = load_cases_module(root)
    encoder = make_encoder("bert")
    rows = Path(topics["test"]).read_text().splitlines(keepends=True)
    files = {count: str(folder / f"rows{count}.jsonl") for count in (10, 11)}
    for count, path in files.items():
        Path(path).write_text("".join(rows[:count]))
    pairs = folder / "sts.jsonl"
    values = [json.loads(row)["text"] for row in rows[:11]]
    sts = [{"text_a": t, "text_b": values[i - 3], "score": i % 4} for i, t in enumerate(values)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in sts))
    training = {"num_epochs": 1, "max_tokens_per_device": 64}
    run = {"task": "classification", "run_dir": str(folder / "run"), "model": encoder, **topics, "seeds": [0]}
    score = {**run, "training": training, "test": files[10]}
    trained = str(folder / "run.1" / "model")
    cases: list[tuple[str, list[Any]]] = [
        ("run", [{**run, "training": training}]),
        ("evaluate", [trained, score]),
        ("evaluate", [trained, {**score, "test": files[11]}]),
        ("evaluate", [encoder, {**score, "task": "matching", "test": str(pairs), "train": str(pairs)}]),
        ("predict", [trained, files[10], str(folder / "predictions"), ["max_tokens_per_device=48"]]),
        ("equal_vectors", [60]),
    ]
    steps = [("step", [training_config(kind, folder, encoder), str(folder / kind)]) for kind in LOSSES]
    found = {1: module.run_cases([*cases, *steps])}
    for processes, launched in ((2, [*cases, *steps]), (3, cases[1:])):
        (folder / "cases.json").write_text(json.dumps(launched))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            common = (processes, free.getsockname()[1], str(folder / "cases.json"), str(folder / "out.json"))
        run_forked([("distributed_cases.py", {"LAUNCH": (rank, *common)}) for rank in range(processes)])
        found[processes] = json.loads((folder / "out.json").read_text())
    found[3] = [None, *found[3]]
    return found


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize(("case", "rows"), [(1, 10), (2, 11), (3, 11)])
def test_r33_each_row_counts_once_on_any_number_of_processes(
    results: Results, processes: int, case: int, rows: int
) -> None:
    alone, together = results[1][case]["scores"], results[processes][case]["scores"]
    assert alone["n"] == together["n"] == rows
    assert together == pytest.approx(alone, abs=1e-6)
    assert results[processes][case]["score"] == pytest.approx(results[1][case]["score"], abs=1e-6)


@pytest.mark.parametrize("processes", [2, 3])
def test_r33_predictions_are_whole_and_in_order(results: Results, folder: Path, processes: int) -> None:
    alone, together = ((folder / f"predictions.{n}").read_text().splitlines() for n in (1, processes))
    assert len(together) == 10
    for one, other in zip(map(json.loads, alone), map(json.loads, together), strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-6)


def test_a_run_on_two_processes_writes_one_result(results: Results, folder: Path) -> None:
    assert json.loads((folder / "run.2" / "results.json").read_text()) == results[2][0]
    assert (folder / "run.2" / "model" / "model.safetensors").exists()
    assert results[2][0]["seeds"][0]["scores"]["n"] == 80


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_r37_equal_similarities_give_the_logarithm_of_the_global_batch(results: Results, processes: int) -> None:
    assert results[processes][5] == pytest.approx(4.0943, abs=1e-4)  # ln 60, not ln 30


@pytest.mark.parametrize("kind", LOSSES)
def test_r37_one_times_64_equals_two_times_32(results: Results, folder: Path, kind: str) -> None:
    index = 6 + LOSSES.index(kind)
    assert results[2][index] == pytest.approx(results[1][index], abs=1e-5)
    alone, together = (torch.load(folder / f"{kind}.{n}") for n in (1, 2))
    assert max(float(update.abs().max()) for update in alone.values()) > 1e-4
    for name, update in alone.items():
        torch.testing.assert_close(together[name], update, atol=1e-5, rtol=0, msg=name)
