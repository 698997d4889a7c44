"""The run's folder: whose it is, what it needs, and that the trial leaves nothing whatever ends it."""

import contextlib
import functools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from configs import InputError, load_config
from pretrain.checkpoint.format import checkpoint_name
from pretrain.config import PretrainConfig
from pretrain.doctor import storage
from pretrain.doctor.__main__ import end_by_signal, main
from pretrain.doctor.examination import Examination
from pretrain.doctor.meeting import open_meeting
from pretrain.doctor.report import Report
from pretrain.doctor.time_limit import TimeLimit
from pretrain.processes import Processes
from pretrain.runs.folder import RunFolder
from pretrain.runs.lock import FolderLock
from pretrain.start import resolve


def test_a_run_that_goes_on_or_is_another_one(
    write_config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config()
    given = load_config(PretrainConfig, path)
    folder = RunFolder(given.run_dir)
    config = resolve(given, folder)
    folder.path.mkdir()
    folder.write_inputs(config)
    (folder.checkpoints / checkpoint_name(10)).mkdir(parents=True)
    before = sorted(folder.path.rglob("*"))
    lock = FolderLock(folder.path)
    assert main([str(path), "--json"]) == 0
    found = checks(capsys)
    assert (
        found["history"]["found"]
        == "a new run; not whole: step_00000010: half-written, it has no valid COMPLETE marker"
    )
    assert sorted(folder.path.rglob("*")) == before
    lock.acquire()
    assert main([str(path), "--json"]) == 0
    assert "is in use by another running process" in checks(capsys)["history"]["found"]
    lock.release()
    assert main([str(path), "--json", "seed=5"]) == 2
    assert "belongs to another run: 'seed' was 0" in checks(capsys)["history"]["found"]


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_checkpoints_that_a_run_keeps(write_config: Any) -> None:
    def kept(**policy: Any) -> int:
        config = write_config(training={"num_steps": 100}, data__rows_per_step=8, checkpoint=policy)
        return storage.kept_checkpoints(load_config(PretrainConfig, config))

    assert kept(save_every=10, keep_last=3) == 5  # one that is being written, one from before the decay
    assert kept(save_every=10, keep_last=30) == 10
    assert kept(save_every=10, keep_last=1, keep_every=20) == 8
    assert kept(save_every=10, keep_last=1, keep_every=15) == 6  # only every 30th step has a checkpoint to keep


@pytest.fixture
def ranks(write_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Examination]:
    """Both ranks of a run in a folder that is not there, at the check of the run folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    arguments = [str(write_config(run_dir=str(tmp_path / "deep" / "run")))]
    both = []
    for rank in (0, 1):
        processes = Processes(rank, 2, torch.device("cpu"))
        examination = Examination(arguments, processes, "", open_meeting(rank, 2, 10))
        examination.read_config()
        examination.begin("run folder")
        both.append(examination)
    return both


def until(happens: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def rank_1_hangs(ranks: list[Examination], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start rank 1, which writes its file and then does nothing until the block ends."""
    release, read = threading.Event(), storage.FolderTrial.read

    @functools.wraps(read)
    def wait_and_read(trial: storage.FolderTrial) -> None:
        if trial.rank == 1:
            release.wait(20)
            raise InputError("comes back too late")
        read(trial)

    monkeypatch.setattr(storage.FolderTrial, "read", wait_and_read)
    thread = threading.Thread(target=look_until_the_end, args=(ranks[1],))
    thread.start()
    try:
        yield
    finally:
        ranks[0].meeting.end_for_all()
        release.set()
        thread.join()


def look_until_the_end(examination: Examination) -> None:
    with contextlib.suppress(InputError, SystemExit):  # the other rank is gone
        storage.look_at_run_folder(examination)


def test_nothing_is_left_when_the_doctor_is_told_to_end(
    ranks: list[Examination], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send() -> None:
        until(lambda: len(list(tmp_path.glob("deep/run/.doctor_*/rank_*"))) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end_by_signal)
    try:
        with rank_1_hangs(ranks, monkeypatch):
            threading.Thread(target=send, daemon=True).start()
            with pytest.raises(SystemExit, match="143"):
                storage.look_at_run_folder(ranks[0])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "deep").exists()


def test_nothing_is_left_when_a_rank_hangs_in_the_run_folder(
    ranks: list[Examination], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    with rank_1_hangs(ranks, monkeypatch):
        main_rank = threading.Thread(target=look_until_the_end, args=(ranks[0],))
        main_rank.start()
        until(lambda: ranks[0].meeting.heard_topic == "run folder/read")
        TimeLimit(0.1, time.monotonic(), ranks[0], Report(as_json=False))
        until(lambda: codes)
        assert not (tmp_path / "deep").exists()
    main_rank.join()
    assert codes == [2]
    host = socket.gethostname()
    assert capsys.readouterr().out.startswith(
        f"FAIL  run folder: not over after 0.1 s: no answer from rank 1 ({host}); answered: rank 0 ({host}); look at "
    )
