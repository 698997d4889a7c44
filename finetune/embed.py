"""`python -m finetune.embed MODEL INPUT OUT.npy [key=value …]`: one vector per row (float32, rows x width), in order.

The pooling is the folder's own; a bare encoder, which has none, takes `pooling=…` or the mean, and says so. Streams
in and out; OUT takes its name when it is whole.
"""

import io
import sys

import numpy as np

from configs import InputError, run_command
from finetune.config import ServingConfig
from finetune.folder.description import describe_model
from finetune.serving import FilePredictor, parse_options
from finetune.tasks.matching import UNSUPERVISED

USAGE = "python -m finetune.embed MODEL INPUT OUT.npy [key=value …]"


def embed(folder: str, path: str, out: str, options: ServingConfig) -> tuple[int, int]:
    """Write the vectors of the `text` column of `path`; returns their shape. InputError for a model of another task."""
    description = describe_model(folder)
    if description.task not in ("matching", None):
        raise InputError(f"{folder} is a model for {description.task}; embed takes a matching model or a bare encoder")
    if options.pooling is None and description.pooling is None:
        print(f"pooling: mean, as {folder} states none", file=sys.stderr)
    description = description.model_copy(update={"task": "matching"})
    predictor = FilePredictor(folder, description, [UNSUPERVISED], path, options)
    shape = (predictor.num_rows, predictor.task.inputs.model_config.hidden_size)
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    predictor.write(out, lambda vector: np.asarray(vector, dtype="<f4").tobytes(), header.getvalue())
    return shape


def main(arguments: list[str]) -> int:
    """Embed the rows of a file."""
    if len(arguments) < 3:
        raise InputError(f"usage: {USAGE}; --help lists the keys")
    model, source, out, *options = arguments
    embed(model, source, out, parse_options(options))
    return 0


if __name__ == "__main__":
    run_command(main, ServingConfig, USAGE)
