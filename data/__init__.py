"""Streamed, packed, masked batches: order and masks are pure functions of the seed and the position."""

from data.config import BadInputConfig, DataConfig, DataRun, MaskConfig, SourceConfig
from data.hashing import format_hash
from data.stream.loader import Batch, BatchLoader, check_world_size
from data.stream.state import counts_of, merge_states

__all__ = [
    "BadInputConfig",
    "Batch",
    "BatchLoader",
    "DataConfig",
    "DataRun",
    "MaskConfig",
    "SourceConfig",
    "check_world_size",
    "counts_of",
    "format_hash",
    "merge_states",
]
