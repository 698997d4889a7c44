"""Small corpora (the fixtures FX-… of the fault list), one tokenizer, and configurations around them."""

import gzip
import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data import BatchLoader, DataConfig, format_hash, merge_states
from data.tokenizer.train import TokenizerConfig, train

os.environ.setdefault("OMP_NUM_THREADS", "1")


def words(seed: int, count: int) -> str:
    """Pseudo-English words of 2-4 syllables."""
    generator = random.Random(seed)
    syllables = ["ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "wo", "za", "shi"]
    return " ".join("".join(generator.choices(syllables, k=generator.randint(2, 4))) for _ in range(count))


def id_lines(count: int = 100, length: int = 12) -> list[str]:
    return [f"doc{i:03d} {words(i, length + i % 7)}" for i in range(count)]


def mixed_lines() -> list[str]:
    """FX-text: English, Chinese, accents, emoji, blank lines and one line of 5,000 words."""
    chinese = "今天天气很好我们去公园散步看花听鸟唱歌晚上回家吃饭读书睡觉明天再来"
    lines = []
    for i in range(300):
        kind = i % 6
        if kind == 0:
            lines.append(chinese[i % 11 :] * (1 + i % 3))
        elif kind == 1:
            lines.append(f"Café naïve façade {words(i, 20)}")
        elif kind == 2:
            lines.append(f"{words(i, 10)} 😀🎉 {words(i + 1, 5)}, {chinese[: i % 9]}!")
        elif kind == 3:
            lines.append("" if i % 4 else "   ")
        else:
            lines.append(words(i, 30))
    lines[150] = words(7, 5000)
    return lines


@pytest.fixture(scope="session")
def fx_ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ids") / "ids.txt"
    path.write_text("\n".join(id_lines()) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def fx_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(mixed_lines()) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(fx_ids: Path, fx_text: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """WordPiece with 1,024 entries at most."""
    folder = tmp_path_factory.mktemp("tokenizer") / "wordpiece"
    sources = [{"path": str(fx_ids)}, {"path": str(fx_text)}]
    train(TokenizerConfig.model_validate({"output": str(folder), "vocab_size": 1024, "sources": sources}))
    return str(folder)


@pytest.fixture(scope="session")
def config(fx_ids: Path) -> Callable[..., DataConfig]:
    """A small DataConfig over FX-ids, with changes."""

    def make(**changes: Any) -> DataConfig:
        values: dict[str, Any] = {
            "sources": [{"path": str(fx_ids)}],
            "sequence_length": 64,
            "rows_per_step": 8,
            "num_lanes": 4,
            "window_documents": 8,
        }
        return DataConfig.model_validate(values | changes)

    return make


@pytest.fixture(scope="session")
def run_steps() -> Callable[..., list[list[Any]]]:
    """`num_steps` global steps (to the end of the epochs if None) as lists of the ranks' batches."""

    def run(
        config: DataConfig,
        tokenizer: str,
        num_steps: int | None = None,
        *,
        seed: int = 0,
        world_size: int = 1,
        state: dict[str, Any] | None = None,
    ) -> list[list[Any]]:
        loaders = [
            iter(BatchLoader(config, tokenizer, seed, rank=rank, world_size=world_size, state=state))
            for rank in range(world_size)
        ]
        steps: list[list[Any]] = []
        for batches in itertools.islice(zip(*loaders, strict=True), num_steps):
            if num_steps is None and sum(batch.tokens for batch in batches) == 0:
                break
            steps.append(list(batches))
        return steps

    return run


@pytest.fixture(scope="session")
def resumed(run_steps: Callable[..., list[list[Any]]]) -> Callable[..., list[list[Any]]]:
    """As `run_steps`, from the state after one step's `batches`, which goes through JSON."""

    def run(
        config: DataConfig, tokenizer: str, batches: list[Any], world_size: int, num_steps: int | None
    ) -> list[list[Any]]:
        state = json.loads(json.dumps(merge_states([batch.state for batch in batches])))
        return run_steps(config, tokenizer, num_steps, world_size=world_size, state=state)

    return run


@pytest.fixture(scope="session")
def hashes() -> Callable[[list[list[Any]]], list[str]]:
    """The hash of each global step."""
    return lambda steps: [format_hash(sum(batch.hash for batch in batches)) for batches in steps]


@pytest.fixture(scope="session")
def documents() -> Callable[[list[list[Any]]], list[str]]:
    """Ids of all pieces, in the run's order."""

    def collect(steps: list[list[Any]]) -> list[str]:
        ids = []
        for batches in steps:
            for i in range(len(batches[0].piece_ids)):
                ids += [piece for batch in batches for piece in batch.piece_ids[i]]
        return ids

    return collect


@pytest.fixture
def run_file(tmp_path: Path, fx_ids: Path, tokenizer: str) -> Path:
    """A run's file, with sections that these commands pass over."""
    path = tmp_path / "run.yaml"
    values = {
        "run_dir": "runs/x",
        "tokenizer": tokenizer,
        "data": {"sources": [{"path": str(fx_ids)}], "sequence_length": 64, "rows_per_step": 8, "num_lanes": 4},
        "optimizer": {"learning_rate": 1e-3},
    }
    path.write_text(json.dumps(values))
    return path


@pytest.fixture
def mixed(tmp_path: Path, config: Callable[..., DataConfig], fx_ids: Path) -> Callable[..., DataConfig]:
    """A DataConfig over sources of several kinds, with faults in them."""
    lines = ["plain words here", "", "{broken", "x " * 60, "日本 今天天气", "last"] * 20
    (tmp_path / "a.jsonl").write_text("\n".join(x if x == "{broken" else json.dumps({"text": x}) for x in lines))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    sources = [
        {"path": str(fx_ids), "weight": 2.0},
        {"path": str(tmp_path / "a.jsonl"), "format": "jsonl"},
        {"path": str(tmp_path / "b.txt.gz")},
    ]

    def make(**changes: Any) -> DataConfig:
        defaults = {"sources": sources, "bad_input": {"json_line": "skip"}, "max_document_bytes": 64, "num_epochs": 2}
        return config(**{**defaults, **changes})

    return make
