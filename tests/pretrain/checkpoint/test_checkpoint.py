"""Checkpoints: the stream writer, whole or absent, retention by number."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from encoder import EncoderConfig, MaskedLanguageModel
from pretrain.checkpoint import save as save_module
from pretrain.checkpoint.format import MARKER, CheckpointConfig, checkpoint_name, find_checkpoints, why_incomplete
from pretrain.checkpoint.restore import restore_optimizer
from pretrain.checkpoint.retention import retire_checkpoints
from pretrain.checkpoint.save import save_checkpoint
from pretrain.checkpoint.tensor_file import TensorFile
from pretrain.engines.base import EngineConfig
from pretrain.engines.plain import PlainEngine
from pretrain.optim.adamw import OptimizerConfig
from pretrain.processes import Processes

ALONE = Processes(0, 1, torch.device("cpu"))
TEXTS = {"training.json": "{}", "data.json": "{}"}


def tiny_engine() -> PlainEngine:
    torch.manual_seed(0)
    model = MaskedLanguageModel(EncoderConfig(num_layers=1, hidden_size=32, num_heads=1, vocab_size=64, max_length=8))
    return PlainEngine(EngineConfig(), model, OptimizerConfig(), ALONE)


def test_tensor_file_is_what_safetensors_reads(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b.c": torch.randn(7), "empty": torch.zeros(0, 4)}
    file = TensorFile(tmp_path / "x.safetensors", {name: tuple(t.shape) for name, t in tensors.items()})
    for name, tensor in tensors.items():
        file.add(name, tensor)
    file.flush()
    file.close()
    for name, tensor in load_file(tmp_path / "x.safetensors").items():
        assert torch.equal(tensor, tensors[name])


def test_save_and_restore_is_bit_equal(tmp_path: Path) -> None:
    engine = tiny_engine()
    for shard in engine.shards():
        for moment in shard.moments.values():
            moment.copy_(torch.rand_like(moment))
    assert save_checkpoint(tmp_path, 3, engine, TEXTS, ALONE) is None
    other = tiny_engine()
    restore_optimizer(tmp_path / checkpoint_name(3), other, update_count=2)
    for a, b in zip(engine.shards(), other.shards(), strict=True):
        assert torch.equal(a.weight, b.weight)
        assert all(torch.equal(a.moments[key], b.moments[key]) for key in a.moments)
    assert {float(state["step"]) for state in other.optimizer.state.values()} == {2.0}


def test_r12_a_folder_is_whole_or_no_checkpoint(tmp_path: Path) -> None:
    engine = tiny_engine()
    for step in (2, 4, 6):
        assert save_checkpoint(tmp_path, step, engine, TEXTS, ALONE) is None
    newest, middle = tmp_path / checkpoint_name(6), tmp_path / checkpoint_name(4)
    with (newest / "optimizer.safetensors").open("r+b") as file:
        file.truncate(100)
    (middle / MARKER).unlink()
    found = find_checkpoints(tmp_path)
    assert [path.name for path in found.whole] == ["step_00000002"]
    assert "optimizer.safetensors has 100 bytes instead of" in found.broken[0]
    assert "half-written" in found.broken[1]
    assert save_checkpoint(tmp_path, 6, engine, TEXTS, ALONE) is None  # the broken one of the same step is replaced
    assert why_incomplete(newest) is None


def test_r13_rotation_compares_numbers_and_leaves_other_folders(tmp_path: Path) -> None:
    engine = tiny_engine()
    (tmp_path / "checkpoint-notes").mkdir()
    (tmp_path / "step_notes").mkdir()
    for step in range(9700, 10001, 100):
        save_checkpoint(tmp_path, step, engine, TEXTS, ALONE)
        retire_checkpoints(tmp_path, CheckpointConfig(keep_last=3), best_step=None)
    steps = [path.name for path in find_checkpoints(tmp_path).whole]
    assert steps == ["step_00009800", "step_00009900", "step_00010000"]
    assert (tmp_path / "checkpoint-notes").is_dir()
    assert (tmp_path / "step_notes").is_dir()


def test_r13_the_best_and_every_nth_are_kept(tmp_path: Path) -> None:
    engine = tiny_engine()
    for step in range(1, 8):
        save_checkpoint(tmp_path, step, engine, TEXTS, ALONE)
        retire_checkpoints(tmp_path, CheckpointConfig(keep_last=1, keep_every=3), best_step=2)
    assert [int(path.name[5:]) for path in find_checkpoints(tmp_path).whole] == [2, 3, 6, 7]


@pytest.mark.parametrize("failing", ["TensorFile", "write_text", "add"])
def test_a_failing_save_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    engine = tiny_engine()
    assert save_checkpoint(tmp_path, 2, engine, TEXTS, ALONE) is None

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TensorFile if failing == "add" else save_module, failing, fail)
    reason = save_checkpoint(tmp_path, 4, engine, TEXTS, ALONE)
    assert reason is not None
    assert "step_00000004: No space left on device" in reason
    assert "bytes needed" in reason
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000002"]
    assert why_incomplete(tmp_path / checkpoint_name(2)) is None
