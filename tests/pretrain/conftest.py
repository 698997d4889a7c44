"""A tiny corpus, its tokenizer, and a run on them, in this process or under a launcher."""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))  # for pretrain_runs, which several test files share

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents of words drawn from skewed topics."""
    rng = random.Random(0)
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]
    path = tmp_path_factory.mktemp("corpus") / "text.jsonl"
    lines = []
    for _ in range(400):
        topic = rng.sample(words, 12)
        lines.append(json.dumps({"text": " ".join(rng.choice(topic) for _ in range(rng.randint(5, 60)))}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def tokenizer(corpus: Path) -> Path:
    """A WordPiece tokenizer of that corpus."""
    from data.tokenizer.train import TokenizerConfig, train

    folder = corpus.parent / "tokenizer"
    train(TokenizerConfig(output=str(folder), vocab_size=256, sources=[{"path": str(corpus), "format": "jsonl"}]))
    return folder


@pytest.fixture
def write_config(tmp_path: Path, corpus: Path, tokenizer: Path) -> Write:
    """Write a run's file of 20 steps, with changes by dotted key; returns its path."""

    def write(name: str = "run", **changes: Any) -> Path:
        source = [{"path": str(corpus), "format": "jsonl"}]
        values: dict[str, Any] = {
            "run_dir": str(tmp_path / name),
            "tokenizer": str(tokenizer),
            "data": {
                "sources": source, "sequence_length": 32, "rows_per_step": 8, "num_lanes": 4, "window_documents": 16,
            },
            "encoder": {
                "num_layers": 2, "hidden_size": 32, "num_heads": 1, "embedding_dropout": 0.1, "hidden_dropout": 0.1,
                "attention_dropout": 0.1,
            },
            "training": {"num_steps": 20, "rows_per_device": 2},
            "optimizer": {"learning_rate": 3e-3},
            "checkpoint": {"save_every": 10, "keep_last": 5},
        }  # fmt: skip
        for dotted, value in changes.items():
            section, _, key = dotted.partition("__")
            if key:
                values.setdefault(section, {})[key] = value
            else:
                values[section] = value
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    return write
