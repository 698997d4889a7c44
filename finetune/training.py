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
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed, tqdm
from pydantic import Field
from transformers import get_linear_schedule_with_warmup

from configs import Config, InputError
from finetune.reading.batching import epoch_batches, token_budget, token_budget_batches
from finetune.tasks.protocol import Example, Task


class TrainingConfig(Config):
    """How to train; None means a rule that fits the model or the data, written to results.json as used."""

    batch_size: int = Field(default=32, gt=0, description="rows a step, over all processes")
    max_tokens_per_device: int | None = Field(
        default=None, gt=0, description="tokens of a micro-batch, padding included; default: 1024 on a CPU, 16384 else"
    )
    num_epochs: int | None = Field(
        default=None, gt=0, description="default: 3, more for small sets (about 300 steps, at most 20)"
    )
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="peak; default by width: 5e-5 x 768 / width, at most 5e-4; 3e-5 from width 1024",
    )
    layer_decay: float = Field(
        default=0.9, gt=0, le=1, description="factor of the learning rate from a layer to the one below"
    )
    warmup_fraction: float = Field(default=0.1, ge=0, le=1, description="share of the steps")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's, not on biases and norms")
    clip_norm: float = Field(default=1.0, gt=0, description="largest norm of the gradient")
    num_evaluations: int = Field(default=10, gt=0, description="how often the run is scored on dev")
    patience: int = Field(default=5, ge=0, description="stop after so many dev scores without a better one; 0: never")

    def resolved(self, num_rows: int, hidden_size: int) -> "TrainingConfig":
        """The same with the None values chosen by the size of the data and of the model."""
        steps = math.ceil(num_rows / self.batch_size)
        epochs = self.num_epochs or max(3, min(20, math.ceil(300 / steps)))
        rate = self.learning_rate or (3e-5 if hidden_size >= 1024 else min(5e-4, 5e-5 * 768 / hidden_size))
        return self.model_copy(update={"num_epochs": epochs, "learning_rate": rate})


