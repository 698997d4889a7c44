"""`python -m pretrain CONFIG [key=value …]`: trains, alone or under torchrun, accelerate launch or deepspeed.

Everything that a user can get wrong is found before a process group starts. The run goes on where its folder's newest
whole checkpoint stands. Exit codes: 0 done, 2 bad input, 75 stopped by a signal after a whole checkpoint.
"""

from pathlib import Path
from typing import Any

import torch

from configs import load_config, run_command
from data import BatchLoader
from encoder import attention_kernel
from pretrain.checkpoint import load_training_state, restore_optimizer
from pretrain.config import PretrainConfig
from pretrain.engine import Engine, build_engine
from pretrain.loop import Progress, Run, open_batches, progress_of
from pretrain.phases import phase_after, phases_of
from pretrain.processes import Processes, find_processes, start_process_group, stop_process_group
from pretrain.run_folder import RunFolder
from pretrain.start import build_model, resolve
from pretrain.tracking import Tracker
from pretrain.watchdog import PREEMPTED, Stop, Watchdog

USAGE = """usage: python -m pretrain CONFIG [key=value …]

Trains an encoder; under torchrun, accelerate launch -m, deepspeed --module, or alone. Resumes when the run folder holds
a whole checkpoint of the same run. Keys, with their defaults:
"""


def main(arguments: list[str]) -> int:
    """Check the input, then train."""
    if not arguments:
        raise ValueError("usage: python -m pretrain CONFIG [key=value …]")
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
    refusal = None
    if processes.is_main:
        try:
            folder.open(config, config.tokenizer)
        except ValueError as error:
            refusal = str(error)
    refusal = processes.from_main(refusal)
    if refusal:
        raise ValueError(refusal)
    try:
        return _train(config, processes, folder, checkpoint, found.broken, progress, loader, data_state)
    except BaseException as error:
        if processes.is_main:
            reason = f"{type(error).__name__}: {error}"
            folder.write_status("bad_input" if isinstance(error, ValueError) else "failed", reason=reason)
        raise
    finally:
        stop_process_group()


def _train(
    config: PretrainConfig, processes: Processes, folder: RunFolder, checkpoint: Path | None, broken: list[str],
    progress: Progress, loader: BatchLoader, data_state: dict[str, Any] | None,
) -> int:  # fmt: skip
    stop = Stop()
    engine = _engine(config, processes, checkpoint, progress)
    dtype = torch.bfloat16 if config.engine.precision == "bf16" else torch.float32
    kernel = attention_kernel(processes.device, dtype, config.encoder)
    tracker = None
    if processes.is_main:
        folder.write_status("running", progress.step)
        tracker = Tracker(config.logging, folder.path, folder.run_id(), config.training.num_steps, progress.step)
        for reason in broken:
            tracker.say(f"passed over a checkpoint that is not whole: {reason}")
        if checkpoint:
            tracker.say(f"resumed from {checkpoint}")
        tracker.say(
            f"{config.encoder.num_parameters():,} parameters, {processes.world_size} process(es), "
            f"{config.engine.name} {config.engine.precision}, attention: {kernel}"
        )

    def on_hang(reason: str) -> None:
        if processes.is_main:
            folder.write_status("failed", reason=reason)

    watchdog = Watchdog(config.engine.timeout_seconds, folder.path / f"stacks_rank_{processes.rank}.txt", on_hang)
    run = Run(config, processes, folder, engine, progress, tracker, watchdog, stop, data_state)
    run.log_start(str(checkpoint) if checkpoint else None, kernel)
    try:
        done = run.train(loader)
        run.log("stop", {"reason": "done" if done else "preempted"})
    finally:
        watchdog.stop()
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
