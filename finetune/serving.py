"""A finished folder back as a task and a model: what `evaluate`, `predict` and `embed` share.

The folder says what it is: `finetune.json` where we wrote it, else its `config.json` (a hub classifier, tagger or
answerer works too). Nothing about pooling, labels or length has to be repeated by whoever uses it.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import tqdm
from pydantic import Field

from configs import Config, InputError, load_config
from finetune.accelerator import Precision, make_accelerator
from finetune.config import FinetuneConfig, Pooling
from finetune.folder.onnx_graph import GRAPH, OUTPUTS, OnnxModel
from finetune.folder.pooling import stored_pooling
from finetune.folder.write import has_facts, read_facts
from finetune.inference import predictions
from finetune.reading.columns import Columns, Kind, check_roles, kind_of, read_kind
from finetune.reading.inputs import load_inputs, load_model_config, quiet_transformers
from finetune.tasks.protocol import Task
from finetune.tasks.table import TASKS

HEADS = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "answering",
}


class ServingConfig(Config):
    """Options of `predict` and `embed`, given as key=value."""

    columns: Columns = Field(default={}, description="role: column, where the names differ")
    max_tokens_per_device: int | None = Field(
        default=None, gt=0, description="tokens of a batch, padding included; default: 1024 on a CPU, 16384 else"
    )
    max_length: int | None = Field(default=None, gt=2, description="tokens a text; default: the folder's own")
    pooling: Pooling | None = Field(default=None, description="of embed; default: the folder's own")
    precision: Precision = Field(default="fp32", description="bf16: autocast")


def parse_options(arguments: Sequence[str]) -> ServingConfig:
    """Options from `key=value` arguments alone."""
    try:
        return load_config(ServingConfig, os.devnull, arguments)
    except InputError as error:
        raise InputError(str(error).removeprefix(f"{os.devnull}: ")) from None


def facts_of(folder: str) -> dict[str, Any]:
    """What a folder was trained for: task, labels, pooling, …; `task` is absent for a bare encoder."""
    if has_facts(folder):
        return read_facts(folder)
    config = load_model_config(folder)
    names = config.architectures or ()
    head = next((task for end, task in HEADS.items() if any(name.endswith(end) for name in names)), None)
    if head is None:
        return {"pooling": stored_pooling(folder)}
    labels = [config.id2label[i] for i in sorted(config.id2label)]
    return {"task": head, "labels": labels, "pooling": getattr(config, "classifier_pooling", None)}


def load_task(folder: str, facts: dict[str, Any], config: FinetuneConfig) -> Task:
    """The task of a folder for scoring or predicting; `config` says how, the folder's `facts` what."""
    quiet_transformers()
    asked, stored = config.pooling, facts.get("pooling")
    if asked and stored and asked != stored:
        print(f"pooling: {asked} as asked; {folder} was made for {stored}", file=sys.stderr)
    config = config.model_copy(update={"model": folder, "pooling": asked or stored})
    inputs = load_inputs(folder, config.max_length or facts.get("max_length"))
    return TASKS[config.task].task.from_facts(config, inputs, facts)


def load_served_task(folder: str, facts: dict[str, Any], options: ServingConfig) -> Task:
    """The task of a folder for predicting with `options`."""
    config = FinetuneConfig(
        task=facts["task"],
        model=folder,
        run_dir="",
        train=[""],
        pooling=options.pooling,
        max_length=options.max_length,
        columns=options.columns,
        metric=facts.get("metric"),
        answering=facts.get("answering", {}),
    )
    return load_task(folder, facts, config)


def load_served_model(task: Task, folder: str, facts: dict[str, Any], accelerator: Accelerator) -> torch.nn.Module:
    """The folder's model where this process computes; its ONNX graph when that is what it has."""
    graph = Path(folder) / GRAPH
    if graph.exists() and not (Path(folder) / "model.safetensors").exists():
        return OnnxModel(graph, OUTPUTS[facts["task"]])
    return task.build(folder, from_scratch=False).to(accelerator.device).eval()


class Server:
    """Predictions of a file by a folder's model, a row at a time, in order; only the main process should write."""

    def __init__(self, folder: str, facts: dict[str, Any], kinds: Sequence[Kind], path: str, options: ServingConfig):
        self.path, self.options = path, options
        self.task = load_served_task(folder, facts, options)
        check_roles([path], list(dict.fromkeys(role for kind in kinds for role in kind)), options.columns)
        self.kind = kind_of(path, kinds, options.columns)
        # a first pass: a bad row is named before any work is done
        self.num_rows = sum(1 for _ in read_kind(path, self.kind, options.columns))
        self.accelerator: Accelerator = make_accelerator(options.precision)
        self.model = load_served_model(self.task, folder, facts, self.accelerator)

    @property
    def writes(self) -> bool:
        """True on the one process that writes."""
        return self.accelerator.is_main_process

    def predictions(self) -> Iterator[Any]:
        """A prediction a row, on every process, with a progress bar; says at the end how many texts were cut."""
        rows = read_kind(self.path, self.kind, self.options.columns)
        budget = self.options.max_tokens_per_device
        pairs = predictions(self.task, self.model, rows, budget, self.accelerator)
        for _, prediction in tqdm(pairs, total=self.num_rows, unit="row", disable=not sys.stderr.isatty()):
            yield prediction
        for line in self.task.inputs.told(self.task.inputs.take_counts(), self.num_rows) if self.writes else ():
            print(line, file=sys.stderr)
