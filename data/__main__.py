"""`python -m data COMMAND CONFIG ...`: batches, inspect, verify, cache."""

from configs import InputError, run_command
from data.commands import batches, cache, inspect, verify
from data.config import DataRun

COMMANDS = {"batches": batches.main, "inspect": inspect.main, "verify": verify.main, "cache": cache.main}
USAGE = f"python -m data {' | '.join(COMMANDS)} CONFIG [key=value ...]"


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in COMMANDS:
        raise InputError(f"usage: {USAGE}")
    return COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    run_command(main, DataRun, USAGE)
