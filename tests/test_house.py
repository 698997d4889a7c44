"""The rules of CONTRIBUTING.md that a machine can check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "configs": set(),
    "data": {"configs"},
    "encoder": {"configs"},
    "pretrain": {"configs", "data", "encoder"},
    "finetune": {"configs", "data"},
}
SOURCES = sorted(p for package in (*PACKAGES, "benchmarks") for p in (ROOT / package).rglob("*.py"))
DUMPING_GROUNDS = {"utils", "util", "common", "helpers", "misc"}


def imports(path: Path) -> set[str]:
    """Top-level names of everything that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are plain, from the root"
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short_and_import_one_way(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
    assert path.stem not in DUMPING_GROUNDS
    package = path.relative_to(ROOT).parts[0]
    if package in PACKAGES:
        ours = imports(path) & PACKAGES.keys()
        assert ours <= PACKAGES[package] | {package}, f"{path} imports {ours}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_fit_on_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("package", ["data", "encoder", "pretrain.loop"])
def test_importing_does_not_load_slow_libraries(package: str) -> None:
    command = f"import sys, {package}; print({{'transformers', 'datasets', 'deepspeed', 'wandb'}} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_only_the_known_folders_stand_at_the_top() -> None:
    allowed = {
        "examples",
        "pretrain",
        "finetune",
        "encoder",
        "data",
        "configs",
        "launch",
        "tests",
        "benchmarks",
        "docs",
    }
    found = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name != "__pycache__"}
    assert found - {"runs", "build", "wandb"} - allowed == {p.name for p in ROOT.glob("*.egg-info")}


def test_no_init_in_tests() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_direct_dependency_is_pinned() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    block = project[project.index("dependencies = [") : project.index("[tool.setuptools]")]
    wanted = {re.split(r"[>=\[]", name)[0] for name in re.findall(r'"([A-Za-z][^"]*)"', block)} - {"lacuna"}
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert {name.lower() for name in wanted} <= pinned
