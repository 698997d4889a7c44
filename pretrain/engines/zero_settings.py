"""DeepSpeed's own configuration: our defaults, over them the user's JSON file, over both what the run's keys say.

What the run says may stand in the file as well, with the same value or "auto"; another value is an InputError.
"""

import json
import sys
from pathlib import Path
from typing import Any

from configs import InputError
from pretrain.engines.base import EngineConfig, StepRows
from pretrain.optim.adamw import OptimizerConfig
from pretrain.processes import Processes

LARGEST_BUCKET = 5 * 10**8  # gradients; DeepSpeed's own default

# DeepSpeed's key: the run's key that says it. Where that is engine.name, the engine works with this value only.
OUR_KEYS = {
    "train_micro_batch_size_per_gpu": "training.rows_per_device",
    "train_batch_size": "data.rows_per_step",
    "gradient_accumulation_steps": "data.rows_per_step",
    "managed_gradient_accumulation": "engine.name",
    "gradient_clipping": "optimizer.clip_norm",
    "gradient_allreduce_op": "engine.name",
    "sequence_parallel_size": "engine.name",
    "zero_optimization.stage": "engine.zero_stage",
    "zero_optimization.offload_optimizer.device": "engine.offload_optimizer",
    "zero_optimization.cpu_offload": "engine.offload_optimizer",
    "zero_optimization.compute_grad_norm": "engine.name",
    "zero_optimization.round_robin_gradients": "engine.name",
    "zero_force_ds_cpu_optimizer": "engine.name",
    "bf16.enabled": "engine.precision",
    "bf16.check_grad_overflow": "engine.name",
    "bf16.bf16_master_weights_and_grads": "engine.name",
    "bfloat16.enabled": "engine.precision",
    "fp16.enabled": "engine.precision",
    "torch_autocast.enabled": "engine.precision",
    "optimizer.type": "optimizer.name",
    "optimizer.params.lr": "optimizer.learning_rate",
    "optimizer.params.betas": "optimizer.betas",
    "optimizer.params.eps": "optimizer.eps",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
}

Settings = dict[str, Any]


def deepspeed_settings(
    config: EngineConfig, optimizer: OptimizerConfig, rows: StepRows, processes: Processes, num_parameters: int
) -> Settings:
    """What `deepspeed.initialize` takes. Every rank calls it and gets the same; rank 0 alone reads the user's file.

    InputError for a file that cannot be read, contradicts the run, or is refused by DeepSpeed.
    """
    defaults, ours = _defaults(processes, num_parameters), _said_by_the_run(config, optimizer, rows)
    if not config.deepspeed_config:
        return merge(defaults, ours)
    theirs = _read_on_main(config.deepspeed_config, processes)
    compared = merge(ours, _only_compared(config, optimizer, rows, processes))
    _refuse_contradictions(theirs, compared, f"engine.deepspeed_config {config.deepspeed_config}")
    taken = {key: value for key, value in theirs.items() if key not in ("optimizer", "train_batch_size")}
    settings = merge(merge(defaults, taken), ours)
    _let_deepspeed_check(settings, config.deepspeed_config)
    return settings


def merge(under: Settings, over: Settings) -> Settings:
    """Both, section by section; where both have a value, that of `over`."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _defaults(processes: Processes, num_parameters: int) -> Settings:
    """What the user's file may say otherwise."""
    zero: Settings = {"reduce_bucket_size": min(LARGEST_BUCKET, num_parameters)}  # a bucket is allocated whole
    if processes.device.type == "cpu":
        # No streams to overlap on. On CUDA it is DeepSpeed's own default: on at stage 3, where it also prefetches
        # weights; off at stage 2, where races between streams were mended as late as 2026 (7965 and 8061 of its
        # tracker); stage 1 cannot, since the gradients are reduced in `step` only.
        zero["overlap_comm"] = False
    return {
        "zero_optimization": zero,
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "steps_per_print": sys.maxsize,
    }


