"""Run by torchrun in 2 processes, once: what only DeepSpeed's engines have, as `distributed_cases.py`, whose batches
and steps these are."""

import json
from typing import Any

import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from distributed_cases import ME, OUT, ROWS, T, V, engine_of, model, restored, resumed, run, save, train
from torch import Tensor

from encoder import Documents
from pretrain.checkpoint.save import gather
from pretrain.engines import zero
from pretrain.engines.base import MOMENTS, Engine
from pretrain.optim.adamw import OptimizerConfig

STAGES = ("zero1", "zero2", "zero3")
# One gradient and 64 of a 512th of it: each of these is less than half a unit in the last place of a bf16 sum.
SCALES = [1.0] + [2.0**-9] * 64
WHOLE_UPDATE = OptimizerConfig(clip_norm=1e9, eps=1e-2)  # unclipped, and of a size that depends on the gradient's
RATE = 0.1
USER_FILE: dict[str, Any] = {
    "zero_optimization": {
        "stage": "auto", "reduce_bucket_size": 4_000, "allgather_bucket_size": 2_000, "parameter_alignment": True,
        "stage3_param_persistence_threshold": 0, "sub_group_size": 5_000,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.01}},
    "train_batch_size": ROWS, "wall_clock_breakdown": True,
}  # fmt: skip


def one_document(rank: int) -> tuple[Any, ...]:
    ids = torch.randint(5, V, (T,), generator=torch.Generator().manual_seed(rank))
    masked = torch.arange(0, T, 3)
    return ids, Documents.from_lengths([T]), masked, ids[masked]


def reference_gradients() -> dict[str, Tensor]:
    """Means over the ranks, summed in float64 over the micro-batches, of the module's bf16 gradients."""
    total: dict[str, Tensor] = {}
    for rank in range(ME.world_size):
        module = model(dropout=0.0, layers=1).bfloat16()
        module(*one_document(rank)).loss_sum.backward()
        weight = sum(SCALES) * SCALES[-1] ** rank / ME.world_size
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            total[name] = total.get(name, 0.0) + parameter.grad.double() * weight
    return total


def summed(name: str, offload: bool) -> dict[str, float]:
    """One update from many tiny gradients, under bf16, against float64."""
    reference, start = reference_gradients(), model(dropout=0.0, layers=1)
    weights = {key: parameter.detach().clone().double() for key, parameter in start.named_parameters()}
    engine = engine_of(name, start, WHOLE_UPDATE, precision="bf16", offload_optimizer=offload)
    for scale in SCALES:  # the last rank's are a 512th of the others': the reduction has to keep those too
        loss = engine.forward(one_document(ME.rank), last=False).loss_sum
        engine.backward(loss * scale * SCALES[-1] ** ME.rank)
    _, applied = engine.step(RATE)
    assert applied
    result = {"gradient": 0.0, "weight": 0.0, "public": difference_from_public(engine)}
    for shard in engine.shards():
        wanted = reference[shard.name]
        moment = gather(shard, shard.moments["exp_avg"], ME).double().view(shard.shape)
        off = (moment / (1 - WHOLE_UPDATE.betas[0]) - wanted).norm() / wanted.norm()
        decay = WHOLE_UPDATE.weight_decay if len(shard.shape) >= 2 else 0.0
        update = weights[shard.name] * (1 - RATE * decay) - RATE * wanted / (wanted.abs() + WHOLE_UPDATE.eps)
        weight = gather(shard, shard.weight, ME).double().view(shard.shape)
        result["gradient"] = max(result["gradient"], float(off))
        result["weight"] = max(result["weight"], float((weight - update).abs().max()))
    return result


