"""A run: everything that one process holds while it trains. `opening.open_run` makes one."""

import gc
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from configs import InputError
from configs.status import State
from data import Batch, BatchLoader, Plan, counts_of, merge_states
from encoder import attention_kernel
from pretrain.checkpoint.format import CONFIG_FILE, DATA_FILE, TRAINING_FILE
from pretrain.checkpoint.restore import load_states, restore_optimizer
from pretrain.checkpoint.retention import retire_checkpoints
from pretrain.checkpoint.save import save_checkpoint
from pretrain.config import PretrainConfig
from pretrain.engines import build_engine
from pretrain.engines.base import StepRows
from pretrain.evaluate import evaluate, evaluation_data
from pretrain.monitor.ledger import Ledger
from pretrain.monitor.signals import Stop
from pretrain.monitor.tracking import TrackedRun, Tracker
from pretrain.monitor.watchdog import Watchdog
from pretrain.optim.spikes import LossTrend
from pretrain.phases import phase_after
from pretrain.processes import Processes, limit_groups
from pretrain.runs.folder import RunFolder
from pretrain.runs.progress import Progress
from pretrain.start import build_model, share_plans


class Run:
    """One process's part of a run."""

    def __init__(self, config: PretrainConfig, processes: Processes, folder: RunFolder) -> None:
        """Read the folder and open the data; writes nothing. InputError for what is wrong."""
        self.config = config
        self.processes = processes
        self.folder = folder
        found = self.folder.find_checkpoints()
        self.checkpoint = found.whole[-1] if found.whole else None
        self.broken_checkpoints = found.broken
        self.progress, self._first_data_state = Progress(), None
        if self.checkpoint:
            training_state, self._first_data_state = load_states(self.checkpoint)
            self.progress = Progress.from_state(training_state)
        elif config.start_from:
            self._branch_off()
        self.phases = config.cut_into_phases()
        self.phase = phase_after(self.phases, self.progress.step)
        self._plans = share_plans(config.data, self._first_data_state, processes)
        self._loader = self._open_batches(self._first_data_state)
        self._evaluation_plans: list[Plan] = []
        if config.evaluation.sources:
            self._evaluation_plans = share_plans(evaluation_data(config, processes.world_size), None, processes)
        self.tracker: Tracker | None = None
        self.data_state: dict[str, Any] = {}  # of this rank after the last step; empty before one is taken

    def _branch_off(self) -> None:
        """Take from `start_from` what `start_from_state` asks for; the weights are `build_model`'s to load."""
        config = self.config
        if config.start_from_state != "weights":
            self.checkpoint = RunFolder.locate(Path(str(config.start_from)))[1]
            training_state, data_state = load_states(self.checkpoint)
            origin = Progress.from_state(training_state)
            if config.start_from_state == "all":
                self.progress, self._first_data_state = origin, data_state
                if origin.step >= config.training.num_steps:
                    raise InputError(
                        f"start_from: {self.checkpoint} is at step {origin.step}, training.num_steps is "
                        f"{config.training.num_steps}: with start_from_state: all it counts from that step on"
                    )
            else:
                self.progress.updates = origin.updates
            self.progress.best = {}
        self.progress.saved_step = -1  # so that `start` saves: the folder then holds all that a resume needs

    @property
    def data_header(self) -> dict[str, Any]:
        """What this rank's batches depend on: the text, the tokenizer, the order."""
        return self._loader.header

    def start(self, watchdog: Watchdog, stop: Stop) -> None:
        """Build the engine with its weights and moments, and open the trackers."""
        self.watchdog, self.stop = watchdog, stop
        config, processes = self.config, self.processes
        model = build_model(config, self.checkpoint).to(processes.device)
        rows = StepRows(config.training.rows_per_device, config.data.rows_per_step)
        self.engine = build_engine(config.engine, model, config.optimizer, processes, rows)
        if self.checkpoint:
            restore_optimizer(self.checkpoint, self.engine, self.progress.updates)
        limit_groups(config.engine.timeout_seconds)
        self.ledger = Ledger(processes)
        if processes.is_main:
            run_id, num_steps = self.folder.run_id(), config.training.num_steps
            tracked = TrackedRun(self.folder.path, run_id, num_steps, self.progress.step)
            self.tracker = Tracker(config.logging, tracked)
        self._log_start()
        self.batches = self._enter_phase()
        if self.progress.saved_step < 0:
            failure = self.save()
            if failure:
                raise RuntimeError(f"the first checkpoint could not be saved: {failure}")

    def _log_start(self) -> None:
        """What this process's part of the history begins with, in the log and on the console."""
        config, pids = self.config, self.processes.gather(os.getpid())
        dtype = torch.bfloat16 if config.engine.precision == "bf16" else torch.float32
        kernel = attention_kernel(self.processes.device, dtype, config.encoder)
        for reason in self.broken_checkpoints:
            self.say(f"passed over a checkpoint that is not whole: {reason}")
        if self.checkpoint:
            self.say(f"resumed from {self.checkpoint}")
        self.say(
            f"{config.encoder.num_parameters():,} parameters, {len(pids)} process(es), "
            f"{config.engine.name} {config.engine.precision}, attention: {kernel}"
        )
        resumed_from = str(self.checkpoint) if self.checkpoint else None
        self.log(
            "start",
            {"pids": pids, "processes": len(pids), "resumed_from": resumed_from,
             "engine": config.engine.model_dump(), "kernel": kernel, "torch": torch.__version__},
        )  # fmt: skip

    def enter_next_phase(self) -> None:
        """Go on with the phase behind the one that has ended."""
        self.phase = phase_after(self.phases, self.progress.step)
        self._loader = self._open_batches(self._data_state_of_all_ranks())
        self.batches = self._enter_phase()

    def _open_batches(self, state: dict[str, Any] | None) -> BatchLoader:
        """This rank's batches behind `state`, the data state of all ranks (None: from the start of the run)."""
        config, step, processes = self.phase.config, self.progress.step, self.processes
        return BatchLoader(
            config.data, config.tokenizer, config.seed, rank=processes.rank, world_size=processes.world_size,
            state=state, new_phase=0 < step == self.phase.start, plans=self._plans,
        )  # fmt: skip

    def _enter_phase(self) -> Iterator[Batch]:
        if self.progress.step == self.phase.start:
            self.progress.trend = LossTrend()  # a phase that masks more has higher losses, which are no spikes
        self.engine.model.train()
        self.engine.model.encoder.set_rope_bases(self.phase.config.encoder)
        return iter(self._loader)

    def _data_state_of_all_ranks(self) -> dict[str, Any] | None:
        if not self.data_state:  # no step was taken
            return self._first_data_state
        return merge_states(self.processes.gather(self.data_state))

    def is_stop_requested(self) -> bool:
        """Whether any rank was asked to stop; every rank calls it and gets the same answer."""
        return bool(self.processes.sum([int(self.stop.requested)])[0])

    def is_evaluation_due(self) -> bool:
        """Whether the held-out loss after the last step is still to be computed."""
        progress = self.progress
        return due(progress.step, self.config.evaluation.every) and progress.evaluated_step < progress.step

    def evaluate_if_due(self) -> bool:
        """Held-out loss, logged; remembers the best step. False when a stop was asked for before it was done."""
        if not self.is_evaluation_due():
            return True
        model, progress = self.engine.model, self.progress
        model.eval()
        with self.ledger.clock.measure("evaluate"):
            result = evaluate(
                lambda inputs: self.engine.forward(inputs, last=False),
                self.config, str(self.folder.tokenizer), self.processes, self._evaluation_plans,
                lambda: self.stop.requested,
            )  # fmt: skip
        model.train()
        self.watchdog.beat()
        if result is None:
            return False
        progress.evaluated_step = progress.step
        if result["loss"] < progress.best.get("loss", float("inf")):
            progress.best = {"step": progress.step, "loss": result["loss"]}
        self.log("eval", {**result, "seconds": self.ledger.clock.read()["seconds"]})
        return True

    def save_if_due(self) -> None:
        """Write a checkpoint every `save_every` steps, and where the held-out loss is the best so far."""
        is_best = self.progress.best.get("step") == self.progress.step
        if is_best or due(self.progress.step, self.config.checkpoint.save_every):
            self.save()

    def save(self) -> str | None:
        """Write a checkpoint and retire old ones; on failure the run goes on, told why (also returned)."""
        progress = self.progress
        if progress.saved_step == progress.step:
            return None
        data_state = self._data_state_of_all_ranks()
        state = {**asdict(progress), "saved_step": progress.step, "run_id": self.folder.run_id()}
        texts = {
            "encoder.json": self.phase.config.encoder.model_dump_json(indent=2),
            CONFIG_FILE: self.folder.config_file.read_text(encoding="utf-8"),
            TRAINING_FILE: json.dumps(state, indent=1),
            DATA_FILE: json.dumps(data_state),
        }
        with self.ledger.clock.measure("save"):
            failure = save_checkpoint(self.folder.checkpoints, progress.step, self.engine, texts, self.processes)
        self.watchdog.beat()
        if failure:
            self.say(f"step {progress.step}: no checkpoint was written: {failure}")
        else:
            progress.saved_step = progress.step
            if self.processes.is_main:
                best = progress.best.get("step")
                best_step = int(best) if best is not None else None
                retire_checkpoints(
                    self.folder.checkpoints, self.config.checkpoint, best_step, self.config.last_step_before_decay()
                )
                self.folder.write_status("running", progress.step)
        records = [counts.to_json() for counts in counts_of(data_state)] if data_state else []
        seconds = self.ledger.clock.read()["seconds"]
        self.log("save", {"seconds": seconds, "failure": failure, "records_by_source": records})
        return failure

    def log(self, kind: str, metrics: dict[str, Any]) -> None:
        """One event of the run, on rank 0."""
        if self.tracker:
            self.tracker.log(kind, self.progress.step, metrics)

    def say(self, message: str) -> None:
        """A line on the console, on rank 0."""
        if self.tracker:
            self.tracker.say(message)

    def close(self, done: bool) -> None:
        """Write down how the run ended."""
        ending: State = "done" if done else "preempted"
        self.log("stop", {"reason": ending})
        self.close_tracker()
        if self.processes.is_main:
            self.folder.write_status(ending, self.progress.step)
        self.processes.gather(None)  # a launcher may end the others once one has left: not before the status is written

    def close_tracker(self) -> None:
        """Close the trackers, once."""
        tracker, self.tracker = self.tracker, None
        if tracker:
            tracker.close()

    def release_engine(self) -> None:
        """Free the engine, whose gradient buckets belong to the process group, before that is destroyed.

        In the other order the last reference to a gloo group goes when the peers may have left: one in ten processes
        was seen to wait for them for ever.
        """
        del self.engine
        gc.collect()


def due(step: int, every: int) -> bool:
    """Whether something that happens `every` so many steps (0: never) happens after this one."""
    return every > 0 and step > 0 and step % every == 0
