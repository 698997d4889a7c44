"""kill -9 at random moments, many times over one run: nothing is lost, nothing is done twice.

`LACUNA_KILLS` sets how often (25 a run, and 30 in the middle of a save, unless told).
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretrain_runs import read_metrics_safely, run, start

from pretrain.checkpoint.format import checkpoint_step, find_checkpoints

Write = Callable[..., Path]
pytestmark = pytest.mark.slow
ENGINES = ["engine.name=ddp", *(f"engine={{name: deepspeed, zero_stage: {stage}}}" for stage in (1, 2, 3))]
STEPS_A_KILL = 20


def kills(default: int) -> int:
    return int(os.environ.get("LACUNA_KILLS", default))


def last_step(folder: Path) -> int:
    """The step of the newest whole line; reads only the end, as it is asked often."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().split(b"\n")[1:-1]
    return json.loads(lines[-1])["step"] if lines else 0


def wait_for(condition: Callable[[], Any], process: "subprocess.Popen[str]", pause: float = 0.01) -> None:
    """Until the condition holds; the run must not end before."""
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)


def kill_all(process: "subprocess.Popen[str]", folder: Path) -> None:
    """SIGKILL every rank, as the out-of-memory killer or a power cut would, and let the launcher notice."""
    for pid in read_metrics_safely(folder, "start")[-1]["pids"]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.communicate(timeout=120)


def history(folder: Path, key: str) -> dict[int, Any]:
    """By step what was last written about it."""
    return {entry["step"]: entry[key] for entry in read_metrics_safely(folder, "train")}


@pytest.mark.parametrize("processes", [1, 2, 4, "any"])
def test_r12_random_kills_over_a_run(write_config: Write, tmp_path: Path, processes: int | str) -> None:
    """With "any", each restart also draws its number of processes and its engine."""
    rng, number = random.Random(str(processes)), kills(25)
    training = {"num_steps": number * STEPS_A_KILL, "rows_per_device": 2}
    config = write_config("killed", training=training, checkpoint={"save_every": 2, "keep_last": 2})
    folder = tmp_path / "killed"

    def how() -> tuple[list[str], dict[str, Any]]:
        count = rng.choice([1, 2, 4]) if processes == "any" else int(processes)
        engine = rng.choice(ENGINES) if processes == "any" else ENGINES[0]
        return [engine], {"processes": count, "launcher": "none" if count == 1 else "torchrun"}

    for kill in range(number):
        target = kill * STEPS_A_KILL + rng.randrange(STEPS_A_KILL // 2)
        overrides, layout = how()
        starts = len(read_metrics_safely(folder))
        process = start(config, *overrides, **layout)
        wait_for(lambda starts=starts: len(read_metrics_safely(folder)) > starts, process, 0.1)
        wait_for(lambda target=target: last_step(folder) >= target, process)
        time.sleep(rng.uniform(0, 0.03))
        kill_all(process, folder)
    overrides, layout = how()
    code, output = run(config, *overrides, **layout)
    assert code == 0, output
    assert len(read_metrics_safely(folder)) == number + 1
    straight = write_config("straight", training=training)
    assert run(straight, processes=1 if processes == "any" else int(processes))[0] == 0
    assert history(folder, "batch_hash") == history(tmp_path / "straight", "batch_hash")
    losses, expected = history(folder, "loss"), history(tmp_path / "straight", "loss")
    if processes == "any":
        assert losses == pytest.approx(expected, abs=1e-3)  # sums in another order, over the whole run
    else:
        assert losses == expected


def test_kills_with_a_corpus_that_moves_between_the_starts(write_config: Write, tmp_path: Path, corpus: Path) -> None:
    """Copied anew to another folder, as when it is staged on a node's own disk, with workers and two processes."""
    rng, number = random.Random("moves"), kills(30)
    training = {"num_steps": number * STEPS_A_KILL, "rows_per_device": 2}
    values = {"training": training, "data__num_workers": 1, "checkpoint": {"save_every": 2, "keep_last": 2}}
    config, folder = write_config("killed", **values), tmp_path / "killed"
    lines = corpus.read_text().splitlines(keepends=True)

    def staged(start: int) -> str:
        place = tmp_path / f"stage_{start}" / "part"
        place.mkdir(parents=True)
        for part in range(4):
            (place / f"{part}.jsonl").write_text("".join(lines[part::4]))
        if start:
            shutil.rmtree(tmp_path / f"stage_{start - 1}")
        return f"data.sources=[{{path: '{place.parent}/*/*.jsonl', format: jsonl}}]"

    for kill in range(number):
        target = kill * STEPS_A_KILL + rng.randrange(STEPS_A_KILL // 2)
        starts = len(read_metrics_safely(folder))
        process = start(config, staged(kill), processes=2)
        wait_for(lambda starts=starts: len(read_metrics_safely(folder)) > starts, process, 0.1)
        wait_for(lambda target=target: last_step(folder) >= target, process)
        kill_all(process, folder)
    code, output = run(config, sources := staged(number), processes=2)
    assert code == 0, output
    assert len(read_metrics_safely(folder)) == number + 1
    assert run(write_config("straight", training=training), sources, processes=2)[0] == 0
    for key in ("batch_hash", "loss"):
        assert history(folder, key) == history(tmp_path / "straight", key)


def test_r12_kills_in_the_middle_of_a_save(write_config: Write, tmp_path: Path) -> None:
    """A model whose save takes a while; the newest whole checkpoint never gets older, and most kills hit a save."""
    rng, number, hits, newest = random.Random(0), kills(30), 0, -1
    encoder = {"num_layers": 4, "hidden_size": 256, "num_heads": 4}
    training = {"num_steps": number * 4, "rows_per_device": 8}
    config = write_config("killed", encoder=encoder, training=training, checkpoint={"save_every": 1, "keep_last": 2})
    folder = tmp_path / "killed"
    checkpoints = folder / "checkpoints"
    for kill in range(number):
        starts, skipped = len(read_metrics_safely(folder)), rng.randrange(2)
        process = start(config, launcher="none")
        wait_for(lambda starts=starts: len(read_metrics_safely(folder)) > starts, process, 0.1)
        reached = last_step(folder)
        wait_for(
            lambda skipped=skipped, reached=reached, kill=kill: last_step(folder) > max(reached, kill) + skipped,
            process,
            0.002,
        )
        wait_for(lambda: any(checkpoints.glob(".writing_*")), process, 0.001)
        time.sleep(rng.uniform(0, 0.06))
        kill_all(process, folder)
        found = find_checkpoints(checkpoints)
        hits += bool(found.broken or any(checkpoints.glob(".writing_*")))
        steps = [checkpoint_step(path) for path in found.whole]
        assert max(steps, default=-1) >= newest
        newest = max(steps, default=-1)
    code, output = run(config, launcher="none")
    assert code == 0, output
    assert hits >= number / 2, f"only {hits} of {number} kills were in the middle of a save"
    straight = write_config("straight", encoder=encoder, training=training, checkpoint={"save_every": 10_000})
    assert run(straight, launcher="none")[0] == 0
    for key in ("batch_hash", "loss"):
        assert history(folder, key) == history(tmp_path / "straight", key)
