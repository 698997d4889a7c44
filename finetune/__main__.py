"""`python -m finetune CONFIG [key=value …]`: one task; alone or under torchrun or accelerate launch."""

import sys
from pathlib import Path

from configs import InputError, load_config, run_command
from finetune.accelerator import is_first_process
from finetune.config import FinetuneConfig
from finetune.results import reported_status
from finetune.run import run

USAGE = "python -m finetune CONFIG [key=value …]"


def main(arguments: list[str]) -> int:
    """Run the configured task and print its scores."""
    if not arguments:
        raise InputError(f"usage: {USAGE}; --help lists the keys")
    config = load_config(FinetuneConfig, arguments[0], arguments[1:])
    with reported_status(Path(config.run_dir)):
        results = run(config)
    if is_first_process():
        print(
            {key: results[key] for key in ("metric", "mean", "standard_deviation") if key in results}, file=sys.stderr
        )
    return 0


if __name__ == "__main__":
    run_command(main, FinetuneConfig, USAGE)
