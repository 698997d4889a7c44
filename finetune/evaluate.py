"""`python -m finetune.evaluate MODEL CONFIG [key=value …]`: scores of a folder on the config's test files (dev
without test).

The folder says its task, labels and pooling; the config says which files and columns. Prints one JSON object. Each
row counts once on any number of processes, and memory does not grow with what a row's model outputs: only small
predictions are kept.
"""

import json
from typing import Any

from configs import InputError, load_config, run_command
from finetune.accelerator import is_first_process, make_accelerator
from finetune.config import FinetuneConfig
from finetune.folder.description import describe_model
from finetune.inference import Predictor
from finetune.reading.columns import check_mapping
from finetune.serving import load_task, load_trained_model, with_pooling
from finetune.tasks.table import TASKS

USAGE = "python -m finetune.evaluate MODEL CONFIG [key=value …]"


def evaluate(folder: str, config: FinetuneConfig) -> dict[str, Any]:
    """The scores as printed, the same on every process. InputError for a folder of another task."""
    stored = describe_model(folder)
    trained_for = stored.task or "matching"
    if trained_for != config.task:
        raise InputError(f"{folder} is a model for {trained_for}, the config's task is {config.task}")
    if not config.scored_files:
        raise InputError("the config names neither test nor dev files")
    task_class, budget = TASKS[config.task], config.training.max_tokens_per_device
    metric = config.metric or task_class.default_metric(config)
    asked = {"task": config.task, "metric": metric, "answering": config.answering}
    description = with_pooling(stored.model_copy(update=asked), folder, config.pooling)
    task = load_task(folder, description, config.max_length, budget)
    role_sets = [*task_class.training_roles, *task_class.scoring_roles]
    check_mapping([*config.train, *config.dev, *config.test], role_sets, config.columns)
    accelerator = make_accelerator(config.precision)
    model = load_trained_model(task, folder, accelerator)
    scores = Predictor(task, accelerator, budget).score_files(model, config.scored_files, config.columns)
    return {
        "task": config.task,
        "model": folder,
        "metric": task.metric,
        "score": scores[task.metric],
        "scores": scores,
        "pooling": stored.pooling,
        "truncated_texts": scores["truncated_texts"],
    }


def main(arguments: list[str]) -> int:
    """Print the scores as one JSON object."""
    if len(arguments) < 2:
        raise InputError(f"usage: {USAGE}")
    result = evaluate(arguments[0], load_config(FinetuneConfig, arguments[1], arguments[2:]))
    if is_first_process():
        print(json.dumps(result, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    run_command(main, FinetuneConfig, USAGE)
