"""One training run: AdamW with bias correction, warm-up, layer-wise learning rates, early stop, best weights by dev.

The update is the sum of the losses of all rows of the global batch divided by their total weight, so it depends
neither on the number of processes nor on how a process cuts its share into micro-batches. Cost: the best weights are
held once more in CPU memory.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed, tqdm
from transformers import get_linear_schedule_with_warmup

from configs import InputError
from finetune.config import TrainingConfig
from finetune.reading.batching import epoch_batches, token_budget, token_budget_batches
from finetune.tasks.protocol import Example, Task


@dataclass
class History:
    """What a run did: `steps` [{step, loss, learning_rate}], `evaluations` [{step, …scores}], the best step."""

    steps: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best_step: int = 0
    best: float | None = None
    best_loss: float = math.inf
    lowest_loss: float = math.inf
    without_progress: int = 0  # evaluations since the last progress
    stopped_early: bool = False

    def as_json(self) -> dict[str, Any]:
        """What `history.json` holds of the run."""
        return {name: getattr(self, name) for name in ("steps", "evaluations", "best_step", "best", "stopped_early")}

    def record(self, step: int, scores: dict[str, Any], metric: str) -> bool:
        """Add an evaluation; True when its weights are the best so far.

        Of equal scores the lower dev loss is better, where there is one. A lower loss also counts as progress: a run
        that still predicts one class while its loss falls is not stopped.
        """
        loss = scores.get("loss", math.inf)
        score = scores[metric]
        better = self.best is None or score > self.best or (score == self.best and loss < self.best_loss)
        self.without_progress = 0 if better or loss < self.lowest_loss else self.without_progress + 1
        self.lowest_loss = min(loss, self.lowest_loss)
        if better:
            self.best_step, self.best, self.best_loss = step, score, loss
        self.evaluations.append({"step": step, **scores})
        return better


class Trainer:
    """Trains models of one task on its examples; `config` is a resolved one."""

    def __init__(
        self, task: Task[Any], examples: Sequence[Example], config: TrainingConfig, accelerator: Accelerator
    ) -> None:
        self.task, self.examples, self.config, self.accelerator = task, examples, config, accelerator

    def train(
        self, model: torch.nn.Module, seed: int, evaluate: Callable[[torch.nn.Module], dict[str, float]] | None
    ) -> History:
        """Train `model` in place and leave it with its best weights by `evaluate` (the last ones without it).

        `evaluate` returns scores of which the task's metric decides, higher is better.
        """
        batches = self._batches(seed)
        evaluations = self.config.num_evaluations
        evaluation_steps = {round(len(batches) * (i + 1) / evaluations) for i in range(evaluations)} - {0}
        optimizer = make_optimizer(model, self.config)
        warmup = round(self.config.warmup_fraction * len(batches))
        schedule = get_linear_schedule_with_warmup(optimizer, warmup, len(batches))
        prepared, optimizer = self.accelerator.prepare(model, optimizer)
        set_seed(seed + 1000 * self.accelerator.process_index)  # dropout differs between processes
        history, best_weights = History(), None
        for step, batch in enumerate(tqdm(batches, desc=f"seed {seed}", disable=not sys.stderr.isatty()), 1):
            rate = schedule.get_last_lr()[-1]
            loss = self.step(prepared, optimizer, [self.examples[i] for i in batch])
            schedule.step()
            history.steps.append({"step": step, "loss": loss, "learning_rate": rate})
            if evaluate and step in evaluation_steps:
                if history.record(step, evaluate(model), self.task.metric):
                    best_weights = {k: v.detach().to("cpu", copy=True) for k, v in model.state_dict().items()}
                history.stopped_early = 0 < self.config.patience <= history.without_progress
                if history.stopped_early:
                    break
        if best_weights is not None:
            model.load_state_dict(best_weights)
        self.accelerator.free_memory()
        return history

    def _batches(self, seed: int) -> list[list[int]]:
        """The examples of each global batch of the whole run."""
        assert self.config.num_epochs, "the config is a resolved one"
        lengths = [example.length for example in self.examples]
        whole = self.task.compares_rows
        epochs = (
            epoch_batches(lengths, self.config.batch_size, seed, epoch, by_length=not whole, drop_last=whole)
            for epoch in range(self.config.num_epochs)
        )
        return [batch for batches in epochs for batch in batches]

    def step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: list[Example]) -> float:
        """One update from a global batch; returns its loss: the sum over all rows / their total weight."""
        processes = self.accelerator.num_processes
        if self.task.compares_rows:  # equal shares: up to processes - 1 rows are left out
            batch = batch[: len(batch) // processes * processes]
            if not batch:
                raise InputError(
                    f"a batch has fewer rows than the {processes} processes: add rows or use fewer of them"
                )
        total = sum(example.weight for example in batch)
        micro_batches = self._micro_batches(batch)
        model.train()
        value = torch.zeros((), device=self.accelerator.device)
        for number, examples in enumerate(micro_batches, 1):
            last = number == len(micro_batches)
            with torch.enable_grad(), nullcontext() if last else self.accelerator.no_sync(model):
                with self.accelerator.autocast():
                    loss = self.task.loss(model, examples) / total
                self.accelerator.backward(loss * processes)  # DDP averages over the processes, the sum is meant
            value += loss.detach()
        self.accelerator.clip_grad_norm_(model.parameters(), self.config.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        loss_of_batch = float(self.accelerator.reduce(value, "sum"))
        if not math.isfinite(loss_of_batch):
            rate = self.config.learning_rate
            raise InputError(f"the loss is {loss_of_batch}: training.learning_rate {rate} is too high for this model")
        return loss_of_batch

    def _micro_batches(self, batch: list[Example]) -> list[list[Example]]:
        """This process's share of a global batch, in forward passes; one pass where the loss compares the rows."""
        share = batch[self.accelerator.process_index :: self.accelerator.num_processes]
        if self.task.compares_rows:
            return [share]
        if not share:  # fewer rows than processes: take part in the reduction with a row that weighs nothing
            return [[replace(batch[0], weight=0.0)]]
        budget = token_budget(self.config.max_tokens_per_device, self.accelerator.device)
        indices = token_budget_batches([example.length for example in share], budget)
        return [[share[i] for i in each] for each in indices]


def make_optimizer(model: torch.nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW in groups of (depth, decays or not); a layer's rate is `layer_decay` times that of the layer above.

    Depth comes from the weights' names (`layer.3.`, `layers.3.`): embeddings 0, layer i at i + 1, the head on top at
    the full rate. Biases and norms (vectors) are not decayed.
    """
    assert config.learning_rate, "the config is a resolved one"
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    layers = {name: int(found[1]) + 1 for name, _ in parameters if (found := re.search(r"\blayers?\.(\d+)\.", name))}
    top = max(layers.values(), default=0) + 1
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in parameters:
        depth = layers.get(name, 0 if "embeddings." in name else top)
        decays = parameter.ndim > 1
        rate = config.learning_rate * config.layer_decay ** (top - depth)
        group = {"params": [], "lr": rate, "weight_decay": config.weight_decay if decays else 0.0}
        groups.setdefault((depth, decays), group)["params"].append(parameter)
    ordered = [groups[key] for key in sorted(groups)]  # the head last: its rate is the one that is logged
    return torch.optim.AdamW(ordered, betas=(0.9, 0.999), eps=1e-8, fused=True)
