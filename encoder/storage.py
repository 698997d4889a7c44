"""A model on disk: `encoder.json` (the shape) and `model.safetensors` (float32 weights, the tied matrix once).

Loading is strict: a name too few or too many is an error that says which. Names carry no prefix of a wrapper.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs import InputError
from configs.loader import validate
from encoder.config import EncoderConfig
from encoder.model import MaskedLanguageModel

CONFIG_FILE = "encoder.json"
WEIGHTS_FILE = "model.safetensors"
TIED = "head.weight"  # the same parameter as encoder.embeddings.word.weight
WRAPPERS = ("module.", "_orig_mod.")


def save_model(state: Mapping[str, Tensor], config: EncoderConfig, folder: Path | str) -> None:
    """Write `state` (a state dict, from inside wrappers or not) and `config` into `folder`, which is made if absent.

    InputError when `state` is not exactly the weights of `config`.
    """
    weights = {plain_name(name): tensor for name, tensor in state.items()}
    weights.pop(TIED, None)
    check_names(weights, config, "the state to be saved")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in weights.items()}
    save_file(contiguous, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / CONFIG_FILE).write_text(json.dumps(config.model_dump(), indent=2) + "\n", encoding="utf-8")


def load_model(folder: Path | str, device: torch.device | str = "cpu") -> MaskedLanguageModel:
    """The model that `save_model` wrote, or that of a transformers folder, in float32 on `device`, in training mode.

    InputError naming the file, and the names that are missing, unexpected or of another shape.
    """
    folder = Path(folder)
    if (folder / "config.json").exists() and not (folder / CONFIG_FILE).exists():
        from encoder.huggingface.export import import_folder  # loads transformers, which our own folders do not need

        return import_folder(folder).to(device)
    model = MaskedLanguageModel(load_encoder_config(folder))
    weights = read_weights(folder / WEIGHTS_FILE)
    check_names(weights, model.config, str(folder / WEIGHTS_FILE))
    model.load_state_dict(weights, strict=False)  # strictness is checked above, where the tied name counts once
    return model.to(device)


def load_encoder_config(folder: Path | str) -> EncoderConfig:
    """The configuration in `folder`; InputError when it is absent or not one."""
    path = Path(folder) / CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    return validate(EncoderConfig, values, str(path))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; InputError when it cannot be read."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


def plain_name(name: str) -> str:
    """`name` without the prefixes that DDP, DeepSpeed and torch.compile put before or inside it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def check_names(weights: Mapping[str, Tensor], config: EncoderConfig, place: str) -> None:
    """InputError unless `weights` has exactly the names and shapes of `config`, the tied matrix once."""
    with torch.device("meta"):
        expected = MaskedLanguageModel(config).state_dict()
    expected.pop(TIED)
    problems = [
        ("missing", expected.keys() - weights.keys()),
        ("unexpected", weights.keys() - expected.keys()),
        ("of another shape", {n for n in expected.keys() & weights.keys() if expected[n].shape != weights[n].shape}),
    ]
    found = [f"{len(names)} {kind}: {', '.join(sorted(names)[:5])}" for kind, names in problems if names]
    if found:
        raise InputError(f"{place} does not fit the encoder's configuration: {'; '.join(found)}")
