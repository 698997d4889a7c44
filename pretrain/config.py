"""`PretrainConfig` composes the sections, each defined beside the thing it configures, and checks across them."""

from typing import Literal

from pydantic import Field, model_validator

from configs import Config, InputError
from data import DataConfig, SourceConfig, check_process_count
from encoder import EncoderConfig
from pretrain.checkpoint.format import CheckpointConfig
from pretrain.engines.base import EngineConfig
from pretrain.monitor.tracking import LoggingConfig
from pretrain.optim.adamw import OptimizerConfig
from pretrain.optim.schedule import ScheduleConfig, decay_start
from pretrain.phases import Phase, PhaseConfig, cut_into_phases


class TrainingConfig(Config):
    """The steps of the run."""

    num_steps: int = Field(description="optimizer steps of the whole run", ge=1)
    rows_per_device: int = Field(8, ge=1, description="rows of a micro-batch on one process")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="mass taken from the right token and spread evenly")
    max_skipped_steps: int = Field(10, ge=1, description="skipped steps in a row that stop the run")
    spike_sigma: float = Field(0.0, ge=0, description="a loss so many deviations above its trend is a spike; 0: off")
    skip_spikes: bool = Field(False, description="do not apply the update of a spike")
    profile_steps: list[int] = Field([], description="steps that PyTorch Profiler traces into run_dir/profile")


class EvaluationConfig(Config):
    """Held-out loss with fixed masks: 15 %, the same for every run, whatever training masks."""

    every: int = Field(0, ge=0, description="steps between evaluations; 0: never during training")
    sources: list[SourceConfig] = Field([], description="held-out text, as data.sources")
    rows: int = Field(256, ge=1, description="rows evaluated, from the start of the sources")

    @model_validator(mode="after")
    def _needs_sources(self) -> "EvaluationConfig":
        if self.every and not self.sources:
            raise InputError("evaluation.every needs evaluation.sources")
        return self


class PretrainConfig(Config):
    """A pretraining run."""

    run_dir: str = Field(description="folder of the run: configuration, checkpoints, metrics")
    seed: int = Field(0, ge=0, description="of the weights, the order, the masks and the dropout")
    tokenizer: str = Field(description="folder of a tokenizer that AutoTokenizer loads")
    start_from: str | None = Field(
        None, description="published folder, checkpoint, or run (its newest checkpoint) whose weights start the run"
    )
    start_from_state: Literal["weights", "optimizer", "all"] = Field(
        "weights",
        description="of a checkpoint in start_from: the weights; with them the optimizer's moments; or all, with the "
        "step and the position in the data, to branch off a run",
    )
    data: DataConfig
    encoder: EncoderConfig
    training: TrainingConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    engine: EngineConfig = EngineConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    logging: LoggingConfig = LoggingConfig()
    phases: list[PhaseConfig] = Field([], description="parts of the run in which some keys differ; all steps in all")

    @model_validator(mode="after")
    def _check_across(self) -> "PretrainConfig":
        rows, per_device = self.data.rows_per_step, self.training.rows_per_device
        if rows % per_device:
            raise InputError(f"data.rows_per_step {rows} is not a multiple of training.rows_per_device {per_device}")
        if self.encoder.max_length is not None and self.encoder.max_length < self.data.sequence_length:
            raise InputError(
                f"data.sequence_length {self.data.sequence_length} is above "
                f"encoder.max_length {self.encoder.max_length}"
            )
        if self.engine.name == "deepspeed" and self.optimizer.name == "stable_adamw":
            raise InputError("optimizer.name: stable_adamw needs whole tensors; with engine.name: deepspeed use adamw")
        if self.training.skip_spikes and not self.training.spike_sigma:
            raise InputError("training.skip_spikes needs training.spike_sigma")
        if self.start_from_state != "weights" and not self.start_from:
            raise InputError("start_from_state needs start_from, a checkpoint or a run")
        self.cut_into_phases()
        return self

    def cut_into_phases(self) -> "list[Phase[PretrainConfig]]":
        """The run's phases in order; one where none are given."""
        return cut_into_phases(self, self.phases, self.training.num_steps)

    def last_step_before_decay(self) -> int | None:
        """The last step from which a longer run can branch off without a trace of the decay (wsd only)."""
        return decay_start(self.schedule, self.training.num_steps) if self.schedule.name == "wsd" else None

    def check_processes(self, world_size: int) -> None:
        """InputError when the run cannot be cut over `world_size` processes; lists what can."""
        for phase in self.cut_into_phases() if self.phases else []:
            phase.config.check_processes(world_size)
        check_process_count(world_size, self.data.num_lanes, self.data.rows_per_step, self.training.rows_per_device)
