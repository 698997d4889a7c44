"""What a run needs before its first step: the configuration completed by the tokenizer, and the first weights."""

import math

import torch

from configs import InputError
from configs.loader import validate
from data.tokenizer.load import load_tokenizer
from encoder import EncoderConfig, MaskedLanguageModel, load_model
from pretrain.config import PretrainConfig

_TO_64 = 64  # a vocabulary of a multiple of 64 rows keeps matrix units busy


def resolve(config: PretrainConfig) -> PretrainConfig:
    """Fill in the encoder's vocabulary, special ids and length from the tokenizer and the data.

    With `start_from`, every key of the shape that the configuration leaves out is that folder's.
    InputError when the tokenizer is larger than an embedding of a given size, naming both.
    """
    special = load_tokenizer(config.tokenizer).special
    encoder = _adopted_shape(config) if config.start_from else config.encoder
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
    return config.model_copy(update={"encoder": encoder.model_copy(update=filled)})


def _adopted_shape(config: PretrainConfig) -> EncoderConfig:
    """The shape of `start_from`, with what the configuration gives; a contradiction is `build_model`'s to refuse."""
    given, unset = config.encoder, EncoderConfig(norm=config.encoder.norm)
    followed = ("position", "activation")  # filled in from each other, so a default looks as if it were given
    keys = {k for k in given.model_fields_set if k not in followed or getattr(given, k) != getattr(unset, k)}
    found = load_model(str(config.start_from)).config.model_dump(exclude=set(_NOT_SHAPE))
    return validate(EncoderConfig, found | given.model_dump(include=keys), "encoder, in the shape of start_from")


def build_model(config: PretrainConfig, folder: object | None = None) -> MaskedLanguageModel:
    """The model of `config`, with the weights in `folder`; without one, those of `start_from`, or seeded new ones.

    InputError when the weights' shape is not the configuration's.
    """
    torch.manual_seed(config.seed)
    model = MaskedLanguageModel(config.encoder)
    source = folder or config.start_from
    if source:
        loaded = load_model(str(source))
        difference = _shape_difference(loaded.config, config.encoder)
        if difference:
            raise InputError(f"start_from {source} has another shape: {difference}")
        model.load_state_dict(loaded.state_dict())
    return model


_NOT_SHAPE = (
    "embedding_dropout", "hidden_dropout", "attention_dropout", "gradient_checkpointing", "exportable", "rope_base",
    "local_rope_base", "initialisation", "initializer_range",
)  # fmt: skip


def _shape_difference(found: EncoderConfig, wanted: EncoderConfig) -> str | None:
    for key, value in wanted.model_dump().items():
        if key not in _NOT_SHAPE and value != getattr(found, key):
            return f"encoder.{key} is {getattr(found, key)!r} there and {value!r} here"
    return None
