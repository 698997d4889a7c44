"""The loop: it only says when things happen. The step is in `step`, what differs between engines in `engine`."""

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from data import Batch, BatchLoader, counts_of, merge_states
from pretrain.checkpoint.format import retire_checkpoints, save_checkpoint
from pretrain.config import PretrainConfig
from pretrain.engines.base import Engine
from pretrain.evaluate import evaluate
from pretrain.monitor.clock import Clock
from pretrain.monitor.diagnostics import Before, layer_details, whole_model
from pretrain.monitor.hardware import peak_flops
from pretrain.monitor.ledger import step_line
from pretrain.monitor.tracking import Tracker
from pretrain.monitor.watchdog import Stop, Watchdog
from pretrain.optim.schedule import learning_rate
from pretrain.optim.spikes import LossTrend
from pretrain.phases import Phase, phase_after, phases_of
from pretrain.processes import Processes
from pretrain.run_folder import RunFolder
from pretrain.step import train_step


@dataclass
class Progress:
    """How far the run is; lies in every checkpoint."""

    step: int = 0
    updates: int = 0  # steps whose update was applied
    tokens: int = 0  # real tokens seen, over all ranks
    skipped_in_a_row: int = 0
    best: dict[str, float] = field(default_factory=dict)  # {"step", "loss"} of the best evaluation
    saved_step: int = 0
    trend: LossTrend = field(default_factory=LossTrend)


