"""What several benchmarks measure on: the shapes of the presets, and the texts of ../shared/data."""

import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
SEEDS = (0, 1, 2)
MASK_RATE = 0.15


def shape_of(preset: str) -> dict[str, int]:
    """Layers, width and heads of configs/PRESET.yaml, as keys of EncoderConfig."""
    encoder = yaml.safe_load((ROOT / "configs" / f"{preset}.yaml").read_text(encoding="utf-8"))["encoder"]
    return {key: encoder[key] for key in ("num_layers", "hidden_size", "num_heads")}


def lines_of(name: str, count: int | None = None) -> Iterator[str]:
    """The first `count` JSON lines of DATA/NAME.jsonl.gz, or all."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        yield from itertools.islice(file, count)
