"""Schedules are pure functions of the step."""

import math

import pytest

from pretrain.optim.schedule import ScheduleConfig, learning_rate


def rates(name: str, steps: list[int], peak: float = 1e-3, total: int = 100, **keys: float) -> list[float]:
    config = ScheduleConfig(name=name, **keys)
    return [learning_rate(config, peak, step, total) for step in steps]


def test_r11_linear_schedule_has_the_reported_values() -> None:
    assert rates("linear", [5, 10, 55, 100], warmup_fraction=0.1) == pytest.approx([5e-4, 1e-3, 5e-4, 0.0], abs=1e-12)


def test_wsd_warms_up_stays_flat_and_decays_by_one_minus_root() -> None:
    values = rates("wsd", [3, 6, 50, 80, 85, 100], warmup_fraction=0.06, decay_fraction=0.2)
    assert values == pytest.approx([5e-4, 1e-3, 1e-3, 1e-3, 1e-3 * (1 - math.sqrt(0.25)), 0.0], abs=1e-12)


def test_cosine_halves_in_the_middle() -> None:
    assert rates("cosine", [10, 55, 100], warmup_fraction=0.1) == pytest.approx([1e-3, 5e-4, 0.0], abs=1e-12)


@pytest.mark.parametrize("name", ["wsd", "linear", "cosine"])
def test_r11_no_second_warm_up_and_no_rise_in_the_decay(name: str) -> None:
    values = rates(name, list(range(1, 101)))
    top = values.index(max(values))
    assert values[: top + 1] == sorted(values[: top + 1])
    assert values[top:] == sorted(values[top:], reverse=True)


@pytest.mark.parametrize("keys", [{"warmup_fraction": 0.0}, {"decay_fraction": 0.0}, {"warmup_fraction": 1.0}])
def test_edges_stay_between_zero_and_peak(keys: dict[str, float]) -> None:
    assert all(0 <= rate <= 1e-3 for rate in rates("wsd", list(range(1, 101)), **keys))
