"""Loading a model folder: its configuration, its tokenizer with the model's limits, its weights under a task's head.

Limits are read from an empty skeleton of the model (meta device: no memory, no weights) before a real tensor exists, so
tokens beyond the position table and ids beyond the embedding never reach a device. transformers fills missing weights
at random with a warning; here only a new head and an unused pooler may be missing. Everything is loaded in fp32: bf16
is left to autocast.
"""

import inspect
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from configs import InputError
from finetune.reading.inputs import Inputs

DEFAULT_LONGEST = 512  # tokens of an input, where neither the user nor the model asks for fewer


def quiet_transformers() -> None:
    """Only errors are shown: missing weights, the warning that matters, are checked by `load_model`."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # saving imports DeepSpeed, which otherwise warns on stdout


def load_model_config(folder: str) -> Any:
    """The `config.json` of a model folder; InputError when there is none that transformers knows."""
    if not Path(folder).exists() and folder.startswith((".", "/", "runs")):
        raise InputError(f"{folder}: no such model folder")
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: not a model folder that transformers loads: {_first_line(error)}") from None


def load_inputs(folder: str, max_length: int | None = None) -> Inputs:
    """Read tokenizer and limits of the model `folder`.

    `max_length` in tokens; None takes what the tokenizer and the position table allow, at most 512. InputError when the
    folder is no model, the tokenizer lacks a special token or has more ids than the embedding, or `max_length` exceeds
    the position table.
    """
    config = load_model_config(folder)
    with torch.device("meta"):
        skeleton = AutoModel.from_config(config)
    takes_segments = "token_type_ids" in inspect.signature(skeleton.forward).parameters
    has_segments = takes_segments and getattr(config, "type_vocab_size", 0) > 1
    tokenizer = _load_tokenizer(folder, has_segments)
    rows = skeleton.get_input_embeddings().num_embeddings
    size = max(tokenizer.get_vocab().values()) + 1
    if size > rows:
        raise InputError(f"{folder}: the tokenizer has {size} ids, the model's embedding only {rows} rows")
    limit = _position_limit(skeleton)
    if max_length is not None and max_length > limit:
        raise InputError(f"max_length {max_length} is more than the {limit} positions of {folder}")
    tokenizer.model_max_length = max_length or min(tokenizer.model_max_length, limit, DEFAULT_LONGEST)
    return Inputs(tokenizer, config, tokenizer.model_max_length, has_segments)


def _load_tokenizer(folder: str, has_segments: bool) -> Any:
    """The folder's fast tokenizer, made to send segment ids by default exactly when the model has them."""
    names = ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"]
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, model_input_names=names)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: no tokenizer that AutoTokenizer loads: {_first_line(error)}") from None
    if not tokenizer.is_fast:
        raise InputError(f"{folder}: the tokenizer is not a fast one (tokenizer.json is missing)")
    for name in ("pad", "cls", "sep"):
        if getattr(tokenizer, f"{name}_token_id") is None:
            raise InputError(f"{folder}: the tokenizer has no {name.upper()} token; an encoder needs PAD, CLS and SEP")
    return tokenizer


def _position_limit(skeleton: torch.nn.Module) -> int:
    """Longest input in tokens. Models of RoBERTa's family count positions from padding_idx + 1 in the same table."""
    for name, module in skeleton.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return int(getattr(skeleton.config, "max_position_embeddings", None) or 10**9)


def load_model(auto_class: Any, folder: str, from_scratch: bool = False, **config_values: Any) -> Any:
    """`auto_class` (AutoModel, AutoModelFor…) from `folder`, its config changed by `config_values`.

    `from_scratch` keeps the shape and draws the weights anew. InputError when weights of the encoder itself are
    missing.
    """
    config = load_model_config(folder)
    config.update(config_values)
    if from_scratch:
        return _freeze_unused_pooler(auto_class.from_config(config, dtype=torch.float32))
    try:
        model, loading = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=auto_class is not AutoModel,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder}: cannot load the weights: {_first_line(error)}") from None
    prefix = "" if auto_class is AutoModel else f"{model.base_model_prefix}."
    missing = [name for name in loading["missing_keys"] if name.startswith(prefix) and "pooler." not in name]
    missing += [entry[0] for entry in loading["mismatched_keys"] if entry[0].startswith(prefix)]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of the encoder's weights are missing or of another shape: {missing[0]}, …"
        )
    return _freeze_unused_pooler(model)


def _freeze_unused_pooler(model: Any) -> Any:
    """Sentence vectors do not pass through a bare encoder's pooler: frozen, DDP does not wait for its gradient."""
    if model.base_model_prefix and getattr(model, "pooler", None) is not None:
        model.pooler.requires_grad_(False)
    return model


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
