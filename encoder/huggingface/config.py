"""Our configuration and those of transformers' three architectures, both ways, as plain values.

A value of theirs that this encoder does not compute is refused by name: an import is exact or it is none.
"""

from typing import Any

from configs import InputError
from configs.loader import validate
from encoder.config import EncoderConfig, Home

HOMES: dict[str, Home] = {"bert": "Bert", "roberta-prelayernorm": "RobertaPreLayerNorm", "modernbert": "ModernBert"}
GATED_FROM = {"gelu": "geglu", "silu": "swiglu"}
LAYER_TYPES = ("full_attention", "sliding_attention")


def to_home_values(config: EncoderConfig) -> dict[str, Any]:
    """Keys of the configuration of `config.home` that make it compute exactly `config`."""
    values = {
        "vocab_size": config.known_vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.feed_forward_size,
        "initializer_range": config.initializer_range,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.cls_id,
        "eos_token_id": config.sep_id,
        "tie_word_embeddings": True,
    }
    return values | (_modernbert_values(config) if config.home == "ModernBert" else _bert_values(config))


def _bert_values(config: EncoderConfig) -> dict[str, Any]:
    return {
        "max_position_embeddings": config.known_max_length + _first_position(config.home, config.pad_id),
        "type_vocab_size": config.num_segments or 2,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.hidden_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


def _modernbert_values(config: EncoderConfig) -> dict[str, Any]:
    bases = zip(LAYER_TYPES, (config.rope_base, config.local_rope_base), strict=True)
    return {
        "max_position_embeddings": config.known_max_length,
        "norm_eps": config.norm_eps,
        "hidden_activation": next(plain for plain, gated in GATED_FROM.items() if gated == config.activation),
        "norm_bias": config.bias,
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "classifier_bias": config.bias,
        "layer_types": [LAYER_TYPES[config.is_local(layer)] for layer in range(config.num_layers)],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases},
        "local_attention": config.local_window or 2 * config.known_max_length,
        "embedding_dropout": config.embedding_dropout,
        "attention_dropout": config.attention_dropout,
        "mlp_dropout": config.hidden_dropout,
        "cls_token_id": config.cls_id,
        "sep_token_id": config.sep_id,
    }


def from_home_config(theirs: Any, place: str) -> EncoderConfig:
    """Our configuration of a configuration object of transformers; InputError naming `place` and the key at fault."""
    home = HOMES.get(theirs.model_type)
    if home is None:
        raise InputError(f"{place}: model_type '{theirs.model_type}' cannot be imported; allowed: {', '.join(HOMES)}")
    _require(theirs, place, tie_word_embeddings=(True,))
    values = {
        "vocab_size": theirs.vocab_size,
        "hidden_size": theirs.hidden_size,
        "num_layers": theirs.num_hidden_layers,
        "num_heads": theirs.num_attention_heads,
        "ffn_size": theirs.intermediate_size,
        "initializer_range": theirs.initializer_range,
        "pad_id": theirs.pad_token_id or 0,
    }
    specific = _from_modernbert(theirs, place) if home == "ModernBert" else _from_bert(theirs, home, place)
    config = validate(EncoderConfig, values | specific, place)
    default = config.model_copy(update={"ffn_size": None})  # as a user writes it, so that the two compare equal
    return default if default.feed_forward_size == config.ffn_size else config


def _from_bert(theirs: Any, home: Home, place: str) -> dict[str, Any]:
    _require(
        theirs,
        place,
        hidden_act=("gelu", "relu"),
        position_embedding_type=("absolute",),
        is_decoder=(False,),
        add_cross_attention=(False,),
    )
    return {
        "norm": "post" if home == "Bert" else "pre",
        "position": "learned",
        "activation": theirs.hidden_act,
        "max_length": theirs.max_position_embeddings - _first_position(home, theirs.pad_token_id or 0),
        "num_segments": theirs.type_vocab_size,
        "norm_eps": theirs.layer_norm_eps,
        "embedding_dropout": theirs.hidden_dropout_prob,
        "hidden_dropout": theirs.hidden_dropout_prob,
        "attention_dropout": theirs.attention_probs_dropout_prob,
    }


def _from_modernbert(theirs: Any, place: str) -> dict[str, Any]:
    _require(theirs, place, hidden_activation=tuple(GATED_FROM), classifier_activation=("gelu",))
    kinds = theirs.layer_types
    local = [number for number, kind in enumerate(kinds) if kind == LAYER_TYPES[1]]
    second_global = next((number for number, kind in enumerate(kinds) if number and kind == LAYER_TYPES[0]), len(kinds))
    if local != [number for number in range(len(kinds)) if local and number % second_global]:
        raise InputError(f"{place}: layer_types {kinds} are not a global layer every k layers")
    for kind, parameters in theirs.rope_parameters.items():
        if parameters["rope_type"] != "default":
            raise InputError(f"{place}: rope_type '{parameters['rope_type']}' of {kind} cannot be imported")
    biases = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
    return {
        "norm": "pre",
        "position": "rope",
        "activation": GATED_FROM[theirs.hidden_activation],
        "max_length": theirs.max_position_embeddings,
        "norm_eps": theirs.norm_eps,
        "bias": any(getattr(theirs, bias) for bias in biases),
        "local_window": theirs.local_attention if local else None,
        "global_every": second_global if local else 3,
        "rope_base": float(theirs.rope_parameters[LAYER_TYPES[0]]["rope_theta"]),
        "local_rope_base": float(theirs.rope_parameters[LAYER_TYPES[1]]["rope_theta"]),
        "embedding_dropout": theirs.embedding_dropout,
        "hidden_dropout": theirs.mlp_dropout,
        "attention_dropout": theirs.attention_dropout,
    }


def _require(theirs: Any, place: str, **allowed: tuple[Any, ...]) -> None:
    for key, values in allowed.items():
        if getattr(theirs, key, values[0]) not in values:
            choices = ", ".join(str(value) for value in values)
            raise InputError(f"{place}: {key} '{getattr(theirs, key)}' cannot be imported; allowed: {choices}")


def _first_position(home: Home | None, pad_id: int) -> int:
    """RobertaPreLayerNorm counts positions from pad_id + 1."""
    return pad_id + 1 if home == "RobertaPreLayerNorm" else 0
