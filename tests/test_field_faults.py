"""tests/field_faults.md names every test of a reported fault, and no other."""

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS / "field_faults.md"


def listed() -> dict[str, set[str]]:
    """From the page: the tests of each fault as path::name."""
    found = {}
    for identifier, cell in re.findall(r"^\| ([RS]\d\d) \|.*\| ([^|]*) \|$", PAGE.read_text(encoding="utf-8"), re.M):
        assert identifier not in found, f"{identifier} stands twice"
        found[identifier] = set()
        for part in cell.split("; ") if cell != "open" else []:
            path, *names = re.findall(r"`([^`]+)`", part)
            found[identifier] |= {f"{path}::{name}" for name in names}
    return found


def existing() -> dict[str, set[str]]:
    """From the tests' names: the tests of each fault as path::name."""
    found = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (ids := re.match(r"test_((?:[rs]\d\d_)+)", node.name)):
                for identifier in re.findall(r"[rs]\d\d", ids[1]):
                    found[identifier.upper()].add(f"{path.relative_to(TESTS.parent)}::{node.name}")
    return found


def test_every_fault_is_on_the_page_with_its_sources() -> None:
    assert listed().keys() == {f"R{i:02}" for i in range(1, 41)} | {f"S{i:02}" for i in range(1, 14)}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if re.match(r"\| [RS]\d\d \|", line):
            assert re.search(r"\| (?:[\w.-]+/[\w.-]+#\d+(?:, )?)+ \|", line), line


def test_the_page_names_every_test_of_every_fault() -> None:
    tests, page = existing(), listed()
    assert {name: tests[name] for name in page} == page
    assert tests.keys() == page.keys()


def test_only_the_second_round_may_be_open() -> None:
    assert [name for name, tests in listed().items() if not tests and name.startswith("R")] == []
