"""Reading a whole checkpoint: the small states, and this rank's slices of weights and moments."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

from pretrain.checkpoint.format import DATA_FILE, MOMENTS_FILE, TRAINING_FILE, WEIGHTS_FILE
from pretrain.engines.base import Engine


def load_states(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(training state, data state) of a whole checkpoint; no data state before the run's first step."""
    training, data = (checkpoint / name for name in (TRAINING_FILE, DATA_FILE))
    return json.loads(training.read_text(encoding="utf-8")), json.loads(data.read_text(encoding="utf-8"))


def restore_optimizer(checkpoint: Path, engine: Engine, update_count: int) -> None:
    """Fill fp32 master weights and moments of this rank's shards; the module itself has its weights already."""
    engine.reset_optimizer(update_count)
    with safe_open(checkpoint / WEIGHTS_FILE, "pt") as weights, safe_open(checkpoint / MOMENTS_FILE, "pt") as moments:
        for shard in engine.shards():
            targets = [(weights, shard.name, shard.weight)]
            targets += [(moments, f"{key}.{shard.name}", part) for key, part in shard.moments.items()]
            for file, name, part in targets:
                if part.numel():
                    part.copy_(file.get_tensor(name).view(-1)[shard.start : shard.start + part.numel()])
