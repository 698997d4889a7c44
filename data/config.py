"""What a user can set about the data: sources, shape of a batch, masks, order, policies for bad input."""

from typing import Any, Literal

from pydantic import Field, model_validator

from configs import Config, InputError

MOST_LANES = 24  # by default: 1, 2, 3, 4, 6, 8, 12, 24 processes
SkipPolicy = Literal["error", "skip"]
ReplacePolicy = Literal["error", "skip", "replace"]


class SourceConfig(Config):
    """One source of documents; give `path` or `hub`."""

    path: str = Field(
        "", description="file, folder or glob of files, local or of any fsspec protocol (https://; s3:// with s3fs)"
    )
    hub: str = Field("", description="name of a Hugging Face data set, or the path of a local one, read as a stream")
    name: str = Field("", description="configuration of the hub data set, if it has several")
    split: str = Field("train", description="split of the hub data set")
    revision: str = Field("", description="revision of the hub data set; the newest, pinned in the state, if empty")
    format: Literal["text", "jsonl", "parquet", "arrow"] = Field(
        "text", description="text: a line is a document; .gz and .zst files are decompressed while read"
    )
    text_column: str = Field("text", description="column (key) of the text; not used by format text")
    weight: float = Field(1.0, gt=0, description="share of the tokens, relative to the other sources' weights")

    @model_validator(mode="after")
    def _path_or_hub(self) -> "SourceConfig":
        if bool(self.path) == bool(self.hub):
            raise InputError("a source needs either 'path' or 'hub'")
        return self

    @property
    def title(self) -> str:
        """What messages and reports call the source."""
        return self.path or self.hub


class MaskConfig(Config):
    """Which tokens are hidden and by what."""

    rate: float = Field(0.15, ge=0, le=1, description="share of the ordinary tokens that is chosen")
    replace: tuple[float, float, float] = Field(
        (0.8, 0.1, 0.1), description="shares of the chosen tokens that become MASK, a random token, or stay"
    )
    unit: Literal["token", "word", "chinese_word", "span"] = Field(
        "token", description="what is chosen at once: chinese_word adds jieba's words, span takes 1-10 words in a row"
    )

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> "MaskConfig":
        if min(self.replace) < 0 or abs(sum(self.replace) - 1) > 1e-6:
            raise InputError(f"'replace' must be three shares that sum to 1, not {list(self.replace)}")
        return self


class BadInputConfig(Config):
    """Policy for each kind of bad input: error, skip (counted), or replace where something can stand in."""

    json_line: SkipPolicy = Field("error", description="a line that is not a JSON object")
    column: ReplacePolicy = Field(
        "error", description="text column missing, null or not text; replace writes numbers and booleans as text"
    )
    encoding: ReplacePolicy = Field("error", description="invalid UTF-8; replace puts U+FFFD in its place")
    empty: SkipPolicy = Field("skip", description="a document without a token")
    too_long: ReplacePolicy = Field(
        "replace", description="longer than max_document_bytes; replace cuts it into several documents"
    )
    broken_file: SkipPolicy = Field(
        "error", description="truncated or corrupt .gz, .zst or parquet; skip continues with the next unit"
    )
    empty_glob: SkipPolicy = Field("error", description="a path that matches no file, or empty files only")


class DataConfig(Config):
    """Where text comes from and what a batch looks like."""

    sources: list[SourceConfig] = Field(min_length=1, description="the sources, mixed by weight in tokens")
    sequence_length: int = Field(512, ge=4, description="tokens a row, CLS and SEP of its pieces included")
    rows_per_step: int = Field(256, ge=1, description="rows of the global batch of one step")
    num_lanes: int = Field(
        MOST_LANES,
        ge=1,
        description="logical streams, shared evenly by the processes; by default at most rows_per_step",
    )
    window_documents: int = Field(256, ge=1, description="documents tokenised and packed together, per lane")
    open_units: int = Field(4, ge=1, description="units of a source that a lane reads in turn (1 without shuffle)")
    shuffle: bool = Field(True, description="permute units, interleave them, permute rows inside a window")
    num_epochs: int | None = Field(None, ge=1, description="passes over each source; endless if not given")
    num_workers: int = Field(0, ge=0, description="loader processes per rank; 0 works in the training process")
    prefetch_steps: int = Field(4, ge=1, description="steps that each worker prepares ahead")
    max_document_bytes: int = Field(1 << 20, ge=16, description="bytes of UTF-8; see bad_input.too_long")
    cache: str = Field("", description="folder written by `python -m data cache`, read instead of the text")
    mask: MaskConfig = Field(default_factory=MaskConfig, description="masks")
    bad_input: BadInputConfig = Field(default_factory=BadInputConfig, description="policies for bad input")

    @model_validator(mode="before")
    @classmethod
    def _no_more_lanes_than_rows(cls, values: Any) -> Any:
        rows = values.get("rows_per_step") if isinstance(values, dict) else None
        if isinstance(rows, int) and values.get("num_lanes") is None:
            return {**values, "num_lanes": max(1, min(MOST_LANES, rows))}
        return values

    @model_validator(mode="after")
    def _every_lane_in_a_step(self) -> "DataConfig":
        if self.num_epochs and self.rows_per_step < self.num_lanes:
            raise InputError(
                f"with 'num_epochs', 'rows_per_step' ({self.rows_per_step}) must be at least 'num_lanes' "
                f"({self.num_lanes}): the run ends with a step without rows, so each step must ask every lane"
            )
        return self

    @property
    def cuts_long_documents(self) -> bool:
        """Whether a document longer than `max_document_bytes` is cut into several, rather than refused or skipped."""
        return self.bad_input.too_long == "replace"


class DataRun(Config):
    """The sections of a run's file that the data commands read."""

    seed: int = Field(0, description="seed of order and masks")
    tokenizer: str = Field(description="folder of the tokenizer")
    data: DataConfig = Field(description="the data")


def allowed_process_counts(num_lanes: int, rows_per_step: int, rows_per_device: int = 1) -> list[int]:
    """The numbers of processes that can share lanes and rows evenly; `rows_per_device` is the size of a micro-batch."""
    return [n for n in range(1, num_lanes + 1) if num_lanes % n == rows_per_step % (n * rows_per_device) == 0]


def check_process_count(num_processes: int, num_lanes: int, rows_per_step: int, rows_per_device: int = 1) -> None:
    """Raise InputError that lists the allowed numbers of processes, unless `num_processes` is one of them."""
    allowed = allowed_process_counts(num_lanes, rows_per_step, rows_per_device)
    if num_processes not in allowed:
        divisor = f" / training.rows_per_device={rows_per_device}" if rows_per_device > 1 else ""
        raise InputError(
            f"{num_processes} processes do not divide data.num_lanes={num_lanes} and data.rows_per_step="
            f"{rows_per_step}{divisor}; allowed: {', '.join(map(str, allowed)) or 'none'}"
        )
