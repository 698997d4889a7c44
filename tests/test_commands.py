"""The commands of the README: they exist, say what they take, and `make` calls what the documents say."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMANDS = [
    "data.tokenizer", "data", "pretrain", "pretrain.evaluate", "pretrain.export", "pretrain.check", "pretrain.inspect",
    "pretrain.doctor",
    "finetune", "finetune.evaluate", "finetune.predict", "finetune.embed", "finetune.compress",
]  # fmt: skip


def call(command: str, *arguments: str) -> int:
    """`python -m command arguments` in this process; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [command, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(command, run_name="__main__", alter_sys=True)
    return int(ended.value.code or 0)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_says_what_is_missing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--help") == 0
    assert f"python -m {command}" in capsys.readouterr().out
    assert call(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "usage: python -m" in error


def test_golden_losses_are_those_committed() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.golden"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest difference" in done.stdout


@pytest.mark.parametrize("target", ["quickstart", "test", "test-all", "check", "golden", "install"])
def test_make_knows_the_targets(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_of_pretraining_lists_the_contracts_keys(capsys: pytest.CaptureFixture[str]) -> None:
    call("pretrain", "--help")
    shown = capsys.readouterr().out
    keys = {
        "": "run_dir seed tokenizer start_from phases",
        "data.": "sources.0.path sequence_length rows_per_step num_lanes window_documents num_workers shuffle "
        "num_epochs cache mask.rate mask.replace mask.unit",
        "encoder.": "num_layers hidden_size num_heads ffn_size norm position activation embedding_dropout exportable "
        "hidden_dropout attention_dropout gradient_checkpointing",
        "training.": "num_steps rows_per_device label_smoothing profile_steps",
        "optimizer.": "name learning_rate weight_decay betas eps clip_norm",
        "schedule.": "name warmup_fraction decay_fraction",
        "engine.": "name zero_stage precision offload_optimizer deepspeed_config compile",
        "checkpoint.": "save_every keep_last keep_every",
        "evaluation.": "every sources rows",
        "logging.": "trackers",
    }
    wanted = [prefix + key for prefix, names in keys.items() for key in names.split()]
    assert [key for key in wanted if key not in shown] == []
