"""Phases: what may change during a run, and that a resume in any of them is exact."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pretrain_runs import read_metrics
from safetensors.torch import load_file

from configs import load_config
from pretrain.__main__ import main
from pretrain.config import PretrainConfig
from pretrain.phases import phase_after

Write = Callable[..., Path]

PHASES = [
    {"num_steps": 6, "overrides": {"data.rows_per_step": 4, "data.mask.rate": 0.3}},
    {"num_steps": 8},
    {
        "num_steps": 6,
        "overrides": {
            "data.sequence_length": 64, "encoder.rope_base": 40000.0, "optimizer.learning_rate": 1e-3,
            "data.sources.0.weight": 2.0,
        },
    },
]  # fmt: skip


def test_a_run_of_three_phases_resumes_exactly_in_each(write_config: Write, tmp_path: Path) -> None:
    main([str(write_config("straight", phases=PHASES))])
    straight = read_metrics(tmp_path / "straight")
    assert len(straight) == 20
    rows = [round(entry["masked_tokens"] / 0.3 / 32 / entry["fill"]) for entry in straight[:6]]
    assert all(2 <= count <= 6 for count in rows)  # 4 rows, 30 % masked
    assert straight[14]["masked_tokens"] > 1.5 * straight[10]["masked_tokens"]  # rows of 64 instead of 32
    for stop in (3, 6, 10, 14, 17):  # inside phases, and on both edges
        path = write_config(f"at_{stop}", phases=PHASES, checkpoint={"save_every": stop, "keep_last": 9})
        run = tmp_path / f"at_{stop}"
        main([str(path)])
        for folder in (run / "checkpoints").iterdir():
            if int(folder.name[5:]) > stop:
                (folder / "COMPLETE").unlink()
        main([str(path)])
        by_step = {entry["step"]: (entry["loss"], entry["batch_hash"]) for entry in read_metrics(run)}
        assert by_step == {entry["step"]: (entry["loss"], entry["batch_hash"]) for entry in straight}
        assert any(entry.get("repeated") for entry in read_metrics(run))
    final = tmp_path / "at_10" / "checkpoints" / "step_00000020"
    assert json.loads((final / "encoder.json").read_text())["rope_base"] == 40000.0
    a = load_file(final / "model.safetensors")
    b = load_file(tmp_path / "straight" / "checkpoints" / "step_00000020" / "model.safetensors")
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_phases_are_the_configuration_with_overrides(write_config: Write) -> None:
    config = load_config(PretrainConfig, write_config(phases=PHASES))
    phases = config.cut_into_phases()
    assert [(phase.start, phase.end) for phase in phases] == [(0, 6), (6, 14), (14, 20)]
    assert [phase.config.data.rows_per_step for phase in phases] == [4, 8, 8]
    assert [phase_after(phases, step) is phases[n] for step, n in ((0, 0), (5, 0), (6, 1), (14, 2), (20, 2))] == [
        True
    ] * 5


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([{"num_steps": 5}], r"the phases have 5 steps in all, training.num_steps is 20"),
        (
            [{"num_steps": 20, "overrides": {"encoder.num_layers": 3}}],
            r"phases.0.overrides: 'encoder.num_layers' cannot change",
        ),
        ([{"num_steps": 20, "overrides": {"data.rows_per_step": 7}}], r"phases.0: .*rows_per_step 7 is not a multiple"),
        ([{"num_steps": 20, "overrides": {"data.mask.rate": 2}}], r"phases.0: 'data.mask.rate'"),
        ([{"num_steps": 20, "overrides": {"data.sources.4.weight": 2}}], r"does not name a key"),
    ],
)
def test_impossible_phases_are_refused(write_config: Write, phases: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        main([str(write_config(phases=phases))])
