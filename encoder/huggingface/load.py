"""A Hugging Face folder of Bert, RobertaPreLayerNorm or ModernBert becomes a model of ours, to train it further.

The shape and the weights are translated exactly, or the folder is refused. Cost: the weights twice in memory.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from configs import InputError
from encoder.huggingface.config import from_huggingface_config
from encoder.huggingface.names import from_huggingface, is_of_other_task
from encoder.model import MaskedLanguageModel
from encoder.storage import load_weights, read_safetensors, untied_state


def load_pretrained(folder: Path) -> MaskedLanguageModel:
    """The model in a Hugging Face folder, in float32 on the CPU.

    InputError that names what this encoder does not compute or what the folder lacks. A folder without a
    masked-language-model head (a saved AutoModel) gets a new one; a warning says so, and names the weights that are not
    loaded (a pooler).
    """
    config = from_huggingface_config(from_pretrained(AutoConfig, folder), str(folder / "config.json"))
    model = MaskedLanguageModel(config.model_copy(update=_special_token_ids(folder)))
    new_weights = untied_state(model)
    hf_weights = _read_weights(folder)
    found = from_huggingface(hf_weights, model.config, new_weights)
    absent = sorted(new_weights.keys() - found.keys())
    missing = [name for name in absent if not name.startswith("head.")]
    if missing:
        raise InputError(f"{folder} lacks {', '.join(missing[:5])}")
    left_out = sorted(name for name in hf_weights if is_of_other_task(name))
    if absent or left_out:
        made, lost = (", ".join(names) or "nothing" for names in (absent, left_out))
        warnings.warn(f"{folder}: new weights for {made}; left out: {lost}", stacklevel=2)
    weights = {name: found.get(name, tensor).to(torch.float32) for name, tensor in new_weights.items()}
    load_weights(model, weights, str(folder))
    return model


def from_pretrained(auto_class: Any, folder: Path, **changes: Any) -> Any:
    """What `auto_class` (AutoConfig or AutoTokenizer) reads in a local folder; InputError when it cannot."""
    try:
        return auto_class.from_pretrained(folder, local_files_only=True, **changes)
    except (OSError, KeyError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise InputError(f"{folder}: {auto_class.__name__} cannot read it: {first_line}") from error


def _special_token_ids(folder: Path) -> dict[str, int]:
    if not (folder / "tokenizer_config.json").exists():
        return {}
    tokenizer = from_pretrained(AutoTokenizer, folder)
    ids = {f"{role}_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep", "mask")}
    return {key: token_id for key, token_id in ids.items() if token_id is not None}


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder's safetensors files: one, or several shards."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no model.safetensors (other formats are not read)")
    return {name: tensor for file in files for name, tensor in read_safetensors(file).items()}
