"""DeepSpeed's settings: what the run says wins, a user's file may say the rest, and a contradiction is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from configs import InputError
from configs.loader import validate
from pretrain.engines.base import EngineConfig, StepRows
from pretrain.engines.zero_settings import OUR_KEYS, Settings, deepspeed_settings
from pretrain.optim.adamw import OptimizerConfig
from pretrain.processes import Processes


def settings(theirs: Any = None, path: Path | None = None, device: str = "cpu", **engine: Any) -> Settings:
    """Of a run with 8 rows a step in micro-batches of 2 over 2 processes, of which this is the first."""
    if path and theirs is not None:
        path.write_text(theirs if isinstance(theirs, str) else json.dumps(theirs))
    config = EngineConfig(name="deepspeed", deepspeed_config=str(path) if path else None, **engine)
    processes = OneOfTwo(0, 2, torch.device(device))
    return deepspeed_settings(config, OptimizerConfig(), StepRows(2, 8), processes, 1000)


class OneOfTwo(Processes):
    """Rank 0, which need not tell the other."""

    def from_main(self, value: Any) -> Any:
        return value


def test_without_a_file_sums_are_fp32_and_the_engine_is_the_runs() -> None:
    found = settings(zero_stage=2, precision="bf16", offload_optimizer=True)
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}
    assert found["communication_data_type"] == "fp32"
    assert found["zero_optimization"]["stage"] == 2
    assert found["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert found["bf16"]["enabled"] is True
    assert found["train_micro_batch_size_per_gpu"] == 2


def test_deepspeed_chooses_where_reductions_overlap_on_cuda_and_nothing_does_on_cpu() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    assert settings()["zero_optimization"]["overlap_comm"] is False
    for stage, overlaps in ((1, False), (2, False), (3, True)):
        zero = settings(device="cuda", zero_stage=stage)["zero_optimization"]
        assert DeepSpeedZeroConfig(**zero).overlap_comm is overlaps


def test_a_file_says_what_the_run_does_not(tmp_path: Path) -> None:
    theirs = {
        "zero_optimization": {
            "stage": 2, "overlap_comm": True, "reduce_bucket_size": 77, "offload_optimizer": {"pin_memory": False},
        },
        "communication_data_type": "bf16", "comms_logger": {"enabled": True},
    }  # fmt: skip
    found = settings(theirs, tmp_path / "user.json", zero_stage=2)
    assert found["zero_optimization"]["overlap_comm"] is True
    assert found["zero_optimization"]["reduce_bucket_size"] == 77
    assert found["zero_optimization"]["offload_optimizer"] == {"pin_memory": False, "device": "none"}
    assert found["communication_data_type"] == "bf16"
    assert found["comms_logger"] == {"enabled": True}
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}


def test_values_that_agree_and_auto_pass(tmp_path: Path) -> None:
    theirs = {
        "train_batch_size": 8, "gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": 1, "bf16": {"enabled": "auto"}, "fp16": {"enabled": False},
        "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "none"}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.98], "eps": "auto"}},
        "scheduler": {"type": "auto", "params": {"warmup_num_steps": "auto"}},
    }  # fmt: skip
    assert settings(theirs, tmp_path / "user.json") == settings()


CONTRADICTIONS = [
    ({"train_micro_batch_size_per_gpu": 4}, 'train_micro_batch_size_per_gpu is 4, but training.rows_per_device says 2'),
    ({"train_batch_size": 16}, "train_batch_size is 16, but data.rows_per_step says 8"),
    ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4, but data.rows_per_step says 2"),
    ({"gradient_clipping": 0.5}, "gradient_clipping is 0.5, but optimizer.clip_norm says 1.0"),
    ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage is 3, but engine.zero_stage says 1"),
    (
        {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
        'zero_optimization.offload_optimizer.device is "cpu", but engine.offload_optimizer says "none"',
    ),
    (
        {"zero_optimization": {"round_robin_gradients": True}},
        "zero_optimization.round_robin_gradients is true, but the engine works only with false",
    ),
    ({"bf16": {"enabled": True}}, "bf16.enabled is true, but engine.precision says false"),
    ({"fp16": {"enabled": True}}, "fp16.enabled is true, but engine.precision says false"),
    ({"fp16": {"enabled": 0}}, "fp16.enabled is 0, but engine.precision says false"),
    ({"optimizer": {"type": "Lamb"}}, 'optimizer.type is "Lamb", but optimizer.name says "adamw"'),
    ({"optimizer": {"params": {"lr": 0.1}}}, "optimizer.params.lr is 0.1, but optimizer.learning_rate says 0.001"),
    ({"scheduler": {"type": "WarmupLR"}}, "scheduler is given, but the section schedule says the rates"),
    ({"zero_optimization": {"overlap_comm": True}}, "zero_optimization.overlap_comm is true, which needs"),
    ({"zero_optimization": True}, "zero_optimization is true, not a section of keys"),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "message"), CONTRADICTIONS)
def test_a_contradiction_names_their_key_and_ours(theirs: Settings, message: str, tmp_path: Path) -> None:
    path = tmp_path / "user.json"
    with pytest.raises(InputError) as caught:
        settings(theirs, path)
    assert f"engine.deepspeed_config {path}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory"),
        ("{'zero': 1}", "is not JSON"),
        ("[1, 2]", "is not a JSON object"),
        ('{"zero_optimization": {"overlap_coms": true}}', "DeepSpeed refuses it: .*overlap_coms"),
        ('{"communication_data_type": "fp8"}', "DeepSpeed refuses it: Invalid communication_data_type"),
        ('{"elasticity": {"enabled": false}}', "DeepSpeed refuses it: Elastic training has been removed"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(text: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        settings(text, tmp_path / "user.json")
    assert "\n" not in str(caught.value)


def test_every_key_that_is_compared_has_a_value(tmp_path: Path) -> None:
    for key in OUR_KEYS:
        theirs: Any = "another value"
        for name in reversed(key.split(".")):
            theirs = {name: theirs}
        with pytest.raises(InputError, match=f'{key} is "another value", but .* (says|only with) (?!null)'):
            settings(theirs, tmp_path / "user.json")


@pytest.mark.parametrize("key", ["zero_stage", "offload_optimizer", "deepspeed_config"])
def test_deepspeeds_keys_need_deepspeed(key: str) -> None:
    value = {"zero_stage": 2, "offload_optimizer": True, "deepspeed_config": "user.json"}[key]
    with pytest.raises(InputError, match=f"engine.{key} needs engine.name: deepspeed"):
        validate(EngineConfig, {key: value}, "engine")
