"""Which checkpoints stay; an old one goes only after a newer whole one exists."""

import shutil
from pathlib import Path

from pretrain.checkpoint.format import MARKER, CheckpointConfig, checkpoint_step, find_checkpoints


def retire_checkpoints(folder: Path, config: CheckpointConfig, best_step: int | None = None) -> list[Path]:
    """Delete whole checkpoints beyond `keep_last`, by number; never the best one or a multiple of `keep_every`."""
    whole = find_checkpoints(folder).whole
    newest = {checkpoint_step(path) for path in whole[-config.keep_last :]}
    retired = []
    for path in whole:
        step = checkpoint_step(path)
        if step in newest or step == best_step or (config.keep_every and step % config.keep_every == 0):
            continue
        (path / MARKER).unlink()  # from here on it is no checkpoint, whatever interrupts the deletion
        shutil.rmtree(path)
        retired.append(path)
    return retired
