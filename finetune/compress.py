"""`python -m finetune.compress MODEL OUT --onnx|--int8 [--data FILE] [key=value …]`: a folder for ONNX Runtime.

`--onnx` must equal the model within 1e-4 at several shapes; `--int8` (dynamic, weights in 8 bits) must not lose more
score on the rows of `--data` than 0.02. Prints what was lost in score, size and time; a graph that misses is not called
done: OUT is not written, and the exit code is 1. `evaluate`, `predict` and `embed` take the folder like any other.
"""

import argparse
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from configs import InputError, run_command
from finetune.accelerator import make_accelerator
from finetune.config import ServingConfig
from finetune.folder.description import ModelDescription, describe_model
from finetune.folder.onnx_graph import GRAPH_FILE, OnnxModel, export_graph, largest_difference
from finetune.folder.write import check_replaceable, new_model_folder
from finetune.inference import Predictor
from finetune.reading.columns import read_roles
from finetune.results import write_json
from finetune.serving import load_task, parse_options, with_pooling
from finetune.tasks.protocol import Task

LARGEST_DIFFERENCE = 1e-4
LARGEST_LOSS = 0.02  # of the task's score: 2 points of accuracy or F1, 0.02 of Spearman
USAGE = "python -m finetune.compress MODEL OUT --onnx|--int8 [--data FILE] [key=value …]"


class _TooMuchLostError(Exception):
    """Leaves the block that writes OUT, so that OUT is not written."""


def compress(folder: str, out: str, int8: bool, data: str | None, options: ServingConfig) -> dict[str, Any]:
    """Write OUT and return the report; `done` is False, and OUT not written, when too much was lost."""
    if int8 and data is None:
        raise InputError("--int8 needs --data FILE: rows with answers, to measure what it loses")
    check_replaceable(Path(out))
    description = _served_description(folder, options)
    task = load_task(folder, description, options.max_length)
    model = task.build(folder, from_scratch=False).eval()
    report: dict[str, Any] = {"kind": "int8" if int8 else "onnx"}
    with suppress(_TooMuchLostError), new_model_folder(Path(out), task.inputs, description) as path:
        graph = path / GRAPH_FILE
        export_graph(model, task.inputs, task.output_names, graph)
        exported = OnnxModel(graph, task.output_names)
        difference = largest_difference(model, exported, task.inputs, task.outputs_per_token)
        if int8:
            _quantize(graph)
        before = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
        report |= {"fp32_graph_difference": difference, "bytes": {"before": before, "after": graph.stat().st_size}}
        report["done"] = difference <= LARGEST_DIFFERENCE
        if data:
            report |= _compare(task, model, OnnxModel(graph, task.output_names), data, options)
            report["done"] = report["done"] and report["lost"] <= LARGEST_LOSS
        if not report["done"]:
            raise _TooMuchLostError
        task.inputs.model_config.save_pretrained(path)
        write_json(path / "report.json", report)
    return report


def _served_description(folder: str, options: ServingConfig) -> ModelDescription:
    """The folder's description with the asked pooling; a bare encoder becomes a matching model, by default of means."""
    description = describe_model(folder)
    if description.task is None:
        pooling = description.pooling or "mean"
        description = description.model_copy(update={"task": "matching", "pooling": options.pooling or pooling})
    return with_pooling(description, folder, options.pooling)


def _quantize(path: Path) -> None:
    """Replace the graph by one with 8-bit weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = path.with_suffix(".prepared")
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    quantize_dynamic(str(prepared), str(path), weight_type=QuantType.QInt8, per_channel=True)
    prepared.unlink()


def _compare(task: Task[Any], model: nn.Module, graph: nn.Module, data: str, options: ServingConfig) -> dict[str, Any]:
    """Score and seconds of the model and of its graph on the rows of `data`, and the score that is lost."""
    predictor = Predictor(task, make_accelerator(), options.max_tokens_per_device)
    scores: dict[str, dict[str, float]] = {}
    seconds: dict[str, float] = {}
    for name, each in (("before", model), ("after", graph)):
        start = time.perf_counter()
        pairs = list(predictor.predictions(each, read_roles(data, task.scoring_roles, options.columns)))
        seconds[name] = round(time.perf_counter() - start, 3)
        scores[name] = task.score(pairs)
    metric = task.metric if task.metric in scores["before"] else next(iter(scores["before"]))  # a bare encoder has none
    score = {name: each[metric] for name, each in scores.items()}
    return {"score": score, "seconds": seconds, "metric": metric, "lost": score["before"] - score["after"]}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; usage: {USAGE}")


def main(arguments: list[str]) -> int:
    """Compress a folder and print the report."""
    parser = _Parser(add_help=False)
    parser.add_argument("model")
    parser.add_argument("out")
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--onnx", action="store_true")
    kinds.add_argument("--int8", action="store_true")
    parser.add_argument("--data")
    parser.add_argument("options", nargs="*")
    given = parser.parse_intermixed_args(arguments)
    report = compress(given.model, given.out, given.int8, given.data, parse_options(given.options))
    print(json.dumps(report))
    if not report["done"]:
        print(
            f"{given.out} is not written: the graph differs from the model by more than {LARGEST_DIFFERENCE} "
            f"or loses more than {LARGEST_LOSS} of the score",
            file=sys.stderr,
        )
    return 0 if report["done"] else 1


if __name__ == "__main__":
    run_command(main, ServingConfig, USAGE)
