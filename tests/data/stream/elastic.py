"""Ranks that only load data, killed with SIGKILL at random moments and started again on another number of processes.

    python elastic.py CONFIG.json TOKENIZER FOLDER NUM_KILLS NUM_STEPS

A process of its own: ranks are forked from it (torch is imported once), so it must not have used any threads before.
"""

import json
import multiprocessing
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from data import BatchLoader, DataConfig, format_hash, merge_states

FORK = multiprocessing.get_context("fork")


def train_rank(
    rank: int, world_size: int, port: int, config: DataConfig, tokenizer: str, folder: Path, num_steps: int
) -> None:
    """What a training loop does with the data: take a batch, gather hashes and states, save, log."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    saved = folder / "state.json"
    state = json.loads(saved.read_text()) if saved.exists() else None
    if state is not None and state["step"] == num_steps:
        return
    for batch in BatchLoader(config, tokenizer, 7, rank=rank, world_size=world_size, state=state):
        gathered: list[Any] = [None] * world_size
        dist.all_gather_object(gathered, (batch.hash, batch.state, [piece for row in batch.piece_ids for piece in row]))
        if rank == 0:
            hashes, states, documents = zip(*gathered, strict=True)
            with (folder / "log.jsonl").open("a") as log:
                log.write(
                    json.dumps(
                        [batch.step, format_hash(sum(hashes)), sorted(piece for ids in documents for piece in ids)]
                    )
                    + "\n"
                )
            (folder / "state.tmp").write_text(json.dumps(merge_states(list(states))))
            os.replace(folder / "state.tmp", saved)
        if batch.step == num_steps:
            return


def start(world_size: int, *arguments: Any) -> list[Any]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    processes = [FORK.Process(target=train_rank, args=(r, world_size, port, *arguments)) for r in range(world_size)]
    for process in processes:
        process.start()
    return processes


def kill(processes: list[Any]) -> None:
    for process in processes:
        process.kill()
        process.join()


def survive(num_kills: int, config: DataConfig, tokenizer: str, folder: Path, num_steps: int) -> list[int]:
    """Kill `num_kills` times, then run to the end; the steps at which it was killed."""
    generator = random.Random(num_kills)
    killed_at = []
    for _ in range(num_kills):
        changed = config.model_copy(update={"num_workers": generator.choice([0, 0, 1, 2])})
        processes = start(generator.choice([1, 2, 4]), changed, tokenizer, folder, num_steps)
        time.sleep(generator.uniform(0.1, 1.0))
        kill(generator.sample(processes, len(processes)))
        saved = folder / "state.json"
        killed_at.append(json.loads(saved.read_text())["step"] if saved.exists() else 0)
    processes = start(2, config, tokenizer, folder, num_steps)
    for process in processes:
        process.join(600)
        assert process.exitcode == 0
    return killed_at


if __name__ == "__main__":
    config_path, tokenizer_folder, out, kills, steps = sys.argv[1:]
    parsed = DataConfig.model_validate_json(Path(config_path).read_text())
    killed = survive(int(kills), parsed, tokenizer_folder, Path(out), int(steps))
    (Path(out) / "killed.json").write_text(json.dumps(killed))
