"""The keys of `python -m finetune` and of the commands that use a finished folder.

The defaults are chosen so that small sets train well without tuning: several seeds, warm-up, early stopping, and the
weights with the best dev score. This module imports no other of the package.
"""

import math
from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from configs import Config, InputError

Baseline = Literal["majority", "word_vectors", "from_scratch"]
Pooling = Literal["cls", "mean", "max", "first_last"]
Precision = Literal["fp32", "bf16"]
TaskName = Literal["classification", "matching", "tagging", "answering"]

ColumnMapping = dict[str, str | list[str]]  # the column, or columns where files differ, of each role

WITHOUT_POOLING = ("tagging", "answering")  # tasks whose head reads the vector of every token
IMPOSSIBLE_BASELINES = {"matching": ("majority",), "answering": ("majority", "word_vectors")}


class ClassificationConfig(Config):
    """Classification only."""

    labels: list[str] = Field(default=[], description="class names by id; empty: those of the training files")
    class_weights: Literal["none", "balanced"] = Field(default="none", description="balanced: 1 / frequency")
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="share of the target spread over all classes")


class TaggingConfig(Config):
    """Tagging only."""

    labels: list[str] = Field(
        default=[], description="tags, including those that only scored files have; empty: those of the training files"
    )


class MatchingConfig(Config):
    """Sentence matching only."""

    temperature: float = Field(default=0.05, gt=0, description="divides the cosines of the contrastive loss")
    dropout: float | None = Field(
        default=None, ge=0, lt=1, description="default: the encoder's own, 0.1 where that is 0 (unsupervised)"
    )
    scored_loss: Literal["cosent", "cosine"] = Field(default="cosent", description="loss of pairs with scores")


class AnsweringConfig(Config):
    """Extractive question answering only."""

    stride: int = Field(default=128, gt=0, description="tokens by which the window over a long context moves")
    max_answer_length: int = Field(default=30, gt=0, description="tokens")


class TrainingConfig(Config):
    """How to train; None means a rule that fits the model or the data, written to results.json as used."""

    batch_size: int = Field(default=32, gt=0, description="rows of a step, over all processes")
    max_tokens_per_device: int | None = Field(
        default=None, gt=0, description="tokens of a micro-batch, padding included; default: 1024 on a CPU, 16384 else"
    )
    num_epochs: int | None = Field(default=None, gt=0, description="default: about 300 steps, 3 to 20 epochs")
    learning_rate: float | None = Field(
        default=None, gt=0, description="peak; default: 5e-5 x 768 / width, at most 5e-4; 3e-5 from width 1024"
    )
    layer_decay: float = Field(default=0.9, gt=0, le=1, description="a layer's learning rate / that of the one above")
    warmup_fraction: float = Field(default=0.1, ge=0, le=1, description="share of the steps")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's, not on biases and norms")
    clip_norm: float = Field(default=1.0, gt=0, description="largest norm of the gradient")
    num_evaluations: int = Field(default=10, gt=0, description="how often the run is scored on dev")
    patience: int = Field(default=5, ge=0, description="stop after this many dev scores without a better one; 0: never")

    def resolved(self, num_rows: int, hidden_size: int) -> "TrainingConfig":
        """The same with the None values chosen by the size of the data and of the model."""
        steps = math.ceil(num_rows / self.batch_size)
        epochs = self.num_epochs or max(3, min(20, math.ceil(300 / steps)))
        rate = self.learning_rate or (3e-5 if hidden_size >= 1024 else min(5e-4, 5e-5 * 768 / hidden_size))
        return self.model_copy(update={"num_epochs": epochs, "learning_rate": rate})


class FinetuneConfig(Config):
    """One task on one encoder's folder: trained models and their scores."""

    task: TaskName = Field(description="what to learn")
    model: str = Field(description="folder (or hub name) of an encoder that plain AutoModel loads")
    run_dir: str = Field(description="folder for results.json, status.json and model/")
    train: list[str] = Field(description="training files (csv, tsv, jsonl, parquet, .gz; or hub:NAME:SPLIT)")
    dev: list[str] = Field(default=[], description="files that choose the best checkpoint; empty: the last one is kept")
    test: list[str] = Field(
        default=[], description="files scored once, with the chosen checkpoint; with several also each by itself"
    )
    columns: ColumnMapping = Field(
        default={}, description="role: column, or columns where files differ (text, text_a, text_b, label, …)"
    )
    seeds: list[int] = Field(default=[0, 1, 2], min_length=1, description="one training run per seed")
    baselines: list[Baseline] = Field(
        default=[], description="scores for comparison: majority, word_vectors (a linear model), from_scratch"
    )
    pooling: Pooling | None = Field(
        default=None, description="cls, mean, max or first_last; default: the folder's own, else mean or the head's"
    )
    max_length: int | None = Field(
        default=None, gt=2, description="tokens of a text (or pair); default: what the model takes, <= 512"
    )
    metric: str | None = Field(default=None, description="score that chooses and is reported; default: the task's own")
    precision: Precision = Field(default="fp32", description="bf16: autocast, weights stay fp32")
    training: TrainingConfig = TrainingConfig()
    classification: ClassificationConfig = ClassificationConfig()
    tagging: TaggingConfig = TaggingConfig()
    matching: MatchingConfig = MatchingConfig()
    answering: AnsweringConfig = AnsweringConfig()

    @property
    def scored_files(self) -> list[str]:
        """The files whose scores are reported: test, or dev where there is no test."""
        return self.test or self.dev

    @field_validator("train", "dev", "test", mode="before")
    @classmethod
    def _one_file_or_many(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value or []

    @model_validator(mode="after")
    def _fits_together(self) -> "FinetuneConfig":
        check_pooling(self.task, self.pooling)
        impossible = IMPOSSIBLE_BASELINES.get(self.task, ())
        for baseline in self.baselines:
            if baseline in impossible:
                allowed = ", ".join(name for name in get_args(Baseline) if name not in impossible)
                raise InputError(f"baselines: {self.task} has no '{baseline}'; allowed: {allowed}")
        if self.baselines and not self.scored_files:
            raise InputError("baselines: nothing to score them on; give dev or test")
        if len(set(self.seeds)) != len(self.seeds):
            raise InputError("seeds: each seed once")
        if not self.train:
            raise InputError("train: at least one file")
        return self


class ServingConfig(Config):
    """Options of `predict`, `embed` and `compress`, given as key=value."""

    columns: ColumnMapping = Field(default={}, description="role: column, where the names differ")
    max_tokens_per_device: int | None = Field(
        default=None, gt=0, description="tokens of a batch, padding included; default: 1024 on a CPU, 16384 else"
    )
    max_length: int | None = Field(default=None, gt=2, description="tokens of a text; default: the folder's own")
    pooling: Pooling | None = Field(default=None, description="of embed; default: the folder's own")
    precision: Precision = Field(default="fp32", description="bf16: autocast")


def check_pooling(task: TaskName | None, pooling: Pooling | None) -> None:
    """InputError when a pooling is asked of a task that has none."""
    if pooling is not None and task in WITHOUT_POOLING:
        raise InputError(f"pooling: {task} has none, its head reads every token; leave the key out")
