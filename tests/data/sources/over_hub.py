# ruff: noqa: E402
"""Data sets of a hub on loopback; run by test_hub.py in a process of its own, as the hub's address is read at import.

The server speaks what `datasets` and huggingface_hub ask for: heads of files, info of a revision, trees, ranges.
"""

import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.sources.server import Answer, Server

ROOT = Path(tempfile.mkdtemp())
SERVER = Server(ROOT)
threading.Thread(target=SERVER.serve_forever, daemon=True).start()
os.environ |= {"HF_ENDPOINT": SERVER.url, "HF_HOME": str(ROOT / "home"), "HF_HUB_OFFLINE": "0"}

from data import BatchLoader, DataConfig, merge_states
from data.commands import inspect
from data.config import BadInputConfig
from data.sources import remote

Make = Callable[..., DataConfig]
Run = Callable[..., list[list[Any]]]
OLD, NEW = "a" * 40, "b" * 40
BRANCH = [OLD]
ROWS = [[f"shard {shard} row {i} deba kula meni go" for i in range(200)] for shard in range(3)]


def answer(path: str) -> Answer | None:
    """The hub of one data set with two commits."""
    if not path.startswith(("/datasets/user/name/", "/api/datasets/user/name")):
        return 404, b"", {"X-Error-Code": "RepoNotFound"}
    asked = re.fullmatch(r"/(?:api/)?datasets/user/name(?:/(revision|tree|resolve)/([^/]+)(/.*)?)?", path)
    what, revision = (asked[1], asked[2]) if asked else (None, None)
    commit = BRANCH[0] if revision in (None, "main") else revision
    folder = ROOT / "datasets" / "user" / "name" / "resolve" / str(commit)
    if not folder.is_dir():
        return 404, b"", {"X-Error-Code": "RevisionNotFound"}
    if path.endswith("README.md") and (folder / "README.md").is_file():
        return 200, (folder / "README.md").read_bytes(), {"X-Repo-Commit": str(commit), "ETag": '"card"'}
    if what == "resolve":
        return None if (ROOT / path.lstrip("/")).is_file() else (404, b"", {"X-Error-Code": "EntryNotFound"})
    tree = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": f.name} for f in folder.iterdir()]
    values = tree if what == "tree" else {"id": "user/name", "sha": commit, "siblings": []}
    return 200, json.dumps(values).encode(), {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSES", (0.0,) * 2)
    wait = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: wait(min(seconds, 0.01)))  # the hub's client waits 1, 2, 4 … s
    for commit, rows in ((OLD, ROWS), (NEW, ROWS[:1])):
        folder = ROOT / "datasets" / "user" / "name" / "resolve" / commit
        folder.mkdir(parents=True, exist_ok=True)
        for number, texts in enumerate(rows):
            pq.write_table(pa.table({"text": texts}), folder / f"train-{number}.parquet")
    SERVER.answer, SERVER.faults, SERVER.of_every_request, BRANCH[0] = answer, [], False, OLD


def of_hub(config: Make, **changes: Any) -> DataConfig:
    return config(sources=[{"hub": "user/name", **changes}])


