"""A checkpoint becomes a Hugging Face folder, and the folder is proven: reloaded and compared before it gets its name.

The proof (`python -m encoder.huggingface.export FOLDER PROBE`) loads the folder in a fresh process as any user would,
with plain AutoModel classes, and compares hidden states and logits of a padded batch. Cost: the weights twice in
memory, and two loads from disk.
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
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from configs import InputError
from configs.atomic import folder_replacing
from encoder.config import EncoderConfig
from encoder.huggingface.config import MODEL_TYPES, to_huggingface_config
from encoder.huggingface.load import from_pretrained
from encoder.huggingface.names import to_huggingface
from encoder.model import MaskedLanguageModel
from encoder.storage import load_checkpoint, untied_state

TOLERANCE = 1e-4  # largest difference of a logit in float32, relative to the largest logit where that is above 1
REPORT_FILE = "export.json"
PROBE_LENGTH = 128  # tokens of the longest row of the batch that is compared


def export_folder(checkpoint: Path, tokenizer: Path, out: Path, model_card: str) -> float:
    """Write the Hugging Face folder `out` from a checkpoint (encoder.json, model.safetensors) and a tokenizer folder.

    Returns the largest difference of a logit between our model and the reloaded folder, and stores it in `export.json`.
    `out` appears only when all is proven; an earlier export there is replaced.
    InputError for a shape that no architecture of transformers has, a tokenizer that does not fit, or an `out` that is
    something else; RuntimeError when the reloaded model differs by more than 1e-4 or lacks weights.
    """
    transformers.utils.logging.disable_progress_bar()  # bars for one small file would hide our own line
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # saving imports DeepSpeed, which else warns on stdout
    model = load_checkpoint(checkpoint).eval()
    if model.config.huggingface_architecture is None:
        raise InputError(f"{checkpoint}: no architecture of transformers has this shape (exportable: false)")
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / REPORT_FILE).exists()):
        raise InputError(f"{out} exists and is no export: give another folder")
    with folder_replacing(out) as folder:
        _write_tokenizer(model.config, tokenizer, folder)
        write_weights(model, folder)
        (folder / "README.md").write_text(model_card, encoding="utf-8")
        report = prove(model, folder)
        (folder / REPORT_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return float(report["max_difference"])


def write_weights(model: MaskedLanguageModel, folder: Path) -> None:
    """Write weights and configuration of `model`, whose shape must be one of transformers', as transformers does."""
    config = model.config
    model_type = next(key for key, value in MODEL_TYPES.items() if value == config.huggingface_architecture)
    hf_config = AutoConfig.for_model(model_type, **to_huggingface_config(config))
    hf_model = AutoModelForMaskedLM.from_config(hf_config, dtype=torch.float32)
    result = hf_model.load_state_dict(to_huggingface(untied_state(model), config), strict=False)
    assert not result.unexpected_keys, result.unexpected_keys
    assert set(result.missing_keys) <= set(hf_model.all_tied_weights_keys), result.missing_keys
    hf_model.save_pretrained(folder)


def _write_tokenizer(config: EncoderConfig, source: Path, folder: Path) -> None:
    """Copy the tokenizer, with the inputs that the model takes and the length that they may have."""
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if config.num_segments else [])
    tokenizer = from_pretrained(
        AutoTokenizer, source, model_input_names=inputs, model_max_length=config.known_max_length
    )
    if len(tokenizer) > config.known_vocab_size:
        raise InputError(f"{source} has {len(tokenizer)} tokens, the model's vocab_size is {config.vocab_size}")
    tokenizer.save_pretrained(folder)


def prove(model: MaskedLanguageModel, folder: Path) -> dict[str, Any]:
    """Compare `model` (in evaluation mode) with `folder`, reloaded in a fresh process.

    Returns the differences and the versions; RuntimeError when the folder does not load, differs or lacks weights.
    """
    input_ids, keep = _probe_batch(model.config)
    with torch.no_grad():
        hidden = model.encoder.hidden(input_ids, keep)
        logits = model.head.logits(hidden)
    with tempfile.TemporaryDirectory() as temporary:
        probe = Path(temporary) / "probe.safetensors"
        save_file({"input_ids": input_ids, "keep": keep, "hidden": hidden[keep], "logits": logits[keep]}, probe)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "encoder.huggingface.export", str(folder.absolute()), str(probe)]
        root = Path(__file__).resolve().parents[2]
        child = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RuntimeError(f"{folder} does not load with AutoModel: {child.stderr.strip()[-2000:]}")
    found = json.loads(child.stdout.splitlines()[-1])
    allowed = TOLERANCE * max(1.0, float(logits[keep].abs().max()))
    if found["missing"] or not found["max_difference"] <= allowed:
        raise RuntimeError(f"{folder}: the reloaded model differs by more than {allowed:g} or lacks weights: {found}")
    versions = {"architecture": model.config.huggingface_architecture, "transformers": transformers.__version__}
    return versions | found


def _probe_batch(config: EncoderConfig) -> tuple[Tensor, Tensor]:
    """Four right-padded rows (4, T) of any token but PAD, and which of their tokens are real (4, T) bool."""
    length = min(config.known_max_length, PROBE_LENGTH)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.known_vocab_size - 1, (4, length), generator=generator)
    ids += ids >= config.pad_id
    lengths = torch.tensor([length, max(1, length // 2), max(1, length // 3), 1])
    keep = torch.arange(length) < lengths[:, None]
    return ids.masked_fill(~keep, config.pad_id), keep


def compare_in_fresh_process(folder: str, probe_file: str) -> None:
    """What the fresh process does: load `folder` as any user would and print the differences as one line of JSON."""
    probe = load_file(probe_file)
    inputs = {"input_ids": probe["input_ids"], "attention_mask": probe["keep"].long()}
    masked_lm, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    base, base_info = AutoModel.from_pretrained(folder, output_loading_info=True)
    with torch.no_grad():
        logits = masked_lm(**inputs).logits[probe["keep"]]
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
