"""Checkpoints that are whole or absent, in one format that any engine on any number of processes reads.

A folder `step_00000100` holds `encoder.json` and `model.safetensors` (fp32; all that export needs),
`optimizer.safetensors` (both moments by parameter name), `training.json`, `data.json`, `config.yaml` and, last, the
marker `COMPLETE` that lists every file's size. It is written under a temporary name, flushed, renamed; the marker comes
after that.

Cost: 12 bytes a parameter on disk; rank 0 holds one tensor at a time (the largest, in fp32) while saving.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import Field
from safetensors import safe_open
from torch import Tensor

from configs import Config
from pretrain.checkpoint.tensor_file import TensorFile
from pretrain.engines.base import MOMENTS, Engine, Shard
from pretrain.processes import Processes

MARKER = "COMPLETE"
_NAME = re.compile(r"step_(\d{8,})")


class CheckpointConfig(Config):
    """When to save and what to keep; may change at every resume."""

    save_every: int = Field(1000, ge=1, description="steps between checkpoints; the last step is always saved")
    keep_last: int = Field(3, ge=1, description="number of newest checkpoints kept")
    keep_every: int | None = Field(None, ge=1, description="also keep every checkpoint at a multiple of so many steps")


@dataclass(frozen=True)
class Found:
    """What lies in a run's `checkpoints` folder."""

    whole: list[Path]  # oldest first
    broken: list[str]  # 'name: why', newest first


def checkpoint_name(step: int) -> str:
    """The folder's name of a step."""
    return f"step_{step:08d}"


def checkpoint_step(folder: Path) -> int:
    """The step in a folder's name."""
    match = _NAME.fullmatch(folder.name)
    assert match, folder
    return int(match.group(1))


def find_checkpoints(folder: Path) -> Found:
    """Whole checkpoints by number, and why each other `step_…` folder is not one; other names are not looked at."""
    entries = [p for p in folder.iterdir() if _NAME.fullmatch(p.name) and p.is_dir()] if folder.is_dir() else []
    entries.sort(key=checkpoint_step)
    faults = {path: fault(path) for path in entries}
    broken = [f"{path.name}: {reason}" for path, reason in reversed(faults.items()) if reason]
    return Found([path for path, reason in faults.items() if not reason], broken)


def fault(folder: Path) -> str | None:
    """Why `folder` is not a whole checkpoint; None when it is."""
    try:
        sizes = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return f"half-written, it has no valid {MARKER} marker"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return None


def save_checkpoint(
    folder: Path, step: int, engine: Engine, documents: Mapping[str, str], processes: Processes
) -> str | None:
    """Write checkpoint `step` under `folder`; every rank calls it. Returns None, or on all ranks why it failed.

    `documents` are the small text files by name. A failure (disk full, no permission) leaves what was there untouched.
    """
    target, temporary = folder / checkpoint_name(step), folder / f".writing_{checkpoint_name(step)}"
    reason = None
    shards = list(engine.shards())
    try:
        if processes.is_main:
            needed = sum(12 * shard.shape.numel() for shard in shards) + sum(map(len, documents.values()))
            _prepare(folder, temporary, needed)
    except OSError as error:
        reason = f"{target}: {error.strerror or error}"
    reason = processes.from_main(reason)
    if reason is None:
        reason = processes.from_main(_write(target, temporary, shards, engine.replicated, documents, processes))
    return reason


def _prepare(folder: Path, temporary: Path, needed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".writing_*"):
        shutil.rmtree(leftover)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"the disk is full: {needed} bytes needed, {free} free")
    temporary.mkdir()


