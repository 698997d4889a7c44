"""Checks of the run's folder: what training does there is done there, by every rank, and nothing is left behind."""

import fcntl
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from configs import InputError
from configs.atomic import flush_folder
from pretrain.checkpoint.format import BYTES_PER_PARAMETER
from pretrain.config import PretrainConfig
from pretrain.doctor.examination import Examination, Finding, describe_error
from pretrain.doctor.verdict import Verdict, failed, in_bytes, passed, warned
from pretrain.runs.folder import RunFolder
from pretrain.runs.lock import WITHOUT_FLOCK, FolderLock

CONTENT_BYTES = 1 << 16
SEEN_WITHIN_SECONDS = 3.0  # for another host's file: network file systems keep what they know of a folder for a while
METRICS_BYTES_A_STEP = 1000  # a line of metrics.jsonl and the trackers' files
SLOW_FLUSH_SECONDS = 1.0


class FolderTrial:
    """One rank's part of the trial: a folder in the run's folder, a file for each rank in it, and one lock."""

    def __init__(self, run_dir: Path, name: str, rank: int, world_size: int) -> None:
        self.folder = run_dir / name
        self.made: list[Path] = []  # folders that were not there before, the innermost first
        self.fault = ""
        self.lock = ""  # what speaks against the lock
        self.flush_seconds = 0.0
        self.rank, self._world_size = rank, world_size
        self._held: IO[str] | None = None

    def make(self) -> None:
        """Rank 0 makes the folder, and those above it that are missing."""
        if self.rank == 0:
            missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            for path in reversed(missing):
                path.mkdir()
                self.made.insert(0, path)

    def write(self) -> None:
        """Create, write, flush and rename a file of this rank's own."""
        if not _appears(self.folder):
            raise InputError("does not see the folder that rank 0 has made: run_dir is not shared")
        temporary = self.folder / f"writing_{self.rank}"
        began = time.monotonic()
        with temporary.open("wb") as file:
            file.write(_content(self.rank))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._file_of(self.rank))
        flush_folder(self.folder)
        self.flush_seconds = time.monotonic() - began

    def read(self) -> None:
        """Read what the next rank has written."""
        other = (self.rank + 1) % self._world_size
        if not _appears(self._file_of(other)):
            raise InputError(f"does not see the file that rank {other} has written")
        if self._file_of(other).read_bytes() != _content(other):
            raise InputError(f"reads something else than what rank {other} has written")

    def hold(self) -> None:
        """Rank 0 takes the lock."""
        if self.rank == 0:
            self._held = (self.folder / "lock").open("a+")
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in WITHOUT_FLOCK:
                    raise
                self.lock = "the file system has no flock"

    def contend(self) -> None:
        """Every rank tries to take the lock, and must not get it while rank 0 has it."""
        with (self.folder / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in WITHOUT_FLOCK:
                    raise
                return
        self.lock = self.lock or "a lock that rank 0 holds is not seen"

    def remove(self) -> None:
        """Delete this rank's file."""
        self._file_of(self.rank).unlink()

    def clean_up(self) -> None:
        """Rank 0 deletes what is left of the trial, and the folders that were made for it."""
        if self._held:
            self._held.close()
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            for path in self.made:
                with suppress(OSError):  # gone, or not empty: somebody else uses it by now
                    path.rmdir()

    def _file_of(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}"


def _appears(path: Path) -> bool:
    until = time.monotonic() + SEEN_WITHIN_SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.1)
    return path.exists()


def _content(rank: int) -> bytes:
    return f"rank {rank}\n".encode().ljust(CONTENT_BYTES, b".")


def look_at_run_folder(examination: Examination) -> Finding:
    """Go through the trial, step by step, all ranks together."""
    name = examination.meeting.from_main("run folder/name", f".doctor_{uuid.uuid4().hex[:12]}")
    trial = FolderTrial(
        Path(examination.config.run_dir).absolute(), name, examination.processes.rank, examination.processes.world_size
    )
    if examination.meeting.is_main:
        examination.promise_clean_up(trial.clean_up)
    steps: list[Callable[[], None]] = [trial.make, trial.write, trial.read, trial.hold, trial.contend, trial.remove]
    try:
        for step in steps:
            if not trial.fault:
                trial.fault = _fault_of(step)
            faults = examination.meeting.share(f"run folder/{step.__name__}", trial.fault)
            if faults[0] or (step == trial.write and any(faults)):  # what comes next would only fail in turn
                break
    finally:
        trial.clean_up()
    examination.meeting.share("run folder/clean", None)  # the folder must not vanish while the next check looks at it
    return {"fault": trial.fault, "lock": trial.lock, "flush_seconds": trial.flush_seconds}


