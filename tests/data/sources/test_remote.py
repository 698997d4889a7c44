"""Remote files over real HTTP and S3 on loopback: the same batches as from local ones, whatever the server does."""

import contextlib
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data import DataConfig, SourceConfig, merge_states
from data.config import BadInputConfig
from data.sources import remote
from data.sources.formats import plan, read
from tests.data.sources.server import Server, serving

Make = Callable[..., DataConfig]
LINES = [f"line {i} deba {hashlib.blake2b(b'%d' % i).hexdigest()}" for i in range(6000)]  # 0.9 MB


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_text("\n".join(LINES))
    (folder / "b.txt.gz").write_bytes(gzip.compress("\n".join(LINES).encode(), 1, mtime=0))
    pq.write_table(pa.table({"text": LINES}), folder / "c.parquet", row_group_size=2000)
    (folder / ".hidden.txt").write_text("no text")
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSES", (0.0,) * 7)
    monkeypatch.setattr(remote, "BLOCK_BYTES", 1 << 17)


@pytest.fixture
def server(corpus: Path) -> Iterator[Server]:
    with serving(corpus) as running:
        yield running


def texts(path: str, num_lanes: int = 2, policy: BadInputConfig | None = None) -> list[str]:
    source = SourceConfig(path=path, format="parquet" if path.endswith("parquet") else "text")
    units = plan(source, num_lanes, policy or BadInputConfig()).units
    found = [r for unit in units for r in read(unit, unit.first, source, 1 << 20, True)]
    assert not any(record.fault for record in found)
    return sorted(record.text for record in found)


