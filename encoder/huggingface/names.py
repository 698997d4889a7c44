"""Weight names in transformers' three architectures, as tables that are read both ways.

A row says which module of transformers holds the weight and the bias of a module of this encoder; `*` is the number of
the layer. Where a row names three modules, this encoder has their matrices in one, in that order. Two differences are
not a matter of names and are handled below the tables: RobertaPreLayerNorm counts positions from pad_id + 1, and
embeddings or biases that an architecture has and a shape lacks are zeros there.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from configs import InputError
from encoder.config import Architecture, EncoderConfig
from encoder.positions import sinusoidal_table

PREFIX = {"RobertaPreLayerNorm": "roberta_prelayernorm.", "Bert": "bert.", "ModernBert": "model."}
WORDS, POSITIONS, SEGMENTS = "encoder.embeddings.word", "encoder.embeddings.position", "encoder.embeddings.segment"
BERT_QKV = tuple(f"encoder.layer.*.attention.self.{part}" for part in ("query", "key", "value"))
BERT_MODULES = {  # which Bert and RobertaPreLayerNorm share
    WORDS: ("embeddings.word_embeddings",),
    POSITIONS: ("embeddings.position_embeddings",),
    SEGMENTS: ("embeddings.token_type_embeddings",),
    "encoder.embeddings.norm": ("embeddings.LayerNorm",),
    "encoder.layers.*.attention.qkv": BERT_QKV,
    "encoder.layers.*.attention.output": ("encoder.layer.*.attention.output.dense",),
    "encoder.layers.*.feed_forward.up": ("encoder.layer.*.intermediate.dense",),
    "encoder.layers.*.feed_forward.down": ("encoder.layer.*.output.dense",),
}
# modules of the base model, without the architecture's prefix
BASE: dict[Architecture, dict[str, tuple[str, ...]]] = {
    "RobertaPreLayerNorm": {
        **BERT_MODULES,
        "encoder.layers.*.attention_norm": ("encoder.layer.*.attention.LayerNorm",),
        "encoder.layers.*.feed_forward_norm": ("encoder.layer.*.intermediate.LayerNorm",),
        "encoder.final_norm": ("LayerNorm",),
    },
    "Bert": {
        **BERT_MODULES,
        "encoder.layers.*.attention_norm": ("encoder.layer.*.attention.output.LayerNorm",),
        "encoder.layers.*.feed_forward_norm": ("encoder.layer.*.output.LayerNorm",),
    },
    "ModernBert": {
        WORDS: ("embeddings.tok_embeddings",),
        "encoder.embeddings.norm": ("embeddings.norm",),
        "encoder.layers.*.attention_norm": ("layers.*.attn_norm",),
        "encoder.layers.*.attention.qkv": ("layers.*.attn.Wqkv",),
        "encoder.layers.*.attention.output": ("layers.*.attn.Wo",),
        "encoder.layers.*.feed_forward_norm": ("layers.*.mlp_norm",),
        "encoder.layers.*.feed_forward.up": ("layers.*.mlp.Wi",),
        "encoder.layers.*.feed_forward.down": ("layers.*.mlp.Wo",),
        "encoder.final_norm": ("final_norm",),
    },
}
# modules of the masked-language-model head; the output matrix is tied to the word embedding, here and there
HEAD: dict[Architecture, dict[str, tuple[str, ...]]] = {
    "RobertaPreLayerNorm": {
        "head.dense": ("lm_head.dense",),
        "head.norm": ("lm_head.layer_norm",),
        "head": ("lm_head",),
    },
    "Bert": {
        "head.dense": ("cls.predictions.transform.dense",),
        "head.norm": ("cls.predictions.transform.LayerNorm",),
        "head": ("cls.predictions",),
    },
    "ModernBert": {"head.dense": ("head.dense",), "head.norm": ("head.norm",), "head": ("decoder",)},
}
# weights of transformers that this encoder has no place for: copies of tied ones, buffers, heads of other tasks
DECODERS = ("lm_head.decoder.", "cls.predictions.decoder.", "decoder.weight")
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
OTHER_TASKS = ("pooler.", "cls.seq_relationship.")


def huggingface_names(architecture: Architecture, name: str) -> tuple[str, ...]:
    """The weights of `architecture` that together are the weight `name` of this encoder."""
    module, suffix = name.rsplit(".", 1)
    number = next((part for part in module.split(".") if part.isdecimal()), "")
    row = module.replace(f".{number}.", ".*.") if number else module
    head = HEAD[architecture]
    prefix, modules = ("", head[row]) if row in head else (PREFIX[architecture], BASE[architecture][row])
    return tuple(f"{prefix}{module}.{suffix}".replace("*", number) for module in modules)


def to_huggingface(weights: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """The weights of a model under the names of its architecture, with zeros for what it lacks of that architecture."""
    architecture = config.huggingface_architecture
    assert architecture is not None
    complete = dict(weights)
    complete.update(_absent(weights, config))
    if architecture == "RobertaPreLayerNorm":
        table = complete[f"{POSITIONS}.weight"]
        complete[f"{POSITIONS}.weight"] = torch.cat([table.new_zeros(config.pad_id + 1, config.hidden_size), table])
    renamed: dict[str, Tensor] = {}
    for name, tensor in complete.items():
        names = huggingface_names(architecture, name)
        renamed.update(zip(names, (part.clone() for part in tensor.chunk(len(names))), strict=True))
    return renamed


def _absent(weights: Mapping[str, Tensor], config: EncoderConfig) -> Iterator[tuple[str, Tensor]]:
    """What RobertaPreLayerNorm and Bert always have and a shape may lack: positions, two segments, all biases."""
    if config.huggingface_architecture == "ModernBert":
        return
    if config.position == "sinusoidal":
        yield f"{POSITIONS}.weight", sinusoidal_table(config.known_max_length, config.hidden_size)
    if not config.num_segments:
        yield f"{SEGMENTS}.weight", torch.zeros(2, config.hidden_size)
    if not config.bias:
        for name, tensor in weights.items():
            if name.endswith(".weight") and ".embeddings." not in name.removesuffix(".norm.weight"):
                yield f"{name.removesuffix('weight')}bias", torch.zeros(len(tensor))


def from_huggingface(
    hf_weights: Mapping[str, Tensor], config: EncoderConfig, expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of a Hugging Face folder under the names of `expected`, the state of a model of `config`.

    Absent ones are left out; but biases, which some variants lack, are zeros. InputError for a weight that this encoder
    does not have, and for an output matrix that is not tied to the word embedding.
    """
    architecture = config.huggingface_architecture
    assert architecture is not None
    remaining = _modern_names(hf_weights, architecture)
    found: dict[str, Tensor] = {}
    for name, like in expected.items():
        parts = [remaining.pop(part) for part in huggingface_names(architecture, name) if part in remaining]
        if parts:
            found[name] = torch.cat(parts) if len(parts) > 1 else parts[0]
        elif name.endswith(".bias") and f"{name.removesuffix('bias')}weight" in found:
            found[name] = torch.zeros(like.shape)
    if any(name.startswith("head.") for name in found):  # an output layer without a bias
        found.setdefault("head.bias", torch.zeros(config.known_vocab_size))
    positions = f"{POSITIONS}.weight"
    if architecture == "RobertaPreLayerNorm" and positions in found:
        found[positions] = found[positions][config.pad_id + 1 :].contiguous()
    _check_remaining(remaining, found)
    return found


def _modern_names(hf_weights: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Names with the prefix that a base model saved alone lacks, and without old files' names of LayerNorm."""
    heads = ("cls.", "lm_head.", *(name for row in HEAD[architecture].values() for name in row))
    prefix = PREFIX[architecture]
    is_base_only = not any(name.startswith(prefix) for name in hf_weights)
    weights = {}
    for name, tensor in hf_weights.items():
        new = f"{prefix}{name}" if is_base_only and not name.startswith(heads) else name
        weights[new.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    return weights


def _check_remaining(remaining: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name, tensor in remaining.items():
        if name.startswith(DECODERS):
            tied = found[f"{WORDS}.weight"] if name.endswith("weight") else found["head.bias"]
            if not torch.equal(tensor, tied):
                raise InputError(f"'{name}' differs from the word embedding: this encoder's output is tied to it")
        elif not is_of_other_task(name) and not name.endswith(BUFFERS):
            raise InputError(f"'{name}' has no place in this encoder")


def is_of_other_task(name: str) -> bool:
    """Whether a weight of transformers serves another task than masked language modelling; it is not loaded."""
    return any(task in name for task in OTHER_TASKS)
