"""Saving: every rank takes part, rank 0 writes under a temporary name, one tensor at a time.

Everything is flushed, then the folder is renamed, and the marker comes last. Cost: rank 0 holds one tensor at a time,
the largest, in fp32.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from configs.atomic import flush_folder, write_text
from pretrain.checkpoint.format import BYTES_PER_PARAMETER, MARKER, MOMENTS_FILE, WEIGHTS_FILE, checkpoint_name
from pretrain.checkpoint.tensor_file import TensorFile
from pretrain.engines.base import MOMENTS, Engine, Shard
from pretrain.processes import Processes


def save_checkpoint(
    folder: Path, step: int, engine: Engine, texts: Mapping[str, str], processes: Processes
) -> str | None:
    """Write checkpoint `step` under `folder`; every rank calls it. Returns None, or on all ranks why it failed.

    `texts` are the small text files by name. A failure (disk full, no permission) leaves what was there untouched.
    """
    shards = list(engine.shards())
    writer = _Writer(folder, step, shards, texts) if processes.is_main else None
    if not processes.from_main(writer and writer.failure):
        for file, name, tensor in _whole_tensors(shards, engine.shards_are_whole, processes):
            if writer:
                writer.add(file, name, tensor)
        if writer:
            writer.finish()
    failure: str | None = processes.from_main(writer and writer.failure)
    return failure


def _whole_tensors(shards: list[Shard], are_whole: bool, processes: Processes) -> Iterator[tuple[str, str, Tensor]]:
    """(file, name, flat tensor) of every weight, then of every moment; a collective for each that is sharded."""
    for shard in shards:
        yield WEIGHTS_FILE, shard.name, shard.weight if are_whole else gather(shard, shard.weight, processes)
    for key in MOMENTS:
        for shard in shards:
            part = shard.moments[key]
            yield MOMENTS_FILE, f"{key}.{shard.name}", part if are_whole else gather(shard, part, processes)


def gather(shard: Shard, part: Tensor, processes: Processes) -> Tensor:
    """The whole parameter (flat, fp32) on rank 0, from its disjoint parts; on other ranks the values mean nothing."""
    whole = torch.zeros(shard.shape.numel(), dtype=torch.float32, device=processes.device)
    whole[shard.start : shard.start + part.numel()] = part
    if processes.world_size > 1:
        dist.reduce(whole, dst=0)
    return whole


class _Writer:
    """Rank 0's files. The first failure is kept and ends the writing, while the collectives of all ranks go on."""

    def __init__(self, folder: Path, step: int, shards: list[Shard], texts: Mapping[str, str]) -> None:
        self.failure: str | None = None
        self._texts = texts
        self._target = folder / checkpoint_name(step)
        self._temporary = folder / f".writing_{checkpoint_name(step)}"
        self._needed = sum(BYTES_PER_PARAMETER * s.shape.numel() for s in shards) + sum(map(len, texts.values()))
        self._files: dict[str, TensorFile] = {}
        with self._keeping_failures():
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".writing_*"):
                shutil.rmtree(leftover)
            if shutil.disk_usage(folder).free < self._needed:
                raise OSError("the disk is full")
            self._temporary.mkdir()
            shapes = {shard.name: tuple(shard.shape) for shard in shards}
            moments = {f"{key}.{name}": shape for key in MOMENTS for name, shape in shapes.items()}
            self._files = {
                name: TensorFile(self._temporary / name, of_file)
                for name, of_file in ((WEIGHTS_FILE, shapes), (MOMENTS_FILE, moments))
            }

    def add(self, file: str, name: str, tensor: Tensor) -> None:
        """Append a tensor, in the order of the files."""
        if not self.failure:
            with self._keeping_failures():
                self._files[file].add(name, tensor.float().cpu())

    def finish(self) -> None:
        """Flush, rename and mark as complete; close whatever happened."""
        if not self.failure:
            with self._keeping_failures():
                for file in self._files.values():
                    file.flush()
                self._give_name()
        for file in self._files.values():
            file.close()

    def _give_name(self) -> None:
        for name, text in self._texts.items():
            write_text(self._temporary / name, text)
        if self._target.exists():  # a half-written one of the same step
            shutil.rmtree(self._target)
        self._temporary.rename(self._target)
        flush_folder(self._target.parent)
        sizes = {path.name: path.stat().st_size for path in sorted(self._target.iterdir())}
        write_text(self._target / MARKER, json.dumps(sizes, indent=1))

    @contextmanager
    def _keeping_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            shutil.rmtree(self._temporary, ignore_errors=True)
            space = f"{self._needed} bytes needed"
            if self._target.parent.is_dir():
                space += f", {shutil.disk_usage(self._target.parent).free} free"
            self.failure = f"{self._target}: {error.strerror or error} ({space})"
