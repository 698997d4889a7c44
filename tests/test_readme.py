"""The README tells the truth about the tree, the presets and the commands."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_has_a_line_a_file() -> None:
    tree = README[README.index("## The tree") :]
    for package in ("configs", "data", "encoder", "pretrain", "finetune", "benchmarks"):
        start = tree.index(f"    {package}/")
        block = re.match(r"    .*\n((?:      .*\n)*)", tree[start:])
        assert block
        listed = {line.split()[0] for line in block.group(1).splitlines()}
        assert listed == {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}


def test_files_that_are_named_exist() -> None:
    for name in re.findall(r"\b(?:configs|launch|benchmarks)/[\w./]+\.(?:yaml|sh|md|py)\b", README):
        assert (ROOT / name).exists(), name


def test_modules_that_are_named_exist() -> None:
    for module in re.findall(r"python -m ([a-z_.]+)", README):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
