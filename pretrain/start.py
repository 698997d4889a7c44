"""What a run needs before its first step: the configuration completed by the tokenizer, and the first weights."""

import math

import torch

from data.tokens import load_encoder
from encoder import EncoderConfig, MaskedLanguageModel, load_model
from pretrain.config import PretrainConfig
from pretrain.phases import phases_of

_TO_64 = 64  # a vocabulary of a multiple of 64 rows keeps matrix units busy


def resolve(config: PretrainConfig) -> PretrainConfig:
    """Fill in the encoder's vocabulary, special ids and length from the tokenizer and the data.

    ValueError when the tokenizer is larger than an embedding of a given size, naming both.
    """
    special = load_encoder(config.tokenizer).special
    encoder, rows = config.encoder, config.encoder.vocab_size
    if rows is not None and rows < special.vocab_size:
        raise ValueError(
            f"the tokenizer {config.tokenizer} has {special.vocab_size} tokens, more than encoder.vocab_size {rows}"
        )
    filled = {
        "vocab_size": rows or math.ceil(special.vocab_size / _TO_64) * _TO_64,
        "max_length": encoder.max_length or max(phase.config.data.sequence_length for phase in phases_of(config)),
        "pad_id": special.pad,
        "cls_id": special.cls,
        "sep_id": special.sep,
        "mask_id": special.mask,
    }
    return config.model_copy(update={"encoder": encoder.model_copy(update=filled)})


def build_model(config: PretrainConfig, folder: object | None = None) -> MaskedLanguageModel:
    """The model of `config`, with the weights in `folder`; without one, those of `start_from`, or seeded new ones.

    ValueError when the weights' shape is not the configuration's.
    """
    torch.manual_seed(config.seed)
    model = MaskedLanguageModel(config.encoder)
    source = folder or config.start_from
    if source:
        loaded = load_model(str(source))
        difference = _shape_difference(loaded.config, config.encoder)
        if difference:
            raise ValueError(f"start_from {source} has another shape: {difference}")
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
