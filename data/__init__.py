"""Streamed, packed, masked batches: order and masks are pure functions of the seed and the position."""

from data.config import DataConfig, DataRun, MaskConfig, SourceConfig, allowed_process_counts, check_process_count
from data.hashing import format_hash
from data.sources.unit import Plan
from data.stream.loader import Batch, BatchLoader
from data.stream.state import (
    EXECUTION_KEYS,
    PHASE_KEYS,
    RESUME_KEYS,
    counts_of,
    first_header_difference,
    merge_states,
    pinned,
    plan_source,
)

__all__ = [
    "EXECUTION_KEYS",
    "PHASE_KEYS",
    "RESUME_KEYS",
    "Batch",
    "BatchLoader",
    "DataConfig",
    "DataRun",
    "MaskConfig",
    "Plan",
    "SourceConfig",
    "allowed_process_counts",
    "check_process_count",
    "counts_of",
    "first_header_difference",
    "format_hash",
    "merge_states",
    "pinned",
    "plan_source",
]
