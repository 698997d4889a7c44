"""Loading a plain transformers folder with a task's head, and refusing one whose encoder weights are not there.

transformers fills missing weights at random with a warning; here only a new head (and an unused pooler) may be missing.
Everything is loaded in fp32: bf16 is autocast's business.
"""

from typing import Any

import torch
from transformers import AutoModel

from configs import InputError
from finetune.reading.inputs import load_model_config


def load_model(auto_class: Any, folder: str, from_scratch: bool = False, **config_values: Any) -> Any:
    """`auto_class` (AutoModel, AutoModelFor…) from `folder`, its config changed by `config_values`.

    `from_scratch` keeps the shape and draws the weights anew. InputError when weights of the encoder itself are
    missing.
    """
    config = load_model_config(folder)
    for name, value in config_values.items():
        setattr(config, name, value)
    if from_scratch:
        return _freeze_unused(auto_class.from_config(config, dtype=torch.float32))
    try:
        model, loading = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=auto_class is not AutoModel,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder}: cannot load the weights: {str(error).strip().splitlines()[0]}") from None
    prefix = "" if auto_class is AutoModel else f"{model.base_model_prefix}."
    missing = [name for name in loading["missing_keys"] if name.startswith(prefix) and "pooler." not in name]
    missing += [entry[0] for entry in loading["mismatched_keys"] if entry[0].startswith(prefix)]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of the encoder's weights are missing or of another shape: {missing[0]}, …"
        )
    return _freeze_unused(model)


def _freeze_unused(model: Any) -> Any:
    """A bare encoder's pooler takes no part in pooled sentences: frozen, so that DDP does not wait for its gradient."""
    if model.base_model_prefix and hasattr(model, "pooler") and model.pooler is not None:
        model.pooler.requires_grad_(False)
    return model
