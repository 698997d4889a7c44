"""Tiny encoders of every shape, and one packed batch for them."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from encoder import EncoderConfig, MaskedLanguageModel

# hidden sizes, heads and feed-forward sizes are odd on purpose: nothing may rely on 64 or on 4x
SHAPES: dict[str, dict[str, Any]] = {
    "pre-learned-gelu": {"norm": "pre", "position": "learned", "activation": "gelu", "ffn_size": 100},
    "pre-sinusoidal-relu": {"norm": "pre", "position": "sinusoidal", "activation": "relu"},
    "post-learned-gelu": {"norm": "post", "position": "learned", "activation": "gelu", "norm_eps": 1e-12},
    "post-sinusoidal-relu": {"norm": "post", "position": "sinusoidal", "activation": "relu"},
    "rope-geglu": {"position": "rope", "activation": "geglu", "ffn_size": 88},
    "rope-swiglu-unbiased": {"position": "rope", "activation": "swiglu", "bias": False},
    "rope-geglu-local": {"activation": "geglu", "local_window": 4, "global_every": 2, "rope_base": 160_000.0},
}
RESEARCH: dict[str, dict[str, Any]] = {
    "none-gelu": {"position": "none", "activation": "gelu", "exportable": False},
    "post-rope-relu-local": {
        "norm": "post",
        "position": "rope",
        "activation": "relu",
        "local_window": 6,
        "global_every": 3,
        "exportable": False,
    },
    "scaled-sinusoidal-swiglu": {
        "position": "sinusoidal",
        "activation": "swiglu",
        "embedding_scale": True,
        "exportable": False,
    },
}


def _config(shape: str = "rope-geglu", **changes: Any) -> EncoderConfig:
    """2 layers, width 72, 2 heads, 203 tokens, documents of up to 48."""
    size = {"num_layers": 2, "hidden_size": 72, "num_heads": 2, "vocab_size": 203, "max_length": 48}
    return EncoderConfig.model_validate(size | (SHAPES | RESEARCH)[shape] | changes)


def _model(shape: str = "rope-geglu", seed: int = 0, **changes: Any) -> MaskedLanguageModel:
    """A model of `_config` whose biases, norms and embeddings are random too, so that no term can hide."""
    torch.manual_seed(seed)
    model = MaskedLanguageModel(_config(shape, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., EncoderConfig]:
    """`tiny_config(shape, **changes)`: see `_config`."""
    return _config


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., MaskedLanguageModel]:
    """`tiny_model(shape, seed=0, **changes)`: see `_model`."""
    return _model


@pytest.fixture(params=[*SHAPES, *RESEARCH])
def shape(request: pytest.FixtureRequest) -> str:
    """Every shape in turn."""
    return str(request.param)


# another shape of the same architecture of transformers is in the short suite
SLOW_TO_EXPORT = ("pre-sinusoidal-relu", "post-sinusoidal-relu", "rope-swiglu-unbiased")


@pytest.fixture(params=[pytest.param(s, marks=pytest.mark.slow) if s in SLOW_TO_EXPORT else s for s in SHAPES])
def exportable_shape(request: pytest.FixtureRequest) -> str:
    """Every shape that transformers has, in turn; each takes a fresh process."""
    return str(request.param)


@pytest.fixture(scope="session")
def write_checkpoint() -> Callable[[MaskedLanguageModel, Path], None]:
    """`write_checkpoint(model, folder)`: encoder.json and model.safetensors, as a run's checkpoints hold them."""

    def write(model: MaskedLanguageModel, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "encoder.json").write_text(model.config.model_dump_json(indent=2))
        save_file(dict(model.named_parameters()), folder / "model.safetensors")

    return write


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A word-level tokenizer of 180 tokens with its specials at the end of the vocabulary and PAD at 179."""
    words = [f"w{number}" for number in range(175)]
    specials = {
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
    }
    ids = {token: number for number, token in enumerate([*words, *specials.values()])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials).save_pretrained(folder)
    return folder
