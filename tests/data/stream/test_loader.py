"""The global batches depend on the configuration and the step alone: processes, workers, resumes, epochs."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from data import BatchLoader, DataConfig, merge_states
from data.stream.lane import Lane

Make = Callable[..., DataConfig]
Run = Callable[..., list[list[Any]]]


def test_shapes_and_layout(config: Make, tokenizer: str) -> None:
    loader = BatchLoader(config(num_epochs=1), tokenizer, 0, rank=1, world_size=2)
    batch = next(iter(loader))
    assert batch.step == 1
    assert batch.input_ids.shape == batch.labels.shape == (4, 64)
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
    for ids, labels, lengths in zip(batch.input_ids, batch.labels, batch.piece_lengths, strict=True):
        at = 0
        for length in lengths:
            assert ids[at] == 2
            assert ids[at + length - 1] == 3
            at += length
        assert (ids[at:] == 0).all()
        assert (labels[at:] == -100).all()
    assert batch.tokens == sum(map(sum, batch.piece_lengths))
    assert json.loads(json.dumps(batch.state))["header"] == batch.state["header"]


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (1, 2), (2, 1), (4, 2)])
def test_processes_and_workers_never_change_a_global_batch(
    config: Make, tokenizer: str, run_steps: Run, hashes: Any, world_size: int, num_workers: int
) -> None:
    straight = run_steps(config(), tokenizer, 300)
    other = run_steps(config(num_workers=num_workers), tokenizer, 300, world_size=world_size)
    assert hashes(other) == hashes(straight)
    assert len(set(hashes(straight))) == 300


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_r05_every_document_once_an_epoch(
    config: Make, tokenizer: str, run_steps: Run, documents: Any, world_size: int, num_workers: int
) -> None:
    steps = run_steps(config(num_epochs=1, num_workers=num_workers), tokenizer, world_size=world_size)
    counts = Counter(documents(steps))
    assert len(counts) == 100
    assert set(counts.values()) == {1}


def epochs(steps: list[list[Any]], documents: Any) -> tuple[list[str], list[str]]:
    """The documents in order of their first and of their second time."""
    first, second = [], []
    for document in documents(steps):
        (second if document in first else first).append(document)
    return first, second


@pytest.mark.parametrize("num_workers", [0, 2])
def test_r07_another_order_every_epoch(
    config: Make, tokenizer: str, run_steps: Run, documents: Any, num_workers: int
) -> None:
    twice = run_steps(config(num_epochs=2, num_workers=num_workers), tokenizer)
    first, second = epochs(twice, documents)
    assert sorted(first) == sorted(second)
    assert len(first) == 100
    assert first != second
    assert documents(run_steps(config(num_epochs=2), tokenizer)) == documents(twice)
    assert documents(run_steps(config(num_epochs=2), tokenizer, seed=1)) != documents(twice)


def test_without_shuffle_documents_keep_their_order_in_a_lane(
    config: Make, tokenizer: str, run_steps: Run, documents: Any
) -> None:
    ids = documents(run_steps(config(num_epochs=1, shuffle=False, num_lanes=1, rows_per_step=1), tokenizer))
    offsets = [int(document.rpartition(":")[2]) for document in ids]
    assert sum(a > b for a, b in itertools.pairwise(offsets)) < 45  # packing moves some


def chosen(steps: list[list[Any]]) -> dict[str, list[tuple[int, ...]]]:
    """Document → positions chosen in it, each time that it came."""
    sets: dict[str, list[tuple[int, ...]]] = {}
    for batches in steps:
        for batch in batches:
            for ids, lengths, labels in zip(batch.piece_ids, batch.piece_lengths, batch.labels, strict=True):
                pieces = labels[: sum(lengths)].split(lengths)
                for document, piece in zip(ids, pieces, strict=True):
                    sets.setdefault(document, []).append(tuple(torch.nonzero(piece != -100).flatten().tolist()))
    return sets


@pytest.mark.parametrize("num_workers", [0, 2])
def test_r04_masks_differ_between_epochs_and_ranks_and_repeat_with_the_seed(
    tmp_path: Any, config: Make, tokenizer: str, run_steps: Run, hashes: Any, num_workers: int
) -> None:
    (tmp_path / "eight.txt").write_text("\n".join(["same " * 45] * 8) + "\n")
    eight = config(sources=[{"path": str(tmp_path)}], num_epochs=2, num_workers=num_workers, rows_per_step=4)
    steps = run_steps(eight, tokenizer, world_size=2)
    sets = chosen(steps)
    assert len(sets) == 8
    assert all(first != second for first, second in sets.values())
    assert len({once for both in sets.values() for once in both}) == 16  # the same text, on either rank
    assert hashes(run_steps(eight, tokenizer, world_size=2)) == hashes(steps)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stop", [3, 7])
def test_r09_resume_gives_the_very_same_batches(
    config: Make, tokenizer: str, run_steps: Run, hashes: Any, documents: Any, num_workers: int, stop: int, resumed: Run
) -> None:
    small = config(num_workers=num_workers, num_epochs=3, rows_per_step=4, window_documents=16)
    straight = run_steps(small, tokenizer)
    before = run_steps(small, tokenizer, stop)
    after = resumed(small, tokenizer, before[-1], 1, len(straight) - stop)
    assert hashes(before) + hashes(after) == hashes(straight)
    assert documents(before) + documents(after) == documents(straight)
    assert [batches[0].step for batches in after] == list(range(stop + 1, len(straight) + 1))


def test_a_resume_at_every_step_on_changing_numbers_of_processes(
    config: Make, tokenizer: str, run_steps: Run, hashes: Any
) -> None:
    small = config(num_epochs=2, rows_per_step=4)
    straight = hashes(run_steps(small, tokenizer))
    seen, state = [], None
    for step in range(len(straight)):
        batches = run_steps(small, tokenizer, 1, world_size=(1, 2, 4)[step % 3], state=state)
        seen += hashes(batches)
        state = json.loads(json.dumps(merge_states([batch.state for batch in batches[0]])))
    assert seen == straight


def test_a_world_size_that_does_not_divide_lists_what_does(config: Make, tokenizer: str) -> None:
    with pytest.raises(ValueError, match=r"3 processes .*num_lanes=12 .*rows_per_step=8; allowed: 1, 2, 4"):
        BatchLoader(config(num_lanes=12), tokenizer, 0, world_size=3)


def test_an_error_in_a_worker_is_one_clear_line(tmp_path: Any, config: Make, tokenizer: str, run_steps: Run) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n{"no": 1}\n')
    source = {"path": str(tmp_path / "a.jsonl"), "format": "jsonl"}
    with pytest.raises(ValueError, match=r"^[^\n]*a\.jsonl:17: the column 'text' is missing[^\n]*$"):
        run_steps(config(sources=[source], num_workers=2), tokenizer, 1)


def test_an_error_in_a_worker_that_resumes_is_one_clear_line(
    tmp_path: Any, config: Make, tokenizer: str, run_steps: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current window is read again before the first batch; the middle of a file may have changed unnoticed."""
    monkeypatch.setattr("data.sources.identity.EDGE_BYTES", 0)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good words"}\n' * 200)
    own = config(sources=[{"path": str(path), "format": "jsonl"}], sequence_length=8, rows_per_step=4)
    state = merge_states([run_steps(own, tokenizer, 3)[-1][0].state])
    path.write_bytes(path.read_bytes().replace(b"{", b"["))
    with pytest.raises(ValueError, match=r"^[^\n]*a\.jsonl:\d+: not a line of JSON[^\n]*$"):
        run_steps(own.model_copy(update={"num_workers": 2}), tokenizer, 1, state=state)


