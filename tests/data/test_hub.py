"""Hugging Face data sets as streams."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data import DataConfig

Make = Callable[..., DataConfig]


def test_a_hugging_face_data_set_is_read_once(
    tmp_path: Path, config: Make, tokenizer: str, run_steps: Any, documents: Any, hashes: Any
) -> None:
    for shard in range(3):
        rows = [f"shard {shard} row {i} words" for i in range(20)]
        pq.write_table(pa.table({"text": rows}), tmp_path / f"train-{shard}.parquet")
    hub = config(sources=[{"hub": str(tmp_path)}], num_epochs=1)
    straight = run_steps(hub, tokenizer)
    found = documents(straight)
    assert len(found) == len(set(found)) == 60
    again = run_steps(hub, tokenizer, state=straight[0][0].state)
    assert hashes(again) == hashes(straight[1:])
