"""The folder of a run: one configuration, one lock, one status, its tokenizer and its checkpoints.

Only rank 0 writes here, but for the status of a rank that fails. Every file is replaced whole: a kill or a full disk at
any moment leaves the old or the new one.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from configs import InputError, load_config
from configs.atomic import folder_replacing, write_text
from configs.status import State, read_status, write_status
from pretrain.checkpoint.format import FoundCheckpoints, checkpoint_step, find_checkpoints, why_incomplete
from pretrain.config import PretrainConfig
from pretrain.runs.changes import refuse_changes
from pretrain.runs.lock import FolderLock


# What AutoTokenizer may read in a folder, which may be a published model's with weights of gigabytes
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json",
    "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "chat_template.jinja", "report.json",
)  # fmt: skip


class RunFolder:
    """Paths and small files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.config_file = self.path / "config.yaml"
        self.tokenizer = self.path / "tokenizer"
        self.metrics = self.path / "metrics.jsonl"
        self._lock = FolderLock(self.path)
        self._step = 0

    def find_checkpoints(self) -> FoundCheckpoints:
        """The run's checkpoints, whole and broken."""
        return find_checkpoints(self.checkpoints)

    def newest_step(self) -> int:
        """The step of the newest whole checkpoint; 0 where there is none."""
        whole = self.find_checkpoints().whole
        return checkpoint_step(whole[-1]) if whole else 0

    def started_config(self) -> PretrainConfig | None:
        """The resolved configuration that the run was started with; None where none was."""
        if not self.config_file.exists():
            return None
        config = load_config(PretrainConfig, self.config_file)
        return config.model_copy(update={"schedule": config.schedule.resolved(config.training.num_steps)})

    def check(self, config: PretrainConfig) -> None:
        """InputError when the folder belongs to another run or cannot be written; changes nothing."""
        started = self.started_config()
        if started:
            refuse_changes(started, config, self.newest_step())
        elif self.path.exists() and (not self.path.is_dir() or any(self.checkpoints.glob("step_*"))):
            raise InputError(f"run_dir {self.path} is not the folder of a run: config.yaml is missing")
        nearest = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not os.access(nearest, os.W_OK):
            raise InputError(f"run_dir {self.path} cannot be written: no permission in {nearest}")

    def begin(self, state: State, reason: str = "") -> None:
        """Take the lock and write the first status of this start. InputError when another process runs here."""
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._step = self.newest_step()
            write_status(self.path, state, self._step, reason)

    def write_inputs(self, config: PretrainConfig) -> None:
        """Write the resolved configuration and the tokenizer. InputError when that cannot be done."""
        with self._writing():
            write_text(self.config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
            if not self.tokenizer.exists():
                with folder_replacing(self.tokenizer) as temporary:
                    for name in TOKENIZER_FILES:
                        if (source := Path(config.tokenizer) / name).is_file():
                            shutil.copyfile(source, temporary / name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"run_dir {self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def run_id(self) -> str:
        """The run's name for trackers: made once, the same after every resume."""
        path = self.path / "run_id"
        if not path.exists():
            write_text(path, uuid.uuid4().hex[:12])
        return path.read_text()

    def write_status(self, state: State, step: int | None = None, reason: str = "") -> None:
        """Replace `status.json`. Never raises: the run matters more."""
        self._step = self._step if step is None else step
        with suppress(OSError):
            write_status(self.path, state, self._step, reason)

    def write_failure(self, state: State, reason: str) -> None:
        """The first failure of any rank: those of other ranks follow from it and must not hide it."""
        found = read_status(self.path)
        if found.get("state") not in ("failed", "bad_input"):
            self.write_status(state, found.get("step"), reason)

    @classmethod
    def locate(cls, path: Path) -> "tuple[RunFolder, Path]":
        """(run, checkpoint) of a run folder, whose newest whole checkpoint is taken, or of one checkpoint.

        InputError when there is none, or when the checkpoint that is named is half-written.
        """
        if (path / "checkpoints").is_dir():
            found = find_checkpoints(path / "checkpoints")
            if not found.whole:
                raise InputError(f"{path} holds no whole checkpoint" + "".join(f"; {why}" for why in found.broken))
            return cls(path), found.whole[-1]
        if not path.is_dir():
            raise InputError(f"{path} is neither a run folder nor a checkpoint: no such folder")
        reason = why_incomplete(path)
        if reason:
            raise InputError(f"{path} is no whole checkpoint: {reason}")
        return cls(path.absolute().parent.parent), path