def test_our_own_failure_in_a_worker_keeps_its_trace(
    config: Make, tokenizer: str, run_steps: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a bug of ours")

    monkeypatch.setattr(Lane, "next_row", fail)  # the workers are forked
    with pytest.raises(ValueError, match=r"(?s)Traceback.*in fail.*a bug of ours"):
        run_steps(config(num_workers=1), tokenizer, 1)


def test_rows_are_empty_for_ever_after_the_last_epoch(config: Make, tokenizer: str, run_steps: Run) -> None:
    end = len(run_steps(config(num_epochs=1), tokenizer))
    batches = run_steps(config(num_epochs=1), tokenizer, end + 3)
    for [batch] in batches[end:]:
        assert batch.tokens == 0
        assert batch.piece_lengths == [[]] * 8
        assert (batch.labels == -100).all()
        assert (batch.input_ids == 0).all()


@pytest.mark.parametrize("text", ["one document\n", "no newline at the end", "a\n\nb\n" * 3])
def test_endless_epochs_of_tiny_corpora(tmp_path: Any, config: Make, tokenizer: str, run_steps: Run, text: str) -> None:
    (tmp_path / "tiny.txt").write_text(text)
    steps = run_steps(config(sources=[{"path": str(tmp_path / "tiny.txt")}], num_lanes=8), tokenizer, 3)
    assert all(lengths for [batch] in steps for lengths in batch.piece_lengths)


def test_a_corpus_without_a_document_is_refused(tmp_path: Any, config: Make, tokenizer: str, run_steps: Run) -> None:
    (tmp_path / "blank.txt").write_text("\n  \n\n" * 50)
    with pytest.raises(ValueError, match="has no usable document"):
        run_steps(config(sources=[{"path": str(tmp_path / "blank.txt")}]), tokenizer, 1)


def test_a_new_phase_changes_length_and_weights_and_loses_nothing(
    config: Make, tokenizer: str, run_steps: Run, hashes: Any, resumed: Run
) -> None:
    first, second = (config(num_epochs=2, sequence_length=length, rows_per_step=4) for length in (64, 16))
    before = run_steps(first, tokenizer, 3)
    state = merge_states([batch.state for batch in before[-1]])
    with pytest.raises(ValueError, match="sequence_length"):
        BatchLoader(second, tokenizer, 0, state=state)
    phase = BatchLoader(second, tokenizer, 0, state=state, new_phase=True)
    after = [[batch] for batch in itertools.islice(phase, 3)]
    assert after[0][0].input_ids.shape == (4, 16)
    rest = resumed(second, tokenizer, after[-1], 2, None)  # in the middle of a window packed anew
    straight = [
        [batch]
        for batch in itertools.islice(BatchLoader(second, tokenizer, 0, state=state, new_phase=True), 3 + len(rest))
    ]
    assert hashes(after + rest) == hashes(straight)
    tokens = Counter(
        (document.partition("#")[0])
        for batches in before + after + rest
        for batch in batches
        for ids, lengths in zip(batch.piece_ids, batch.piece_lengths, strict=True)
        for document, length in zip(ids, lengths, strict=True)
        for _ in range(length - 2)
    )
    whole = Counter(
        document.partition("#")[0]
        for batches in run_steps(config(num_epochs=2, sequence_length=512), tokenizer)
        for ids, lengths in zip(batches[0].piece_ids, batches[0].piece_lengths, strict=True)
        for document, length in zip(ids, lengths, strict=True)
        for _ in range(length - 2)
    )
    assert tokens == whole


def test_r01_r03_masks_of_whole_batches(config: Make, tokenizer: str, run_steps: Run, fx_text: Any) -> None:
    """On FX-text, 100,000 tokens: the batches without masks show the original ids."""
    changes = {"sources": [{"path": str(fx_text)}], "rows_per_step": 32}
    masked = run_steps(config(**changes), tokenizer, 60)
    plain = run_steps(config(**changes, mask={"rate": 0.0}), tokenizer, 60)
    ids, labels, original = (
        torch.cat([getattr(batch, name) for [batch] in steps])
        for steps, name in ((masked, "input_ids"), (masked, "labels"), (plain, "input_ids"))
    )
    eligible, chosen = original > 4, labels != -100  # the five special tokens come first
    assert not (chosen & ~eligible).any()
    assert torch.equal(labels[chosen], original[chosen])
    assert torch.equal(ids[~chosen], original[~chosen])
    assert eligible.sum() > 100_000
    assert 0.1455 < float(chosen.sum() / eligible.sum()) < 0.1545
    to_mask, same = ((ids[chosen] == 4).float().mean(), (ids[chosen] == original[chosen]).float().mean())
    assert 0.787 < to_mask < 0.813
    assert 0.090 < same < 0.110
    assert 0.090 < 1 - to_mask - same < 0.110
    assert (ids[chosen & (ids != 4)] > 4).all()
