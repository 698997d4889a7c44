"""What happens before the first step, and what is written down however a run ends.

`open_run` is the whole of a resume: the configuration is completed and checked, the folder locked and its status
written, the processes meet, the newest whole checkpoint gives progress and data position, the ranks agree, and the
engine takes the weights and the moments.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from configs import InputError
from configs.status import State
from data import first_header_difference
from pretrain.config import PretrainConfig
from pretrain.monitor.signals import Stop
from pretrain.monitor.watchdog import Watchdog
from pretrain.processes import Processes, start_process_group, stop_process_group
from pretrain.run import Run
from pretrain.runs.changes import first_difference
from pretrain.runs.folder import RunFolder
from pretrain.start import resolve


@contextmanager
def open_run(config: PretrainConfig, processes: Processes, stop: Stop) -> Iterator[Run]:
    """The run of a configuration, where its folder stands; a failure is written to the run's status.

    Raises InputError for what the user got wrong; a wrong configuration before a process group starts.
    """
    folder = RunFolder(config.run_dir)
    config = _begin(config, processes, folder)
    watchdog: Watchdog | None = None

    def fail(reason: str, state: State = "failed") -> None:
        place = f"rank {processes.rank}: " if processes.world_size > 1 else ""
        line = place + " ".join(reason.split())
        folder.write_failure(state, line)
        if state == "failed":
            print(f"failed: {line}", file=sys.stderr, flush=True)

    try:
        start_process_group(processes, config.engine.timeout_seconds, always=config.engine.name == "deepspeed")
        # it also watches what comes before the first step and after the last, where a collective can hang as well
        stacks = folder.path / f"stacks_rank_{processes.rank}.txt"
        watchdog = Watchdog(config.engine.timeout_seconds, stacks, fail)
        run = Run(config, processes, folder)
        _agree(run)
        run.start(watchdog, stop)
        stop.is_training = True
        try:
            yield run
        finally:
            run.close_tracker()
            run.release_engine()
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, RuntimeError) and "timed out" in reason.lower():
            reason = f"another process gave no answer in time (engine.timeout_seconds); {reason}"
        fail(reason, "bad_input" if isinstance(error, InputError) else "failed")
        raise
    finally:
        stop_process_group()
        if watchdog:
            watchdog.stop()
        folder.close()


def _begin(config: PretrainConfig, processes: Processes, folder: RunFolder) -> PretrainConfig:
    """The completed configuration, after rank 0 has locked the folder and written the first status of this start."""
    try:
        config = resolve(config, folder)
        config.check_processes(processes.world_size)
    except InputError as error:
        if processes.is_main:
            folder.begin("bad_input", str(error))
            folder.close()
        raise
    folder.check(config)
    if processes.is_main:
        folder.begin("starting")
    return config


def _agree(run: Run) -> None:
    """Compare what the ranks start from, and let rank 0 write it down. A refusal is raised on all ranks."""
    config, processes, step = run.config, run.processes, run.progress.step
    for rank, (other, other_step, other_header) in enumerate(processes.gather((config, step, run.data_header))):
        difference = first_difference(config, other)
        if difference:
            raise InputError(
                f"rank {rank} has another configuration than rank {processes.rank}: '{difference.key}' is "
                f"{difference.second!r} on rank {rank} and {difference.first!r} on rank {processes.rank}"
            )
        if other_step != step:
            raise InputError(
                f"rank {rank} finds a checkpoint of step {other_step} in run_dir {run.folder.path}, rank "
                f"{processes.rank} one of step {step}: all hosts must share that folder"
            )
        reason = first_header_difference(run.data_header, other_header)
        if reason:
            raise InputError(f"rank {rank} has other data than rank {processes.rank}: {reason}")
    refusal = None
    if processes.is_main:
        try:
            run.folder.write_inputs(config)
            run.folder.write_status("running", step)
        except InputError as error:
            refusal = str(error)
    refusal = processes.from_main(refusal)
    if refusal:
        raise InputError(refusal)