def _write(
    target: Path,
    temporary: Path,
    shards: list[Shard],
    replicated: bool,
    documents: Mapping[str, str],
    processes: Processes,
) -> str | None:
    """Gather and write; rank 0's failure is kept until the collectives are through, so that nobody waits for ever."""
    failure: OSError | None = None
    files: dict[str, TensorFile] = {}
    try:
        if processes.is_main:
            files = _open_files(temporary, shards)
    except OSError as error:
        failure = error
    for kind in ("weight", *MOMENTS):
        for shard in shards:
            part = shard.weight if kind == "weight" else shard.moments[kind]
            whole = part if replicated else gather(shard, part, processes)
            try:
                if files and not failure:
                    name = shard.name if kind == "weight" else f"{kind}.{shard.name}"
                    files[kind].add(name, whole.float().cpu())
            except OSError as error:
                failure = error
    if not processes.is_main:
        return None
    try:
        if failure:
            raise failure
        for file in files.values():
            file.flush()
        _finish(target, temporary, documents)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        free = shutil.disk_usage(target.parent).free
        needed = sum(12 * shard.shape.numel() for shard in shards)
        return f"{target}: {error.strerror or error} ({needed} bytes needed, {free} free)"
    finally:
        for file in files.values():
            file.close()
    return None


def _open_files(folder: Path, shards: list[Shard]) -> dict[str, TensorFile]:
    weights = TensorFile(folder / "model.safetensors", {shard.name: tuple(shard.shape) for shard in shards})
    names = {f"{key}.{shard.name}": tuple(shard.shape) for key in MOMENTS for shard in shards}
    return {"weight": weights, **dict.fromkeys(MOMENTS, TensorFile(folder / "optimizer.safetensors", names))}


def gather(shard: Shard, part: Tensor, processes: Processes) -> Tensor:
    """The whole parameter (flat, fp32) on rank 0, from its disjoint parts; on other ranks the values mean nothing."""
    whole = torch.zeros(shard.shape.numel(), dtype=torch.float32, device=processes.device)
    whole[shard.start : shard.start + part.numel()] = part
    if processes.world_size > 1:
        dist.reduce(whole, dst=0)
    return whole


def _finish(target: Path, temporary: Path, documents: Mapping[str, str]) -> None:
    for name, text in documents.items():
        write_flushed(temporary / name, text)
    if target.exists():  # a half-written one of the same step
        shutil.rmtree(target)
    temporary.rename(target)
    _flush_folder(target.parent)
    sizes = {path.name: path.stat().st_size for path in sorted(target.iterdir())}
    write_flushed(target / f".{MARKER}", json.dumps(sizes, indent=1))
    (target / f".{MARKER}").rename(target / MARKER)
    _flush_folder(target)


def write_flushed(path: Path, text: str) -> None:
    """Write a small text file and flush it to disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_training_state(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(training state, data state) of a whole checkpoint."""
    return json.loads((folder / "training.json").read_text()), json.loads((folder / "data.json").read_text())


def restore_optimizer(folder: Path, engine: Engine, update_count: int) -> None:
    """Fill fp32 master weights and moments of this rank's shards; the module itself has its weights already."""
    engine.set_update_count(update_count)
    with (
        safe_open(folder / "model.safetensors", "pt") as weights,
        safe_open(folder / "optimizer.safetensors", "pt") as states,
    ):
        for shard in engine.shards():
            pieces = [(weights, shard.name, shard.weight)]
            pieces += [(states, f"{key}.{shard.name}", part) for key, part in shard.moments.items()]
            for file, name, part in pieces:
                if part.numel():
                    part.copy_(file.get_tensor(name).view(-1)[shard.start : shard.start + part.numel()])


def retire_checkpoints(folder: Path, config: CheckpointConfig, best_step: int | None = None) -> list[Path]:
    """Delete whole checkpoints beyond `keep_last`, by number; never the best one or a multiple of `keep_every`."""
    whole = find_checkpoints(folder).whole
    kept: Iterable[int] = {checkpoint_step(path) for path in whole[-config.keep_last :]}
    retired = []
    for path in whole:
        step = checkpoint_step(path)
        if step in kept or step == best_step or (config.keep_every and step % config.keep_every == 0):
            continue
        (path / MARKER).unlink()  # from here on it is no checkpoint, whatever interrupts the deletion
        shutil.rmtree(path)
        retired.append(path)
    return retired
