"""`python -m finetune.evaluate MODEL CONFIG [key=value …]`: scores of a folder on the config's test files (dev
without test).

The folder says its task, labels and pooling; the config says which files and columns. Prints one JSON object. Each
row counts once on any number of processes, and memory does not grow with what a row's model outputs: only small
predictions are kept.
"""

import json
import sys
from typing import Any

from configs import InputError, load_config, run_command
from finetune.accelerator import make_accelerator
from finetune.config import FinetuneConfig
from finetune.reading.columns import check_roles
from finetune.run import score_files
from finetune.serving import facts_of, load_served_model, load_task
from finetune.tasks.table import TASKS


def evaluate(folder: str, config: FinetuneConfig) -> tuple[dict[str, Any], bool]:
    """Scores as printed, and whether this process is the one to print. InputError for a folder of another task."""
    facts = facts_of(folder)
    if facts.get("task", "matching") != config.task:
        raise InputError(f"{folder} is a model for {facts.get('task', 'matching')}, the config's task is {config.task}")
    paths = config.test or config.dev
    if not paths:
        raise InputError("the config names neither test nor dev files")
    task = load_task(folder, facts, config)
    check_roles([*config.train, *config.dev, *config.test], TASKS[config.task].roles, config.columns)
    accelerator = make_accelerator(config.precision)
    model = load_served_model(task, folder, {**facts, "task": config.task}, accelerator)
    scores = score_files(config, task, model, paths, accelerator)
    result = {
        "task": config.task,
        "model": folder,
        "metric": task.metric,
        "score": scores[task.metric],
        "scores": scores,
    }
    return {
        **result,
        "pooling": facts.get("pooling"),
        "truncated_texts": scores["truncated_texts"],
    }, accelerator.is_main_process


def main(arguments: list[str]) -> int:
    """Print the scores as one JSON object."""
    if len(arguments) < 2:
        raise InputError("usage: python -m finetune.evaluate MODEL CONFIG [key=value …]")
    result, prints = evaluate(arguments[0], load_config(FinetuneConfig, arguments[1], arguments[2:]))
    if prints:
        json.dump(result, sys.stdout, ensure_ascii=False)
        print()
    return 0


if __name__ == "__main__":
    run_command(main, FinetuneConfig, "python -m finetune.evaluate MODEL CONFIG [key=value …]")
