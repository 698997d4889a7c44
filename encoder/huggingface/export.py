"""Export with proof: our checkpoint as a transformers folder, reloaded and compared; and import (to be split).

`export_folder` ends by reloading what it wrote in a fresh process, with plain AutoModel classes and nothing of ours
(`python -m encoder.huggingface.export FOLDER PROBE`), and comparing the logits of a padded batch. Cost: the weights
twice in memory and two loads from disk.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from configs import InputError
from encoder.config import EncoderConfig
from encoder.huggingface.config import HOMES, from_home_config, to_home_values
from encoder.huggingface.names import from_home, is_left_out, to_home
from encoder.model import MaskedLanguageModel
from encoder.storage import TIED, check_names, load_model, read_weights

TOLERANCE = 1e-4  # largest difference of a logit, float32
REPORT_FILE = "export.json"
PROBE_LENGTH = 128


def export_folder(checkpoint: Path, tokenizer: Path, out: Path, model_card: str) -> float:
    """Write the Hugging Face folder `out` from `checkpoint` (encoder.json, model.safetensors) and a tokenizer folder.

    Returns the largest difference of a logit between our model and the reloaded folder, and stores it in
    `export.json`. `out` appears only when everything is proven; an earlier export there is replaced.
    InputError for a shape without a home, a tokenizer that does not fit, or an `out` that is something else;
    RuntimeError when the reloaded model differs by more than 1e-4 or lacks weights.
    """
    transformers.utils.logging.disable_progress_bar()  # bars for one small file hide our own line
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # saving imports DeepSpeed, which else warns on stdout
    model = load_model(checkpoint).eval()
    if model.config.home is None:
        raise InputError(f"{checkpoint}: no architecture of transformers has this shape (exportable: false)")
    if out.exists() and any(out.iterdir()) and not (out / REPORT_FILE).exists():
        raise InputError(f"{out} exists and is no export: give another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        _write_tokenizer(model.config, tokenizer, folder)
        write_weights(model, folder)
        (folder / "README.md").write_text(model_card, encoding="utf-8")
        report = prove(model, folder)
        (folder / REPORT_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if out.exists():
            out.rename(Path(temporary) / "replaced")
        folder.rename(out)
    return float(report["max_difference"])


def write_weights(model: MaskedLanguageModel, folder: Path) -> None:
    """Weights and configuration of `model` as transformers saves them; the shape must have a home."""
    config = model.config
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != TIED}
    model_type = next(model_type for model_type, home in HOMES.items() if home == config.home)
    theirs = AutoModelForMaskedLM.from_config(
        AutoConfig.for_model(model_type, **to_home_values(config)), dtype=torch.float32
    )
    result = theirs.load_state_dict(to_home(weights, config), strict=False)
    assert not result.unexpected_keys, result.unexpected_keys
    assert set(result.missing_keys) <= set(theirs.all_tied_weights_keys), result.missing_keys
    theirs.save_pretrained(folder)


def _write_tokenizer(config: EncoderConfig, tokenizer: Path, folder: Path) -> None:
    """The tokenizer, told which inputs the model takes and how long they may be."""
    fast = _load(AutoTokenizer, tokenizer)
    if len(fast) > config.known_vocab_size:
        raise InputError(f"{tokenizer} has {len(fast)} tokens, the model's vocab_size is {config.vocab_size}")
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if config.num_segments else [])
    fast.model_input_names = fast.init_kwargs["model_input_names"] = inputs
    fast.model_max_length = fast.init_kwargs["model_max_length"] = config.known_max_length
    fast.save_pretrained(folder)


def import_folder(folder: Path) -> MaskedLanguageModel:
    """The model in a folder of transformers (Bert, RobertaPreLayerNorm, ModernBert), to go on pretraining from.

    Exact, or a InputError that names what this encoder does not compute. A folder without a masked-language-model
    head (a saved AutoModel) gets a new one; that, and what is left out (a pooler), is said in a warning.
    """
    config = from_home_config(_load(AutoConfig, folder), str(folder / "config.json"))
    config = config.model_copy(update=_special_ids(folder))
    model = MaskedLanguageModel(config)
    ours = {name: tensor for name, tensor in model.state_dict().items() if name != TIED}
    theirs = _read_all(folder)
    found = from_home(theirs, config, ours)
    new = ours.keys() - found.keys()
    if not all(name.startswith("head.") for name in new):
        raise InputError(
            f"{folder} lacks {', '.join(sorted(name for name in new if not name.startswith('head.'))[:5])}"
        )
    left_out = sorted(name for name in theirs if is_left_out(name))
    if new or left_out:
        made, lost = (", ".join(sorted(names)) or "nothing" for names in (new, left_out))
        warnings.warn(f"{folder}: new weights for {made}; left out: {lost}", stacklevel=2)
    complete = {name: found.get(name, tensor).to(torch.float32) for name, tensor in ours.items()}
    check_names(complete, config, str(folder))
    model.load_state_dict(complete, strict=False)
    return model


def _load(kind: Any, folder: Path) -> Any:
    """What `kind` (AutoConfig or AutoTokenizer) reads in a local folder; InputError naming the folder otherwise."""
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except (OSError, KeyError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"{folder}: {kind.__name__} cannot read it: {first}") from None


def _special_ids(folder: Path) -> dict[str, int]:
    if not (folder / "tokenizer_config.json").exists():
        return {}
    tokenizer = _load(AutoTokenizer, folder)
    ids = {f"{role}_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep", "mask")}
    return {key: number for key, number in ids.items() if number is not None}


def _read_all(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder's safetensors, one file or many."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no model.safetensors (other formats are not read)")
    return {name: tensor for file in files for name, tensor in read_weights(file).items()}


def prove(model: MaskedLanguageModel, folder: Path) -> dict[str, Any]:
    """Compare `model` (in evaluation mode) with `folder` reloaded in a fresh process.

    Returns the differences and the versions; RuntimeError when they are too large, or the folder does not load.
    """
    input_ids, keep = _probe_batch(model.config)
    with torch.no_grad():
        hidden = model.encoder.hidden(input_ids, keep)
        logits = model.head.logits(hidden)
    with tempfile.TemporaryDirectory() as temporary:
        probe = Path(temporary) / "probe.safetensors"
        save_file({"input_ids": input_ids, "keep": keep, "hidden": hidden[keep], "logits": logits[keep]}, probe)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "encoder.huggingface.export", str(folder), str(probe)]
        root = Path(__file__).resolve().parents[2]
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
