"""`python -m pretrain CONFIG [key=value …]`: trains, alone or under torchrun, accelerate launch or deepspeed.

Everything that a user can get wrong is found before a process group starts. The run goes on where its folder's newest
whole checkpoint stands. Exit codes: 0 done, 2 bad input, 75 stopped by a signal after a whole checkpoint.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from configs import InputError, load_config, run_command
from data import BatchLoader
from encoder import attention_kernel
from pretrain.checkpoint.format import load_training_state, restore_optimizer
from pretrain.config import PretrainConfig, first_difference
from pretrain.engines.base import Engine, build_engine
from pretrain.loop import Progress, Run, open_batches, progress_of
from pretrain.monitor.tracking import Tracker
from pretrain.monitor.watchdog import PREEMPTED, Stop, Watchdog
from pretrain.phases import phase_after, phases_of
from pretrain.processes import Processes, find_processes, limit_groups, start_process_group, stop_process_group
from pretrain.run_folder import RunFolder, State
from pretrain.start import build_model, resolve

USAGE = """usage: python -m pretrain CONFIG [key=value …]

Trains an encoder; under torchrun, accelerate launch -m, deepspeed --module, or alone. Resumes when the run folder holds
a whole checkpoint of the same run. Keys, with their defaults:
"""


def main(arguments: list[str]) -> int:
    """Check the input, then train."""
    if not arguments:
        raise InputError("usage: python -m pretrain CONFIG [key=value …]")
    processes = find_processes()
    config = resolve(load_config(PretrainConfig, arguments[0], arguments[1:]))
    config.check_processes(processes.world_size)
    folder = RunFolder(config.run_dir)
    folder.check(config)
    found = folder.find()
    checkpoint = found.whole[-1] if found.whole else None
    progress, data_state = Progress(), None
    if checkpoint:
        training_state, data_state = load_training_state(checkpoint)
        progress = progress_of(training_state)
    phase = phase_after(phases_of(config), progress.step)
    loader = open_batches(phase, progress.step, processes, data_state)
    always = config.engine.name == "deepspeed"
    start_process_group(processes, config.engine.timeout_seconds, always=always)
    _open(folder, config, processes, progress.step)

    def fail(reason: str, state: State = "failed") -> None:
        place = f"rank {processes.rank}: " if processes.world_size > 1 else ""
        line = place + " ".join(reason.split())
        folder.write_failure(state, line)
        if state == "failed":
            print(f"failed: {line}", file=sys.stderr, flush=True)

    # it also watches what comes before the first step and after the last, where a collective can hang as well
    watchdog = Watchdog(config.engine.timeout_seconds, folder.path / f"stacks_rank_{processes.rank}.txt", fail)
    try:
        return _train(config, processes, folder, checkpoint, found.broken, progress, loader, data_state, watchdog)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, RuntimeError) and "timed out" in reason.lower():
            reason = f"another process gave no answer in time (engine.timeout_seconds); {reason}"
        fail(reason, "bad_input" if isinstance(error, InputError) else "failed")
        raise
    finally:
        stop_process_group()
        watchdog.stop()


def _open(folder: RunFolder, config: PretrainConfig, processes: Processes, step: int) -> None:
    """Take the run's folder on rank 0; what speaks against it is raised on all ranks."""
    refusal = None
    for rank, (other, other_step) in enumerate(processes.gather((config, step))):
        difference = first_difference(config, other, free=())
        if difference:
            raise InputError(f"rank {rank} has another configuration than rank {processes.rank}: {difference}")
        if other_step != step:
            raise InputError(
                f"rank {rank} finds a checkpoint of step {other_step} in run_dir {folder.path}, rank {processes.rank} "
                f"one of step {step}: all hosts must share that folder"
            )
    if processes.is_main:
        try:
            folder.open(config, config.tokenizer)
            folder.write_status("running", step)
        except InputError as error:
            refusal = str(error)
        except OSError as error:
            refusal = f"run_dir {folder.path} cannot be written: {error.strerror}"
    refusal = processes.from_main(refusal)
    if refusal:
        raise InputError(refusal)


def _train(
    config: PretrainConfig, processes: Processes, folder: RunFolder, checkpoint: Path | None, broken: list[str],
    progress: Progress, loader: BatchLoader, data_state: dict[str, Any] | None, watchdog: Watchdog,
) -> int:  # fmt: skip
    stop = Stop()
    engine = _engine(config, processes, checkpoint, progress)
    limit_groups(config.engine.timeout_seconds)
    dtype = torch.bfloat16 if config.engine.precision == "bf16" else torch.float32
    kernel = attention_kernel(processes.device, dtype, config.encoder)
    tracker = None
    if processes.is_main:
        tracker = Tracker(config.logging, folder.path, folder.run_id(), config.training.num_steps, progress.step)
        for reason in broken:
            tracker.say(f"passed over a checkpoint that is not whole: {reason}")
        if checkpoint:
            tracker.say(f"resumed from {checkpoint}")
        tracker.say(
            f"{config.encoder.num_parameters():,} parameters, {processes.world_size} process(es), "
            f"{config.engine.name} {config.engine.precision}, attention: {kernel}"
        )
    run = Run(config, processes, folder, engine, progress, tracker, watchdog, stop, data_state)
    run.log_start(str(checkpoint) if checkpoint else None, kernel)
    try:
        done = run.train(loader)
        run.log("stop", {"reason": "done" if done else "preempted"})
    finally:
        if tracker:
            tracker.close()
    if processes.is_main:
        folder.write_status("done" if done else "preempted", progress.step)
    processes.gather(None)  # a launcher may end the others once one has left: not before the status is written
    return 0 if done else PREEMPTED


def _engine(config: PretrainConfig, processes: Processes, checkpoint: Path | None, progress: Progress) -> Engine:
    model = build_model(config, checkpoint).to(processes.device)
    engine = build_engine(config.engine, model, config.optimizer, processes, config.training.rows_per_device)
    if checkpoint:
        restore_optimizer(checkpoint, engine, progress.updates)
    return engine


if __name__ == "__main__":
    run_command(main, PretrainConfig, USAGE)
