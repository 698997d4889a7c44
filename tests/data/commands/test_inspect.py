"""`python -m data inspect`: counts, allowed numbers of processes, rows."""

from pathlib import Path

import pytest

from data import DataRun
from data.commands import inspect
from data.commands.cache import write_cache
from data.sources.formats import plan
from data.tokenizer.load import load_tokenizer


def test_inspect_shows_counts_and_rows(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect.main([str(run_file)]) == 0
    out = capsys.readouterr().out
    assert "processes may be 1, 2, 4" in out
    assert "8 rows of 64 = 512 tokens" in out
    assert "about 100" in out
    assert out.count("[CLS]") >= 3
    assert "[MASK]→" in out


def test_inspect_estimates_within_a_tenth(real_data: Path, tmp_path: Path, run_file: Path, tokenizer: str) -> None:
    source = {"path": str(real_data / "pretrain" / "zh_news_books.jsonl.gz"), "format": "jsonl"}
    values = {"tokenizer": tokenizer, "data": {"sources": [source], "num_lanes": 1, "cache": str(tmp_path / "c")}}
    run = DataRun.model_validate(values)
    exact = write_cache(run)["sources"][0]
    loaded = load_tokenizer(tokenizer)
    the_plan = plan(run.data.sources[0], 1, run.data.bad_input)
    assert inspect.estimate(the_plan, loaded, run.data) == exact  # small: read whole