NAMES = ["a.txt", "b.txt.gz", "c.parquet"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", ["cut", 503, "slow"])
def test_what_http_does_for_a_while_loses_nothing(server: Server, name: str, fault: Any) -> None:
    server.faults = [fault] * (1 if fault == "slow" else 5)
    assert texts(f"{server.url}/{name}") == sorted(LINES)
    assert not server.faults


def test_a_refused_first_request_is_not_a_missing_file(server: Server) -> None:
    """fsspec calls a 503 "not found"."""
    server.faults, server.of_every_request = [503] * 9, True
    assert texts(f"{server.url}/a.txt") == sorted(LINES)
    server.faults = [503] * 5
    assert texts(f"{server.url}/*.txt") == sorted(LINES)


def test_a_silent_server_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SILENCE_SECONDS", 0.2)
    server.faults = ["silent"]
    assert texts(f"{server.url}/b.txt.gz") == sorted(LINES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", ["cut", 503])
def test_what_stays_broken_is_an_error_that_names_the_url_whatever_the_policy(
    server: Server, name: str, fault: Any
) -> None:
    server.faults = [None, None, *[fault] * 100]
    skip = BadInputConfig(broken_file="skip", empty_glob="skip")
    with pytest.raises(ValueError, match=rf"^{server.url}/{name}: cannot be read, tried 8 times \([^\n]+\)$"):
        texts(f"{server.url}/{name}", policy=skip)


def test_a_server_that_goes_away_is_an_error(corpus: Path) -> None:
    with serving(corpus) as server:
        source = SourceConfig(path=f"{server.url}/a.txt")
        [unit, *_] = plan(source, 1, BadInputConfig()).units
    with pytest.raises(ValueError, match=r"/a\.txt: cannot be read, tried 8 times \(Cannot connect"):
        list(read(unit, unit.first, source, 1 << 20, True))
    with pytest.raises(ValueError, match=r"/a\.txt: cannot be read, tried 8 times"):
        plan(source, 1, BadInputConfig(empty_glob="skip"))


def test_what_cannot_be_is_refused_at_once(server: Server) -> None:
    with pytest.raises(ValueError, match="cannot open 'nothing://x'"):
        texts("nothing://x")
    with pytest.raises(ValueError, match="matches no file"):
        texts(f"{server.url}/none.txt")
    source = SourceConfig(path=f"{server.url}/a.txt")
    [unit, *_] = plan(source, 1, BadInputConfig()).units
    with pytest.raises(ValueError, match=r"/gone\.txt: not found"):
        list(read(unit._replace(path=f"{server.url}/gone.txt"), unit.first, source, 1 << 20, True))
    assert len([request for request in server.requests if "gone" in request]) <= 2
    server.faults, server.of_every_request = [403] * 2, True
    with pytest.raises(ValueError, match=r"/a\.txt: cannot be read \(403"):
        texts(f"{server.url}/a.txt")
    server.faults, server.sizes = [], False
    with pytest.raises(ValueError, match=r"the server of '.*/a\.txt' does not tell its size"):
        texts(f"{server.url}/a.txt")


@pytest.mark.parametrize("name", NAMES)
def test_a_server_without_ranges(server: Server, name: str) -> None:
    server.ranges = False
    assert texts(f"{server.url}/{name}", 1) == sorted(LINES)


def check_equal_batches(remote: DataConfig, local: DataConfig, tokenizer: str, run_steps: Any, hashes: Any) -> None:
    """Also with a worker, and when gone on with in the middle of a file."""
    straight = run_steps(local, tokenizer, 6)
    expected = hashes(straight)
    assert hashes(run_steps(remote, tokenizer, 3, world_size=2)) == expected[:3]
    in_worker = run_steps(remote.model_copy(update={"num_workers": 1}), tokenizer, 3)
    assert hashes(in_worker) == expected[:3]
    state = json.loads(json.dumps(merge_states([batch.state for batch in in_worker[-1]])))
    assert hashes(run_steps(remote, tokenizer, 3, state=state)) == expected[3:]


@pytest.mark.parametrize("name", ["a.txt", "b.txt.gz"])
def test_batches_over_http_are_the_local_ones(
    server: Server, corpus: Path, config: Make, tokenizer: str, run_steps: Any, hashes: Any, name: str
) -> None:
    server.faults = ["cut", None, 503, "cut", None, "slow"]
    changes = {"sequence_length": 128, "num_lanes": 2, "rows_per_step": 4}
    over_http, local = (config(sources=[{"path": f"{p}/{name}"}], **changes) for p in (server.url, corpus))
    check_equal_batches(over_http, local, tokenizer, run_steps, hashes)


@contextlib.contextmanager
def s3_serving() -> Iterator[str]:
    """moto's server; its address."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()  # of another address
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")


@pytest.mark.usefixtures("keys")
def test_s3_retries_and_then_raises(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """s3fs against a server that answers for objects only."""
    with serving(corpus.parent) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        path = f"s3://{corpus.name}/a.txt"
        server.faults = ["cut", 503, None, "cut"]
        assert texts(path) == sorted(LINES)
        assert not server.faults
        monkeypatch.setattr(remote, "PAUSES", ())
        server.faults = [None] + ["cut"] * 100
        with pytest.raises(ValueError, match=rf"^{path}: cannot be read, tried 1 times \([^\n]+\)$"):
            texts(path)


@pytest.mark.usefixtures("keys")
def test_batches_from_s3_are_the_local_ones(
    corpus: Path, config: Make, tokenizer: str, run_steps: Any, hashes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    with s3_serving() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        store = s3fs.S3FileSystem()
        store.mkdir("bucket")
        for file in corpus.iterdir():
            store.pipe(f"bucket/corpus/{file.name}", file.read_bytes())
        for name in NAMES:
            assert texts(f"s3://bucket/corpus/{name}") == sorted(LINES)
        assert texts("s3://bucket/corpus/*.txt") == sorted(LINES)
        found = remote.find_remote_files("s3://bucket/corpus")
        assert [file.path for file in found] == [f"s3://bucket/corpus/{name}" for name in NAMES]
        with pytest.raises(ValueError, match="matches no file"):
            texts("s3://bucket/none.txt")
        store.pipe("bucket/corpus/a.txt", b"other\n")
        assert remote.find_remote_files("s3://bucket/corpus")[0] != found[0]
        store.pipe("bucket/corpus/a.txt", (corpus / "a.txt").read_bytes())
        changes = {"sequence_length": 128, "num_lanes": 2, "rows_per_step": 4}
        s3, local = (config(sources=[{"path": f"{p}/a.txt"}], **changes) for p in ("s3://bucket/corpus", corpus))
        check_equal_batches(s3, local, tokenizer, run_steps, hashes)