@dataclass
class History:
    """What a run did: `steps` [{step, loss, learning_rate}], `evaluations` [{step, …scores}], the best step."""

    steps: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best_step: int = 0
    best: float | None = None
    best_loss: float = math.inf
    lowest_loss: float = math.inf
    without_progress: int = 0
    stopped_early: bool = False

    def told(self) -> dict[str, Any]:
        """What `history.json` holds."""
        return {name: getattr(self, name) for name in ("steps", "evaluations", "best_step", "best", "stopped_early")}

    def record(self, step: int, scores: dict[str, Any], metric: str) -> bool:
        """Add an evaluation; True when its weights are the best so far.

        Of equal scores the lower dev loss is better, where there is one. A lower loss also counts as progress: a run
        that still sits on one class while its loss falls is not stopped.
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


def train(
    task: Task,
    model: torch.nn.Module,
    examples: Sequence[Example],
    config: TrainingConfig,
    accelerator: Accelerator,
    seed: int,
    evaluate: Callable[[torch.nn.Module], dict[str, float]] | None,
) -> History:
    """Train `model` in place and leave it with its best weights by `evaluate` (the last ones without it).

    `config` is a resolved one; `evaluate` returns scores of which `task.metric` decides, higher is better.
    """
    assert config.num_epochs, "resolve the config first"
    plan = [
        batch
        for epoch in range(config.num_epochs)
        for batch in epoch_batches(
            [example.length for example in examples],
            config.batch_size,
            seed,
            epoch,
            by_length=not task.contrastive,
            drop_last=task.contrastive,
        )
    ]
    optimizer = make_optimizer(model, config)
    schedule = get_linear_schedule_with_warmup(optimizer, round(config.warmup_fraction * len(plan)), len(plan))
    prepared, optimizer = accelerator.prepare(model, optimizer)
    set_seed(seed + 1000 * accelerator.process_index)  # dropout differs between processes
    due = {round(len(plan) * (i + 1) / config.num_evaluations) for i in range(config.num_evaluations)} - {0}
    history, best_weights = History(), None
    for step, batch in enumerate(tqdm(plan, desc=f"seed {seed}", disable=not sys.stderr.isatty()), 1):
        rate = schedule.get_last_lr()[-1]
        loss = train_step(task, prepared, [examples[i] for i in batch], optimizer, config, accelerator)
        schedule.step()
        history.steps.append({"step": step, "loss": loss, "learning_rate": rate})
        if evaluate and step in due:
            scores = evaluate(model)
            if history.record(step, scores, task.metric):
                best_weights = {k: v.detach().to("cpu", copy=True) for k, v in model.state_dict().items()}
            history.stopped_early = 0 < config.patience <= history.without_progress
            if history.stopped_early:
                break
    if best_weights is not None:
        model.load_state_dict(best_weights)
    accelerator.free_memory()
    return history


def train_step(
    task: Task,
    model: torch.nn.Module,
    batch: list[Example],
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
    accelerator: Accelerator,
) -> float:
    """One update from a global batch; returns its loss: the sum over all rows / their total weight."""
    processes, rank = accelerator.num_processes, accelerator.process_index
    if task.contrastive:  # one forward pass of equal shares: up to processes - 1 rows are left out
        batch = batch[: len(batch) // processes * processes]
        if not batch:
            raise InputError(f"a batch has fewer rows than the {processes} processes: add rows or take fewer processes")
    total = sum(task.weight(example) for example in batch)
    share = batch[rank::processes]
    if task.contrastive:
        micro_batches = [share]
    elif share:
        budget = token_budget(config.max_tokens_per_device, accelerator.device)
        cuts = token_budget_batches([example.length for example in share], budget)
        micro_batches = [[share[i] for i in cut] for cut in cuts]
    else:  # fewer rows than processes: take part in the reduction with a row that weighs nothing
        micro_batches = [[batch[0].weightless()]]
    model.train()
    value = torch.zeros((), device=accelerator.device)
    for number, examples in enumerate(micro_batches, 1):
        last = number == len(micro_batches)
        with torch.enable_grad(), accelerator.no_sync(model) if not last else nullcontext():
            with accelerator.autocast():
                loss = task.loss(model, examples) / total
            accelerator.backward(loss * processes)  # DDP averages over the processes, the sum is meant
        value += loss.detach()
    accelerator.clip_grad_norm_(model.parameters(), config.clip_norm)
    optimizer.step()
    optimizer.zero_grad()
    result = float(accelerator.reduce(value, "sum"))
    if not math.isfinite(result):
        raise InputError(f"the loss is {result}: the learning rate {config.learning_rate} is too high for this model")
    return result


def make_optimizer(model: torch.nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW in groups of (depth, decays or not); a layer's rate is `layer_decay` times that of the layer above.

    Depth comes from the weights' names (`layer.3.`, `layers.3.`): embeddings 0, layer i at i + 1, the head on top at
    the full rate. Biases and norms (vectors) are not decayed.
    """
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    layers = {name: int(found[1]) + 1 for name, _ in parameters if (found := re.search(r"\blayers?\.(\d+)\.", name))}
    top = max(layers.values(), default=0) + 1
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in parameters:
        depth = layers.get(name, 0 if "embeddings." in name else top)
        decays = parameter.ndim > 1
        group = groups.setdefault(
            (depth, decays),
            {
                "params": [],
                "lr": config.learning_rate * config.layer_decay ** (top - depth) if config.learning_rate else 0.0,
                "weight_decay": config.weight_decay if decays else 0.0,
            },
        )
        group["params"].append(parameter)
    ordered = [groups[key] for key in sorted(groups)]  # the head last: its rate is the one that is logged
    return torch.optim.AdamW(ordered, betas=(0.9, 0.999), eps=1e-8, fused=True)
