"""`EncoderConfig` and the configurations of transformers' three architectures, translated both ways.

A value of transformers that this encoder does not compute is refused by name: a folder is loaded exactly or not at all.
"""

from typing import Any

from configs import InputError
from configs.loader import validate
from encoder.config import Architecture, EncoderConfig

MODEL_TYPES: dict[str, Architecture] = {
    "bert": "Bert",
    "roberta-prelayernorm": "RobertaPreLayerNorm",
    "modernbert": "ModernBert",
}
GATED_ACTIVATIONS = {"gelu": "geglu", "silu": "swiglu"}  # ModernBert's name of the activation to ours
GLOBAL_LAYER, LOCAL_LAYER = "full_attention", "sliding_attention"


def to_huggingface_config(config: EncoderConfig) -> dict[str, Any]:
    """The keys of the configuration of `config.huggingface_architecture` with which it computes exactly `config`."""
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
    is_modern = config.huggingface_architecture == "ModernBert"
    return values | (_modernbert_values(config) if is_modern else _bert_values(config))


def _bert_values(config: EncoderConfig) -> dict[str, Any]:
    unused_positions = _unused_positions(config.huggingface_architecture, config.pad_id)
    return {
        "max_position_embeddings": unused_positions + config.known_max_length,
        "type_vocab_size": config.num_segments or 2,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.hidden_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


def _modernbert_values(config: EncoderConfig) -> dict[str, Any]:
    layers = range(config.num_layers)
    bases = {GLOBAL_LAYER: config.rope_base, LOCAL_LAYER: config.local_rope_base}
    return {
        "max_position_embeddings": config.known_max_length,
        "norm_eps": config.norm_eps,
        "hidden_activation": next(name for name, ours in GATED_ACTIVATIONS.items() if ours == config.activation),
        "norm_bias": config.bias,
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "classifier_bias": config.bias,
        "layer_types": [LOCAL_LAYER if config.is_local(layer) else GLOBAL_LAYER for layer in layers],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        "local_attention": config.local_window or 2 * config.known_max_length,
        "embedding_dropout": config.embedding_dropout,
        "attention_dropout": config.attention_dropout,
        "mlp_dropout": config.hidden_dropout,
        "cls_token_id": config.cls_id,
        "sep_token_id": config.sep_id,
    }


def from_huggingface_config(hf_config: Any, where: str) -> EncoderConfig:
    """The `EncoderConfig` of a configuration object of transformers; InputError naming `where` and the key at fault."""
    architecture = MODEL_TYPES.get(hf_config.model_type)
    if architecture is None:
        allowed = ", ".join(MODEL_TYPES)
        raise InputError(f"{where}: model_type '{hf_config.model_type}' cannot be loaded; allowed: {allowed}")
    _require(hf_config, where, tie_word_embeddings=(True,))
    values = {
        "vocab_size": hf_config.vocab_size,
        "hidden_size": hf_config.hidden_size,
        "num_layers": hf_config.num_hidden_layers,
        "num_heads": hf_config.num_attention_heads,
        "ffn_size": hf_config.intermediate_size,
        "initializer_range": hf_config.initializer_range,
        "pad_id": hf_config.pad_token_id or 0,
    }
    is_modern = architecture == "ModernBert"
    values |= _from_modernbert(hf_config, where) if is_modern else _from_bert(hf_config, architecture, where)
    config = validate(EncoderConfig, values, where)
    # the default size is left to the default, so that this equals the shape as a user would write it
    with_default_size = config.model_copy(update={"ffn_size": None})
    return with_default_size if with_default_size.feed_forward_size == config.ffn_size else config


def _from_bert(hf_config: Any, architecture: Architecture, where: str) -> dict[str, Any]:
    _require(hf_config, where, hidden_act=("gelu", "relu"), position_embedding_type=("absolute",))
    _require(hf_config, where, is_decoder=(False,), add_cross_attention=(False,))
    unused_positions = _unused_positions(architecture, hf_config.pad_token_id or 0)
    return {
        "norm": "post" if architecture == "Bert" else "pre",
        "position": "learned",
        "activation": hf_config.hidden_act,
        "max_length": hf_config.max_position_embeddings - unused_positions,
        "num_segments": hf_config.type_vocab_size,
        "norm_eps": hf_config.layer_norm_eps,
        "embedding_dropout": hf_config.hidden_dropout_prob,
        "hidden_dropout": hf_config.hidden_dropout_prob,
        "attention_dropout": hf_config.attention_probs_dropout_prob,
    }


def _from_modernbert(hf_config: Any, where: str) -> dict[str, Any]:
    _require(hf_config, where, hidden_activation=tuple(GATED_ACTIVATIONS), classifier_activation=("gelu",))
    is_local = [kind == LOCAL_LAYER for kind in hf_config.layer_types]
    layers = range(len(is_local))
    global_every = next((layer for layer in layers if layer and not is_local[layer]), len(layers))
    if any(is_local) and is_local != [layer % global_every != 0 for layer in layers]:
        raise InputError(f"{where}: layer_types {hf_config.layer_types} are not a global layer every k layers")
    for kind, parameters in hf_config.rope_parameters.items():
        if parameters["rope_type"] != "default":
            raise InputError(f"{where}: rope_type '{parameters['rope_type']}' of {kind} cannot be loaded")
    biases = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
    return {
        "norm": "pre",
        "position": "rope",
        "activation": GATED_ACTIVATIONS[hf_config.hidden_activation],
        "max_length": hf_config.max_position_embeddings,
        "norm_eps": hf_config.norm_eps,
        "bias": any(getattr(hf_config, bias) for bias in biases),
        "local_window": hf_config.local_attention if any(is_local) else None,
        "global_every": global_every if any(is_local) else 3,
        "rope_base": float(hf_config.rope_parameters[GLOBAL_LAYER]["rope_theta"]),
        "local_rope_base": float(hf_config.rope_parameters[LOCAL_LAYER]["rope_theta"]),
        "embedding_dropout": hf_config.embedding_dropout,
        "hidden_dropout": hf_config.mlp_dropout,
        "attention_dropout": hf_config.attention_dropout,
    }


def _require(hf_config: Any, where: str, **allowed: tuple[Any, ...]) -> None:
    """InputError for the first key that has another value than those allowed; a key that is absent is right."""
    for key, values in allowed.items():
        if getattr(hf_config, key, values[0]) not in values:
            choices = ", ".join(str(value) for value in values)
            raise InputError(f"{where}: {key} '{getattr(hf_config, key)}' cannot be loaded; allowed: {choices}")


def _unused_positions(architecture: Architecture | None, pad_id: int) -> int:
    """Rows of the position table before that of the first token: RobertaPreLayerNorm counts from pad_id + 1."""
    return pad_id + 1 if architecture == "RobertaPreLayerNorm" else 0
