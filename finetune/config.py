"""What `python -m finetune` can be told. Defaults are stable: several seeds, warm-up, early stop, best by dev."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator, model_validator

from configs import Config, InputError
from finetune.accelerator import Precision
from finetune.reading.columns import Columns
from finetune.training import TrainingConfig

Baseline = Literal["majority", "word_vectors", "from_scratch"]
Pooling = Literal["cls", "mean", "max", "first_last"]


class ClassificationConfig(Config):
    """Classification only."""

    labels: list[str] = Field(
        default=[], description="class names in the order of their ids; empty: those of the training file"
    )
    class_weights: Literal["none", "balanced"] = Field(
        default="none", description="balanced: weight a class by 1 / frequency"
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="share of the target spread over all classes")


class TaggingConfig(Config):
    """Tagging only."""

    labels: list[str] = Field(
        default=[], description="tags, those too that only scored files have; empty: those of the training file"
    )


class MatchingConfig(Config):
    """Sentence matching only."""

    temperature: float = Field(default=0.05, gt=0, description="divides the cosines of the contrastive loss")
    dropout: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="probability; default: the encoder's own, 0.1 where that is 0 (unsupervised)",
    )
    scored_loss: Literal["cosent", "cosine"] = Field(default="cosent", description="loss of pairs with scores")


class AnsweringConfig(Config):
    """Extractive question answering only."""

    stride: int = Field(default=128, gt=0, description="tokens by which the window over a long context moves")
    max_answer_length: int = Field(default=30, gt=0, description="tokens")


class FinetuneConfig(Config):
    """One task from one encoder's folder: a model folder and its scores."""

    task: Literal["classification", "matching", "tagging", "answering"] = Field(description="what to learn")
    model: str = Field(description="folder (or hub name) of an encoder that plain AutoModel loads")
    run_dir: str = Field(description="folder for results.json, status.json and model/")
    train: list[str] = Field(description="training files (csv, tsv, jsonl, parquet, .gz; or hub:NAME:SPLIT)")
    dev: list[str] = Field(default=[], description="files that choose the best checkpoint; empty: the last one is kept")
    test: list[str] = Field(
        default=[], description="files scored once, with the chosen checkpoint; matching scores each apart too"
    )
    columns: Columns = Field(
        default={}, description="role: column, or columns where files differ (text, text_a, text_b, label, …)"
    )
    seeds: list[int] = Field(default=[0, 1, 2], min_length=1, description="one training run each")
    baselines: list[Baseline] = Field(
        default=[], description="scores to report beside: majority, word_vectors (a linear model), from_scratch"
    )
    pooling: Pooling | None = Field(
        default=None, description="cls, mean, max or first_last; default: mean, or what the head has"
    )
    max_length: int | None = Field(
        default=None, gt=2, description="tokens a text (or pair); default: what the model takes, <= 512"
    )
    metric: str | None = Field(
        default=None, description="the score that chooses and is reported; default: the task's own"
    )
    precision: Precision = Field(default="fp32", description="bf16: autocast, weights stay fp32")
    training: TrainingConfig = TrainingConfig()
    classification: ClassificationConfig = ClassificationConfig()
    tagging: TaggingConfig = TaggingConfig()
    matching: MatchingConfig = MatchingConfig()
    answering: AnsweringConfig = AnsweringConfig()

    @field_validator("train", "dev", "test", mode="before")
    @classmethod
    def _one_file_or_many(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value or []

    @model_validator(mode="after")
    def _fits_together(self) -> "FinetuneConfig":
        if self.task in ("matching", "answering") and "majority" in self.baselines:
            raise InputError(f"baselines: {self.task} has no majority class; allowed: word_vectors, from_scratch")
        if self.task == "answering" and "word_vectors" in self.baselines:
            raise InputError("baselines: word vectors answer no questions; allowed: from_scratch")
        if self.baselines and not (self.dev or self.test):
            raise InputError("baselines: nothing to score them on; give dev or test")
        if len(set(self.seeds)) != len(self.seeds):
            raise InputError("seeds: each seed once")
        if not self.train:
            raise InputError("train: at least one file")
        return self


def chosen_metric(config: FinetuneConfig, default: str, allowed: Sequence[str]) -> str:
    """The configured metric or the default; InputError for one that the task does not compute."""
    if config.metric is not None and config.metric not in allowed:
        raise InputError(f"metric: {config.task} has no '{config.metric}'; allowed: {', '.join(allowed)}")
    return config.metric or default
