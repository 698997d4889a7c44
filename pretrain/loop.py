"""The loop: it only says when things happen. The step is in `step`, what a run holds and does in `run`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from configs.atomic import write_text
from data import Batch
from pretrain.monitor.diagnostics import UpdateMeter, layer_diagnostics, whole_model
from pretrain.optim.schedule import learning_rate
from pretrain.run import Run, due
from pretrain.step import StepSettings, train_step


def train(run: Run) -> bool:
    """Train to the last step, the end of the sources or a stop; True when the run is complete."""
    config, progress = run.config, run.progress
    run.watchdog.beat()
    # a stop may have prevented the evaluation of the last step of the process before this one
    stop = run.is_stop_requested() or not run.evaluate_if_due()
    while progress.step < config.training.num_steps and not stop:
        if progress.step == run.phase.end:
            run.enter_next_phase()
        metrics = take_step(run)
        if metrics is None:
            break
        stop = metrics["stop"] or not run.evaluate_if_due()
        if not stop:
            run.save_if_due()
    failure = run.save()
    if failure:
        raise RuntimeError(f"the last checkpoint could not be saved: {failure}")
    is_last = progress.step >= config.training.num_steps and not run.is_evaluation_due()
    return is_last or not stop


def take_step(run: Run) -> dict[str, Any] | None:
    """One step and its line in the log; None when the sources have run out."""
    config, progress, training = run.phase.config, run.progress, run.phase.config.training
    step = progress.step + 1
    with run.ledger.clock.measure("data_wait"):
        batch = next(run.batches)
    rate = learning_rate(config.schedule, config.optimizer.learning_rate, step, run.config.training.num_steps)
    settings = StepSettings(rate, training.rows_per_device, config.seed, training.label_smoothing)
    meter = UpdateMeter(run.engine) if due(step, config.logging.details_every) else None
    with _profile(run, step):
        metrics = train_step(
            run.engine,
            batch,
            run.processes,
            run.ledger.clock,
            settings,
            stop=run.stop.requested,
            discard=lambda loss: training.skip_spikes and progress.trend.is_spike(loss, training.spike_sigma),
        )
    run.watchdog.beat()
    if not metrics["step_tokens"]:
        return None
    progress.step = step
    progress.tokens += metrics["step_tokens"]
    run.data_state = batch.state
    diagnostics = _diagnose(run, meter, batch) if meter and metrics["applied"] else {}
    _log_step(run, metrics, batch, diagnostics)
    _count_skips(run, metrics, batch)
    return metrics


def _diagnose(run: Run, meter: UpdateMeter, batch: Batch) -> dict[str, float]:
    with run.ledger.clock.measure("details"):
        line = meter.read(run.config.optimizer.betas[0], run.processes)
        model = whole_model(run.engine, run.processes)
        return line | (layer_diagnostics(model, batch) if model else {})


def _log_step(run: Run, metrics: dict[str, Any], batch: Batch, diagnostics: dict[str, float]) -> None:
    config, progress = run.phase.config, run.progress
    line = run.ledger.step_line(metrics, batch, config.encoder, config.data, progress.tokens) | diagnostics
    loss, sigma = metrics["loss"], config.training.spike_sigma
    if progress.trend.is_spike(loss, sigma):
        line["spike"] = True
        run.say(f"step {progress.step}: loss {loss:.3f} is a spike above {progress.trend.mean:.3f}")
    if metrics["applied"]:
        progress.trend.add(loss, sigma)
    run.log("train" if metrics["applied"] else "skip", line)


def _count_skips(run: Run, metrics: dict[str, Any], batch: Batch) -> None:
    """Count updates; too many skipped ones in a row stop the run, with the batch named for inspection."""
    progress, limit = run.progress, run.config.training.max_skipped_steps
    if metrics["applied"]:
        progress.updates += 1
        progress.skipped_in_a_row = 0
        return
    progress.skipped_in_a_row += 1
    if progress.skipped_in_a_row < limit:
        return
    documents = run.processes.gather(batch.piece_ids)
    path = run.folder.path / f"skipped_step_{progress.step:08d}.json"
    if run.processes.is_main:
        write_text(path, json.dumps({"batch_hash": metrics["batch_hash"], "documents_by_rank": documents}))
    raise RuntimeError(
        f"{limit} steps in a row were skipped, their gradients not finite or their losses spikes, up to step "
        f"{progress.step}; batch {metrics['batch_hash']}, its documents are in {path}"
    )


@contextmanager
def _profile(run: Run, step: int) -> Iterator[None]:
    """Trace the step with PyTorch's profiler where `training.profile_steps` names it."""
    if step not in run.config.training.profile_steps:
        yield
        return
    folder = run.folder.path / "profile"
    folder.mkdir(exist_ok=True)
    with torch.profiler.profile() as profile:
        yield
    profile.export_chrome_trace(str(folder / f"step_{step:08d}_rank_{run.processes.rank}.json"))
