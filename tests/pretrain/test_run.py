"""Whole runs in this process: resume, schedule, evaluation, history, refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain_runs import read_metrics
from safetensors.torch import load_file

from configs import InputError
from pretrain.__main__ import main
from pretrain.evaluate import main as evaluate

Write = Callable[..., Path]


def losses(run: Path) -> list[float]:
    return [entry["loss"] for entry in read_metrics(run)]


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"step_{step:08d}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def held_out(corpus: Path, every: int = 5) -> dict[str, Any]:
    return {"every": every, "rows": 12, "sources": [{"path": str(corpus), "format": "jsonl"}]}


@pytest.mark.parametrize("epochs", [None, 3])
def test_r10_r09_a_resumed_run_is_the_straight_run(write_config: Write, tmp_path: Path, epochs: int | None) -> None:
    main([str(write_config("straight", data__num_epochs=epochs))])
    stopped = write_config("resumed", data__num_epochs=epochs)
    # what a preemption at step 10 leaves: the run's folder up to its first checkpoint
    main([str(stopped)])
    run = tmp_path / "resumed"
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= 10))
    (run / "checkpoints" / "step_00000020" / "COMPLETE").unlink()
    main([str(stopped)])
    assert losses(run) == losses(tmp_path / "straight")
    hashes = [[entry["batch_hash"] for entry in read_metrics(folder)] for folder in (run, tmp_path / "straight")]
    assert hashes[0] == hashes[1]
    a, b = weights(run, 20), weights(tmp_path / "straight", 20)
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_r11_the_rates_of_a_resumed_run_are_the_straight_runs_and_another_total_is_refused(
    write_config: Write, tmp_path: Path
) -> None:
    schedule = {"name": "linear", "warmup_fraction": 0.1}
    main([str(write_config(schedule=schedule, training={"num_steps": 20, "rows_per_device": 4}))])
    rates = [entry["learning_rate"] for entry in read_metrics(tmp_path / "run")]
    assert rates[:3] == pytest.approx([1.5e-3, 3e-3, 3e-3 * 17 / 18])
    assert rates == sorted(rates[:2]) + sorted(rates[2:], reverse=True)
    other = write_config(schedule=schedule, training={"num_steps": 40, "rows_per_device": 4})
    with pytest.raises(ValueError, match=r"belongs to another run: 'training.num_steps' was 20 when"):
        main([str(other)])


def test_r20_evaluations_change_nothing_and_agree(
    write_config: Write, tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(write_config("without"))])
    main([str(write_config("with", evaluation=held_out(corpus)))])
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    scores = read_metrics(tmp_path / "with", "eval")
    assert [entry["step"] for entry in scores] == [5, 10, 15, 20]
    capsys.readouterr()
    evaluate([str(tmp_path / "with")])
    evaluate([str(tmp_path / "with" / "checkpoints" / "step_00000020")])
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["loss"] == second["loss"] == pytest.approx(scores[-1]["loss"], abs=1e-6)
    assert first["masked_tokens"] == scores[-1]["masked_tokens"] > 0
    assert first["loss"] > 1.0  # masked for real: an unmasked evaluation gives nearly 0


def test_evaluation_does_not_depend_on_what_training_masks(write_config: Write, tmp_path: Path, corpus: Path) -> None:
    counts = []
    for name, rate in (("a", 0.15), ("b", 0.4)):
        main([str(write_config(name, evaluation=held_out(corpus, 20), data__mask={"rate": rate}))])
        counts.append(read_metrics(tmp_path / name, "eval")[0]["masked_tokens"])
    assert counts[0] == counts[1]


def test_r40_the_history_holds_every_step_and_marks_what_came_twice(write_config: Write, tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = write_config(logging={"trackers": ["tensorboard", "wandb"]})
    main([str(path)])
    (run / "checkpoints" / "step_00000020" / "COMPLETE").unlink()  # as if killed at 20 with a checkpoint at 10
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # a torn line, as a kill leaves it
    main([str(path)])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    train = [entry for entry in entries if entry["kind"] == "train"]
    assert [entry["step"] for entry in train] == [*range(1, 21), *range(11, 21)]
    assert [entry["step"] for entry in train if entry.get("repeated")] == list(range(11, 21))
    assert [entry["resumed_from"] is not None for entry in entries if entry["kind"] == "start"] == [False, True]
    folders = [p.name for p in (run / "wandb").glob("offline-run-*")]
    assert len(folders) == 2
    # one run id; where both ran in one second, W&B gives the second folder a number after it
    assert len({name.removeprefix("offline-run-").split("-")[1] for name in folders}) == 1
    assert list((run / "tensorboard").glob("events.*"))


def test_r39_a_failing_tracker_never_stops_training(
    write_config: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "tensorboard").write_text("a file where the folder should be")
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    main([str(write_config(logging={"trackers": ["tensorboard", "wandb"]}))])
    assert len(losses(run)) == 20
    assert json.loads((run / "status.json").read_text()) == {"state": "done", "step": 20, "reason": ""}


def test_a_finite_corpus_ends_the_run(write_config: Write, tmp_path: Path) -> None:
    main([str(write_config(data__num_epochs=1, training={"num_steps": 1000, "rows_per_device": 2}))])
    train = read_metrics(tmp_path / "run")
    assert 20 < len(train) < 1000
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "done"
    assert (tmp_path / "run" / "checkpoints" / f"step_{train[-1]['step']:08d}" / "COMPLETE").exists()


def test_a_line_of_the_history_has_what_is_promised(write_config: Write, tmp_path: Path) -> None:
    main([str(write_config())])
    promised = (
        "step loss accuracy learning_rate grad_norm masked_tokens tokens batch_hash seconds data_wait forward backward "
        "optimizer tokens_per_second mfu fill peak_memory_bytes"
    )
    train = read_metrics(tmp_path / "run")
    assert all(set(promised.split()) <= entry.keys() for entry in train)
    assert train[0]["loss"] == pytest.approx(5.5, abs=0.5)  # ln 256
    assert [entry["tokens"] for entry in train] == sorted(entry["tokens"] for entry in train)
    assert all(0 < entry["mfu"] < 2 for entry in train)
    assert all(0.5 < entry["fill"] <= 1 for entry in train)
    assert all(1e7 < entry["peak_memory_bytes"] < 1e11 for entry in train)
    times = ("data_wait", "forward", "backward", "optimizer")
    assert all(sum(entry[key] for key in times) <= entry["seconds"] for entry in train)  # one clock, no overlap
    assert all(entry["seconds"] > 0 for entry in read_metrics(tmp_path / "run", "save"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__sequence_lenght": 64}, r"unknown key 'data.sequence_lenght'; did you mean 'data.sequence_length'\?"),
        ({"encoder__num_heads": 5}, r"num_heads \(5\) must divide hidden_size \(32\)"),
        ({"encoder__vocab_size": 100}, "more than encoder.vocab_size 100"),
        ({"data__sources": [{"path": "nowhere/*.txt"}]}, r"nowhere/\*\.txt"),
        ({"tokenizer": "nowhere"}, "no tokenizer.json in the folder 'nowhere'"),
        ({"training__rows_per_device": 3}, "data.rows_per_step 8 is not a multiple of training.rows_per_device 3"),
        ({"engine__zero_stage": 2}, "engine.zero_stage needs engine.name: deepspeed"),
        ({"encoder__max_length": 16}, "data.sequence_length 32 is above encoder.max_length 16"),
        ({"evaluation__every": 5}, "evaluation.every needs evaluation.sources"),
    ],
)
def test_bad_input_is_one_line_and_only_the_status_is_written(
    write_config: Write, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        main([str(write_config(**changes))])
    assert "\n" not in str(error.value)
    written = {path.name for path in (tmp_path / "run").glob("*")}
    assert written <= {"status.json", ".lock"}
    if "unknown key" not in message and written:  # run_dir is known once the configuration is read
        found = json.loads((tmp_path / "run" / "status.json").read_text())
        assert (found["state"], found["reason"].removeprefix("InputError: ")) == ("bad_input", str(error.value))


def test_a_preempted_run_whose_next_start_fails_early_says_so(write_config: Write, tmp_path: Path) -> None:
    """A script that starts a run again while its status says `preempted` would do so for ever."""
    main([str(write_config())])
    status = tmp_path / "run" / "status.json"
    status.write_text('{"state": "preempted", "step": 20, "reason": ""}')
    with pytest.raises(InputError, match="nowhere"):
        main([str(write_config(data__sources=[{"path": "nowhere/*.txt"}]))])
    found = json.loads(status.read_text())
    assert (found["state"], found["step"]) == ("bad_input", 20)
    assert "nowhere" in found["reason"]


def test_a_missing_text_column_is_named(write_config: Write, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a b c"}\n{"txt": "d e f"}\n')
    source = [{"path": str(tmp_path / "bad.jsonl"), "format": "jsonl"}]
    with pytest.raises(ValueError, match=r"bad\.jsonl.*text"):
        main([str(write_config(data__sources=source))])


def test_a_run_folder_of_another_run_is_left_alone(write_config: Write, tmp_path: Path) -> None:
    main([str(write_config())])
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"'encoder.num_layers' was 2 when that run was started and is 3 now"):
        main([str(write_config(encoder__num_layers=3))])
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.is_file()}


def test_r12_an_explicit_half_written_checkpoint_is_refused(write_config: Write, tmp_path: Path) -> None:
    main([str(write_config())])
    folder = tmp_path / "run" / "checkpoints" / "step_00000020"
    (folder / "COMPLETE").unlink()
    with pytest.raises(ValueError, match="no whole checkpoint: half-written"):
        evaluate([str(folder)])


def test_two_runs_cannot_share_a_folder(write_config: Write, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="in use by another running process"):
            main([str(write_config())])


def test_details_hold_gradients_by_group_and_attention_by_layer(write_config: Write, tmp_path: Path) -> None:
    main([str(write_config(logging={"details_every": 5}))])
    train = read_metrics(tmp_path / "run")
    assert ["update_to_weight/head" in entry for entry in train] == [step % 5 == 0 for step in range(1, 21)]
    details = train[4]
    groups = ("embeddings", "attention", "feed_forward", "head", "norms")
    total = sum(details[f"gradient_norm/{group}"] ** 2 for group in groups) ** 0.5
    assert total == pytest.approx(min(1.0, details["grad_norm"]), rel=1e-3)  # the clipped norm, put together again
    assert all(1e-5 < details[f"update_to_weight/{group}"] < 1 for group in groups)
    assert all(0 <= details[f"attention_entropy/{layer}"] < 4 for layer in (0, 1))
    assert all(0.1 < details[f"activation_rms/{layer}"] < 10 for layer in (0, 1))
    main([str(write_config("plain"))])
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")  # looking changes nothing


def test_spikes_are_logged_and_skipped_when_asked(
    write_config: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretrain.engines.plain import PlainEngine

    forward, calls = PlainEngine.forward, []

    def with_a_spike(self: Any, inputs: Any, last: bool) -> Any:
        calls.append(None)
        loss = forward(self, inputs, last)
        return loss._replace(loss_sum=loss.loss_sum * (2.0 if len(calls) in range(45, 49) else 1.0))  # step 12

    monkeypatch.setattr(PlainEngine, "forward", with_a_spike)
    monkeypatch.setattr("pretrain.optim.spikes.MIN_LOSSES", 5)
    training = {"num_steps": 20, "rows_per_device": 2, "spike_sigma": 6.0}
    main([str(write_config("logged", training=training))])
    assert [entry["step"] for entry in read_metrics(tmp_path / "logged") if entry.get("spike")] == [12]
    calls.clear()
    main([str(write_config("skipped", training={**training, "skip_spikes": True}))])
    assert [(entry["step"], entry["spike"]) for entry in read_metrics(tmp_path / "skipped", "skip")] == [(12, True)]
    assert len(read_metrics(tmp_path / "skipped")) == 19


def test_too_many_steps_without_a_finite_gradient_stop_the_run(
    write_config: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretrain.engines.plain import PlainEngine

    forward = PlainEngine.forward

    def poisoned(self: Any, inputs: Any, last: bool) -> Any:
        loss = forward(self, inputs, last)
        return loss._replace(loss_sum=loss.loss_sum * torch.nan)

    monkeypatch.setattr(PlainEngine, "forward", poisoned)
    training = {"num_steps": 20, "rows_per_device": 2, "max_skipped_steps": 3}
    with pytest.raises(RuntimeError, match="3 steps in a row were skipped"):
        main([str(write_config(training=training))])
    skips = read_metrics(tmp_path / "run", "skip")
    assert [entry["step"] for entry in skips] == [1, 2, 3]
    assert all(entry["loss"] is None for entry in skips)
    report = json.loads((tmp_path / "run" / "skipped_step_00000003.json").read_text())
    assert report["batch_hash"] == skips[-1]["batch_hash"]
    assert report["documents_by_rank"][0]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


def test_a_profile_is_written_for_the_steps_asked(write_config: Write, tmp_path: Path) -> None:
    main([str(write_config(training={"num_steps": 4, "rows_per_device": 4, "profile_steps": [3]}))])
    traces = list((tmp_path / "run" / "profile").iterdir())
    assert [path.name for path in traces] == ["step_00000003_rank_0.json"]
    assert "aten::" in traces[0].read_text()


def test_r16_compiled_training_is_the_same_and_saves_plain_names(write_config: Write, tmp_path: Path) -> None:
    """Wrappers leave no prefix; what was saved compiled goes on uncompiled. No dropout: inductor draws its own."""
    shape = {"num_layers": 1, "hidden_size": 32, "num_heads": 1}
    training = {"num_steps": 6, "rows_per_device": 8}
    checkpoint = {"save_every": 3}
    main([str(write_config("plain", encoder=shape, training=training))])
    path = write_config("compiled", encoder=shape, training=training, checkpoint=checkpoint)
    main([str(path), "engine.compile=true"])
    run = tmp_path / "compiled"
    assert losses(run) == pytest.approx(losses(tmp_path / "plain"), abs=1e-4)
    saved = weights(run, 6)
    assert saved.keys() == weights(tmp_path / "plain", 6).keys()
    assert not [name for name in saved if "_orig_mod" in name or "module." in name]
    (run / "checkpoints" / "step_00000006" / "COMPLETE").unlink()
    main([str(path)])
    assert losses(run)[6:] == pytest.approx(losses(tmp_path / "plain")[3:], abs=1e-4)


@pytest.mark.parametrize("place", ["/proc/lacuna", "{file}/run"])
def test_a_folder_that_cannot_be_written_is_named(write_config: Write, corpus: Path, place: str) -> None:
    with pytest.raises(ValueError, match=r"run_dir .* cannot be written"):
        main([str(write_config(run_dir=place.format(file=corpus)))])
    assert corpus.is_file()


def test_evaluation_reads_the_same_rows_whatever_the_layout(write_config: Write, tmp_path: Path) -> None:
    """A held-out file of 30 documents over 24 lanes, with micro-batches far smaller than a row of each lane."""
    (tmp_path / "held.txt").write_text("\n".join(f"bal bel bil bol {'dul ' * i}" for i in range(30)) + "\n")
    sources = [{"path": str(tmp_path / "held.txt")}]
    counts = []
    for rows_per_device in (1, 2, 8):
        config = write_config(
            f"of_{rows_per_device}", data__num_lanes=8, training={"num_steps": 1, "rows_per_device": rows_per_device},
            evaluation={"every": 1, "rows": 1000, "sources": sources},
        )  # fmt: skip
        main([str(config)])
        counts.append(read_metrics(tmp_path / f"of_{rows_per_device}", "eval")[0]["masked_tokens"])
    assert counts[0] == counts[1] == counts[2]
    assert counts[0] == pytest.approx(0.15 * sum(4 + i for i in range(30)), rel=0.35)  # all of the text was read


def test_what_a_policy_skips_is_in_the_history(write_config: Write, tmp_path: Path, corpus: Path) -> None:
    lines = corpus.read_text().splitlines()[:40]
    (tmp_path / "some_bad.jsonl").write_text("\n".join([lines[0], "{broken", *lines[1:], '{"txt": 1}']) + "\n")
    source = [{"path": str(tmp_path / "some_bad.jsonl"), "format": "jsonl"}]
    policies = {"json_line": "skip", "column": "skip"}
    main([str(write_config(data__sources=source, data__bad_input=policies, data__num_epochs=1))])
    (records,) = read_metrics(tmp_path / "run", "save")[-1]["records_by_source"]
    assert records["skipped"] == {"json_line": 1, "column": 1}
    assert records["read"] == records["used"] + 2 == 42
    assert "some_bad.jsonl" in records["places"]["json_line"][0]
