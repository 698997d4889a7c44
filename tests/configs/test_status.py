"""`status.json`: what scripts under launch/ read."""

import json
from pathlib import Path

from configs.status import read_status, write_status


def test_the_last_status_is_read_back(tmp_path: Path) -> None:
    assert read_status(tmp_path) == {}
    write_status(tmp_path, "running", 3)
    write_status(tmp_path, "failed", 4, "no space left on device")
    assert read_status(tmp_path) == {"state": "failed", "step": 4, "reason": "no space left on device"}
    assert json.loads((tmp_path / "status.json").read_text()) == read_status(tmp_path)
