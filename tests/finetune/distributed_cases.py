"""Run as one process of a group by test_distributed.py: many cases in one group.

A case is [name, arguments]; rank 0 writes the list of results. The same functions run in one process for comparison.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch

from configs.loader import validate
from finetune.accelerator import make_accelerator
from finetune.config import FinetuneConfig
from finetune.evaluate import evaluate
from finetune.folder.load import load_inputs
from finetune.predict import predict
from finetune.run import read_training_rows, run
from finetune.serving import parse_options
from finetune.tasks.matching_loss import contrastive_loss, cosent_loss
from finetune.tasks.table import TASKS
from finetune.training import Trainer, make_optimizer


def evaluate_case(model: str, config: dict[str, Any]) -> Any:
    """What finetune.evaluate prints."""
    return evaluate(model, validate(FinetuneConfig, config, "case"))


def predict_case(model: str, source: str, out: str, options: list[str]) -> int:
    """Writes a predictions file."""
    return predict(model, source, f"{out}.{os.environ.get('WORLD_SIZE', '1')}", parse_options(options))


def run_case(config: dict[str, Any]) -> Any:
    """A whole fine-tuning."""
    return run(
        validate(
            FinetuneConfig, {**config, "run_dir": f"{config['run_dir']}.{os.environ.get('WORLD_SIZE', '1')}"}, "case"
        )
    )


def step_case(config: dict[str, Any], path: str) -> float:
    """One update from the first 64 (or fewer) rows without dropout; saves the gradients' effect on the weights."""
    accelerator = make_accelerator()
    checked = validate(FinetuneConfig, config, "case")
    torch.manual_seed(0)
    inputs = load_inputs(checked.model)
    rows = read_training_rows(checked)[:64]
    task = TASKS[checked.task].from_training_rows(checked, inputs, rows)
    model = task.build(checked.model, from_scratch=False)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    training = checked.training.resolved(len(rows), 32)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(make_optimizer(model, training).param_groups, lr=1.0)
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 1.0, 0.0
    prepared, optimizer = accelerator.prepare(model, optimizer)
    unclipped = training.model_copy(update={"clip_norm": 1e9})
    examples = task.encode(rows, training=True)
    loss = Trainer(task, examples, unclipped, accelerator).step(prepared, optimizer, examples)
    if accelerator.is_main_process:
        updates = {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}
        torch.save(updates, f"{path}.{accelerator.num_processes}")
    return loss


def equal_vectors_case(rows: int) -> float:
    """The contrastive loss of equal vectors over all processes: ln(rows)."""
    accelerator = make_accelerator()
    count = rows // accelerator.num_processes
    local = torch.ones(count, 4)
    keys = torch.arange(count) + count * accelerator.process_index
    loss = contrastive_loss(local, local, None, 0.05, [keys, keys]) / rows
    cosent_loss(local, local, torch.arange(len(local)).float(), 0.05)
    return float(accelerator.reduce(loss, "sum"))


CASES = {
    "evaluate": evaluate_case,
    "predict": predict_case,
    "run": run_case,
    "step": step_case,
    "equal_vectors": equal_vectors_case,
}


def run_cases(cases: list[tuple[str, list[Any]]]) -> list[Any]:
    """The result of each case."""
    return [CASES[name](*arguments) for name, arguments in cases]


if __name__ == "__main__":
    rank, world_size, port, source, out = LAUNCH  # type: ignore[name-defined]  # noqa: F821  given by run_path
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    results = run_cases(json.loads(Path(source).read_text()))
    if rank == 0:
        Path(out).write_text(json.dumps(results))
