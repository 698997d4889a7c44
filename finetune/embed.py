"""`python -m finetune.embed MODEL INPUT OUT.npy [key=value …]`: a vector a row (float32, rows x width), in order.

The pooling is the folder's own; a bare encoder, which has none, takes `pooling=…` or the mean, and says so. Streams
in and out; OUT appears whole at the end.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from configs import InputError, run_command
from finetune.serving import Server, ServingConfig, facts_of, parse_options


def embed(folder: str, path: str, out: str, options: ServingConfig) -> tuple[int, int]:
    """Write the vectors of the `text` column of `path`; returns their shape. InputError for a model of another task."""
    facts = facts_of(folder)
    if facts.get("task", "matching") != "matching":
        raise InputError(f"{folder} is a model for {facts['task']}; embed takes a matching model or a bare encoder")
    if options.pooling is None and facts["pooling"] is None:
        print(f"pooling: mean, as {folder} states none", file=sys.stderr)
    server = Server(folder, {**facts, "task": "matching"}, [("text",)], path, options)
    shape = (server.num_rows, server.task.inputs.model_config.hidden_size)
    building = Path(out + ".building")
    with open(building, "wb") if server.writes else nullcontext() as file:
        if file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_2_0(file, header)
        for vector in server.predictions():
            if file:
                file.write(np.asarray(vector, dtype="<f4").tobytes())
    if server.writes:
        building.replace(out)
    return shape


def main(arguments: list[str]) -> int:
    """Embed the rows of a file."""
    if len(arguments) < 3:
        raise InputError("usage: python -m finetune.embed MODEL INPUT OUT.npy [key=value …]; --help lists the keys")
    model, source, out, *options = arguments
    embed(model, source, out, parse_options(options))
    return 0


if __name__ == "__main__":
    run_command(main, ServingConfig, "python -m finetune.embed MODEL INPUT OUT.npy [key=value …]")
