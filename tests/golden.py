"""`make golden`: 20 deterministic steps compared with the committed losses (`--write` replaces them).

A refactor leaves them bit-identical on one machine; another machine's kernels may differ in the last digits, so the bar
is 1e-3, and whether they are bit-equal is said. The batches' hashes must be equal.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml

from data.tokenizer.train import TokenizerConfig, train
from pretrain.__main__ import main as pretrain

COMMITTED = Path(__file__).with_name("golden.json")


def train_20_steps(folder: Path) -> dict[str, list[Any]]:
    """Train the tiny run in `folder`; the loss and the batch's hash of each step."""
    rng = random.Random(0)
    words = ["".join(rng.choice("bcdfgklmnprst") + rng.choice("aeiou") for _ in range(3)) for _ in range(200)]
    lines = [" ".join(rng.choice(words[i % 20 :: 20]) for _ in range(rng.randint(5, 60))) for i in range(300)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = [{"path": str(folder / "text.txt")}]
    train(TokenizerConfig(output=str(folder / "tokenizer"), vocab_size=320, sources=source))
    config = {
        "run_dir": str(folder / "run"), "tokenizer": str(folder / "tokenizer"),
        "data": {"sources": source, "sequence_length": 32, "rows_per_step": 8, "num_lanes": 4, "window_documents": 32},
        "encoder": {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "hidden_dropout": 0.1},
        "training": {"num_steps": 20, "rows_per_device": 4}, "optimizer": {"learning_rate": 3e-3},
    }  # fmt: skip
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    pretrain([str(folder / "run.yaml")])
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    entries = [entry for entry in map(json.loads, lines) if entry["kind"] == "train"]
    return {"losses": [entry["loss"] for entry in entries], "hashes": [entry["batch_hash"] for entry in entries]}


def main() -> int:
    """Compare, or write."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = train_20_steps(Path(folder))
    if "--write" in sys.argv:
        COMMITTED.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    committed = json.loads(COMMITTED.read_text())
    worst = max(abs(a - b) for a, b in zip(found["losses"], committed["losses"], strict=True))
    same = {key: found[key] == committed[key] for key in found}
    print(f"20 steps: largest difference of losses {worst:.1e}; bit-equal: {same['losses']}, batches: {same['hashes']}")
    return int(worst > 1e-3 or not same["hashes"])


if __name__ == "__main__":
    sys.exit(main())
