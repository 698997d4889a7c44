"""What a resume may change, decided here alone: how a run is executed, never what it computes."""

from typing import Any, NamedTuple

from configs import InputError
from data import EXECUTION_KEYS
from pretrain.config import PretrainConfig
from pretrain.optim.schedule import decay_start

# A key, or a section with all of its keys. That other sources and another tokenizer folder hold the same text and the
# same entries is the data state's to check.
CHANGEABLE_AT_RESUME = (
    "run_dir", "tokenizer", "start_from", "start_from_state", "engine", "checkpoint", "evaluation", "logging",
    "training.rows_per_device", "training.profile_steps", "training.max_skipped_steps",
    "training.spike_sigma", "training.skip_spikes", "encoder.gradient_checkpointing", "encoder.exportable",
    "data.sources", *(f"data.{key}" for key in EXECUTION_KEYS),
)  # fmt: skip
RULES = (
    "A resume may change " + ", ".join(CHANGEABLE_AT_RESUME) + "; the sources and the tokenizer may lie elsewhere, "
    "their contents may not differ. training.num_steps (and the last phase's num_steps) may grow while "
    "schedule.name is wsd and its decay has not begun. Anything else makes another run: give it another run_dir, and "
    "let it go on from a checkpoint of this one with start_from and start_from_state."
)


class Difference(NamedTuple):
    """A key in which two configurations differ, with both values."""

    key: str
    first: Any
    second: Any


def first_difference(first: PretrainConfig, second: PretrainConfig, ignored: tuple[str, ...] = ()) -> Difference | None:
    """The first key, in alphabetical order, that differs and is neither in `ignored` nor in a section of it."""
    before, after = _flat(first.model_dump(mode="json")), _flat(second.model_dump(mode="json"))
    for key in sorted(before.keys() | after.keys()):
        is_ignored = any(key == name or key.startswith(name + ".") for name in ignored)
        if before.get(key) != after.get(key) and not is_ignored:
            return Difference(key, before.get(key), after.get(key))
    return None


def refuse_changes(started: PretrainConfig, config: PretrainConfig, newest_step: int) -> None:
    """InputError, naming the key, when `config` is another run than the one that was `started` in its folder.

    `newest_step` is that of the run's newest checkpoint.
    """
    before, after = started.training.num_steps, config.training.num_steps
    is_longer = after > before and started.schedule.name == "wsd"
    if is_longer:
        decay = decay_start(started.schedule, before)
        if newest_step > decay:
            raise InputError(
                f"training.num_steps was {before} when the run in {config.run_dir} was started and is {after} now: it "
                f"may grow only before the decay of the learning rate, which began at step {decay}, and the newest "
                f"checkpoint is of step {newest_step}. To go on from before the decay, take another run_dir with "
                f"start_from: {config.run_dir}/checkpoints/step_… (`python -m pretrain.runs {config.run_dir}` lists "
                "them) and start_from_state: all"
            )
        started = _with_num_steps(started, config)
    difference = first_difference(started, config, ignored=CHANGEABLE_AT_RESUME)
    if difference:
        raise InputError(
            f"{config.run_dir} belongs to another run: '{difference.key}' was {difference.first!r} when that run was "
            f"started and is {difference.second!r} now; choose another run_dir, or give the old value "
            "(`python -m pretrain --help` says what a resume may change)"
        )


def _with_num_steps(started: PretrainConfig, config: PretrainConfig) -> PretrainConfig:
    """`started` as long as `config`, its last phase as long as that of `config`."""
    training = started.training.model_copy(update={"num_steps": config.training.num_steps})
    phases = list(started.phases)
    if phases and config.phases:
        phases[-1] = phases[-1].model_copy(update={"num_steps": config.phases[-1].num_steps})
    return started.model_copy(update={"training": training, "phases": phases})


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return flat
