"""The data's configuration: what it refuses, and which numbers of processes it allows."""

from collections.abc import Callable

import pytest

from configs import InputError
from data import DataConfig, allowed_process_counts, check_process_count


def test_epochs_need_every_lane_in_a_step(config: Callable[..., DataConfig]) -> None:
    with pytest.raises(ValueError, match=r"'rows_per_step' \(2\) must be at least 'num_lanes' \(4\)"):
        config(num_epochs=1, rows_per_step=2)
    assert DataConfig.model_validate({"sources": [{"path": "a"}], "rows_per_step": 16}).num_lanes == 16


def test_processes_share_lanes_and_micro_batches_evenly() -> None:
    assert allowed_process_counts(12, 8) == [1, 2, 4]
    assert allowed_process_counts(24, 64, rows_per_device=8) == [1, 2, 4, 8]
    assert allowed_process_counts(4, 6, rows_per_device=2) == [1]
    check_process_count(4, 12, 8)
    expected = r"^3 processes do not divide data\.num_lanes=12 and data\.rows_per_step=8; allowed: 1, 2, 4$"
    with pytest.raises(InputError, match=expected):
        check_process_count(3, 12, 8)
    with pytest.raises(InputError, match=r"rows_per_step=8 / training\.rows_per_device=4; allowed: 1, 2$"):
        check_process_count(4, 12, 8, rows_per_device=4)
