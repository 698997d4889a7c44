"""Which checkpoints stay; an old one goes only after a newer whole one exists."""

import shutil
from pathlib import Path

from pretrain.checkpoint.format import MARKER, CheckpointConfig, checkpoint_step, find_checkpoints


def retire_checkpoints(
    folder: Path, config: CheckpointConfig, best_step: int | None = None, branch_step: int | None = None
) -> list[Path]:
    """Delete whole checkpoints beyond `keep_last`, by number; never the best one or a multiple of `keep_every`.

    The newest one up to `branch_step` stays too: longer runs can branch off before the learning rate decays.
    """
    whole = find_checkpoints(folder).whole
    kept = {checkpoint_step(path) for path in whole[-config.keep_last :]}
    kept |= {max((step for path in whole if (step := checkpoint_step(path)) <= (branch_step or -1)), default=-1)}
    retired = []
    for path in whole:
        step = checkpoint_step(path)
        if step in kept or step == best_step or (config.keep_every and step % config.keep_every == 0):
            continue
        (path / MARKER).unlink()  # from here on it is no checkpoint, whatever interrupts the deletion
        shutil.rmtree(path)
        retired.append(path)
    return retired
