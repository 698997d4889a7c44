"""What is concluded of machines that are not like this one."""

from collections.abc import Callable
from typing import Any

from pretrain.doctor import machine
from pretrain.doctor.examination import Examination

Examine = Callable[..., Examination]


def test_hosts_that_cannot_be_reached_by_their_name(examine: Examine, write_config: Any) -> None:
    findings = [{"world_size": 3, "address": "10.0.0.1"}] * 2 + [{"world_size": 3, "address": "127.0.1.1"}]
    concluded = machine.judge_processes(examine(), findings)
    assert concluded.level == "warn"
    assert concluded.found == (
        "3 on 2 host(s): 2 on a, 1 on b; the own host name has no address that others could reach on rank 2 (b)"
    )


def test_cores_shared_by_the_processes_of_a_host(examine: Examine, write_config: Any) -> None:
    examination = examine(write_config(data__num_workers=3))
    finding = {"cores": [0, 1, 2, 3], "wanted": 4, "threads": 1}
    concluded = machine.judge_cores(examination, [finding] * 3)
    assert concluded.found == "a gives 4 core(s) to 8 busy threads and data workers"
    apart = [finding, {**finding, "cores": [4, 5, 6, 7]}, finding]
    assert machine.judge_cores(examination, apart).level == "pass"


def test_shared_memory_of_a_container(examine: Examine) -> None:
    small = {"total": 64 << 20, "free": 60 << 20}
    assert machine.judge_shared_memory(examine(), [small]).level == "pass"
    concluded = machine.judge_shared_memory(examine(device="cuda"), [small, small])
    assert concluded.found == "62.9 MB of 67.1 MB free on ranks 0-1 (a), 1.07 GB are wise"
