"""`python -m finetune.predict MODEL INPUT OUT [key=value …]`: one JSON line per row, in the order of the input.

Streams in and out in bounded memory. OUT takes its name when it is whole; a bad row is named with its line before any
work is done.
"""

import json
from typing import Any

from configs import InputError, run_command
from finetune.config import ServingConfig
from finetune.folder.description import describe_model
from finetune.serving import FilePredictor, parse_options
from finetune.tasks.table import TASKS

USAGE = "python -m finetune.predict MODEL INPUT OUT [key=value …]"


def predict(folder: str, path: str, out: str, options: ServingConfig) -> int:
    """Write the predictions of `path`; returns the number of rows. InputError for a bare encoder."""
    description = describe_model(folder)
    if description.task is None:
        raise InputError(f"{folder} is an encoder without a head: it embeds (finetune.embed) but predicts nothing")
    predictor = FilePredictor(folder, description, TASKS[description.task].prediction_roles, path, options)

    def json_line(prediction: Any) -> bytes:
        return f"{json.dumps(predictor.task.output(prediction), ensure_ascii=False)}\n".encode()

    predictor.write(out, json_line)
    return predictor.num_rows


def main(arguments: list[str]) -> int:
    """Predict the rows of a file."""
    if len(arguments) < 3:
        raise InputError(f"usage: {USAGE}; --help lists the keys")
    model, source, out, *options = arguments
    predict(model, source, out, parse_options(options))
    return 0


if __name__ == "__main__":
    run_command(main, ServingConfig, USAGE)
