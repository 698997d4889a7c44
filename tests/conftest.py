"""Shared fixtures: offline, one thread a process, the repository's root."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: tests run in several processes at once
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parent.parent
REAL_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root: commands run there."""
    return ROOT


@pytest.fixture(scope="session")
def real_data() -> Path:
    """`../shared/data`; skips where it is absent, as it never goes into the repository."""
    if not REAL_DATA.is_dir():
        pytest.skip("../shared/data is not here")
    return REAL_DATA
