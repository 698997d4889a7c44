"""`python -m pretrain CONFIG [key=value …]`: trains, alone or under torchrun, accelerate launch or deepspeed.

Exit codes: 0 done, 2 bad input, 75 stopped by a signal after a whole checkpoint; anything else is a failure.
"""

import textwrap

from pretrain.monitor.signals import PREEMPTED, Stop

stop = Stop()
if __name__ == "__main__":
    stop.listen()  # the imports below take seconds, and a signal in the meantime must not be lost

from configs import InputError, load_config, run_command  # noqa: E402
from pretrain.config import PretrainConfig  # noqa: E402
from pretrain.loop import train  # noqa: E402
from pretrain.opening import open_run  # noqa: E402
from pretrain.processes import find_processes  # noqa: E402
from pretrain.runs.changes import RULES  # noqa: E402

USAGE = (
    """usage: python -m pretrain CONFIG [key=value …]

Trains an encoder; under torchrun, accelerate launch -m, deepspeed --module, or alone. Resumes when the run folder holds
a whole checkpoint of the same run.

"""
    + "\n".join(textwrap.wrap(RULES, 120))
    + "\n\nKeys, with their defaults:\n"
)


def main(arguments: list[str]) -> int:
    """Check the input, then train."""
    if not arguments:
        raise InputError("usage: python -m pretrain CONFIG [key=value …]")
    processes = find_processes()
    config = load_config(PretrainConfig, arguments[0], arguments[1:])
    with stop, open_run(config, processes, stop) as run:
        done = train(run)
        run.close(done)
    return 0 if done else PREEMPTED


if __name__ == "__main__":
    run_command(main, PretrainConfig, USAGE)
