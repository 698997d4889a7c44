"""`python -m pretrain CONFIG [key=value …]`: trains, alone or under torchrun, accelerate launch or deepspeed.

Exit codes: 0 done, 2 bad input, 75 stopped by a signal after a whole checkpoint; anything else is a failure.
"""

from configs import InputError, load_config, run_command
from pretrain.config import CHANGEABLE_AT_RESUME, PretrainConfig
from pretrain.loop import train
from pretrain.monitor.watchdog import PREEMPTED
from pretrain.processes import find_processes
from pretrain.run import open_run
from pretrain.start import resolve

USAGE = (
    """usage: python -m pretrain CONFIG [key=value …]

Trains an encoder; under torchrun, accelerate launch -m, deepspeed --module, or alone. Resumes when the run folder holds
a whole checkpoint of the same run; a resume may change only how the run is executed:
"""
    + "  ".join(CHANGEABLE_AT_RESUME)
    + "\n\nKeys, with their defaults:\n"
)


def main(arguments: list[str]) -> int:
    """Check the input, then train."""
    if not arguments:
        raise InputError("usage: python -m pretrain CONFIG [key=value …]")
    processes = find_processes()
    config = resolve(load_config(PretrainConfig, arguments[0], arguments[1:]))
    config.check_processes(processes.world_size)
    with open_run(config, processes) as run:
        done = train(run)
        run.close(done)
    return 0 if done else PREEMPTED


if __name__ == "__main__":
    run_command(main, PretrainConfig, USAGE)
