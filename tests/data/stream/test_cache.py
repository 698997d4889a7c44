"""The token cache: the same batches and states with it and without; a stale one is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data import BatchLoader, DataConfig, DataRun, merge_states
from data.commands.cache import write_cache

Make = Callable[..., DataConfig]


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
