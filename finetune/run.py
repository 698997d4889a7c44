"""The whole of one fine-tuning: read, train a model a seed, choose by dev, score test once, write results and the
model.

Test rows are scored once a seed, with the weights that dev chose. The folder `model/` holds the seed that is best on
dev (the first one without dev). Training rows are held in memory; scored rows are streamed.
"""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from configs import InputError
from finetune.accelerator import make_accelerator
from finetune.config import FinetuneConfig
from finetune.curves import draw_curves
from finetune.folder.write import check_replaceable
from finetune.inference import predictions
from finetune.reading.columns import check_roles, kind_of, read_kind
from finetune.reading.inputs import load_inputs, quiet_transformers
from finetune.reading.rows import Row
from finetune.results import mean_scores, summarize, write_json
from finetune.tasks.protocol import Example, Task
from finetune.tasks.table import TASKS, make_task
from finetune.tasks.word_vectors import word_vector_model
from finetune.training import History, TrainingConfig, train

COLLAPSED = 0.95  # mean cosine of random pairs from which all sentences look the same
Pairs = list[tuple[Any, Any]]


def run(config: FinetuneConfig) -> dict[str, Any]:
    """Do what `config` says; returns what `results.json` holds. InputError for what the user can get wrong."""
    quiet_transformers()
    run_dir = Path(config.run_dir)
    check_replaceable(run_dir / "model")
    inputs = load_inputs(config.model, config.max_length)
    rows = read_training_rows(config)
    task = make_task(config, inputs, rows)
    examples = task.encode(rows, training=True)
    cuts = inputs.take_counts()
    targets = [read_targets(config, task, path) for path in (*config.dev, *config.test)]  # every row is checked now
    training = config.training.resolved(len(examples), inputs.model_config.hidden_size)
    accelerator = make_accelerator(config.precision)
    results: dict[str, Any] = {"task": config.task, "metric": task.metric, "model": config.model}
    results |= {"train_rows": len(rows), **{f"{name}_train_texts": count for name, count in cuts.items()}}
    results["training"] = training.model_dump()
    if accelerator.is_main_process:
        say_what_was_cut(task, config.train, cuts, len(rows))
    if config.task == "matching" and (config.dev or config.test):
        results["before"] = score_untrained(config, task, accelerator)
    results |= train_seeds(config, task, examples, training, accelerator, run_dir)
    scored = results["seeds"][0].get("scores", {})
    if accelerator.is_main_process and scored:
        counts = {name: scored[f"{name}_texts"] for name in cuts}
        say_what_was_cut(task, config.test or config.dev, counts, scored["n"])
    if "before" in results:
        results["after"] = mean_scores([seed["scores"] for seed in results["seeds"]])
    results["baselines"] = score_baselines(config, task, examples, targets, accelerator)
    if "from_scratch" in config.baselines:
        results["baselines"]["from_scratch"] = train_seeds(config, task, examples, training, accelerator, None)
    if accelerator.is_main_process:
        write_json(run_dir / "results.json", results)
    accelerator.wait_for_everyone()
    return results


def read_training_rows(config: FinetuneConfig) -> list[Row]:
    """All rows of the training files, which must be of one kind; InputError otherwise."""
    row = TASKS[config.task]
    check_roles([*config.train, *config.dev, *config.test], row.roles, config.columns)
    kinds = [kind_of(path, row.train, config.columns) for path in config.train]
    if len(set(kinds)) > 1:
        raise InputError(f"train: the files are of different kinds: {' and '.join(map(str, dict.fromkeys(kinds)))}")
    return [row for path in config.train for row in read_kind(path, kinds[0], config.columns)]


def read_scored_rows(config: FinetuneConfig, path: str) -> Any:
    """Rows of a file with answers, as an iterator."""
    return read_kind(path, kind_of(path, TASKS[config.task].test, config.columns), config.columns)


def read_targets(config: FinetuneConfig, task: Task, path: str) -> list[Any]:
    """The targets of a file's rows; checks every row before anything is trained."""
    return [task.target(row) for row in read_scored_rows(config, path)]


def score_files(
    config: FinetuneConfig, task: Task, model: torch.nn.Module, paths: Sequence[str], accelerator: Accelerator
) -> dict[str, Any]:
    """Scores over all rows of the files and how many were cut; with several files the scores of each under `files`."""
    budget = config.training.max_tokens_per_device
    task.inputs.take_counts()
    parts: dict[str, Pairs] = {
        path: list(predictions(task, model, read_scored_rows(config, path), budget, accelerator)) for path in paths
    }
    scores: dict[str, Any] = dict(task.score([pair for part in parts.values() for pair in part]))
    if len(parts) > 1:
        scores["files"] = {path: task.score(part) for path, part in parts.items()}
    return scores | {f"{name}_texts": count for name, count in task.inputs.take_counts().items()}


