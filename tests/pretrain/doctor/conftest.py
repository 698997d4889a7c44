"""Rank 0's examination without other ranks, for what a check concludes from findings."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pretrain.doctor.examination import Examination
from pretrain.doctor.meeting import open_meeting
from pretrain.processes import Processes

Examine = Callable[..., Examination]


@pytest.fixture
def examine() -> Examine:
    """Make one: of a configuration, of ranks on hosts (0 and 1 on a, 2 on b), on a kind of device."""

    def make(config: Path | None = None, hosts: dict[int, str] | None = None, device: str = "cpu") -> Examination:
        examination = Examination([str(config)], Processes(0, 1, torch.device(device)), "", open_meeting(0, 1, 1))
        examination.meeting.hosts.update(hosts or {0: "a", 1: "a", 2: "b"})
        if config:
            examination.read_config()
        return examination

    return make