def _said_by_the_run(config: EngineConfig, optimizer: OptimizerConfig, rows: StepRows) -> Settings:
    """What DeepSpeed is told whatever the user's file says."""
    zero: Settings = {
        "stage": config.zero_stage or 1,
        "compute_grad_norm": True,
        "round_robin_gradients": False,  # DeepSpeed's own map of a parameter to its parts (0.19) is wrong with it
        "offload_optimizer": {"device": "cpu" if config.offload_optimizer else "none"},
    }
    return {
        "train_micro_batch_size_per_gpu": rows.per_device,
        "gradient_accumulation_steps": 1,  # it does not count micro-batches
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimizer.clip_norm,
        "gradient_allreduce_op": "mean",
        "sequence_parallel_size": 1,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW updates on CPU as well, and nothing is compiled for it
        "bf16": {
            "enabled": config.precision == "bf16",
            "check_grad_overflow": True,
            "bf16_master_weights_and_grads": False,
        },
        "fp16": {"enabled": False},
        "torch_autocast": {"enabled": False},
    }


def _only_compared(config: EngineConfig, optimizer: OptimizerConfig, rows: StepRows, processes: Processes) -> Settings:
    """What the run says of keys that DeepSpeed is not given, or given otherwise."""
    return {
        "train_batch_size": rows.per_step,
        "gradient_accumulation_steps": rows.per_step // (rows.per_device * processes.world_size),
        "zero_optimization": {"cpu_offload": config.offload_optimizer},
        "bfloat16": {"enabled": config.precision == "bf16"},
        "optimizer": {
            "type": optimizer.name,
            "params": {
                "lr": optimizer.learning_rate,
                "betas": list(optimizer.betas),
                "eps": optimizer.eps,
                "weight_decay": optimizer.weight_decay,
            },
        },
    }


def _read_on_main(path: str, processes: Processes) -> Settings:
    """The file's settings without those that are "auto", on all ranks; a refusal is raised on all of them too."""
    theirs, failure = processes.from_main(_read(Path(path)) if processes.is_main else None)
    if failure:
        raise InputError(f"engine.deepspeed_config {path}: {failure}")
    settings: Settings = theirs
    return settings


def _read(path: Path) -> tuple[Settings, str]:
    """(settings, nothing), or (nothing, why there are none)."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, f"{error.strerror or error}; it is read at every start"
    except ValueError as error:  # not UTF-8, or not JSON
        return {}, f"is not JSON: {error}"
    if not isinstance(found, dict):
        return {}, "is not a JSON object of DeepSpeed's keys"
    return _without_auto(found), ""


def _without_auto(settings: Settings) -> Settings:
    """Without values that are "auto", which counts as not given, and without sections of which nothing is left."""
    kept = {key: _without_auto(value) if isinstance(value, dict) else value for key, value in settings.items()}
    return {key: value for key, value in kept.items() if value not in ("auto", {})}


def _refuse_contradictions(theirs: Settings, ours: Settings, place: str) -> None:
    for key, our_key in OUR_KEYS.items():
        their_value, our_value = _value(theirs, key, place), _value(ours, key, place)
        if their_value is not None and not _agree(their_value, our_value):
            says = "the engine works only with" if our_key == "engine.name" else f"{our_key} says"
            raise InputError(
                f"{place}: {key} is {json.dumps(their_value)}, but {says} {json.dumps(our_value)}; leave it out"
            )
    if "scheduler" in theirs:
        raise InputError(f"{place}: scheduler is given, but the section schedule says the rates; leave it out")
    if ours["zero_optimization"]["stage"] == 1 and _value(theirs, "zero_optimization.overlap_comm", place):
        raise InputError(f"{place}: zero_optimization.overlap_comm is true, which needs engine.zero_stage 2 or 3")


def _value(settings: Settings, key: str, place: str) -> Any:
    """The value of a dotted key, None where it is not given."""
    value: Any = settings
    for number, name in enumerate(parts := key.split(".")):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InputError(f"{place}: {'.'.join(parts[:number])} is {json.dumps(value)}, not a section of keys")
        value = value.get(name)
    return value


def _agree(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, str) and isinstance(ours, str):
        return theirs.lower() == ours.lower()
    return theirs == ours and isinstance(theirs, bool) == isinstance(ours, bool)


def _let_deepspeed_check(settings: Settings, path: str) -> None:
    """InputError for what DeepSpeed refuses: all of it is the file's, as it takes our own settings."""
    from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError

    try:
        DeepSpeedConfig(settings)
    except (DeepSpeedConfigError, AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"engine.deepspeed_config {path}: DeepSpeed refuses it: {reason}") from error