class Run:
    """Everything that one process of a run holds while it trains."""

    def __init__(
        self, config: PretrainConfig, processes: Processes, folder: RunFolder, engine: Engine, progress: Progress,
        tracker: Tracker | None, watchdog: Watchdog, stop: Stop, data_state: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        self.config = config
        self.processes = processes
        self.folder = folder
        self.engine = engine
        self.progress = progress
        self.tracker = tracker
        self.watchdog = watchdog
        self.stop = stop
        self.clock = Clock()
        peak = peak_flops(processes.device)
        self.peak = sum(processes.gather(peak)) if peak else None
        self.data_state = data_state  # of all ranks when read from a checkpoint, of this rank after a step
        self.phases = phases_of(config)
        self.phase = phase_after(self.phases, progress.step)

    def train(self, loader: BatchLoader) -> bool:
        """Train to the last step, the end of the sources or a stop; True when the run is complete.

        `loader` serves the phase that the run is in.
        """
        config, progress = self.config, self.progress
        batches = self.enter_phase(loader)
        self.watchdog.beat()
        while progress.step < config.training.num_steps:
            if progress.step == self.phase.end:
                self.phase = phase_after(self.phases, progress.step)
                batches = self.enter_phase(open_batches(self.phase, progress.step, self.processes, self.merged_state()))
            metrics = self.step(batches)
            if metrics is None:
                break
            if due(progress.step, config.evaluation.every):
                self.evaluate()
            if metrics["stop"]:
                self.save()
                return progress.step >= config.training.num_steps
            if due(progress.step, config.checkpoint.save_every):
                self.save()
        failure = self.save()
        if failure:
            raise RuntimeError(f"the last checkpoint could not be saved: {failure}")
        return True

    def enter_phase(self, loader: BatchLoader) -> Iterator[Batch]:
        """Let the model and the batches follow `self.phase`."""
        self.engine.model.train()
        self.engine.model.encoder.config = self.phase.config.encoder  # the base of its rotary angles
        return iter(loader)

    def merged_state(self) -> dict[str, Any]:
        """The data state of all ranks after the last step."""
        return merge_states(self.processes.gather(self.data_state))

    def step(self, batches: Iterator[Batch]) -> dict[str, Any] | None:
        """One step and its line in the log; None when the sources have run out."""
        config, progress, trend = self.phase.config, self.progress, self.progress.trend
        training, step = config.training, progress.step + 1
        with self.clock.measure("data_wait"):
            batch = next(batches)
        before = Before(self.engine) if due(step, config.logging.details_every) else None
        with self._profile(step):
            metrics = train_step(
                self.engine, batch, self.processes, self.clock, rows_per_device=training.rows_per_device,
                seed=config.seed, label_smoothing=training.label_smoothing, stop=self.stop.requested,
                learning_rate=learning_rate(
                    config.schedule, config.optimizer.learning_rate, step, self.config.training.num_steps
                ),
                discard=lambda loss: training.skip_spikes and trend.is_spike(loss, training.spike_sigma),
            )  # fmt: skip
        self.watchdog.beat()
        if not metrics["step_tokens"]:
            return None
        progress.step = step
        progress.tokens += metrics["step_tokens"]
        self.data_state = batch.state
        details = self._details(before, batch) if before and metrics["applied"] else {}
        self._log_step(metrics, batch, details)
        self._count_skips(metrics, batch)
        return metrics

    def _details(self, before: Before, batch: Batch) -> dict[str, float]:
        with self.clock.measure("details"):
            details = before.compare(self.engine, self.config.optimizer.betas[0], self.processes)
            model = whole_model(self.engine, self.processes)
            return details | (layer_details(model, batch) if model else {})

    def _log_step(self, metrics: dict[str, Any], batch: Batch, details: dict[str, float]) -> None:
        config, progress = self.phase.config, self.progress
        line = step_line(metrics, batch, self.clock.read(), config, progress.tokens, self.peak, self.processes.device)
        line |= details
        loss, sigma = metrics["loss"], config.training.spike_sigma
        if progress.trend.is_spike(loss, sigma):
            line["spike"] = True
            if self.tracker:
                self.tracker.say(f"step {progress.step}: loss {loss:.3f} is a spike above {progress.trend.mean:.3f}")
        if metrics["applied"]:
            progress.trend.add(loss, sigma)
        self.log("train" if metrics["applied"] else "skip", line)

    def _count_skips(self, metrics: dict[str, Any], batch: Batch) -> None:
        """Count updates; too many skipped ones in a row stop the run, with the batch named for inspection."""
        progress, limit = self.progress, self.config.training.max_skipped_steps
        if metrics["applied"]:
            progress.updates += 1
            progress.skipped_in_a_row = 0
            return
        progress.skipped_in_a_row += 1
        if progress.skipped_in_a_row < limit:
            return
        documents = self.processes.gather(batch.piece_ids)
        path = self.folder.path / f"skipped_step_{progress.step:08d}.json"
        if self.processes.is_main:
            path.write_text(json.dumps({"batch_hash": metrics["batch_hash"], "documents_by_rank": documents}))
        raise RuntimeError(
            f"{limit} steps in a row were skipped, their gradients not finite or their losses spikes, up to step "
            f"{progress.step}; batch {metrics['batch_hash']}, its documents are in {path}"
        )

    def evaluate(self) -> None:
        """Held-out loss, logged; remembers the best step."""
        model = self.engine.model
        model.eval()
        with self.clock.measure("evaluate"):
            result = evaluate(
                lambda inputs: self.engine.forward(inputs, last=False),
                self.config, str(self.folder.tokenizer), self.processes,
            )  # fmt: skip
        model.train()
        self.watchdog.beat()
        if result["loss"] < self.progress.best.get("loss", float("inf")):
            self.progress.best = {"step": self.progress.step, "loss": result["loss"]}
        self.log("eval", {**result, "seconds": self.clock.read()["seconds"]})

    def save(self) -> str | None:
        """Write a checkpoint and retire old ones; on failure the run goes on, told why (also returned)."""
        progress, checkpoint = self.progress, self.config.checkpoint
        if progress.saved_step == progress.step:
            return None
        data_state = self.merged_state()
        state = {**asdict(progress), "saved_step": progress.step, "run_id": self.folder.run_id()}
        documents = {
            "encoder.json": self.phase.config.encoder.model_dump_json(indent=2),
            "config.yaml": self.folder.config_file.read_text(encoding="utf-8"),
            "training.json": json.dumps(state, indent=1),
            "data.json": json.dumps(data_state),
        }
        with self.clock.measure("save"):
            failure = save_checkpoint(self.folder.checkpoints, progress.step, self.engine, documents, self.processes)
        self.watchdog.beat()
        if not failure:
            progress.saved_step = progress.step
            if self.processes.is_main:
                retire_checkpoints(self.folder.checkpoints, checkpoint, self._best_saved())
                self.folder.write_status("running", progress.step)
        elif self.tracker:
            self.tracker.say(f"step {progress.step}: no checkpoint was written: {failure}")
        records = [counts.to_json() for counts in counts_of(data_state)]
        self.log("save", {"seconds": self.clock.read()["seconds"], "failure": failure, "records_by_source": records})
        return failure

    def _best_saved(self) -> int | None:
        best = self.progress.best.get("step")
        return int(best) if best is not None else None

    def log(self, kind: str, metrics: dict[str, Any]) -> None:
        """One event of the run, on rank 0."""
        if self.tracker:
            self.tracker.log(kind, self.progress.step, metrics)

    def log_start(self, resumed_from: str | None, kernel: str) -> None:
        """The line that opens this process's part of the history."""
        pids = self.processes.gather(os.getpid())
        engine = self.config.engine.model_dump()
        self.log(
            "start",
            {"pids": pids, "processes": len(pids), "resumed_from": resumed_from, "engine": engine, "kernel": kernel,
             "torch": torch.__version__},
        )  # fmt: skip

    def _profile(self, step: int) -> Any:
        if step not in self.config.training.profile_steps:
            return nullcontext()
        path = self.folder.path / "profile"
        path.mkdir(exist_ok=True)
        trace = path / f"step_{step:08d}_rank_{self.processes.rank}.json"
        return torch.profiler.profile(on_trace_ready=lambda profile: profile.export_chrome_trace(str(trace)))


def open_batches(phase: Phase, step: int, processes: Processes, state: dict[str, Any] | None) -> BatchLoader:
    """This rank's batches after step `step`, which is in `phase` or just before it."""
    config, new_phase = phase.config, 0 < step == phase.start
    return BatchLoader(
        config.data, config.tokenizer, config.seed, rank=processes.rank, world_size=processes.world_size, state=state,
        new_phase=new_phase,
    )  # fmt: skip


def due(step: int, every: int) -> bool:
    """Whether something that happens `every` so many steps (0: never) happens after this one."""
    return every > 0 and step % every == 0


def progress_of(state: dict[str, Any]) -> Progress:
    """The progress that a checkpoint's training state holds."""
    known = {key: value for key, value in state.items() if key not in ("run_id", "trend")}
    return Progress(**known, trend=LossTrend(**state["trend"]))
