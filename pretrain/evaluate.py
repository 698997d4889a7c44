"""Held-out loss with fixed masks: `python -m pretrain.evaluate RUN_OR_CHECKPOINT [key=value …]`.

The first `evaluation.rows` rows of the held-out sources, in file order, 15 % of their tokens masked by a fixed seed,
whatever training masks: the same tokens for every run, at every step, on any number of processes. Only sums are kept.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from configs import IGNORED_LABEL, InputError, load_config, run_command
from data import BatchLoader, DataConfig, MaskConfig, Plan
from encoder import MaskedLanguageModel, MaskedLoss, load_model
from pretrain.config import PretrainConfig
from pretrain.processes import Processes, find_processes
from pretrain.runs.folder import RunFolder
from pretrain.step import micro_batches

SEED = 0  # of the masks: the same for every run


def evaluation_data(config: PretrainConfig, world_size: int) -> DataConfig:
    """The held-out sources as a data configuration: in order, once, fixed masks.

    A step takes at least a row of every lane, so an empty step means that every lane is read to its end; windows are
    small, as nothing is gained here from full rows.
    """
    at_once = config.training.rows_per_device * world_size
    return config.data.model_copy(
        update={
            "sources": config.evaluation.sources, "mask": MaskConfig(), "shuffle": False, "num_epochs": 1,
            "num_workers": 0, "cache": "", "window_documents": 16,
            "rows_per_step": math.ceil(config.data.num_lanes / at_once) * at_once,
        }
    )  # fmt: skip


def evaluate(
    forward: Callable[[tuple[Any, ...]], MaskedLoss],
    config: PretrainConfig,
    tokenizer: str,
    processes: Processes,
    plans: list[Plan] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Mean loss (nat a masked token), perplexity, accuracy; the unigram entropy of the same masked tokens (nat).

    `forward` runs the model (in evaluation mode) on one micro-batch. Every rank calls it. Touches no random state.
    `plans` are those of the held-out sources, where they are known already. None where `stop` became true on any rank
    before the end.
    """
    device = processes.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    counts = torch.zeros(config.encoder.known_vocab_size, dtype=torch.int64, device=device)
    with torch.no_grad():
        for inputs in _held_out(config, tokenizer, processes, plans, stop):
            if inputs is None:
                return None
            result = forward(inputs)
            targets = inputs[3]
            sums += torch.stack([result.loss_sum.double(), result.num_correct.double(), sums.new_tensor(len(targets))])
            counts += torch.bincount(targets, minlength=len(counts))
    loss_sum, correct, masked = processes.sum_tensor(sums)
    if not masked:
        raise InputError("evaluation.sources hold no token to mask")
    unigram = torch.tensor(processes.sum_tensor(counts), dtype=torch.float64) / masked
    loss = loss_sum / masked
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "accuracy": correct / masked,
        "masked_tokens": int(masked),
        "unigram_entropy": -float(torch.special.xlogy(unigram, unigram).sum()),
    }


def _held_out(
    config: PretrainConfig,
    tokenizer: str,
    processes: Processes,
    plans: list[Plan] | None,
    stop: Callable[[], bool],
) -> Iterator[tuple[Any, ...] | None]:
    """This rank's micro-batches; as many on every rank, rows past `evaluation.rows` without a target; None: stopped."""
    data, rank, world_size = evaluation_data(config, processes.world_size), processes.rank, processes.world_size
    for batch in BatchLoader(data, tokenizer, SEED, rank=rank, world_size=world_size, plans=plans):
        tokens, stops = processes.sum([batch.tokens, int(stop())])
        if stops:
            yield None
        first = (batch.step - 1) * data.rows_per_step
        if not tokens or first >= config.evaluation.rows:
            return
        rows = first + rank + world_size * torch.arange(len(batch.labels))
        batch.labels[rows >= config.evaluation.rows] = IGNORED_LABEL
        count = len(batch.labels) // config.training.rows_per_device
        yield from micro_batches(batch, count, processes.device, label_smoothing=0.0)


def evaluate_model(
    model: MaskedLanguageModel, config: PretrainConfig, tokenizer: str, processes: Processes
) -> dict[str, Any]:
    """`evaluate` on a plain model; its training mode is restored."""
    training = model.training
    model.eval()
    try:
        result = evaluate(lambda inputs: model(*inputs), config, tokenizer, processes)
    finally:
        model.train(training)
    assert result is not None
    return result


def main(arguments: list[str]) -> None:
    """Print held-out loss, perplexity and accuracy of a run's newest checkpoint, or of one checkpoint, as JSON.

    usage: python -m pretrain.evaluate RUN_OR_CHECKPOINT [key=value …]
    """
    if not arguments:
        raise InputError("usage: python -m pretrain.evaluate RUN_OR_CHECKPOINT [key=value …]")
    run, checkpoint = RunFolder.locate(Path(arguments[0]))
    config = load_config(PretrainConfig, checkpoint / "config.yaml", arguments[1:])
    if not config.evaluation.sources:
        raise InputError(f"{checkpoint}: evaluation.sources is empty; give evaluation.sources='[{{path: …}}]'")
    device = find_processes().device
    result = evaluate_model(load_model(checkpoint, str(device)), config, str(run.tokenizer), Processes(0, 1, device))
    print(json.dumps({"checkpoint": str(checkpoint), **result}))


if __name__ == "__main__":
    run_command(main)
