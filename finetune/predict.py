"""`python -m finetune.predict MODEL INPUT OUT [key=value …]`: one JSON line a row, in the order of the input.

Streams in and out in bounded memory. OUT is written under a temporary name and renamed at the end, so an interrupted
run leaves no half file under its name; a bad row is named with its line before any work is done.
"""

import json
from contextlib import nullcontext
from pathlib import Path

from configs import InputError, run_command
from finetune.serving import Server, ServingConfig, facts_of, parse_options
from finetune.tasks.table import TASKS


def predict(folder: str, path: str, out: str, options: ServingConfig) -> int:
    """Write the predictions of `path`; returns the number of rows."""
    facts = facts_of(folder)
    if "task" not in facts:
        raise InputError(f"{folder} is an encoder without a head: it embeds (finetune.embed) but predicts nothing")
    server = Server(folder, facts, TASKS[facts["task"]].predict, path, options)
    building = Path(out + ".building")
    with open(building, "w", encoding="utf-8") if server.writes else nullcontext() as file:
        for prediction in server.predictions():
            if file:
                file.write(json.dumps(server.task.output(prediction), ensure_ascii=False) + "\n")
    if server.writes:
        building.replace(out)
    return server.num_rows


def main(arguments: list[str]) -> int:
    """Predict the rows of a file."""
    if len(arguments) < 3:
        raise InputError("usage: python -m finetune.predict MODEL INPUT OUT [key=value …]; --help lists the keys")
    model, source, out, *options = arguments
    predict(model, source, out, parse_options(options))
    return 0


if __name__ == "__main__":
    run_command(main, ServingConfig, "python -m finetune.predict MODEL INPUT OUT [key=value …]")
