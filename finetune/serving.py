"""A finished folder back as a task and a model: what `evaluate`, `predict`, `embed` and `compress` share."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import tqdm

from configs import InputError, load_config
from configs.atomic import open_replacing
from finetune.accelerator import make_accelerator
from finetune.config import Pooling, ServingConfig, check_pooling
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_inputs, quiet_transformers
from finetune.folder.onnx_graph import GRAPH_FILE, OnnxModel
from finetune.inference import Predictor
from finetune.reading.columns import RoleSet, check_mapping, read_roles
from finetune.tasks.protocol import Task
from finetune.tasks.table import TASKS


def parse_options(arguments: Sequence[str]) -> ServingConfig:
    """Options from `key=value` arguments alone."""
    try:
        return load_config(ServingConfig, os.devnull, arguments)
    except InputError as error:
        raise InputError(str(error).removeprefix(f"{os.devnull}: ")) from None


def with_pooling(description: ModelDescription, folder: str, asked: Pooling | None) -> ModelDescription:
    """The description with the pooling that the user asked for, which is reported where the folder states another."""
    if asked is None:
        return description
    check_pooling(description.task, asked)
    if description.pooling and asked != description.pooling:
        print(f"pooling: {asked} as asked; {folder} was made for {description.pooling}", file=sys.stderr)
    return description.model_copy(update={"pooling": asked})


def load_task(
    folder: str, description: ModelDescription, max_length: int | None = None, max_tokens: int | None = None
) -> Task[Any]:
    """The task of a folder for scoring or predicting; `max_length` of a text in tokens, None: the folder's own."""
    assert description.task, "the caller chooses the task of a bare encoder"
    quiet_transformers()
    inputs = load_inputs(folder, max_length or description.max_length)
    return TASKS[description.task](description, inputs, max_tokens)


def load_trained_model(task: Task[Any], folder: str, accelerator: Accelerator) -> torch.nn.Module:
    """The folder's model where this process computes; its ONNX graph when that is what it has."""
    graph = Path(folder) / GRAPH_FILE
    if graph.exists() and not (Path(folder) / "model.safetensors").exists():
        return OnnxModel(graph, task.output_names)
    return task.build(folder, from_scratch=False).to(accelerator.device).eval()


class FilePredictor:
    """A folder's model with a file of rows for it; a bad row is named before any work is done."""

    def __init__(
        self, folder: str, description: ModelDescription, allowed: Sequence[RoleSet], path: str, options: ServingConfig
    ) -> None:
        self.path, self.columns = path, options.columns
        self.task = load_task(folder, with_pooling(description, folder, options.pooling), options.max_length)
        check_mapping([path], allowed, self.columns)
        self.allowed = allowed
        self.num_rows = sum(1 for _ in read_roles(path, allowed, self.columns))
        accelerator = make_accelerator(options.precision)
        self.is_main_process = accelerator.is_main_process
        self.predictor = Predictor(self.task, accelerator, options.max_tokens_per_device)
        self.model = load_trained_model(self.task, folder, accelerator)

    def write(self, out: str, to_bytes: Callable[[Any], bytes], header: bytes = b"") -> None:
        """Write the prediction of each row to `out`, which takes its name when it is whole, with a progress bar.

        Prints at the end how many texts were truncated or read in windows.
        """
        pairs = self.predictor.predictions(self.model, read_roles(self.path, self.allowed, self.columns))
        with open_replacing(out) if self.is_main_process else nullcontext() as file:
            if file:
                file.write(header)
            for _, prediction in tqdm(pairs, total=self.num_rows, unit="row", disable=not sys.stderr.isatty()):
                if file:
                    file.write(to_bytes(prediction))
        if self.is_main_process:
            inputs = self.task.inputs
            for line in inputs.describe_counts(inputs.take_counts(), self.num_rows):
                print(line, file=sys.stderr)
