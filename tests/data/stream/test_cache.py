"""The token cache: the same batches with it and without, stale ones refused, interrupted ones finished."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data import BatchLoader, DataConfig, DataRun, merge_states
from data.stream.cache import write_cache

Make = Callable[..., DataConfig]
LINES = ["plain words here", "", "{broken", "x " * 60, "日本 今天天气", "last"] * 20


@pytest.fixture
def mixed(tmp_path: Path, config: Make, fx_ids: Path) -> Make:
    """Sources of several kinds, with faults in them."""
    (tmp_path / "a.jsonl").write_text("\n".join(x if x == "{broken" else json.dumps({"text": x}) for x in LINES))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\n".join(LINES).encode()))
    sources = [
        {"path": str(fx_ids), "weight": 2.0},
        {"path": str(tmp_path / "a.jsonl"), "format": "jsonl"},
        {"path": str(tmp_path / "b.txt.gz")},
    ]

    def make(**changes: Any) -> DataConfig:
        defaults = {"sources": sources, "bad_input": {"json_line": "skip"}, "max_document_bytes": 64, "num_epochs": 2}
        return config(**{**defaults, **changes})

    return make


@pytest.mark.parametrize("unit", ["token", "word"])
def test_batches_and_states_are_those_without_the_cache(
    tmp_path: Path, mixed: Make, tokenizer: str, run_steps: Any, hashes: Any, unit: str
) -> None:
    plain = mixed(mask={"unit": unit})
    cached = mixed(mask={"unit": unit}, cache=str(tmp_path / "cache"))
    marker = write_cache(DataRun(tokenizer=tokenizer, data=cached))
    straight = run_steps(plain, tokenizer)
    assert hashes(run_steps(cached, tokenizer, world_size=2)) == hashes(straight)
    state = merge_states([batch.state for batch in straight[4]])
    assert run_steps(cached, tokenizer, 5)[-1][0].state == state
    for config in (plain, cached):  # from one to the other
        assert hashes(run_steps(config, tokenizer, state=state)) == hashes(straight[5:])
    tokens = sum(sum(map(sum, b.piece_lengths)) - 2 * sum(map(len, b.piece_lengths)) for [b] in straight)
    assert 2 * sum(source["tokens"] for source in marker["sources"]) == tokens


def test_a_stale_or_unfinished_cache_is_refused(tmp_path: Path, mixed: Make, tokenizer: str) -> None:
    cached = mixed(cache=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="holds no cache"):
        BatchLoader(cached, tokenizer, 0)
    write_cache(DataRun(tokenizer=tokenizer, data=cached))
    BatchLoader(cached, tokenizer, 0)
    with pytest.raises(ValueError, match="is stale: num_lanes changed"):
        BatchLoader(cached.model_copy(update={"num_lanes": 8}), tokenizer, 0)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('\n{"text": "more"}')
    for attempt in (
        lambda: BatchLoader(cached, tokenizer, 0),
        lambda: write_cache(DataRun(tokenizer=tokenizer, data=cached)),
    ):
        with pytest.raises(ValueError, match="is stale: manifest changed"):
            attempt()


def test_an_interrupted_cache_is_finished(tmp_path: Path, mixed: Make, tokenizer: str, root: Path) -> None:
    cached = mixed(cache=str(tmp_path / "cache"))
    run = DataRun(tokenizer=tokenizer, data=cached)
    marker = write_cache(run)
    (tmp_path / "cache" / "cache.json").write_text(json.dumps({"complete": False, "header": marker["header"]}))
    lost = sorted((tmp_path / "cache").glob("*.arrow"))[3]
    content = lost.read_bytes()
    lost.unlink()
    lost.with_suffix(".tmp").write_bytes(content[:50])
    with pytest.raises(ValueError, match="is not complete"):
        BatchLoader(cached, tokenizer, 0)
    (tmp_path / "run.json").write_text(run.model_dump_json())
    command = [sys.executable, "-m", "data", "cache", str(tmp_path / "run.json")]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == marker
    assert lost.read_bytes() == content
