"""Where a run starts from: seeded weights, or a published folder."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pretrain_runs import read_metrics
from safetensors.torch import save_file

from configs import load_config
from encoder import EncoderConfig, MaskedLanguageModel, load_model
from pretrain.__main__ import main
from pretrain.config import PretrainConfig
from pretrain.export import main as export
from pretrain.runs.folder import RunFolder
from pretrain.start import resolve

Write = Callable[..., Path]


@pytest.fixture
def published(write_config: Write, tmp_path: Path) -> Path:
    """A Hugging Face folder of a short run."""
    main([str(write_config("first"))])
    export([str(tmp_path / "first"), str(tmp_path / "published")])
    return tmp_path / "published"


def test_the_output_of_an_export_is_one_line(published: Path) -> None:
    """Saving imports DeepSpeed, whose warning about a missing GPU goes to stdout."""
    command = [sys.executable, "-m", "pretrain.export", str(published.parent / "first"), str(published)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{published}: ")
    assert done.stdout.count("\n") == 1


def test_a_run_goes_on_from_a_published_folder_in_its_shape(
    write_config: Write, tmp_path: Path, published: Path
) -> None:
    second = write_config("second", start_from=str(published), encoder={}, data__shuffle=False)
    main([str(second)])
    first, losses = (read_metrics(tmp_path / name) for name in ("first", "second"))
    assert losses[0]["loss"] < first[0]["loss"] - 0.1  # it starts with what was learnt
    shapes = [load_model(tmp_path / name / "checkpoints" / "step_00000020").config for name in ("first", "second")]
    assert (shapes[0].num_layers, shapes[0].hidden_size) == (shapes[1].num_layers, shapes[1].hidden_size) == (2, 32)


def test_what_the_folder_says_beyond_its_shape_is_kept(write_config: Write, tmp_path: Path) -> None:
    """Angles of another base, or no dropout where there was some, would train another model in silence."""
    encoder = {"num_layers": 1, "hidden_size": 32, "num_heads": 1, "rope_base": 160000.0, "hidden_dropout": 0.25}
    main([str(write_config("wide", encoder=encoder))])
    origin = str(tmp_path / "wide" / "checkpoints" / "step_00000020")
    main([str(write_config("kept", start_from=origin, encoder={}))])
    main([str(write_config("given", start_from=origin, encoder={"rope_base": 10000.0, "hidden_dropout": 0.0}))])
    shapes = [load_model(tmp_path / name / "checkpoints" / "step_00000020").config for name in ("kept", "given")]
    assert [(shape.rope_base, shape.hidden_dropout) for shape in shapes] == [(160000.0, 0.25), (10000.0, 0.0)]


def test_the_export_holds_the_trained_weights(tmp_path: Path, published: Path) -> None:
    trained = load_model(tmp_path / "first" / "checkpoints" / "step_00000020").state_dict()
    exported = load_model(published).state_dict()
    assert all(torch.equal(trained[name], exported[name]) for name in trained)
    card = (published / "README.md").read_text()
    assert "20 steps of 8 rows of 32 tokens" in card
    assert "training loss at step 20" in card


@pytest.mark.parametrize("given", [{}, {"norm": "post"}, {"activation": "relu"}, {"hidden_dropout": 0.1}])
def test_what_the_configuration_leaves_out_is_the_folders(
    write_config: Write, tmp_path: Path, given: dict[str, object]
) -> None:
    shape = EncoderConfig(
        num_layers=1, hidden_size=32, num_heads=1, norm="post", position="sinusoidal", activation="relu",
        vocab_size=512, max_length=32,
    )  # fmt: skip
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "encoder.json").write_text(shape.model_dump_json())
    save_file(dict(MaskedLanguageModel(shape).named_parameters()), folder / "model.safetensors")
    config = load_config(PretrainConfig, write_config("second", start_from=str(folder), encoder=given))
    special_ids = {"pad_id", "cls_id", "sep_id", "mask_id"}  # the tokenizer's
    expected = shape.model_copy(update=given)
    encoder = resolve(config, RunFolder(config.run_dir)).encoder
    assert encoder.model_dump(exclude=special_ids) == expected.model_dump(exclude=special_ids)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"num_layers": 3}, "another shape .*: encoder.num_layers is 2 in that folder and 3 in the configuration"),
        ({"position": "learned"}, "another shape .*: encoder.position is 'rope' in that folder and 'learned' in"),
        ({"position": "learned", "activation": "gelu"}, "another shape .*: encoder"),
    ],
)
def test_another_shape_is_refused(
    write_config: Write, published: Path, encoder: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        main([str(write_config("second", start_from=str(published), encoder=encoder))])