def _fault_of(step: Callable[[], None]) -> str:
    try:
        step()
    except (InputError, OSError) as error:
        return describe_error(error)
    return ""


def judge_run_folder(examination: Examination, findings: list[Finding]) -> Verdict:
    """Whether every rank can work in the folder, and nobody's lock is overlooked."""
    run_dir = examination.config.run_dir
    faults = {rank: finding["fault"] for rank, finding in enumerate(findings) if finding["fault"]}
    if faults:
        shown = "; ".join(f"{examination.name([rank])}: {fault}" for rank, fault in faults.items())
        return failed(
            f"{run_dir}: {shown}", "choose a run_dir that every rank can write, on a disk that all hosts share"
        )
    slowest = max(finding["flush_seconds"] for finding in findings)
    found = f"{run_dir}: created, written, flushed ({1000 * slowest:.0f} ms), renamed, read by another rank, deleted"
    locks = [finding["lock"] for finding in findings]
    if any(locks):
        ranks = [rank for rank, fault in enumerate(locks) if fault]
        reason = locks[ranks[0]]
        return warned(
            f"{found}; {reason} ({examination.name(ranks)})",
            "mount it with flock for all hosts (Lustre: -o flock), and never start two runs in this folder meanwhile",
        )
    if slowest > SLOW_FLUSH_SECONDS:
        return warned(found, "choose a faster disk: every checkpoint and status waits for it")
    return passed(f"{found}, lock seen")


def look_at_history(examination: Examination) -> Finding:
    """What the folder holds already. InputError when it belongs to another run."""
    folder = RunFolder(examination.completed.run_dir)
    folder.check(examination.completed)
    found = folder.find_checkpoints()
    in_use = _why_in_use(folder.path) if examination.meeting.is_main else ""
    return {"newest": found.whole[-1].name if found.whole else "", "broken": found.broken, "in_use": in_use}


def _why_in_use(run_dir: Path) -> str:
    """Who trains in this folder at this moment; empty when nobody does."""
    if not (run_dir / ".lock").exists():
        return ""
    lock = FolderLock(run_dir)
    try:
        lock.acquire()
    except InputError as error:
        return str(error)
    finally:
        lock.release()
    return ""


def judge_history(examination: Examination, findings: list[Finding]) -> Verdict:
    """A new run, or one that goes on, from the same checkpoint on all ranks."""
    newest = [finding["newest"] for finding in findings]
    if len(set(newest)) > 1:
        return failed(
            f"the ranks find different newest checkpoints: {', '.join(sorted({n or 'none' for n in newest}))}",
            "run_dir must be one folder that all hosts share",
        )
    found = f"resumes from {newest[0]}" if newest[0] else "a new run"
    if findings[0]["in_use"]:
        return warned(f"{found}; {findings[0]['in_use']}", "end that run before this one is started")
    if findings[0]["broken"]:
        return warned(f"{found}; not whole: {'; '.join(findings[0]['broken'])}", "nothing: they are passed over")
    return passed(found)


def look_at_disk(examination: Examination) -> Finding:
    """Free bytes of the run folder's disk, as rank 0 sees it, the only one that writes there."""
    if not examination.meeting.is_main:
        return {}
    folder = Path(examination.completed.run_dir).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    there = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*") if path.is_file())
    return {"free": shutil.disk_usage(nearest).free, "there": there}


def kept_checkpoints(config: PretrainConfig) -> int:
    """The most checkpoints that lie in the folder at once, the one that is being written among them."""
    steps, policy = config.training.num_steps, config.checkpoint
    written = math.ceil(steps / policy.save_every) + (1 if config.start_from else 0)  # that one before the first step
    kept_for_good = steps // math.lcm(policy.save_every, policy.keep_every) if policy.keep_every else 0
    best = 1 if config.evaluation.every else 0
    before_decay = 0 if config.last_step_before_decay() is None else 1
    return min(written, policy.keep_last + 1 + kept_for_good + best + before_decay)


def judge_disk(examination: Examination, findings: list[Finding]) -> Verdict:
    """Room for all checkpoints that the run will keep, and its metrics."""
    config, free, there = examination.completed, findings[0]["free"], findings[0]["there"]
    count, size = kept_checkpoints(config), BYTES_PER_PARAMETER * config.encoder.num_parameters()
    needed = max(0, count * size - there) + METRICS_BYTES_A_STEP * config.training.num_steps
    found = f"{in_bytes(needed)} needed ({count} checkpoints of {in_bytes(size)} and metrics), {in_bytes(free)} free"
    remedy = "make room, or lower checkpoint.keep_last, or raise checkpoint.keep_every"
    if needed > free:
        return failed(found, remedy)
    return warned(found, remedy) if needed > 0.8 * free else passed(found)
