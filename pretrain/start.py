"""What a run needs before its first step: the configuration completed by the tokenizer, and the first weights."""

import math
from pathlib import Path
from typing import Any

import torch

from configs import InputError
from configs.loader import validate
from data import DataConfig, Plan, pinned, plan_source
from data.tokenizer.load import load_tokenizer
from encoder import EncoderConfig, MaskedLanguageModel, load_model
from pretrain.config import PretrainConfig
from pretrain.processes import Processes
from pretrain.runs.folder import RunFolder

_TO_64 = 64  # a vocabulary of a multiple of 64 rows keeps matrix units busy


def resolve(config: PretrainConfig, folder: RunFolder) -> PretrainConfig:
    """Fill in the encoder's vocabulary, special ids and length from the tokenizer and the data, the warm-up in steps.

    With `start_from`, every key of the shape that the configuration leaves out is that folder's. A resume needs only
    the run's own folder: its copy of the tokenizer where the first one is gone, the shape that it was started with.
    InputError when the tokenizer is larger than an embedding of a given size, naming both.
    """
    started = folder.started_config()
    config = config.model_copy(update={"tokenizer": tokenizer_folder(config, folder)})
    special = load_tokenizer(config.tokenizer).special
    encoder = config.encoder
    if config.start_from:
        encoder = _with_missing_keys(encoder, started.encoder) if started else _adopted_shape(config)
    rows, phases = encoder.vocab_size, config.cut_into_phases()
    if rows is not None and rows < special.vocab_size:
        raise InputError(
            f"the tokenizer {config.tokenizer} has {special.vocab_size} tokens, more than encoder.vocab_size {rows}"
        )
    filled = {
        "vocab_size": rows or math.ceil(special.vocab_size / _TO_64) * _TO_64,
        "max_length": encoder.max_length or max(phase.config.data.sequence_length for phase in phases),
        "pad_id": special.pad,
        "cls_id": special.cls,
        "sep_id": special.sep,
        "mask_id": special.mask,
    }
    schedule = config.schedule
    if started and schedule.warmup_steps is None and schedule.warmup_fraction == started.schedule.warmup_fraction:
        schedule = schedule.model_copy(update={"warmup_steps": started.schedule.warmup_steps})
    schedule = schedule.resolved(config.training.num_steps)
    return config.model_copy(update={"encoder": encoder.model_copy(update=filled), "schedule": schedule})


def tokenizer_folder(config: PretrainConfig, folder: RunFolder) -> str:
    """The tokenizer of the configuration; the copy in the run's folder where that one is gone."""
    is_gone = folder.tokenizer.exists() and not Path(config.tokenizer).exists()
    return str(folder.tokenizer) if is_gone else config.tokenizer


def _with_missing_keys(given: EncoderConfig, started: EncoderConfig) -> EncoderConfig:
    """`given`, and for the keys that it leaves out what the run was started with."""
    return started.model_copy(update=given.model_dump(include=given.model_fields_set))


def _adopted_shape(config: PretrainConfig) -> EncoderConfig:
    """The encoder of `start_from`, its dropouts and RoPE bases too, but for keys that the configuration gives.

    InputError where the shape that is given contradicts that folder.
    """
    found = load_model(str(config.start_from)).config
    given = config.encoder.model_dump(include=config.encoder.model_fields_set)
    _refuse_another_shape(config.start_from, found, {key: value for key, value in given.items() if value is not None})
    values = found.model_dump(exclude={"gradient_checkpointing", "exportable"}) | given
    return validate(EncoderConfig, values, "encoder, in the shape of start_from")


def share_plans(data: DataConfig, state: dict[str, Any] | None, processes: Processes) -> list[Plan]:
    """The plans of all sources, on every rank; every rank calls it.

    Rank 0 alone lists stores and hubs, and sends what it found. Files on local disks are looked at by each rank, since
    copies on the nodes' own disks may differ. InputError on all ranks where one of them cannot plan.
    """
    sources = pinned(data.sources, state)
    local = [not source.hub and "://" not in source.path for source in sources]
    plans: list[Plan | None] = []
    error = None
    try:
        for source, is_local in zip(sources, local, strict=True):
            plans.append(plan_source(source, data) if is_local or processes.is_main else None)
    except InputError as refusal:
        error = str(refusal)
    for reason in processes.gather(error):
        if reason:
            raise InputError(reason)
    of_main = processes.from_main(None if all(local) else plans) or plans
    return [own or sent for own, sent in zip(plans, of_main, strict=True)]


def build_model(config: PretrainConfig, folder: object | None = None) -> MaskedLanguageModel:
    """The model of `config`, with the weights in `folder`; without one, those of `start_from`, or seeded new ones.

    InputError when the weights have another shape than `config`.
    """
    torch.manual_seed(config.seed)
    model = MaskedLanguageModel(config.encoder)
    source = folder or config.start_from
    if source:
        loaded = load_model(str(source))
        _refuse_another_shape(source, loaded.config, config.encoder.model_dump())
        model.load_state_dict(loaded.state_dict())
    return model


# Keys of the encoder that may differ from those of the folder whose weights are loaded: the weights fit all the same.
_NOT_SHAPE = (
    "embedding_dropout", "hidden_dropout", "attention_dropout", "gradient_checkpointing", "exportable", "rope_base",
    "local_rope_base", "initialisation", "initializer_range",
)  # fmt: skip


def _refuse_another_shape(source: object, found: EncoderConfig, wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        if key not in _NOT_SHAPE and value != getattr(found, key):
            raise InputError(
                f"{source} has another shape than the configuration: encoder.{key} is {getattr(found, key)!r} in that "
                f"folder and {value!r} in the configuration"
            )
