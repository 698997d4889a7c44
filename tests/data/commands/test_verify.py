"""`python -m data verify`: every fault of every source, whatever the policies."""

import json
from pathlib import Path

import pytest

from data.commands import verify


def test_verify_reports_every_fault_of_every_source(
    run_file: Path, tmp_path: Path, fx_ids: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify.main([str(run_file)]) == 0
    assert json.loads(capsys.readouterr().out)["used"] == 100
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "a"}\n{\n{"x": 1}\n{"text": "\xff"}\n\n')
    sources = json.dumps([{"path": str(fx_ids)}, {"path": str(bad), "format": "jsonl"}])
    expected = rf"1 x json_line \(first: {bad}:14\), 1 x column .*, 1 x encoding"
    with pytest.raises(ValueError, match=expected):
        verify.main([str(run_file), f"data.sources={sources}"])
    good, faulty = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert good["skipped"] == {}
    assert faulty["read"] == 5
    assert faulty["skipped"] == {"json_line": 1, "column": 1, "encoding": 1, "empty": 1}
    assert faulty["places"]["column"] == [f"{bad}:16"]
    missing = json.dumps([{"path": str(tmp_path / "*.none")}])
    with pytest.raises(ValueError, match="empty_glob"):
        verify.main([str(run_file), f"data.sources={missing}"])
