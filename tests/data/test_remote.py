"""Remote files over fsspec, on a store that cuts connections: tried again, then raised, never skipped."""

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from data import BadInputConfig, DataConfig, SourceConfig, remote
from data.readers import read
from data.units import plan

LINES = [f"line {i} of a remote file" for i in range(5000)]


class FlakyFileSystem(MemoryFileSystem):
    """Memory whose reads fail `failures` times, or end early, at a given byte."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012
    failures = 0
    ends_early = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        if mode != "rb":
            return file
        plain_read = file.read

        def read(size: int = -1) -> bytes:
            if FlakyFileSystem.failures and file.tell() > 30_000:
                FlakyFileSystem.failures -= 1
                if FlakyFileSystem.ends_early:
                    return b""
                raise OSError("connection reset")
            return bytes(plain_read(size))

        file.read = read
        return file


@pytest.fixture(autouse=True)
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote, "PAUSES", (0.0,) * 5)
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    with fsspec.open("flaky://corpus/a.txt", "wb") as file:
        file.write("\n".join(LINES).encode())
    with fsspec.open("flaky://corpus/b.txt.gz", "wb") as file:
        file.write(gzip.compress("\n".join(LINES).encode(), mtime=0))
    yield
    FlakyFileSystem.failures, FlakyFileSystem.ends_early = 0, False


def texts(path: str) -> list[str]:
    source = SourceConfig(path=path)
    units = plan(source, 2, BadInputConfig()).units
    return sorted(r.text for unit in units for r in read(unit, (unit.start, 0, 0), source, 1 << 20, True))


@pytest.mark.parametrize("ends_early", [False, True])
@pytest.mark.parametrize("name", ["a.txt", "b.txt.gz"])
def test_a_cut_connection_is_tried_again(name: str, ends_early: bool) -> None:
    FlakyFileSystem.failures, FlakyFileSystem.ends_early = 4, ends_early
    assert texts(f"flaky://corpus/{name}") == sorted(LINES)
    assert FlakyFileSystem.failures == 0 or name == "b.txt.gz"  # the compressed one is short


def test_a_connection_that_stays_cut_is_an_error(tmp_path: Any) -> None:
    FlakyFileSystem.failures = 1000
    with pytest.raises(
        ValueError, match=r"flaky://.*corpus/a\.txt: cannot be read, tried 6 times \(connection reset\)"
    ):
        texts("flaky://corpus/a.txt")


def test_a_glob_of_remote_files_and_batches_from_them(
    config: Callable[..., DataConfig], tokenizer: str, run_steps: Any, hashes: Any
) -> None:
    assert len(texts("flaky://corpus/*")) == 2 * len(LINES)
    source = {"path": "flaky://corpus/*.txt"}
    straight = run_steps(config(sources=[source]), tokenizer, 10)
    FlakyFileSystem.failures = 3
    assert hashes(run_steps(config(sources=[source]), tokenizer, 10, world_size=2)) == hashes(straight)


def test_unknown_protocols_and_missing_files_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot open 'nothing://x'"):
        texts("nothing://x")
    with pytest.raises(ValueError, match="matches no file"):
        texts("flaky://corpus/none.txt")


def test_a_hugging_face_data_set_is_read_once(
    tmp_path: Any, config: Callable[..., DataConfig], tokenizer: str, run_steps: Any, documents: Any, hashes: Any
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for shard in range(3):
        rows = [f"shard {shard} row {i} words" for i in range(20)]
        pq.write_table(pa.table({"text": rows}), tmp_path / f"train-{shard}.parquet")
    hub = config(sources=[{"hub": str(tmp_path)}], num_epochs=1)
    straight = run_steps(hub, tokenizer)
    found = documents(straight)
    assert len(found) == len(set(found)) == 60
    again = run_steps(hub, tokenizer, state=straight[0][0].state)
    assert hashes(again) == hashes(straight[1:])
