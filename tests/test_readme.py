"""The README tells the truth about the tree and the commands; `test_docs` looks at the files that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = ("configs", "data", "encoder", "pretrain", "finetune", "examples", "benchmarks")


def tree() -> list[str]:
    """The paths of the README's tree, in which two more spaces are one folder deeper."""
    text = README[README.index("## The tree") :].split("\n## ")[0]
    paths, folders = [], [""]
    for line in re.findall(r"^    .*$", text, re.MULTILINE):
        depth = (len(line) - len(line.lstrip()) - 4) // 2
        path = folders[depth] + line.split()[0]
        folders = [*folders[: depth + 1], path]
        paths.append(path)
    return paths


def test_the_tree_has_a_line_a_file() -> None:
    modules = [path for path in tree() if path.endswith(".py")]
    found = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert len(modules) == len(set(modules))
    assert set(modules) == {path for path in found if not path.endswith("__init__.py")}


def test_what_the_tree_names_exists() -> None:
    assert [path for path in tree() if not (ROOT / path).exists()] == []


def test_modules_that_are_named_exist() -> None:
    for module in re.findall(r"python -m ([a-z_.]+)", README):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
