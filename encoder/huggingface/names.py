"""Weight names of the three architectures of transformers that our shapes live in, as tables, both ways.

A row says which module of theirs holds the weight and the bias of a module of ours; `*` is the layer's number. Three
of theirs in a row are the parts of one fused matrix of ours, first to last. Two things are not a matter of names and
stand below the tables: RobertaPreLayerNorm counts positions from pad_id + 1, and rows or biases that a shape of ours
lacks are zeros there.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from configs import InputError
from encoder.config import EncoderConfig, Home
from encoder.positions import sinusoidal_table

PREFIX: dict[Home, str] = {"RobertaPreLayerNorm": "roberta_prelayernorm.", "Bert": "bert.", "ModernBert": "model."}
WORDS, POSITIONS, SEGMENTS = "encoder.embeddings.word", "encoder.embeddings.position", "encoder.embeddings.segment"

# modules of the base model, without its prefix
BASE: dict[Home, dict[str, tuple[str, ...]]] = {
    "RobertaPreLayerNorm": {
        WORDS: ("embeddings.word_embeddings",),
        POSITIONS: ("embeddings.position_embeddings",),
        SEGMENTS: ("embeddings.token_type_embeddings",),
        "encoder.embeddings.norm": ("embeddings.LayerNorm",),
        "encoder.layers.*.attention_norm": ("encoder.layer.*.attention.LayerNorm",),
        "encoder.layers.*.attention.qkv": (
            "encoder.layer.*.attention.self.query",
            "encoder.layer.*.attention.self.key",
            "encoder.layer.*.attention.self.value",
        ),
        "encoder.layers.*.attention.output": ("encoder.layer.*.attention.output.dense",),
        "encoder.layers.*.feed_forward_norm": ("encoder.layer.*.intermediate.LayerNorm",),
        "encoder.layers.*.feed_forward.up": ("encoder.layer.*.intermediate.dense",),
        "encoder.layers.*.feed_forward.down": ("encoder.layer.*.output.dense",),
        "encoder.final_norm": ("LayerNorm",),
    },
    "Bert": {
        WORDS: ("embeddings.word_embeddings",),
        POSITIONS: ("embeddings.position_embeddings",),
        SEGMENTS: ("embeddings.token_type_embeddings",),
        "encoder.embeddings.norm": ("embeddings.LayerNorm",),
        "encoder.layers.*.attention_norm": ("encoder.layer.*.attention.output.LayerNorm",),
        "encoder.layers.*.attention.qkv": (
            "encoder.layer.*.attention.self.query",
            "encoder.layer.*.attention.self.key",
            "encoder.layer.*.attention.self.value",
        ),
        "encoder.layers.*.attention.output": ("encoder.layer.*.attention.output.dense",),
        "encoder.layers.*.feed_forward_norm": ("encoder.layer.*.output.LayerNorm",),
        "encoder.layers.*.feed_forward.up": ("encoder.layer.*.intermediate.dense",),
        "encoder.layers.*.feed_forward.down": ("encoder.layer.*.output.dense",),
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
# modules of the head; ours is tied to the word embedding, theirs are too
HEAD: dict[Home, dict[str, tuple[str, ...]]] = {
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
# names of theirs that say nothing which ours do not (tied copies, buffers), and heads of other tasks
DECODERS = ("lm_head.decoder.", "cls.predictions.decoder.", "decoder.weight")
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
OTHER_TASKS = ("pooler.", "cls.seq_relationship.")


def names(home: Home, ours: str) -> tuple[str, ...]:
    """The names in `home` that together hold our weight `ours`."""
    module, suffix = ours.rsplit(".", 1)
    number = next((part for part in module.split(".") if part.isdecimal()), "")
    row = module.replace(f".{number}.", ".*.") if number else module
    prefix, theirs = ("", HEAD[home][row]) if row in HEAD[home] else (PREFIX[home], BASE[home][row])
    return tuple(f"{prefix}{name}.{suffix}".replace("*", number) for name in theirs)


def to_home(weights: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Our weights under the names of `config.home`, with what that architecture has and this shape lacks as zeros."""
    assert config.home is not None
    complete = dict(weights)
    complete.update(_absent(weights, config))
    if config.home == "RobertaPreLayerNorm":
        table = complete[f"{POSITIONS}.weight"]
        complete[f"{POSITIONS}.weight"] = torch.cat([table.new_zeros(config.pad_id + 1, config.hidden_size), table])
    renamed: dict[str, Tensor] = {}
    for ours, tensor in complete.items():
        theirs = names(config.home, ours)
        renamed.update(zip(theirs, (part.clone() for part in tensor.chunk(len(theirs))), strict=True))
    return renamed


def _absent(weights: Mapping[str, Tensor], config: EncoderConfig) -> Iterator[tuple[str, Tensor]]:
    """What RobertaPreLayerNorm and Bert always have: a position table, two segments, biases everywhere."""
    if config.home == "ModernBert":
        return
    if config.position == "sinusoidal":
        yield f"{POSITIONS}.weight", sinusoidal_table(config.known_max_length, config.hidden_size)
    if not config.num_segments:
        yield f"{SEGMENTS}.weight", torch.zeros(2, config.hidden_size)
    if not config.bias:
        for name, tensor in weights.items():
            if name.endswith(".weight") and ".embeddings." not in name.removesuffix(".norm.weight"):
                yield f"{name.removesuffix('weight')}bias", torch.zeros(len(tensor))


def from_home(theirs: Mapping[str, Tensor], config: EncoderConfig, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their weights under the names of `expected` (our state on any device, meta included), as far as they are there.

    Biases that they lack and ours have are zeros. InputError for a name that has no place here, and for a decoder
    that is not tied to the word embedding.
    """
    assert config.home is not None
    given = _plain(theirs, config.home)
    found: dict[str, Tensor] = {}
    for ours, like in expected.items():
        parts = [given.pop(name) for name in names(config.home, ours) if name in given]
        if parts:
            found[ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
        elif ours.endswith(".bias") and f"{ours.removesuffix('bias')}weight" in found:
            found[ours] = torch.zeros(like.shape)
    if any(name.startswith("head.") for name in found):  # a decoder without bias
        found.setdefault("head.bias", torch.zeros(config.known_vocab_size))
    positions = f"{POSITIONS}.weight"
    if config.home == "RobertaPreLayerNorm" and positions in found:
        found[positions] = found[positions][config.pad_id + 1 :].contiguous()
    _check_leftovers(given, found)
    return found


def _plain(theirs: Mapping[str, Tensor], home: Home) -> dict[str, Tensor]:
    """Names with the base model's prefix, and without the spelling of LayerNorm in old files."""
    heads = ("cls.", "lm_head.", *(name for row in HEAD[home].values() for name in row))
    prefix = PREFIX[home]
    is_base_only = not any(name.startswith(prefix) for name in theirs)
    plain = {}
    for name, tensor in theirs.items():
        new = f"{prefix}{name}" if is_base_only and not name.startswith(heads) else name
        plain[new.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    return plain


def _check_leftovers(given: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name, tensor in given.items():
        if name.startswith(DECODERS):
            tied = found[f"{WORDS}.weight"] if name.endswith("weight") else found["head.bias"]
            if not torch.equal(tensor, tied):
                raise InputError(f"'{name}' differs from the word embedding: this encoder's output is tied to it")
        elif not is_left_out(name) and not name.endswith(BUFFERS):
            raise InputError(f"'{name}' has no place in this encoder")


def is_left_out(name: str) -> bool:
    """True for a weight of theirs that serves another task than masked language modelling."""
    return any(task in name for task in OTHER_TASKS)
