"""Run in a process of its own by test_commands.py: one command, then its peak resident memory in kilobytes."""

import resource
import sys
from pathlib import Path

import torch

from finetune import evaluate, predict

command, arguments, out = CASE  # type: ignore[name-defined]  # noqa: F821  given by run_path
torch.set_num_threads(1)
sys.stdout = open(f"{out}.stdout", "w")  # noqa: SIM115
{"evaluate": evaluate.main, "predict": predict.main}[command](arguments)
Path(out).write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
