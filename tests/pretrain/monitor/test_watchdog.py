"""The watchdog's exit waits for no disk."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HANGS = """
import sys, time
from pathlib import Path
from pretrain.monitor.watchdog import Watchdog

def report(reason):
    print(reason, file=sys.stderr, flush=True)
    Path(sys.argv[1]).write_text(reason)

Watchdog(0.5, Path(sys.argv[1]), report)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["file", "fifo", "missing folder", "full disk"])
def test_a_hung_process_ends_whatever_the_disk_does(tmp_path: Path, root: Path, kind: str) -> None:
    stacks = tmp_path / "stacks"
    if kind == "fifo":  # opening it for writing blocks for ever, as a dead network disk does
        os.mkfifo(stacks)
    elif kind == "missing folder":
        stacks = tmp_path / "nowhere" / "stacks"
    elif kind == "full disk":
        stacks = Path("/dev/full")
    began = time.monotonic()
    process = subprocess.run([sys.executable, "-c", HANGS, str(stacks)], cwd=root, capture_output=True, timeout=30)
    assert process.returncode == 70
    assert time.monotonic() - began < 15
    if kind == "file":
        assert b"no progress for 0.5 s" in process.stderr
