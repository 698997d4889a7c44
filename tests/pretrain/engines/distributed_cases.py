"""Run by torchrun in 2 processes, once: many cases in one process group. Rank 0 writes one JSON object.

Arguments: a folder, a number of steps, and `every_case`, `compiled`, `reference` or a checkpoint to go on from.

Every engine takes the same synthetic batches: packed rows with masks, one micro-batch of which has no masked token.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch.distributed import distributed_c10d

from encoder import EncoderConfig, MaskedLanguageModel, load_model
from pretrain.checkpoint.restore import restore_optimizer
from pretrain.checkpoint.save import save_checkpoint
from pretrain.engines import build_engine
from pretrain.engines.base import Engine, EngineConfig, StepRows
from pretrain.monitor.clock import Clock
from pretrain.monitor.diagnostics import UpdateMeter, layer_diagnostics, whole_model
from pretrain.optim.adamw import OptimizerConfig
from pretrain.processes import find_processes, limit_groups, start_process_group, stop_process_group
from pretrain.step import StepSettings, train_step

ENGINES = {
    "ddp": EngineConfig(),
    "zero1": EngineConfig(name="deepspeed", zero_stage=1),
    "zero2": EngineConfig(name="deepspeed", zero_stage=2),
    "zero3": EngineConfig(name="deepspeed", zero_stage=3),
}
ROWS, T, V = 8, 24, 128
torch.set_num_threads(1)
ME = find_processes()
OUT, STEPS, WHAT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


@dataclass
class Rows:
    """What `train_step` reads of a `data.Batch`."""

    step: int
    input_ids: Tensor
    labels: Tensor
    piece_lengths: list[list[int]]
    documents: list[list[str]] = field(default_factory=list)
    hash: int = 7

    @property
    def tokens(self) -> int:
        return sum(map(sum, self.piece_lengths))


def batch(step: int) -> Rows:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(5, V, (ROWS, T), generator=generator)
    labels = torch.where(torch.rand((ROWS, T), generator=generator) < 0.15, ids, -100)
    labels[1] = -100  # with one row a micro-batch, one of them has no target
    lengths = [[5 + row, T - 5 - row - row % 3] for row in range(ROWS)]
    mine = slice(ME.rank, None, ME.world_size)
    return Rows(step, ids[mine], labels[mine], lengths[mine])


def model(dropout: float = 0.1, layers: int = 2, **changes: Any) -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel(
        EncoderConfig(
            num_layers=layers, hidden_size=32, num_heads=1, vocab_size=V, max_length=T, embedding_dropout=dropout,
            hidden_dropout=dropout, attention_dropout=dropout, **changes,
        )
    )  # fmt: skip


def engine_of(
    name: str, start: MaskedLanguageModel, optimizer: OptimizerConfig | None = None, **changes: Any
) -> Engine:
    config = ENGINES[name].model_copy(update=changes)
    return build_engine(config, start.to(ME.device), optimizer or OptimizerConfig(), ME, StepRows(2, ROWS))


def train(
    engine: Engine, steps: Iterable[int], rows: int = 2, rate: float = 3e-3, discard: bool = False
) -> list[float | None]:
    losses = []
    for step in steps:
        settings = StepSettings(learning_rate=rate, rows_per_device=rows, seed=0)
        result = train_step(engine, batch(step), ME, Clock(), settings, discard=lambda loss: discard)
        losses.append(result["loss"] if result["applied"] else None)
    return losses


def save(engine: Engine, step: int, name: str) -> Path:
    failure = save_checkpoint(OUT / name, step, engine, {"encoder.json": engine.model.config.model_dump_json()}, ME)
    assert failure is None, failure
    return OUT / name / f"step_{step:08d}"


def restored(name: str, folder: Path, updates: int, **changes: Any) -> Engine:
    start = model()
    start.load_state_dict(load_model(folder).state_dict())
    engine = engine_of(name, start, **changes)
    restore_optimizer(folder, engine, updates)
    return engine


def resumed(name: str, folder: Path, updates: int, steps: range, **changes: Any) -> list[float | None]:
    return train(restored(name, folder, updates, **changes), steps)


def poisoned(name: str, precision: str) -> dict[str, Any]:
    """A NaN on one rank in step 3: nobody may apply it, and the run goes on."""
    engine = engine_of(name, model(), precision=precision)
    before = train(engine, range(1, 3))
    forward = engine.forward

    def nan_on_rank_1(inputs: Any, last: bool) -> Any:
        loss = forward(inputs, last)
        return loss._replace(loss_sum=loss.loss_sum * (torch.nan if ME.rank == ME.world_size - 1 else 1.0))

    weights = save(engine, 2, f"nan_{name}_{precision}_before")
    engine.forward = nan_on_rank_1  # type: ignore[method-assign]
    skipped = train(engine, range(3, 4))
    engine.forward = forward  # type: ignore[method-assign]
    after = save(engine, 3, f"nan_{name}_{precision}_after")
    return {
        "before": before,
        "skipped": skipped,
        "then": train(engine, range(4, 6)),
        "folders": [str(weights), str(after)],
    }


def discarded(name: str) -> dict[str, Any]:
    """Step 3 is taken for a spike: it leaves no trace, as if it had never been."""
    engine = engine_of(name, model())
    train(engine, range(1, 3))
    before = save(engine, 2, f"spike_{name}_before")
    skipped = train(engine, range(3, 4), discard=True)
    after = save(engine, 3, f"spike_{name}_after")
    never = engine_of(name, model())
    train(never, range(1, 3))
    return {
        "skipped": skipped,
        "folders": [str(before), str(after)],
        "then": train(engine, range(4, 7)),
        "never": train(never, range(4, 7)),
    }


def compiled(name: str) -> dict[str, Any]:
    """The same steps plain and compiled, without dropout: inductor draws its own."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    losses = {}
    for way in ("plain", "compiled"):
        engine = engine_of(name, model(dropout=0.0, layers=1), compile=way == "compiled")
        losses[way] = train(engine, range(1, 6), rows=4, rate=1e-3)
    return {**losses, "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}


def details(name: str) -> dict[str, float]:
    """The closer look at step 3."""
    engine = engine_of(name, model())
    train(engine, range(1, 3))
    meter = UpdateMeter(engine)
    train(engine, range(3, 4))
    found = meter.read(OptimizerConfig().betas[0], ME)
    whole = whole_model(engine, ME)
    return found | (layer_diagnostics(whole, batch(3)) if whole else {})


def group_limits() -> list[float]:
    """Seconds until each process group gives up, DeepSpeed's own among them."""
    limit_groups(60)
    groups = distributed_c10d._world.pg_map
    return [group._get_backend(ME.device).options._timeout.total_seconds() for group in groups]


def every_case() -> dict[str, Any]:
    cases = ("layouts", "engines", "resumed", "nan", "bf16", "spikes", "details")
    result: dict[str, Any] = {case: {} for case in cases}
    for name in ENGINES:
        for rows in (1, 2, 4):
            engine = engine_of(name, model(dropout=0.0))
            losses = train(engine, range(1, 3), rows=rows, rate=1e-3)
            result["layouts"][f"{name}_{rows}"] = {
                "losses": losses,
                "folder": str(save(engine, 2, f"{name}_rows_{rows}")),
            }
    folders = {}
    for name in ENGINES:
        engine = engine_of(name, model())
        losses = train(engine, range(1, 4))
        folders[name] = save(engine, 3, name)
        result["engines"][name] = {"losses": losses + train(engine, range(4, STEPS + 1)), "folder": str(folders[name])}
    for name in ENGINES:
        for writer in ENGINES:
            result["resumed"][f"{writer}_{name}"] = resumed(name, folders[writer], 3, range(4, min(STEPS, 43) + 1))
        result["nan"][name] = poisoned(name, "fp32")
        if ME.world_size > 1:  # slow on CPUs
            result["bf16"][name] = poisoned(name, "bf16")
        result["spikes"][name] = discarded(name)
        result["details"][name] = details(name)
    return result | {"group_limits": group_limits()}


def main() -> dict[str, Any]:
    if WHAT == "compiled":
        return {name: compiled(name) for name in ENGINES}
    if WHAT == "every_case":
        return every_case()
    if WHAT == "reference":
        engine = engine_of("ddp", model())
        train(engine, range(1, 4))
        return {"folder": str(save(engine, 3, "reference")), "losses": train(engine, range(4, 44))}
    # the checkpoint of step 3 that other processes have written
    return {name: resumed(name, Path(WHAT), 3, range(4, 44)) for name in ENGINES}


def run(cases: Callable[[], dict[str, Any]]) -> None:
    """Run `cases` in a process group, and write what they return."""
    start_process_group(ME, 120, always=True)
    logging.disable(logging.WARNING)
    found = cases()
    if ME.is_main:
        (OUT / "result.json").write_text(json.dumps(found))
    stop_process_group()


if __name__ == "__main__":
    run(main)
