"""`python -m hanging_rank CONFIG`: as pretrain, but the last rank hangs in its fifth step."""

import sys
import time
from pathlib import Path
from typing import Any

import pretrain.loop
from configs import load_config
from pretrain.__main__ import main
from pretrain.config import PretrainConfig
from pretrain.step import train_step


def hang(engine: Any, batch: Any, processes: Any, *arguments: Any, **keys: Any) -> dict[str, Any]:
    """`train_step`, until the fifth."""
    if batch.step == 5 and processes.rank == processes.world_size - 1:
        (Path(load_config(PretrainConfig, sys.argv[1]).run_dir) / "hangs").touch()
        while True:
            time.sleep(1)
    return train_step(engine, batch, processes, *arguments, **keys)


pretrain.loop.train_step = hang
sys.exit(main(sys.argv[1:]))
