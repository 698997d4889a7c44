"""One fine-tuning from start to end: read, train one model per seed, score them, write the results and the best model.

Test rows are scored once per seed, with the weights that dev chose. The folder `model/` holds the seed that is best on
dev (the first one without dev). Training rows are held in memory; scored rows are streamed.
"""

import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed
from torch import nn

from configs import InputError
from finetune.accelerator import make_accelerator, refuse_deepspeed
from finetune.config import FinetuneConfig
from finetune.folder.load import load_inputs, quiet_transformers
from finetune.folder.write import check_replaceable
from finetune.inference import Predictor
from finetune.reading.columns import check_mapping, choose_roles, read_roles
from finetune.reading.rows import Row
from finetune.results import draw_learning_curves, failed_training, mean_scores, summarize, write_json
from finetune.tasks.table import TASKS
from finetune.tasks.word_vectors import word_vector_model
from finetune.training import History, Trainer


def run(config: FinetuneConfig) -> dict[str, Any]:
    """Do what `config` says; returns what `results.json` holds. InputError for what the user can get wrong."""
    return FinetuneRun(config).run()


def read_training_rows(config: FinetuneConfig) -> list[Row]:
    """All rows of the training files, which must have the same roles; InputError otherwise."""
    task = TASKS[config.task]
    role_sets = [*task.training_roles, *task.scoring_roles]
    check_mapping([*config.train, *config.dev, *config.test], role_sets, config.columns)
    sets = [choose_roles(path, task.training_roles, config.columns) for path in config.train]
    if len(set(sets)) > 1:
        different = " and ".join(f"({', '.join(roles)})" for roles in dict.fromkeys(sets))
        raise InputError(f"train: the files have different columns: {different}")
    return [row for path in config.train for row in read_roles(path, sets[:1], config.columns)]


