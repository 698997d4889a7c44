"""`python -m finetune CONFIG [key=value …]`: one task; alone or under torchrun or accelerate launch."""

import os
import sys

from configs import load_config, run_command
from finetune.config import FinetuneConfig
from finetune.run import run


def main(arguments: list[str]) -> int:
    """Run the configured task and print its scores."""
    if not arguments:
        raise ValueError("usage: python -m finetune CONFIG [key=value …]; --help lists the keys")
    results = run(load_config(FinetuneConfig, arguments[0], arguments[1:]))
    if int(os.environ.get("RANK", "0")) == 0:
        print(
            {key: results[key] for key in ("metric", "mean", "standard_deviation") if key in results}, file=sys.stderr
        )
    return 0


if __name__ == "__main__":
    run_command(main, FinetuneConfig, "python -m finetune CONFIG [key=value …]")
