"""`python -m finetune.compress MODEL OUT --onnx|--int8 [--data FILE] [key=value …]`: a folder for ONNX Runtime.

`--onnx` must equal the model within 1e-4 at several shapes; `--int8` (dynamic, weights in 8 bits) must not lose more
score on the rows of `--data` than the bar. Prints what was lost in score, size and time; a folder that misses is not
called done: it is not written, and the exit code is 1. `evaluate`, `predict` and `embed` take the folder like any
other.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from configs import InputError, run_command
from finetune.accelerator import make_accelerator
from finetune.folder.onnx_graph import GRAPH, OUTPUTS, OnnxModel, export_graph, largest_difference
from finetune.folder.write import FACTS, check_replaceable
from finetune.inference import predictions
from finetune.reading.columns import kind_of, read_kind
from finetune.results import write_json
from finetune.serving import ServingConfig, facts_of, load_served_task, parse_options
from finetune.tasks.protocol import Task
from finetune.tasks.table import TASKS

LARGEST_DIFFERENCE = 1e-4
LARGEST_LOSS = 0.02  # of the task's score: 2 points of accuracy or F1, 0.02 of Spearman
USAGE = "python -m finetune.compress MODEL OUT --onnx|--int8 [--data FILE] [key=value …]"


def compress(folder: str, out: str, int8: bool, data: str | None, options: ServingConfig) -> dict[str, Any]:
    """Write OUT and return the report; `done` is False, and OUT not written, when too much was lost."""
    facts = facts_of(folder)
    if "task" not in facts:
        facts = {**facts, "task": "matching", "pooling": options.pooling or facts["pooling"] or "mean"}
    if int8 and data is None:
        raise InputError("--int8 needs --data FILE: rows with answers, to measure what it loses")
    check_replaceable(Path(out))
    task = load_served_task(folder, facts, options)
    model = task.build(folder, from_scratch=False).eval()
    building = Path(out + ".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    graph_path, outputs = building / GRAPH, OUTPUTS[facts["task"]]
    export_graph(model, task.inputs, outputs, graph_path)
    difference = largest_difference(model, OnnxModel(graph_path, outputs), task.inputs)
    if int8:
        _quantize(graph_path)
    report: dict[str, Any] = {"kind": "int8" if int8 else "onnx", "fp32_graph_difference": difference}
    report["bytes"] = {"before": _size(Path(folder)), "after": graph_path.stat().st_size}
    report["done"] = difference <= LARGEST_DIFFERENCE
    if data:
        before, after = (_measure(task, each, facts, data, options) for each in (model, OnnxModel(graph_path, outputs)))
        report |= {name: {"before": before[name], "after": after[name]} for name in ("score", "seconds")}
        report |= {"metric": before["metric"], "lost": before["score"] - after["score"]}
        report["done"] = report["done"] and report["lost"] <= LARGEST_LOSS
    if report["done"]:
        _finish(building, Path(out), task, facts, report)
    else:
        shutil.rmtree(building)
    return report


def _finish(building: Path, out: Path, task: Task, facts: dict[str, Any], report: dict[str, Any]) -> None:
    """Add what `AutoConfig`, `AutoTokenizer` and our commands read, then give the folder its name."""
    task.inputs.model_config.save_pretrained(building)
    task.inputs.tokenizer.save_pretrained(building)
    write_json(building / FACTS, {**facts, "max_length": task.inputs.max_length})
    write_json(building / "report.json", report)
    shutil.rmtree(out, ignore_errors=True)
    building.rename(out)


def _quantize(path: Path) -> None:
    """Replace the graph by one with 8-bit weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = path.with_suffix(".prepared")
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    quantize_dynamic(str(prepared), str(path), weight_type=QuantType.QInt8, per_channel=True)
    prepared.unlink()


def _measure(task: Task, model: nn.Module, facts: dict[str, Any], data: str, options: ServingConfig) -> dict[str, Any]:
    """metric, score and seconds on the rows of `data`."""
    rows = read_kind(data, kind_of(data, TASKS[facts["task"]].test, options.columns), options.columns)
    start = time.perf_counter()
    pairs = list(predictions(task, model, rows, options.max_tokens_per_device, make_accelerator()))
    seconds = round(time.perf_counter() - start, 3)
    scores = task.score(pairs)
    metric = task.metric if task.metric in scores else next(iter(scores))  # a bare encoder states none
    return {"metric": metric, "score": scores[metric], "seconds": seconds}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


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
        print(f"not done: differs by more than {LARGEST_DIFFERENCE} or loses more than {LARGEST_LOSS}", file=sys.stderr)
    return 0 if report["done"] else 1


if __name__ == "__main__":
    run_command(main, ServingConfig, USAGE)
