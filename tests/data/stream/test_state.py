"""What a resume may change, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest

from configs import InputError
from configs.loader import keys
from data import EXECUTION_KEYS, PHASE_KEYS, RESUME_KEYS, BatchLoader, DataConfig
from data.stream.state import check_state_header, state_header

Make = Callable[..., DataConfig]
Run = Callable[..., list[list[Any]]]


def test_mask_rate_may_change_at_a_resume_and_order_stays(
    config: Make, tokenizer: str, run_steps: Run, documents: Any, resumed: Run
) -> None:
    straight = run_steps(config(), tokenizer, 20)
    rest = resumed(config(mask={"rate": 0.5}), tokenizer, straight[9], 2, 10)
    assert documents(rest) == documents(straight[10:])
    share = sum(int((b.labels != -100).sum()) for s in rest for b in s) / sum(b.tokens for s in rest for b in s)
    assert 0.35 < share < 0.55


def test_rows_per_step_may_change_at_a_resume(
    config: Make, tokenizer: str, run_steps: Run, documents: Any, resumed: Run
) -> None:
    straight = documents(run_steps(config(num_epochs=1, rows_per_step=4), tokenizer))
    start = run_steps(config(num_epochs=1, rows_per_step=4), tokenizer, 1)
    rest = resumed(config(num_epochs=1, rows_per_step=12), tokenizer, start[-1], 4, 10)
    assert documents(start) + documents(rest) == straight


@pytest.mark.parametrize(
    ("change", "seed", "field"),
    [
        ({"num_lanes": 8}, 0, "num_lanes"),
        ({"sequence_length": 32}, 0, "sequence_length"),
        ({"window_documents": 9}, 0, "window_documents"),
        ({"open_units": 2}, 0, "open_units"),
        ({"max_document_bytes": 99}, 0, "max_document_bytes"),
        ({"shuffle": False}, 0, "shuffle"),
        ({"mask": {"unit": "word"}}, 0, "mask.unit"),
        ({"bad_input": {"empty": "error"}}, 0, "bad_input"),
        ({}, 1, "seed"),
    ],
)
def test_a_state_of_another_configuration_is_refused(
    config: Make, tokenizer: str, run_steps: Run, change: Any, seed: int, field: str
) -> None:
    state = run_steps(config(), tokenizer, 2)[-1][0].state
    with pytest.raises(ValueError, match=f"cannot resume the data: .*{field}"):
        BatchLoader(config(**change), tokenizer, seed, state=state)


def test_a_state_of_other_files_or_another_tokenizer_is_refused(
    tmp_path: Any, config: Make, tokenizer: str, run_steps: Run
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    own = config(sources=[{"path": str(tmp_path / "*.txt")}])
    state = run_steps(own, tokenizer, 1)[-1][0].state
    state["header"]["tokenizer"] = "0" * 16
    with pytest.raises(ValueError, match="the tokenizer's files changed"):
        BatchLoader(own, tokenizer, 0, state=state)
    state = run_steps(own, tokenizer, 1)[-1][0].state
    (tmp_path / "b.txt").write_text("three\n")
    with pytest.raises(ValueError, match=r"the file 'b.txt' is new"):
        BatchLoader(own, tokenizer, 0, state=state)


def test_a_policy_may_go_from_error_to_skip(
    tmp_path: Any, config: Make, tokenizer: str, run_steps: Run, resumed: Run
) -> None:
    lines = ['{"text": "some words here"}'] * 30
    lines[20] = "{broken"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = {"path": str(tmp_path / "a.jsonl"), "format": "jsonl"}
    own = config(sources=[source], num_lanes=1, rows_per_step=1, window_documents=2, sequence_length=4, num_epochs=1)
    steps: list[list[Any]] = []
    batches = ([batch] for batch in BatchLoader(own, tokenizer, 0))
    with pytest.raises(ValueError, match=r"a\.jsonl:560: not a line of JSON.*data\.bad_input\.json_line=skip"):
        steps.extend(batches)
    skipping = own.model_copy(update={"bad_input": own.bad_input.model_copy(update={"json_line": "skip"})})
    rest = resumed(skipping, tokenizer, steps[-1], 1, None)
    assert len({d.partition("#")[0] for s in steps + rest for d in s[0].piece_ids[0]}) == 29


# keys of `data` whose change shows in the manifest or the header under another name, or not at all
OF_SOURCES = {"path", "hub", "name", "split", "revision", "format", "text_column"}
CHANGED = {
    "sequence_length": 32, "rows_per_step": 16, "num_lanes": 8, "window_documents": 9, "open_units": 2,
    "shuffle": False, "num_epochs": 2, "num_workers": 1, "prefetch_steps": 2, "max_document_bytes": 99, "cache": "c",
    "mask.rate": 0.3, "mask.replace": (1.0, 0.0, 0.0), "mask.unit": "word", "sources.0.weight": 2.0,
}  # fmt: skip


def changed(config: DataConfig, key: str) -> DataConfig:
    name, _, inner = key.partition(".")
    if name == "sources":
        return config.model_copy(update={"sources": [config.sources[0].model_copy(update={"weight": 2.0})]})
    if name == "mask":
        return config.model_copy(update={"mask": config.mask.model_copy(update={inner: CHANGED[key]})})
    return config.model_copy(update={key: CHANGED[key]})


def test_every_key_is_either_refused_or_listed_as_changeable(config: Make) -> None:
    leaves = set(keys(DataConfig)) - {"sources", "mask", "bad_input", *(f"sources.0.{name}" for name in OF_SOURCES)}
    leaves = {key for key in leaves if not key.startswith("bad_input.")}
    assert leaves == set(CHANGED)
    now = state_header(config(), "tokenizer", [], 0)
    for key in CHANGED:
        other = state_header(changed(config(), key), "tokenizer", [], 0)
        for new_phase, allowed in ((False, RESUME_KEYS), (True, PHASE_KEYS)):
            if key.replace(".0.", ".N.") in allowed:
                check_state_header(other, now, new_phase)
            else:
                with pytest.raises(InputError, match="cannot resume the data"):
                    check_state_header(other, now, new_phase)
    assert set(EXECUTION_KEYS) < set(RESUME_KEYS) < set(PHASE_KEYS)


def test_policies_may_change_from_error_only(config: Make) -> None:
    strict = config(bad_input=dict.fromkeys(("empty", "too_long"), "error"))
    headers = [state_header(c, "tokenizer", [], 0) for c in (strict, config())]
    check_state_header(headers[1], headers[0], new_phase=False)
    with pytest.raises(InputError, match=r"'data\.bad_input' changed"):
        check_state_header(headers[0], headers[1], new_phase=False)
