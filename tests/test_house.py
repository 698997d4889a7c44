"""The rules of CONTRIBUTING.md that a machine can check.

A room is a sub-folder of a package, or a module that stands at the package's top. Modules and rooms are taken as graphs
of who imports whom. An import counts wherever it stands: at the top of a file, inside a function, under
`if TYPE_CHECKING`.
"""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
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
SCRIPTS = {"benchmarks", "examples"}  # use the packages; no package uses them
PATHS = sorted(p for folder in (*PACKAGES, *SCRIPTS) for p in (ROOT / folder).rglob("*.py"))
MAX_MODULES = 12
MAX_LINES = 300
MAX_FUNCTION_LINES = 60
DUMPING_GROUNDS = {"utils", "util", "common", "helpers", "misc"}
IN_FUNCTIONS = {  # libraries that functions may import, and why
    "transformers": "takes seconds; reading data, our own encoder folders and pretraining do without it",
    "datasets": "takes a second; only data sets of the hub, and a benchmark's peer, need it",
    "huggingface_hub": "only data sets of the hub need it",
    "deepspeed": "takes seconds and warns; only `engine.name: deepspeed` needs it",
    "wandb": "takes a second; only a run with this tracker needs it",
    "torch.utils.tensorboard": "loads tensorboard; only a run with this tracker needs it",
    "torch.nn.attention.varlen": "loads torch._dynamo, more than a second; only half precision on CUDA needs it",
    "jieba": "only `mask.unit: chinese_word` needs it",
    "matplotlib": "takes a second; only pictures need it",
    "onnxruntime": "an optional dependency (`onnx`)",
    "sentence_transformers": "takes seconds; only a benchmark's peer needs it",
}
OURS_IN_FUNCTIONS = {  # (module, what it imports inside a function) and why
    ("encoder.loading", "encoder.huggingface.load"): "loads transformers, which our own encoder folders do without",
    (
        "encoder.selftest",
        "encoder.huggingface.export",
    ): "loads transformers, which a shape without an export does without",
}


def name_of(path: Path) -> str:
    """The module's name: data/sources/files.py is data.sources.files, data/__init__.py is data."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}


def imported(tree: ast.AST) -> set[str]:
    """Every module that a tree of code imports, ours by the full name of the module that is meant."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {part if part in TREES else str(node.module) for part in parts}
    return names


IMPORTS = {name: imported(tree) & TREES.keys() for name, tree in TREES.items()}


def imported_in_functions(tree: ast.AST) -> set[str]:
    """What the functions of a module import."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for function in functions for name in imported(function)}


def room_of(module: str) -> str:
    """data.sources.files is in the room data.sources; data.config is its own room."""
    return ".".join(module.split(".")[:2])


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A path through the graph that ends where it began, in the order of imports; [] when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def folders() -> Iterator[Path]:
    """Every folder that holds a module of ours."""
    return iter(sorted({path.parent for path in PATHS}))


@pytest.mark.parametrize("path", PATHS, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short_and_import_one_way(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    assert path.stem not in DUMPING_GROUNDS
    package = path.relative_to(ROOT).parts[0]
    if package in PACKAGES:
        ours = {name.split(".")[0] for name in imported(TREES[name_of(path)])} & (PACKAGES.keys() | SCRIPTS | {"tests"})
        assert ours <= PACKAGES[package] | {package}, f"{path} imports {ours}"


@pytest.mark.parametrize("path", PATHS, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_fit_on_a_screen(path: Path) -> None:
    for node in ast.walk(TREES[name_of(path)]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("folder", folders(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_folder_holds_few_modules(folder: Path) -> None:
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= MAX_MODULES, f"{folder} holds {len(modules)} modules"


def test_no_circle_of_modules() -> None:
    path = circle(IMPORTS)
    assert path == [], " imports ".join(path)


def test_rooms_import_one_way() -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    reasons = {}
    for module, names in IMPORTS.items():
        for name in names:
            if room_of(module) != room_of(name):
                rooms[room_of(module)].add(room_of(name))
                reasons[room_of(module), room_of(name)] = f"{module} imports {name}"
    path = circle(rooms)
    assert path == [], "; ".join(reasons[step] for step in itertools.pairwise(path))


@pytest.mark.parametrize("module", TREES)
def test_imports_inside_functions_have_a_reason(module: str) -> None:
    for name in imported_in_functions(TREES[module]):
        if name in TREES:
            assert (module, name) in OURS_IN_FUNCTIONS, f"{module} imports {name} inside a function"
        else:
            known = any(name == library or name.startswith(library + ".") for library in IN_FUNCTIONS)
            assert known, f"{module} imports {name} inside a function"


def test_no_reason_for_an_import_is_left_over() -> None:
    found = {name: imported_in_functions(tree) for name, tree in TREES.items()}
    assert {(module, name) for module, name in OURS_IN_FUNCTIONS if name not in found.get(module, ())} == set()
    every = set().union(*found.values())
    used = {library for library in IN_FUNCTIONS for name in every if f"{name}.".startswith(f"{library}.")}
    assert used == IN_FUNCTIONS.keys()


def test_the_package_list_is_the_folders() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {name_of(path) for path in PATHS if path.name == "__init__.py"} - SCRIPTS
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(found)
    assert {name_of(folder) for folder in folders()} - SCRIPTS == found, "a folder of modules has an __init__.py"


def test_git_ignores_no_module() -> None:
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *map(str, PATHS)], cwd=ROOT, capture_output=True, text=True
    )
    assert ignored.stdout == ""


@pytest.mark.parametrize("package", ["data", "encoder", "pretrain.loop"])
def test_importing_does_not_load_slow_libraries(package: str) -> None:
    command = f"import sys, {package}; print({{'transformers', 'datasets', 'deepspeed', 'wandb'}} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_only_the_known_folders_stand_at_the_top() -> None:
    allowed = {*PACKAGES, *SCRIPTS, "launch", "tests", "docs"}
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
