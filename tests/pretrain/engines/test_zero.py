"""DeepSpeed's engines: sums in fp32, offload, buffers, a user's file, and the private names that they rely on.

The cases run in two real gloo processes (`zero_cases.py`).
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain_runs import run_cases
from safetensors.torch import load_file

from pretrain.engines.zero import RELIED_ON

STAGES = ["zero1", "zero2", "zero3"]
Result = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_cases(Path(__file__).parent / "zero_cases.py", tmp_path_factory.mktemp("zero"), 2, "0", "")


def tensors(folder: str) -> dict[str, torch.Tensor]:
    return load_file(f"{folder}/model.safetensors") | load_file(f"{folder}/optimizer.safetensors")


def test_bf16_gradients_are_summed_and_reduced_in_fp32(found: Result) -> None:
    for name, case in found["summed"].items():  # sums in bf16 lose 11 % of the gradient
        assert case["gradient"] <= 1e-5, name
        assert case["weight"] <= 1e-6, name  # from master weights that were never rounded


def test_the_shards_are_what_deepspeeds_public_functions_say(found: Result) -> None:
    for case in (*found["summed"].values(), *found["user_file"].values()):
        assert case["public"] == 0.0


@pytest.mark.parametrize("stage", STAGES)
def test_checkpoints_with_and_without_offload_are_interchangeable(found: Result, stage: str) -> None:
    case = found["offloaded"][stage]
    assert case["offloaded"] == pytest.approx(case["straight"], abs=1e-6)
    plain, loaded_offloaded, offloaded, loaded_plain, _ = map(tensors, case["folders"])
    for written, again in ((plain, loaded_offloaded), (offloaded, loaded_plain)):
        assert written.keys() == again.keys()
        assert all(torch.equal(written[key], again[key]) for key in written)


@pytest.mark.parametrize("stage", STAGES)
def test_a_resume_under_bf16_is_bit_equal(found: Result, stage: str) -> None:
    assert found["resumed"][stage]["resumed"] == found["resumed"][stage]["straight"]


def test_bf16_leaves_buffers_alone(found: Result) -> None:
    losses = found["positions"]["losses"]
    for name in losses:
        assert found["positions"]["buffers"][name] == ["torch.float32"], name
        assert losses[name] == pytest.approx(losses["ddp_fp32"], abs=2e-3), name
    assert losses["zero1_bf16"] == pytest.approx(losses["ddp_bf16"], abs=2e-3)


@pytest.mark.parametrize("stage", STAGES)
def test_a_users_file_is_taken_and_changes_no_loss(found: Result, stage: str) -> None:
    case = found["user_file"][stage]
    assert case["taken"] == [4_000, True]
    assert case["losses"] == pytest.approx(case["without"], abs=1e-6)


def test_an_engine_names_the_private_name_that_deepspeed_lacks(found: Result) -> None:
    """Each engine of these cases has looked for all names of RELIED_ON, so this DeepSpeed has them."""
    for stage, complaints in zip((1, 2, 3), found["private"].values(), strict=True):
        expected = [names.owner for names in RELIED_ON if stage in names.stages]
        assert len(complaints) == len(expected)
        for owner, complaint in zip(expected, complaints, strict=True):
            assert f"has no {owner}.no_longer_there, which ZeRO stage {stage} needs" in complaint


def test_deepspeeds_private_table_still_has_the_op_that_we_switch_off() -> None:
    command = (
        "import deepspeed, deepspeed.ops; from pretrain.engines.zero import skip_cpu_communication_build as skip;"
        "assert 'deepspeed_shm_comm' in deepspeed.ops.__compatible_ops__; skip();"
        "from deepspeed.ops import __compatible_ops__ as table; assert table['deepspeed_shm_comm'] is False"
    )
    subprocess.run([sys.executable, "-c", command], cwd=Path(__file__).parents[3], check=True)