def score_untrained(config: FinetuneConfig, task: Task, accelerator: Accelerator) -> dict[str, Any]:
    """Scores (test, or dev where there is no test) of the untouched encoder with the same pooling."""
    model = task.build(config.model, from_scratch=False).to(accelerator.device)
    return score_files(config, task, model, config.test or config.dev, accelerator)


def score_baselines(
    config: FinetuneConfig, task: Task, examples: list[Example], targets: list[list[Any]], accelerator: Accelerator
) -> dict[str, Any]:
    """The scores of the baselines that train no encoder, on test (dev without it); `targets`: dev's, then test's."""
    found: dict[str, Any] = {}
    if "majority" in config.baselines:
        test = [target for part in targets[len(config.dev) :] or targets for target in part]
        found["majority"] = task.majority([example.target for example in examples], test)[task.metric]
    if "word_vectors" in config.baselines:
        classes = len(getattr(task, "labels", ()))
        model = word_vector_model(config.task, config.model, task.inputs, examples, classes).to(accelerator.device)
        scores = score_files(config, task, model, config.test or config.dev, accelerator)
        found["word_vectors"] = scores[task.metric]
    return found


def train_seeds(
    config: FinetuneConfig,
    task: Task,
    examples: list[Example],
    training: TrainingConfig,
    accelerator: Accelerator,
    run_dir: Path | None,
) -> dict[str, Any]:
    """Train a model a seed; the best by dev is written to `run_dir` (None: random weights, nothing written)."""
    seeds: list[dict[str, Any]] = []
    histories: dict[int, History] = {}
    best: float | None = None
    before: dict[str, float] | None = None
    for seed in config.seeds:
        set_seed(seed)
        model = task.build(config.model, from_scratch=run_dir is None).to(accelerator.device)
        if before is None or run_dir is None:  # the pretrained encoder is the same for every seed
            before = task.diagnose(model, examples)
        entry, histories[seed] = train_seed(config, task, model, examples, training, accelerator, seed)
        if before:
            entry["space"] = {"before": before, "after": task.diagnose(model, examples)}
        seeds.append(entry)
        if accelerator.is_main_process:
            say_what_is_wrong(entry)
        if run_dir and (best is None or (entry["dev"] is not None and entry["dev"] > best)):
            best = entry["dev"] if entry["dev"] is not None else math.inf  # without dev the first seed stays
            if accelerator.is_main_process:
                task.save(model, run_dir / "model")
    if run_dir and accelerator.is_main_process:
        draw_curves(histories, task.metric, run_dir / "learning_curves.png")
        write_json(run_dir / "history.json", {seed: history.told() for seed, history in histories.items()})
    name = "test" if config.test else "dev"
    values = [entry[name] for entry in seeds if entry.get(name) is not None]
    return {"seeds": seeds, "scored_on": name, **(summarize(values) if values else {})}


def train_seed(
    config: FinetuneConfig,
    task: Task,
    model: torch.nn.Module,
    examples: list[Example],
    training: TrainingConfig,
    accelerator: Accelerator,
    seed: int,
) -> tuple[dict[str, Any], History]:
    """Train and score one model; its entry in the results, and its history."""

    def evaluate(current: torch.nn.Module) -> dict[str, float]:
        return score_files(config, task, current, config.dev, accelerator)

    start = time.perf_counter()
    history = train(task, model, examples, training, accelerator, seed, evaluate if config.dev else None)
    entry: dict[str, Any] = {"seed": seed, "steps": len(history.steps), "best_step": history.best_step}
    entry |= {"dev": history.best, **score_seed(config, task, model, history, accelerator)}
    entry["seconds"] = round(time.perf_counter() - start, 2)
    return entry, history


def score_seed(
    config: FinetuneConfig, task: Task, model: torch.nn.Module, history: History, accelerator: Accelerator
) -> dict[str, Any]:
    """Test scores of a trained model; without test files the dev scores that chose it."""
    if config.test:
        scores = score_files(config, task, model, config.test, accelerator)
        return {"scores": scores, "test": scores[task.metric]}
    if config.dev:
        return {"scores": next(e for e in history.evaluations if e["step"] == history.best_step)}
    return {}


def say_what_was_cut(task: Task, paths: Sequence[str], counts: dict[str, int], num_rows: int) -> None:
    """Print a line for the rows that the model did not read as they are."""
    for line in task.inputs.told(counts, num_rows):
        print(f"{', '.join(paths)}: {line}", file=sys.stderr)


def say_what_is_wrong(entry: dict[str, Any]) -> None:
    """Flag and print a run that sits on one class, or whose sentence vectors have collapsed to one."""
    if entry.get("scores", {}).get("most_frequent_guess") == 1.0:
        entry["stuck_on_one_class"] = True
        print(f"seed {entry['seed']}: stuck, it gives every row the same class", file=sys.stderr)
    if "space" in entry and entry["space"]["after"]["cosine_of_random_pairs"] > COLLAPSED:
        entry["collapsed"] = True
        print(f"seed {entry['seed']}: collapsed, random pairs have a cosine above {COLLAPSED}", file=sys.stderr)