def difference_from_public(engine: Engine) -> float:
    """Between the shards of all ranks and what DeepSpeed's public functions say of them."""
    largest = 0.0
    parameters = dict(engine.model.named_parameters())
    for shard in engine.shards():
        public = {key: safe_get_full_optimizer_state(parameters[shard.name], key) for key in MOMENTS}
        pairs = [(shard.weight, safe_get_full_fp32_param(parameters[shard.name]))]
        pairs += [(part, public[key]) for key, part in shard.moments.items()]
        for part, whole in pairs:
            there = whole.view(-1)[shard.start : shard.start + part.numel()]
            assert there.shape == part.shape
            largest = max(largest, float((part - there).abs().max()) if part.numel() else 0.0)
    return max(ME.gather(largest))


def offloaded(name: str) -> dict[str, Any]:
    """Steps 1-3 without offload, 4-5 with it, then without again; each start is saved again at once."""
    engine = engine_of(name, model())
    train(engine, range(1, 4))
    folders = [save(engine, 3, f"{name}_plain")]
    straight = train(engine, range(4, 6))
    losses = []
    for step, offload in ((3, True), (5, False)):
        engine = restored(name, folders[-1], step, offload_optimizer=offload)
        folders.append(save(engine, step, f"{name}_again_{step}"))
        losses += train(engine, range(step + 1, step + 3))
        folders.append(save(engine, step + 2, f"{name}_on_{step}"))
    return {"straight": straight, "offloaded": losses[:2], "folders": list(map(str, folders))}


def resumed_under_bf16(name: str) -> dict[str, Any]:
    engine = engine_of(name, model(), precision="bf16")
    train(engine, range(1, 4))
    folder = save(engine, 3, f"{name}_bf16")
    straight = train(engine, range(4, 6))
    return {"straight": straight, "resumed": resumed(name, folder, 3, range(4, 6), precision="bf16")}


def positions() -> dict[str, Any]:
    """Sinusoidal positions under bf16: DeepSpeed's bf16 module beside autocast, and beside fp32."""
    losses, buffers = {}, {}
    for name, precision in (("ddp", "fp32"), ("ddp", "bf16"), ("zero1", "bf16"), ("zero3", "bf16")):
        engine = engine_of(name, model(position="sinusoidal"), precision=precision)
        losses[f"{name}_{precision}"] = train(engine, range(1, 6))
        buffers[f"{name}_{precision}"] = [str(buffer.dtype) for buffer in engine.model.buffers()]
    return {"losses": losses, "buffers": buffers}


def user_file(name: str) -> dict[str, Any]:
    """A file of the user's own, which DeepSpeed gets, and which changes no loss."""
    path = OUT / f"{name}.json"
    if ME.is_main:
        theirs = {**USER_FILE, "zero_optimization": {**USER_FILE["zero_optimization"], "overlap_comm": name != "zero1"}}
        path.write_text(json.dumps(theirs))
    engine = engine_of(name, model(), deepspeed_config=str(path))
    losses = train(engine, range(1, 4))
    taken = [engine.engine.zero_reduce_bucket_size(), engine.engine.wall_clock_breakdown()]  # type: ignore[attr-defined]
    difference = difference_from_public(engine)
    without = train(engine_of(name, model()), range(1, 4))
    return {"losses": losses, "without": without, "taken": taken, "public": difference}


def private(name: str) -> list[str]:
    """What the engine says when a name of one of `RELIED_ON` is gone."""
    engine = engine_of(name, model(layers=1))
    complaints, relied_on = [], zero.RELIED_ON
    for names in relied_on:
        zero.RELIED_ON = (names._replace(names=("no_longer_there",)),)
        try:
            engine._check_private_names()  # type: ignore[attr-defined]
        except RuntimeError as error:
            complaints.append(str(error))
    zero.RELIED_ON = relied_on
    return complaints


def every_zero_case() -> dict[str, Any]:
    return {
        "private": {name: private(name) for name in STAGES},
        "summed": {f"{name}_{offload}": summed(name, offload) for name in STAGES for offload in (False, True)},
        "offloaded": {name: offloaded(name) for name in STAGES},
        "resumed": {name: resumed_under_bf16(name) for name in STAGES},
        "positions": positions(),
        "user_file": {name: user_file(name) for name in STAGES},
    }


if __name__ == "__main__":
    run(every_zero_case)
