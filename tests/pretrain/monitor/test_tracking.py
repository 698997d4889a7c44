"""TensorBoard, W&B and metrics.jsonl hold the same numbers; a tracker that cannot be reached stops nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pretrain_runs import read_metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from pretrain.__main__ import main

Write = Callable[..., Path]
FULL, FIRST = 1, 2  # kinds of chunk; middle 3, last 4
BLOCK = 32768


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log format (blocks of chunks: checksum, length, kind) after 7 bytes."""
    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # no chunk begins so near to a block's end
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record = data[at + 7 : at + 7 + length] if kind in (FULL, FIRST) else record + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, 4):
            yield Record.FromString(record)


def test_r39_every_tracker_holds_the_same_numbers(write_config: Write, tmp_path: Path, corpus: Path) -> None:
    run = tmp_path / "run"
    evaluation = {"every": 10, "rows": 12, "sources": [{"path": str(corpus), "format": "jsonl"}]}
    logging = {"trackers": ["tensorboard", "wandb"], "details_every": 4}
    main([str(write_config(logging=logging, evaluation=evaluation))])
    history = {
        (f"{kind}/{key}", entry["step"]): value
        for kind in ("train", "eval")
        for entry in read_metrics(run, kind)
        for key, value in entry.items()
        if isinstance(value, int | float) and key != "step"
    }
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    board = {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    assert board == pytest.approx(history, rel=1e-6)  # TensorBoard holds fp32
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    logged = {}
    for record in wandb_records(file):
        items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        logged |= {(key, items["step"]): value for key, value in items.items() if "/" in key}
    assert logged == history


def test_tensorboard_shows_the_steps_of_a_resume_once(write_config: Write, tmp_path: Path) -> None:
    """Steps 11 to 20 were logged, then lost with their checkpoint: a viewer must not draw them twice."""
    config = str(write_config(logging={"trackers": ["tensorboard"]}))
    main([config])
    (tmp_path / "run" / "checkpoints" / "step_00000020" / "COMPLETE").unlink()
    main([config])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 21))
    assert len(read_metrics(tmp_path / "run")) == 30


@pytest.mark.slow
def test_an_unreachable_wandb_stops_nothing(write_config: Write, tmp_path: Path, root: Path) -> None:
    """A key is there, so it tries to go online, but nothing listens: the numbers are kept for later."""
    environment = {
        **os.environ,
        "WANDB_MODE": "online",
        "WANDB_API_KEY": "0" * 40,
        "WANDB_BASE_URL": "http://127.0.0.1:9",
        "WANDB_INIT_TIMEOUT": "3",
    }
    config = write_config(logging={"trackers": ["wandb"]})
    command = [sys.executable, "-m", "pretrain", str(config)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "wandb is offline, `wandb sync` sends it later" in done.stderr
    assert len(read_metrics(tmp_path / "run")) == 20
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    assert sum(bool(record.history.item) for record in wandb_records(file)) == 20
