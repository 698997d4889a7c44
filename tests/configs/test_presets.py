"""Every preset under configs/ is loaded; the contract's shapes are what they should be."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from configs import load_config
from data.tokenizer.train import TokenizerConfig
from finetune.config import FinetuneConfig
from pretrain.config import PretrainConfig

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "configs").rglob("*.yaml"))


def model_of(values: dict[str, Any]) -> Any:
    if "task" in values:
        return FinetuneConfig
    return PretrainConfig if "run_dir" in values else TokenizerConfig


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_preset_loads(path: Path) -> None:
    load_config(model_of(yaml.safe_load(path.read_text())), path)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("small", (4, 4, 256)), ("medium", (6, 8, 512)), ("base", (12, 12, 768)), ("large", (24, 16, 1024))],
)
def test_presets_have_the_promised_shapes(name: str, shape: tuple[int, int, int]) -> None:
    config = load_config(PretrainConfig, ROOT / "configs" / f"{name}.yaml")
    encoder = config.encoder
    assert (encoder.num_layers, encoder.num_heads, encoder.hidden_size) == shape
    config.check_processes(8)
    assert (config.data.mask.rate, config.data.mask.replace) == (0.15, (0.8, 0.1, 0.1))
