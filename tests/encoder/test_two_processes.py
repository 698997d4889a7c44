"""Two gloo processes under DDP and ZeRO-1/2/3 train the very weights that one process trains."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def differences(root):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = root / "tests" / "encoder" / "two_processes.py"
    done = subprocess.run([*command, script], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


# ddp and zero stage, shape, checkpointing every k-th layer; learned positions come with dropout
@pytest.mark.parametrize("engine", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("case", ["rope-0", "rope-1", "learned-2"])
def test_r23_two_processes_equal_one(engine, case, differences):
    assert differences[f"{engine}-{case}"] <= 1e-6