class FinetuneRun:
    """One fine-tuning: its task and training examples, and what trains and scores the models.

    Made from a configuration alone; everything that a user may have got wrong is found here, before any training.
    """

    def __init__(self, config: FinetuneConfig) -> None:
        refuse_deepspeed()
        quiet_transformers()
        self.config = config
        self.run_dir = Path(config.run_dir)
        check_replaceable(self.run_dir / "model")
        inputs = load_inputs(config.model, config.max_length)
        rows = read_training_rows(config)
        self.num_rows = len(rows)
        self.task = TASKS[config.task].from_training_rows(config, inputs, rows)
        self.examples = self.task.encode(rows, training=True)
        self.train_counts = inputs.take_counts()
        self.targets = {
            path: [self.task.target(row) for row in read_roles(path, self.task.scoring_roles, config.columns)]
            for path in (*config.dev, *config.test)
        }
        self.training = config.training.resolved(len(self.examples), inputs.model_config.hidden_size)
        self.accelerator = make_accelerator(config.precision)
        self.trainer = Trainer(self.task, self.examples, self.training, self.accelerator)
        self.predictor = Predictor(self.task, self.accelerator, config.training.max_tokens_per_device)

    def run(self) -> dict[str, Any]:
        """Train, score and write everything; returns what `results.json` holds."""
        config = self.config
        results: dict[str, Any] = {"task": config.task, "metric": self.task.metric, "model": config.model}
        results["train_rows"] = self.num_rows
        results |= {f"{name}_train_texts": count for name, count in self.train_counts.items()}
        results["training"] = self.training.model_dump()
        self._print_counts(config.train, self.train_counts, self.num_rows)
        if config.task == "matching" and config.scored_files:
            results["before"] = self._score(self._build_model(from_scratch=False), config.scored_files)
        results |= self.train_seeds()
        scores = results["seeds"][0].get("scores")
        if scores:
            counts = {name: scores[f"{name}_texts"] for name in self.train_counts}
            self._print_counts(config.scored_files, counts, scores["n"])
        if "before" in results:
            results["after"] = mean_scores([seed["scores"] for seed in results["seeds"]])
        results["baselines"] = self.score_baselines()
        if self.accelerator.is_main_process:
            write_json(self.run_dir / "results.json", results)
        self.accelerator.wait_for_everyone()
        return results

    def train_seeds(self) -> dict[str, Any]:
        """Train and score one model per seed and write the best one; their entries in the results, mean and spread."""
        entries: list[dict[str, Any]] = []
        histories: dict[int, History] = {}
        space_before: dict[str, float] | None = None
        best: dict[str, Any] | None = None
        for seed in self.config.seeds:
            set_seed(seed)
            model = self._build_model(from_scratch=False)
            if space_before is None:  # the pretrained encoder is the same for every seed
                space_before = self.task.diagnose(model, self.examples)
            entry, histories[seed] = self.train_seed(model, seed, space_before)
            entries.append(entry)
            if best is None or (entry["dev"] is not None and entry["dev"] > best["dev"]):
                best = entry
                if self.accelerator.is_main_process:
                    self.task.save(model, self.run_dir / "model")
        if self.accelerator.is_main_process:
            draw_learning_curves(histories, self.task.metric, self.run_dir / "learning_curves.png")
            write_json(self.run_dir / "history.json", {seed: history.as_json() for seed, history in histories.items()})
        return self._summarized(entries)

    def train_from_scratch(self) -> dict[str, Any]:
        """The baseline of random weights: one model per seed in the same shape, of which nothing is written."""
        entries = []
        for seed in self.config.seeds:
            set_seed(seed)
            model = self._build_model(from_scratch=True)
            space_before = self.task.diagnose(model, self.examples)
            entries.append(self.train_seed(model, seed, space_before)[0])
        return self._summarized(entries)

    def train_seed(self, model: nn.Module, seed: int, space_before: dict[str, float]) -> tuple[dict[str, Any], History]:
        """Train and score one model; its entry in the results, and its history."""
        start = time.perf_counter()
        score_dev = functools.partial(self._score, paths=self.config.dev)
        history = self.trainer.train(model, seed, score_dev if self.config.dev else None)
        entry: dict[str, Any] = {"seed": seed, "steps": len(history.steps), "best_step": history.best_step}
        entry |= {"dev": history.best, **self._seed_scores(model, history)}
        entry["seconds"] = round(time.perf_counter() - start, 2)
        if space_before:
            entry["space"] = {"before": space_before, "after": self.task.diagnose(model, self.examples)}
        for key, problem in failed_training(entry).items():
            entry[key] = True
            if self.accelerator.is_main_process:
                print(f"seed {seed}: {problem}", file=sys.stderr)
        return entry, history

    def _seed_scores(self, model: nn.Module, history: History) -> dict[str, Any]:
        """Test scores of a trained model; without test files the dev scores that chose it."""
        if self.config.test:
            scores = self._score(model, self.config.test)
            return {"scores": scores, "test": scores[self.task.metric]}
        if self.config.dev:
            return {"scores": next(e for e in history.evaluations if e["step"] == history.best_step)}
        return {}

    def _summarized(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """The entries of all seeds with the mean and the spread of what they were scored on."""
        name = "test" if self.config.test else "dev"
        values = [entry[name] for entry in entries if entry.get(name) is not None]
        return {"seeds": entries, "scored_on": name, **(summarize(values) if values else {})}

    def score_baselines(self) -> dict[str, Any]:
        """The score of each configured baseline; of `from_scratch`, which is trained, the entries of its seeds too."""
        baselines: dict[str, Any] = {}
        if "majority" in self.config.baselines:
            test = [target for path in self.config.scored_files for target in self.targets[path]]
            train = [example.target for example in self.examples]
            baselines["majority"] = self.task.majority(train, test)[self.task.metric]
        if "word_vectors" in self.config.baselines:
            model = word_vector_model(self.task, self.config.model, self.examples).to(self.accelerator.device)
            baselines["word_vectors"] = self._score(model, self.config.scored_files)[self.task.metric]
        if "from_scratch" in self.config.baselines:
            baselines["from_scratch"] = self.train_from_scratch()
        return baselines

    def _build_model(self, *, from_scratch: bool) -> nn.Module:
        return self.task.build(self.config.model, from_scratch=from_scratch).to(self.accelerator.device)

    def _score(self, model: nn.Module, paths: Sequence[str]) -> dict[str, Any]:
        return self.predictor.score_files(model, paths, self.config.columns)

    def _print_counts(self, paths: Sequence[str], counts: dict[str, int], num_rows: int) -> None:
        """A line for the rows whose texts the model does not read as they are."""
        if self.accelerator.is_main_process:
            for line in self.task.inputs.describe_counts(counts, num_rows):
                print(f"{', '.join(paths)}: {line}", file=sys.stderr)
