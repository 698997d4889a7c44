"""Roles, columns and places."""

import json
from pathlib import Path

import pytest

from finetune.reading.columns import check_mapping, choose_roles, number_of, read_roles
from finetune.reading.rows import Row

ROLE_SETS = [("text_a", "text_b", "score"), ("text_a", "text_b"), ("text",)]


def write(path: Path, *rows: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_most_specific_roles_that_a_file_has(tmp_path: Path) -> None:
    pairs = write(tmp_path / "a.jsonl", {"text_a": "x", "text_b": "y", "label": 1})
    assert choose_roles(pairs, ROLE_SETS, {}) == ("text_a", "text_b")
    assert choose_roles(pairs, ROLE_SETS, {"text_a": "text_a", "text_b": "text_b", "score": "label"}) == ROLE_SETS[0]
    assert choose_roles(pairs, ROLE_SETS, {"text": "text_b"}) == ("text",)


def test_a_role_may_have_another_column_in_another_file(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", {"anchor": "x", "text_b": "y"})
    test = write(tmp_path / "b.jsonl", {"text_a": "z", "text_b": "y"})
    columns: dict[str, str | list[str]] = {"text_a": ["anchor", "text_a"], "text_b": "text_b"}
    check_mapping([train, test], ROLE_SETS, columns)
    found = [next(read_roles(path, ROLE_SETS, columns)).values["text_a"] for path in (train, test)]
    assert found == ["x", "z"]
    with pytest.raises(ValueError, match="no file has the column 'anker'"):
        check_mapping([train, test], ROLE_SETS, {"text_a": ["anchor", "anker"]})


@pytest.mark.parametrize("value", ["x", None, float("nan"), "inf", True, [1]])
def test_a_score_is_a_number(value: object) -> None:
    with pytest.raises(ValueError, match=r"f:3: 'score' must be a number"):
        number_of(Row("f:3", {"score": value}), "score")
    assert number_of(Row("f:3", {"score": "2.5"}), "score") == 2.5
