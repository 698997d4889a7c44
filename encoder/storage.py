"""Our own format of a model on disk: `encoder.json` (the shape) and `model.safetensors` (weights in float32).

Checkpoints are folders of this format. The tied matrix is stored once. Loading is strict: a weight that is missing, too
many, or of another shape is an error that names it.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from configs import InputError
from configs.loader import validate
from encoder.config import EncoderConfig
from encoder.model import MaskedLanguageModel

CONFIG_FILE = "encoder.json"
WEIGHTS_FILE = "model.safetensors"
TIED_WEIGHT = "head.weight"  # the same parameter as encoder.embeddings.word.weight


def load_checkpoint(folder: Path) -> MaskedLanguageModel:
    """The model in `folder`, in float32 on the CPU and in training mode.

    InputError that names the file and, for weights that do not fit the shape, the weights.
    """
    model = MaskedLanguageModel(load_encoder_config(folder))
    load_weights(model, read_safetensors(folder / WEIGHTS_FILE), str(folder / WEIGHTS_FILE))
    return model


def load_encoder_config(folder: Path) -> EncoderConfig:
    """The shape in `folder`; InputError when its file is absent or not valid."""
    path = folder / CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return validate(EncoderConfig, values, str(path))


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; InputError when it cannot be read."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def untied_state(model: MaskedLanguageModel) -> dict[str, Tensor]:
    """The state dict of `model` with the tied matrix once: the names and shapes of its weights on disk."""
    return {name: tensor for name, tensor in model.state_dict().items() if name != TIED_WEIGHT}


def load_weights(model: MaskedLanguageModel, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy `weights` into `model`; InputError, starting with `where`, unless they are exactly its weights."""
    expected = untied_state(model)
    common = expected.keys() & weights.keys()
    problems = {
        "missing": expected.keys() - weights.keys(),
        "unexpected": weights.keys() - expected.keys(),
        "of another shape": {name for name in common if expected[name].shape != weights[name].shape},
    }
    found = [f"{len(names)} {kind}: {', '.join(sorted(names)[:5])}" for kind, names in problems.items() if names]
    if found:
        raise InputError(f"{where} does not fit the encoder's configuration: {'; '.join(found)}")
    model.load_state_dict(weights, strict=False)  # not strict for torch, which counts the tied matrix twice
