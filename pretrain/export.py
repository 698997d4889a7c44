"""`python -m pretrain.export RUN_OR_CHECKPOINT OUT`: a plain Hugging Face folder from a checkpoint.

Reads `encoder.json`, `model.safetensors` and the run's tokenizer; never sees DeepSpeed. `encoder.export` reloads what
it wrote in a fresh process and compares before the folder gets its name.
"""

import json
from pathlib import Path

from configs import InputError, load_config, run_command
from encoder.huggingface.export import export_folder
from pretrain.config import PretrainConfig
from pretrain.model_card import model_card
from pretrain.run_folder import RunFolder

USAGE = "usage: python -m pretrain.export RUN_OR_CHECKPOINT OUT"


def main(arguments: list[str]) -> None:
    """Write a Hugging Face folder (weights, config, tokenizer, model card) from a run's newest checkpoint, or from one.

    usage: python -m pretrain.export RUN_OR_CHECKPOINT OUT
    """
    if len(arguments) != 2:
        raise InputError(USAGE)
    run, checkpoint = RunFolder.locate(Path(arguments[0]))
    out = Path(arguments[1])
    config = load_config(PretrainConfig, checkpoint / "config.yaml")
    training = json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))
    card = model_card(config, training, run.metrics, out.name)
    difference = export_folder(checkpoint, run.tokenizer, out, card)
    print(f"{out}: {config.encoder.home}, largest difference of logits after reloading {difference:.1e}")


if __name__ == "__main__":
    run_command(main)
