"""`load_model`: the model in any folder that this project reads, whether of our own format or of transformers."""

from pathlib import Path

import torch

from encoder.model import MaskedLanguageModel
from encoder.storage import CONFIG_FILE, load_checkpoint


def load_model(folder: Path | str, device: torch.device | str = "cpu") -> MaskedLanguageModel:
    """The model of a checkpoint, or of a Hugging Face folder, in float32 on `device` and in training mode.

    InputError that names the file and what is wrong in it: keys that this encoder does not compute, weights that are
    missing, unexpected or of another shape.
    """
    folder = Path(folder)
    if (folder / "config.json").exists() and not (folder / CONFIG_FILE).exists():
        from encoder.huggingface.load import load_pretrained  # imports transformers, which takes seconds

        return load_pretrained(folder).to(device)
    return load_checkpoint(folder).to(device)
