"""What a resume may change, and how a run goes on as another one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain_runs import read_metrics
from safetensors.torch import load_file

from configs import InputError
from pretrain.__main__ import main
from pretrain.export import main as export
from pretrain.runs.__main__ import describe_run
from pretrain.runs.__main__ import main as list_run

Write = Callable[..., Path]
PLAIN = {"name": "wsd", "warmup_fraction": 0.2, "decay_fraction": 0.5}


def keep_up_to(run: Path, step: int) -> None:
    """As if the run had been killed after `step`."""
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name[5:]) > step:
            shutil.rmtree(checkpoint)


def steps_of(run: Path, *keys: str) -> dict[int, tuple[Any, ...]]:
    return {entry["step"]: tuple(entry[key] for key in keys) for entry in read_metrics(run)}


def test_r11_a_wsd_run_grows_before_its_decay_and_never_warms_up_again(write_config: Write, tmp_path: Path) -> None:
    values = {"schedule": PLAIN, "checkpoint": {"save_every": 5, "keep_last": 9}}
    main([str(write_config(training={"num_steps": 20, "rows_per_device": 2}, **values))])
    run = tmp_path / "run"
    before = steps_of(run, "loss", "batch_hash", "learning_rate")
    keep_up_to(run, 10)
    main([str(write_config(training={"num_steps": 40, "rows_per_device": 2}, **values))])
    after = steps_of(run, "loss", "batch_hash", "learning_rate")
    assert {step: after[step] for step in range(1, 11)} == {step: before[step] for step in range(1, 11)}
    assert [after[step][1] for step in range(11, 21)] == [before[step][1] for step in range(11, 21)]  # the same batches
    rates = [after[step][2] for step in range(1, 41)]
    assert rates[:4] == pytest.approx([0.00075, 0.0015, 0.00225, 0.003])  # four steps of warm-up, of 20 and not of 40
    assert rates[4:20] == [0.003] * 16
    assert sorted(rates[20:], reverse=True) == rates[20:]
    with pytest.raises(InputError, match=r"may grow only before the decay .* began at step 20, and the newest"):
        main([str(write_config(training={"num_steps": 60, "rows_per_device": 2}, **values))])
    with pytest.raises(InputError, match=r"'training.num_steps' was 40 when that run was started and is 30 now"):
        main([str(write_config(training={"num_steps": 30, "rows_per_device": 2}, **values))])


def test_the_last_phase_grows_with_the_run(write_config: Write, tmp_path: Path) -> None:
    def phases(last: int) -> dict[str, Any]:
        steps = [{"num_steps": 4, "overrides": {"data.mask.rate": 0.3}}, {"num_steps": last}]
        training = {"num_steps": 4 + last, "rows_per_device": 2}
        return {"phases": steps, "training": training, "checkpoint": {"save_every": 4, "keep_last": 9}}

    main([str(write_config(schedule=PLAIN, **phases(4)))])
    keep_up_to(tmp_path / "run", 4)
    main([str(write_config(schedule=PLAIN, **phases(8)))])
    assert [entry["step"] for entry in read_metrics(tmp_path / "run")] == [*range(1, 9), *range(5, 13)]


def test_a_branch_goes_on_from_a_checkpoint_with_moments_step_and_data(write_config: Write, tmp_path: Path) -> None:
    checkpoint = {"save_every": 10, "keep_last": 5}
    main([str(write_config("trunk", schedule={"decay_fraction": 0.0}, checkpoint=checkpoint))])
    start = str(tmp_path / "trunk" / "checkpoints" / "step_00000010")
    decay = {"name": "wsd", "warmup_fraction": 0.0, "decay_fraction": 0.25}
    values = {"start_from": start, "training": {"num_steps": 16, "rows_per_device": 2}, "schedule": decay}
    main([str(write_config("branch", **values, start_from_state="all"))])
    trunk, branch = (steps_of(tmp_path / name, "loss", "batch_hash") for name in ("trunk", "branch"))
    assert sorted(branch) == [11, 12, 13, 14, 15, 16]
    assert {step: branch[step] for step in (11, 12)} == {step: trunk[step] for step in (11, 12)}  # to the bit
    assert read_metrics(tmp_path / "branch")[-1]["learning_rate"] == 0.0
    main([str(write_config("moments", **values, start_from_state="optimizer"))])
    first, origin = tmp_path / "moments" / "checkpoints" / "step_00000000", Path(start)
    for name in ("model.safetensors", "optimizer.safetensors"):
        saved, given = load_file(first / name), load_file(origin / name)
        assert all(torch.equal(saved[key], given[key]) for key in given)
    assert json.loads((first / "training.json").read_text())["updates"] == 10
    assert [entry["step"] for entry in read_metrics(tmp_path / "moments")] == list(range(1, 17))
    with pytest.raises(InputError, match=r"is at step 10, training.num_steps is 10"):
        short = {**values, "training": {"num_steps": 10, "rows_per_device": 2}}
        main([str(write_config("short", **short, start_from_state="all"))])
    with pytest.raises(InputError, match="start_from_state needs start_from"):
        main([str(write_config("nothing", start_from_state="all"))])


def test_a_resume_needs_only_its_run_folder(write_config: Write, tmp_path: Path, tokenizer: Path) -> None:
    main([str(write_config("first"))])
    export([str(tmp_path / "first"), str(tmp_path / "published")])
    folder = tmp_path / "tokenizer"
    shutil.copytree(tokenizer, folder)
    (folder / "model.safetensors").write_bytes(b"x" * 1000)  # as a published folder has it
    values = {"tokenizer": str(folder), "start_from": str(tmp_path / "published"), "encoder": {}}
    main([str(write_config("second", **values))])
    run = tmp_path / "second"
    assert {path.name for path in (run / "tokenizer").iterdir()} <= {
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "report.json"
    }  # fmt: skip
    before = steps_of(run, "loss", "batch_hash")
    keep_up_to(run, 0)  # killed before the first checkpoint of its own
    shutil.rmtree(folder)
    shutil.rmtree(tmp_path / "published")
    main([str(write_config("second", **values))])
    assert steps_of(run, "loss", "batch_hash") == before
    assert read_metrics(run, "start")[1]["resumed_from"].endswith("step_00000000")


def test_a_run_is_listed(write_config: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = [{"path": str(tmp_path / "held.txt")}]
    (tmp_path / "held.txt").write_text("bal bel bil bol\n" * 20)
    evaluation = {"every": 3, "rows": 8, "sources": source}
    main([str(write_config(evaluation=evaluation, checkpoint={"save_every": 5, "keep_last": 1}))])
    run = describe_run(tmp_path / "run")
    assert run["status"] == {"state": "done", "step": 20, "reason": ""}
    steps = {entry["step"]: entry for entry in run["checkpoints"]}
    best = run["best_evaluation"]["step"]
    assert best % 3 == 0
    assert set(steps) >= {best, 20}  # the best one was saved between two saves, and kept
    assert [step for step, entry in steps.items() if entry["is_best"]] == [best]
    assert max(step for step, entry in steps.items() if entry["is_before_decay"]) in (15, 16, best)
    assert [start["processes"] for start in run["starts"]] == [1]
    list_run([str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert "done at step 20" in printed
    assert "best evaluation" in printed
    with pytest.raises(InputError, match="is not the folder of a run"):
        list_run([str(tmp_path)])


def test_an_evaluation_that_a_stop_prevented_is_made_up_for(
    write_config: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pretrain.run
    from pretrain.__main__ import stop

    (tmp_path / "held.txt").write_text("bal bel bil bol\n" * 20)
    values = {"evaluation": {"every": 5, "rows": 8, "sources": [{"path": str(tmp_path / "held.txt")}]}}
    main([str(write_config("straight", **values))])
    evaluate, calls = pretrain.run.evaluate, []

    def stopped_in_the_second(*arguments: Any) -> Any:
        calls.append(None)
        stop.requested = len(calls) == 2
        return evaluate(*arguments)

    monkeypatch.setattr(pretrain.run, "evaluate", stopped_in_the_second)
    config = str(write_config(**values))
    assert main([config]) == 75
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "preempted"
    stop.requested = False
    assert main([config]) == 0
    keys = ("step", "loss", "accuracy", "masked_tokens")
    evaluations = [[[e[k] for k in keys] for e in read_metrics(tmp_path / n, "eval")] for n in ("straight", "run")]
    assert evaluations[0] == evaluations[1]
    assert steps_of(tmp_path / "run", "loss") == steps_of(tmp_path / "straight", "loss")


def test_a_phase_that_masks_more_is_no_spike(write_config: Write, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("pretrain.optim.spikes.MIN_LOSSES", 5)
    phases = [{"num_steps": 12}, {"num_steps": 12, "overrides": {"training.label_smoothing": 0.6}}]
    training = {"num_steps": 24, "rows_per_device": 2, "spike_sigma": 3.0, "skip_spikes": True}
    main([str(write_config(phases=phases, training=training))])
    assert len(read_metrics(tmp_path / "run")) == 24
