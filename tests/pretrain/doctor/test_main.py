"""The doctor in one process: its options, and how it ends."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from configs import InputError
from pretrain.doctor import devices
from pretrain.doctor.__main__ import main
from pretrain.doctor.checks import CHECKS


def test_help_lists_the_checks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain.doctor", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("pretrain.doctor", run_name="__main__")
    shown = capsys.readouterr().out
    assert all(check.name in shown and check.meaning in shown for check in CHECKS)
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    "arguments", [[], ["c.yaml", "--fast"], ["c.yaml", "--limit-seconds=0"], ["c.yaml", "--limit-seconds"]]
)
def test_wrong_options_are_told_in_a_line(arguments: list[str]) -> None:
    with pytest.raises(InputError, match=r"usage|unknown option|a number above 0"):
        main(arguments)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "one"}, "RANK='one' is not a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2 contradict each other"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT must name rank 0's host"),
    ],
)
def test_an_incoherent_environment_is_told_in_a_line(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        main(["run.yaml"])


def test_a_configuration_that_is_wrong_ends_the_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text("run_dir: 1\n")
    assert main([str(tmp_path / "run.yaml"), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == ["configuration"]
    assert found["checks"][-1]["name"] == "configuration"


def test_a_check_that_raises_is_a_failed_one(
    write_config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore lines")

    monkeypatch.setattr(devices, "try_a_layer", explode)
    assert main([str(write_config())]) == 2
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL"))
    assert line.startswith("FAIL  attention: rank 0 (")
    assert "RuntimeError: CUDA error: no kernel image is available for execution on the device; install a torch" in line
