"""Our folders and those of transformers: export with proof, and import to go on pretraining.

`export_folder` ends by reloading what it wrote in a fresh process, with plain AutoModel classes and nothing of ours
(`python -m encoder.export FOLDER PROBE`), and comparing the logits of a padded batch. Cost: the weights twice in
memory and two loads from disk. Only this module knows transformers.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedConfig

from encoder.config import EncoderConfig, Home
from encoder.homes import to_home
from encoder.model import MaskedLanguageModel
from encoder.storage import TIED, load_model

TOLERANCE = 1e-4  # largest difference of a logit, float32
REPORT_FILE = "export.json"
PROBE_LENGTH = 128
CONFIG_CLASSES: dict[Home, type[PreTrainedConfig]] = {
    "RobertaPreLayerNorm": transformers.RobertaPreLayerNormConfig,
    "Bert": transformers.BertConfig,
    "ModernBert": transformers.ModernBertConfig,
}


def export_folder(checkpoint: Path, tokenizer: Path, out: Path, model_card: str) -> float:
    """Write the Hugging Face folder `out` from `checkpoint` (encoder.json, model.safetensors) and a tokenizer folder.

    Returns the largest difference of a logit between our model and the reloaded folder, and stores it in
    `export.json`. `out` appears only when everything is proven; an earlier export there is replaced.
    ValueError for a shape without a home, a tokenizer that does not fit, or an `out` that is something else;
    RuntimeError when the reloaded model differs by more than 1e-4 or lacks weights.
    """
    model = load_model(checkpoint).eval()
    if model.config.home is None:
        raise ValueError(f"{checkpoint}: no architecture of transformers has this shape (exportable: false)")
    if out.exists() and any(out.iterdir()) and not (out / REPORT_FILE).exists():
        raise ValueError(f"{out} exists and is no export: give another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        _write(model, tokenizer, folder)
        (folder / "README.md").write_text(model_card, encoding="utf-8")
        report = _prove(model, folder)
        (folder / REPORT_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if out.exists():
            out.rename(Path(temporary) / "replaced")
        folder.rename(out)
    return float(report["max_difference"])


def _write(model: MaskedLanguageModel, tokenizer: Path, folder: Path) -> None:
    config = model.config
    fast = AutoTokenizer.from_pretrained(tokenizer)
    if len(fast) > config.known_vocab_size:
        raise ValueError(f"{tokenizer} has {len(fast)} tokens, the model's vocab_size is {config.vocab_size}")
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if config.num_segments else [])
    fast.model_input_names = fast.init_kwargs["model_input_names"] = inputs
    fast.model_max_length = fast.init_kwargs["model_max_length"] = config.known_max_length
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != TIED}
    theirs = AutoModelForMaskedLM.from_config(home_config(config), dtype=torch.float32)
    result = theirs.load_state_dict(to_home(weights, config), strict=False)
    tied = set(theirs.all_tied_weights_keys)
    assert not result.unexpected_keys, result.unexpected_keys
    assert set(result.missing_keys) <= tied, result.missing_keys
    theirs.save_pretrained(folder)
    fast.save_pretrained(folder)


def home_config(config: EncoderConfig) -> PreTrainedConfig:
    """The configuration of `config.home` that computes exactly `config`."""
    assert config.home is not None
    values: dict[str, Any] = {
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
    extra = _modernbert_values(config) if config.home == "ModernBert" else _bert_values(config)
    return CONFIG_CLASSES[config.home](**values, **extra)


def _bert_values(config: EncoderConfig) -> dict[str, Any]:
    # RobertaPreLayerNorm counts positions from pad_id + 1
    offset = config.pad_id + 1 if config.home == "RobertaPreLayerNorm" else 0
    return {
        "max_position_embeddings": config.known_max_length + offset,
        "type_vocab_size": config.num_segments or 2,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.hidden_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


def _modernbert_values(config: EncoderConfig) -> dict[str, Any]:
    kinds = ("full_attention", "sliding_attention")
    bases = (config.rope_base, config.local_rope_base)
    return {
        "max_position_embeddings": config.known_max_length,
        "norm_eps": config.norm_eps,
        "hidden_activation": {"geglu": "gelu", "swiglu": "silu"}[config.activation],
        "norm_bias": config.bias,
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "classifier_bias": config.bias,
        "layer_types": [kinds[config.is_local(layer)] for layer in range(config.num_layers)],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in zip(kinds, bases, strict=True)
        },
        "local_attention": config.local_window or 2 * config.known_max_length,
        "embedding_dropout": config.embedding_dropout,
        "attention_dropout": config.attention_dropout,
        "mlp_dropout": config.hidden_dropout,
        "cls_token_id": config.cls_id,
        "sep_token_id": config.sep_id,
    }


def _prove(model: MaskedLanguageModel, folder: Path) -> dict[str, Any]:
    """Compare with the folder reloaded in a fresh process; RuntimeError when they differ."""
    input_ids, keep = _probe_batch(model.config)
    with torch.no_grad():
        hidden = model.encoder.hidden(input_ids, keep)
        logits = model.head.logits(hidden)
    with tempfile.TemporaryDirectory() as temporary:
        probe = Path(temporary) / "probe.safetensors"
        save_file({"input_ids": input_ids, "keep": keep, "hidden": hidden[keep], "logits": logits[keep]}, probe)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "encoder.export", str(folder), str(probe)]
        root = Path(__file__).resolve().parent.parent
        child = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RuntimeError(f"{folder} does not load with AutoModel: {child.stderr.strip()[-2000:]}")
    found = json.loads(child.stdout.splitlines()[-1])
    report = {"architecture": model.config.home, "transformers": transformers.__version__} | found
    if found["missing"] or not found["max_difference"] <= TOLERANCE:
        raise RuntimeError(f"{folder}: the reloaded model differs by more than {TOLERANCE} or lacks weights: {found}")
    return report


def _probe_batch(config: EncoderConfig) -> tuple[Tensor, Tensor]:
    """Four right-padded rows (4, T) of any token but PAD, and which of their tokens to keep."""
    length = min(config.known_max_length, PROBE_LENGTH)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.known_vocab_size - 1, (4, length), generator=generator)
    ids += ids >= config.pad_id
    lengths = torch.tensor([length, max(1, length // 2), max(1, length // 3), 1])
    keep = torch.arange(length) < lengths[:, None]
    return ids.masked_fill(~keep, config.pad_id), keep


def compare_in_fresh_process(folder: str, probe_file: str) -> None:
    """What the fresh process does: load `folder` as any user would and print one line of JSON."""
    probe = load_file(probe_file)
    inputs = {"input_ids": probe["input_ids"], "attention_mask": probe["keep"].long()}
    whole, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    base, base_info = AutoModel.from_pretrained(folder, output_loading_info=True)
    with torch.no_grad():
        logits = whole(**inputs).logits[probe["keep"]]
        hidden = base(**inputs).last_hidden_state[probe["keep"]]
    missing = [*info["missing_keys"], *(name for name in base_info["missing_keys"] if "pooler" not in name)]
    report = {
        "max_difference": float((logits - probe["logits"]).abs().max()),
        "max_hidden_difference": float((hidden - probe["hidden"]).abs().max()),
        "missing": missing,
        "unexpected": sorted(info["unexpected_keys"]),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    compare_in_fresh_process(*sys.argv[1:])
