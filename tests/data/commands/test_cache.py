"""`python -m data cache`: an interrupted one is finished."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data import BatchLoader, DataConfig, DataRun
from data.commands.cache import write_cache

Make = Callable[..., DataConfig]


def test_an_interrupted_cache_is_finished(tmp_path: Path, mixed: Make, tokenizer: str, root: Path) -> None:
    cached = mixed(cache=str(tmp_path / "cache"))
    run = DataRun(tokenizer=tokenizer, data=cached)
    marker = write_cache(run)
    (tmp_path / "cache" / "cache.json").write_text(json.dumps({"complete": False, "header": marker["header"]}))
    lost = sorted((tmp_path / "cache").glob("*.arrow"))[3]
    content = lost.read_bytes()
    lost.unlink()
    leftover = lost.with_name(f".{lost.name}.1234.tmp")  # of a process that was killed
    leftover.write_bytes(content[:50])
    with pytest.raises(ValueError, match="is not complete"):
        BatchLoader(cached, tokenizer, 0)
    (tmp_path / "run.json").write_text(run.model_dump_json())
    command = [sys.executable, "-m", "data", "cache", str(tmp_path / "run.json")]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == marker
    assert lost.read_bytes() == content
    assert not leftover.exists()