def test_batches_are_those_of_local_files_and_go_on_exactly(
    tmp_path: Path, config: Make, tokenizer: str, run_steps: Run, hashes: Any
) -> None:
    shutil.copytree(ROOT / "datasets" / "user" / "name" / "resolve" / OLD, tmp_path / "copy")
    local = config(sources=[{"path": str(tmp_path / "copy"), "format": "parquet"}])
    expected = hashes(run_steps(local, tokenizer, 20))
    SERVER.faults = ["cut", 503, None, "cut"]
    assert hashes(run_steps(of_hub(config), tokenizer, 10, world_size=2)) == expected[:10]
    assert not SERVER.faults
    in_workers = run_steps(of_hub(config).model_copy(update={"num_workers": 2}), tokenizer, 10)
    assert hashes(in_workers) == expected[:10]
    state = json.loads(json.dumps(merge_states([batch.state for batch in in_workers[-1]])))
    assert state["header"]["revisions"] == {"user/name": OLD}
    BRANCH[0] = NEW  # somebody pushes
    assert hashes(run_steps(of_hub(config), tokenizer, 10, state=state)) == expected[10:]
    with pytest.raises(ValueError, match="cannot resume the data: the revision of a data set of the hub changed"):
        BatchLoader(of_hub(config, revision=NEW), tokenizer, 0, state=state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hub": "user/none"}, r"'user/none' does not exist on the hub, or is not yours to read"),
        ({"revision": "none"}, r"'user/name' has no such revision on the hub"),
        ({"revision": "c" * 40}, r"'user/name': Revision 'c+' doesn't exist"),
        ({"split": "dev"}, r"'user/name': Bad split: dev. Available splits: \['train'\]"),
        ({"name": "other"}, r"'user/name': BuilderConfig 'other' not found. Available: \['default'\]"),
        ({"text_column": "body"}, r"user/name:\d:\d+: the column 'body' is missing"),
    ],
)
def test_what_is_not_there_is_one_line(config: Make, tokenizer: str, run_steps: Run, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^[^\n]*{message}[^\n]*$"):
        run_steps(of_hub(config, **change), tokenizer, 1)
    assert len(SERVER.requests) < 500


def test_what_stays_broken_is_an_error_whatever_the_policy(config: Make, tokenizer: str, run_steps: Run) -> None:
    skipping = BadInputConfig(broken_file="skip", empty_glob="skip")
    broken = of_hub(config, revision=OLD).model_copy(update={"bad_input": skipping})
    run_steps(broken, tokenizer, 1)
    SERVER.faults = [503] * 1000
    with pytest.raises(ValueError, match=r"^the data set 'user/name': cannot be read, tried 3 times"):
        run_steps(broken, tokenizer, 1)


def test_a_refused_first_request_is_tried_again(config: Make, tokenizer: str, run_steps: Run) -> None:
    SERVER.faults, SERVER.of_every_request = [503] * 2, True
    assert run_steps(of_hub(config, revision="main"), tokenizer, 1)
    SERVER.faults = [503] * 1000
    with pytest.raises(ValueError, match=r"^the data set 'user/name': cannot be read, tried 3 times"):
        run_steps(of_hub(config), tokenizer, 1)


def test_a_broken_shard_is_told_with_its_place(config: Make, tokenizer: str, run_steps: Run) -> None:
    folder = ROOT / "datasets" / "user" / "name" / "resolve" / ("d" * 40)
    folder.mkdir()
    content = (ROOT / "datasets" / "user" / "name" / "resolve" / OLD / "train-0.parquet").read_bytes()
    (folder / "train-0.parquet").write_bytes(content)
    (folder / "train-1.parquet").write_bytes(content[:-100] + b"x" * 100)
    broken = of_hub(config, revision="d" * 40)
    with pytest.raises(ValueError, match=r"^user/name:1:0: the shard breaks off here .*broken_file=skip"):
        run_steps(broken, tokenizer, 9)


def test_inspect_reads_a_few_places_only(
    tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "DOCUMENTS_PER_UNIT", 8)
    values = {"sources": [{"hub": "user/name"}], "num_lanes": 3, "rows_per_step": 3, "sequence_length": 64}
    (tmp_path / "run.json").write_text(json.dumps({"tokenizer": tokenizer, "data": values}))
    inspect.main([str(tmp_path / "run.json")])
    out = capsys.readouterr().out
    assert out.count("not known") == 2
    # a commit of its own: that another one has no card is remembered by huggingface_hub
    BRANCH[0] = "e" * 40
    resolve = ROOT / "datasets" / "user" / "name" / "resolve"
    folder = shutil.copytree(resolve / NEW, resolve / BRANCH[0])
    info = {"config_name": "default", "splits": [{"name": "train", "num_bytes": 9, "num_examples": 200}]}
    (folder / "README.md").write_text(f"---\ndataset_info: {json.dumps(info)}\n---\n")
    inspect.main([str(tmp_path / "run.json")])
    assert "about 200" in capsys.readouterr().out
