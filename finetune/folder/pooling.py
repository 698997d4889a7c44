"""Token vectors to one sentence vector, and the files that describe it to sentence-transformers.

The pooling is part of the model: it is written into its folder and read from there by every command, so nobody can
score or serve a model with another one by accident. `first_last` is the mean of the first and the last layer's
output, then the mean over tokens. Padding never takes part.
"""

import json
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from configs import InputError
from finetune.config import Pooling


class SentenceEncoder(nn.Module):
    """An encoder and its pooling; `projection` (training only) is SimCSE's MLP on the pooled vector."""

    def __init__(self, encoder: Any, pooling: Pooling, with_projection: bool):
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        width = encoder.config.hidden_size
        self.projection = nn.Sequential(nn.Linear(width, width), nn.Tanh()) if with_projection else None

    def forward(self, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """Padded inputs (rows, length) -> vectors (rows, width)."""
        first_last = self.pooling == "first_last"
        output = self.encoder(attention_mask=attention_mask, **inputs, output_hidden_states=first_last)
        states = output.last_hidden_state
        if first_last:
            states = (output.hidden_states[1] + output.hidden_states[-1]) / 2
        vectors = pool(states, attention_mask, self.pooling)
        return self.projection(vectors) if self.projection is not None and self.training else vectors


def pool(states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """(rows, length, width) and (rows, length; 1 = token) -> (rows, width). A row with no token gives zeros."""
    kept = attention_mask.unsqueeze(-1).bool()
    if pooling == "cls":
        return states[:, 0]
    if pooling == "max":
        highest = states.masked_fill(~kept, float("-inf")).amax(1)
        return highest.masked_fill(~kept.any(1), 0.0)
    return states.masked_fill(~kept, 0.0).sum(1) / kept.sum(1).clamp(min=1)


def write_sentence_files(folder: Path, pooling: Pooling, width: int, num_layers: int, max_length: int) -> None:
    """Add what `SentenceTransformer(folder)` reads: modules, pooling, length. The names are those of every version
    since 2.
    """
    first_last = pooling == "first_last"
    names = ["Transformer", *(["WeightedLayerPooling"] if first_last else []), "Pooling"]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine", "prompts": {}})
    if first_last:
        layers = folder / "1_WeightedLayerPooling"
        layers.mkdir()
        shape = {"word_embedding_dimension": width, "layer_start": 1, "num_hidden_layers": num_layers}
        _write_json(layers / "config.json", shape)
        weights = torch.zeros(num_layers)
        weights[0] = weights[-1] = 1.0
        save_file({"layer_weights": weights}, layers / "model.safetensors")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        _write_json(folder / "config.json", config | {"output_hidden_states": True})
    last = folder / f"{len(names) - 1}_Pooling"
    last.mkdir()
    mode = "mean" if first_last else pooling
    modes = {"cls_token": mode == "cls", "mean_tokens": mode == "mean", "max_tokens": mode == "max"}
    flags = {f"pooling_mode_{name}": chosen for name, chosen in modes.items()}
    _write_json(last / "config.json", {"word_embedding_dimension": width, **flags})


def stored_pooling(folder: str) -> Pooling | None:
    """The pooling that a folder's sentence-transformers files state, None where it has none.

    InputError when they state one that this package cannot do: a wrong vector would be silent.
    """
    path = Path(folder) / "modules.json"
    if not path.exists():
        return None
    modules = [
        (entry["type"].rsplit(".", 1)[-1], Path(folder) / entry["path"]) for entry in json.loads(path.read_text())
    ]
    names = [name for name, _ in modules if name != "Normalize"]  # only scales the vectors
    paths = dict(modules)
    if names == ["Transformer", "WeightedLayerPooling", "Pooling"]:
        weights = load_file(paths["WeightedLayerPooling"] / "model.safetensors")["layer_weights"]
        ends = weights[0] == weights[-1] != 0 and not weights[1:-1].any()
        if ends and _pooling_mode(paths["Pooling"]) == "mean":
            return "first_last"
    elif names == ["Transformer", "Pooling"]:
        mode = _pooling_mode(paths["Pooling"])
        for pooling in get_args(Pooling):
            if mode == pooling:
                return pooling
    raise InputError(f"{folder}: its modules.json asks for {', '.join(names)} in a way that this package cannot do")


def _pooling_mode(folder: Path) -> str | None:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "pooling_mode" in config:
        return config["pooling_mode"] if isinstance(config["pooling_mode"], str) else None
    modes = [
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key in config
        if config[key] is True and key.startswith("pooling_mode_")
    ]
    return modes[0] if len(modes) == 1 else None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
