"""The documents name files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "RESULTS.md", *ROOT.glob("docs/*.md")]
FOLDERS = "configs|data|encoder|pretrain|finetune|examples|benchmarks|tests|launch|docs"


def defined(path: Path) -> set[str]:
    """Every function and class at the top of a module, and every method as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


STEPS = re.findall(r"`([\w/]+\.py): ([\w.]+)`", ARCHITECTURE)


@pytest.mark.parametrize(("file", "name"), STEPS, ids=lambda value: value)
def test_a_function_that_the_architecture_page_names_exists(file: str, name: str) -> None:
    assert name in defined(ROOT / file)


def test_every_step_names_its_function() -> None:
    for title, count in (("## One batch", 16), ("## One resume", 13)):
        section = ARCHITECTURE[ARCHITECTURE.index(title) :].split("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("|---")][1:]
        assert len(rows) >= count
        assert [row for row in rows if not re.search(r"`[\w/]+\.py: [\w.]+`", row)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(rf"(?<![\w/.])(?:\.\./)?((?:{FOLDERS})/[\w./-]+\.(?:py|yaml|sh|md|json))\b", text))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
