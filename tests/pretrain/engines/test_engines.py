"""Every engine gives the same update, however the batch is cut; one checkpoint serves them all.

The cases run in two real gloo processes (`distributed_cases.py`) and once more in one.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain_runs import run_cases
from safetensors.torch import load_file

from pretrain.optim.adamw import OptimizerConfig, build_optimizer
from pretrain.processes import GRACE_SECONDS

Result = dict[str, Any]
ENGINES = ["ddp", "zero1", "zero2", "zero3"]


def cases(folder: Path, processes: int, steps: int, what: str = "every_case") -> Result:
    return run_cases(Path(__file__).parent / "distributed_cases.py", folder, processes, str(steps), what)


LENGTHS = [7, pytest.param(100, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=LENGTHS)
def steps(request: Any) -> int:
    """Optimizer steps that are compared: seven, and the full hundred in the slow suite."""
    return request.param


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, steps: int) -> Result:
    return cases(tmp_path_factory.mktemp("two"), 2, steps)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, steps: int) -> Result:
    return cases(tmp_path_factory.mktemp("one"), 1, steps)


def tensors(folder: str) -> dict[str, torch.Tensor]:
    path = Path(folder)
    return load_file(path / "model.safetensors") | load_file(path / "optimizer.safetensors")


def difference(a: str, b: str, prefix: str = "") -> float:
    left, right = tensors(a), tensors(b)
    assert left.keys() == right.keys()
    return max(float((left[k] - right[k]).abs().max()) for k in left if k.startswith(prefix))


def test_r17_any_cut_of_the_same_rows_gives_the_same_gradient(one: Result, two: Result) -> None:
    reference = one["layouts"]["ddp_4"]
    for result in (one, two):
        for name, layout in result["layouts"].items():
            assert layout["losses"] == pytest.approx(reference["losses"], abs=1e-6), name
            # the first moment is a fixed share of the clipped gradients of two steps
            assert difference(layout["folder"], reference["folder"], "exp_avg.") <= 1e-6, name
            assert difference(layout["folder"], reference["folder"], "encoder.") <= 1e-6, name


def test_r17_example_of_two_micro_batches() -> None:
    sums, counts = torch.tensor([3.0, 5.0]), torch.tensor([3, 1])
    assert float((sums / counts.sum()).sum()) == 2.0  # not the mean of the means, 3.0


def test_r02_a_micro_batch_without_target_adds_nothing(two: Result) -> None:
    for layout in two["layouts"].values():  # row 1 has no target and is a micro-batch of its own in *_1
        assert all(loss is not None and math.isfinite(loss) for loss in layout["losses"])
        assert all(bool(t.isfinite().all()) for t in tensors(layout["folder"]).values())


def test_the_steps_of_every_engine_stay_together(one: Result, two: Result, steps: int) -> None:
    reference = one["engines"]["ddp"]["losses"]
    assert len(reference) == steps
    for result in (one, two):
        for name in ENGINES:
            assert result["engines"][name]["losses"] == pytest.approx(reference, abs=1e-4), name


def test_every_writer_gives_the_same_file(one: Result, two: Result) -> None:
    reference = one["engines"]["ddp"]["folder"]
    for result in (one, two):
        for name in ENGINES:
            assert difference(result["engines"][name]["folder"], reference) <= 1e-6, name


def test_r15_checkpoints_of_sharded_weights_are_whole(two: Result) -> None:
    weights = load_file(Path(two["engines"]["zero3"]["folder"]) / "model.safetensors")
    reference = load_file(Path(two["engines"]["ddp"]["folder"]) / "model.safetensors")
    assert all(tensor.numel() for tensor in weights.values())
    assert sum(t.numel() for t in weights.values()) == sum(t.numel() for t in reference.values())


def test_resume_is_bit_equal_on_the_same_engine_and_close_on_any_other(one: Result, two: Result) -> None:
    for result in (one, two):
        for name, losses in result["resumed"].items():
            writer, reader = name.split("_")
            straight = result["engines"][reader]["losses"][3 : 3 + len(losses)]
            if writer == reader:
                assert losses == straight, name
            assert losses == pytest.approx(straight, abs=1e-5), name


@pytest.mark.parametrize("precision", ["nan", "bf16"])
def test_a_nan_on_one_rank_is_applied_by_none(precision: str, one: Result, two: Result) -> None:
    for name, case in (*one[precision].items(), *two[precision].items()):
        assert case["skipped"] == [None], name
        assert difference(*case["folders"]) == 0.0, name
        assert all(loss is not None and math.isfinite(loss) for loss in case["before"] + case["then"]), name


def test_a_discarded_step_leaves_no_trace_on_any_engine(one: Result, two: Result) -> None:
    for name, case in (*one["spikes"].items(), *two["spikes"].items()):
        assert case["skipped"] == [None], name
        assert difference(*case["folders"]) == 0.0, name
        assert case["then"] == case["never"], name  # no rest of its gradients either
        assert None not in case["then"], name


def test_the_closer_look_is_the_same_on_every_engine(one: Result, two: Result) -> None:
    reference = one["details"]["ddp"]
    kinds = ["activation_rms", "attention_entropy", "gradient_norm", "update_to_weight"]
    assert sorted({key.split("/")[0] for key in reference}) == kinds
    for name, found in (*one["details"].items(), *two["details"].items()):
        assert found == pytest.approx(reference, abs=1e-5), name


def test_every_process_group_has_our_time_out(two: Result) -> None:
    assert len(two["group_limits"]) > 1  # DeepSpeed's own among them
    assert set(two["group_limits"]) == {60.0 + GRACE_SECONDS}


@pytest.mark.slow
def test_compiled_steps_are_the_plain_ones_on_every_engine(tmp_path: Path) -> None:
    for name, case in cases(tmp_path, 2, 0, "compiled").items():
        assert case["graphs"] > 0, name
        assert case["compiled"] == pytest.approx(case["plain"], abs=1e-5), name


@pytest.mark.slow
def test_every_engine_on_1_2_and_4_processes_goes_on_from_one_checkpoint(tmp_path: Path) -> None:
    one = cases(tmp_path, 1, 0, "reference")
    assert len(one["losses"]) == 40
    for processes in (1, 2, 4):
        for name, losses in cases(tmp_path, processes, 0, one["folder"]).items():
            assert losses == pytest.approx(one["losses"], abs=1e-5), (processes, name)


def test_r19_bf16_keeps_fp32_weights_and_moments(two: Result) -> None:
    for case in two["bf16"].values():
        for name, tensor in tensors(case["folders"][0]).items():
            assert tensor.dtype == torch.float32
            if name == "encoder.layers.0.attention.qkv.weight":
                assert not torch.equal(tensor, tensor.bfloat16().float()), "the weights were rounded to bf16"


def test_r19_small_updates_move_fp32_weights() -> None:
    module = torch.nn.Linear(1000, 1, bias=False)
    torch.nn.init.ones_(module.weight)
    optimizer = build_optimizer(module, OptimizerConfig(learning_rate=6e-4, weight_decay=0.0))
    for _ in range(100):
        module.weight.grad = torch.ones_like(module.weight)
        optimizer.step()
    assert module.weight.mean().item() == pytest.approx(0.940, abs=1e-3)
