"""The one loader: precedence, types, and errors that name the key and the nearest right one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import Field

from configs import Config, InputError, load_config
from configs.loader import help_text


class Part(Config):
    """A part."""

    rate: float = Field(0.5, description="share")
    size: int = 3


class Whole(Config):
    """A whole."""

    name: str
    part: Part = Part()
    parts: list[Part] = Field([], description="entries")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text("name: a\npart: {rate: 1e-4}\n")
    return file


def test_file_over_defaults_and_command_line_over_file(path: Path) -> None:
    config = load_config(Whole, path, ["part.size=7", "parts=[{rate: 1}, {size: 2}]", "parts.1.size=9"])
    assert config.part.rate == 1e-4  # yaml 1.1 reads 1e-4 as text
    assert config.part.size == 7
    assert config.parts[1].size == 9


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("part.rat=1", "unknown key 'part.rat'; did you mean 'part.rate'?"),
        ("rate=1", "unknown key 'rate'; did you mean 'part.rate'?"),
        ("parts=[{sise: 1}]", "unknown key 'parts.0.sise'; did you mean 'parts.0.size'?"),
        ("part.size=1.5", "'part.size': input should be a valid integer"),
        ("part.size=true", "'size' must be a number, not true"),
        ("part.rate=much", "'part.rate': input should be a valid number"),
        ("part=3", "'part': input should be a valid dictionary"),
        ("part", "is not of the form key.sub=value"),
        ("name.first=x", "does not name a key"),
        ("parts.4.size=1", "unknown key|does not name a key|valid list"),
        ("part.rate=[1", "not valid yaml"),
    ],
)
def test_errors_are_one_line_and_name_the_key(path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError, match=message if "|" in message else re.escape(message)) as error:
        load_config(Whole, path, [override])
    assert "\n" not in str(error.value)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the config"):
        load_config(Whole, tmp_path / "absent.yaml")
    for text, message in [
        ("name: a\nname: b", "line 2: .*'name' is given twice"),
        ("- 1", "map of keys"),
        ("", "'name' is required"),
    ]:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(InputError, match=message):
            load_config(Whole, tmp_path / "bad.yaml")


def test_other_sections_are_passed_over_only_when_asked(path: Path) -> None:
    path.write_text("name: a\nother: {x: 1}\n")
    assert load_config(Whole, path, ignore_other_sections=True).name == "a"
    with pytest.raises(InputError, match="unknown key 'other'"):
        load_config(Whole, path)


def test_help_names_every_key_with_its_default() -> None:
    text = help_text(Whole)
    assert "part.rate [0.5]  share" in text
    assert "parts.0.size [3]" in text


def run_main(root: Path, body: str) -> "subprocess.CompletedProcess[str]":
    """A command whose `main` has this body, in a process of its own."""
    code = f"from configs import InputError, run_command\ndef main(arguments): {body}\nrun_command(main)"
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)


def test_a_users_error_is_one_line_and_exit_code_2(root: Path) -> None:
    result = run_main(root, "raise InputError('x\\n y')")
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "error: x y\n")


def test_any_other_error_keeps_its_trace(root: Path) -> None:
    result = run_main(root, "raise ValueError('x')")
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("ValueError: x\n")


def test_a_commands_exit_code_is_passed_on(root: Path) -> None:
    assert run_main(root, "return 75").returncode == 75
    assert run_main(root, "return None").returncode == 0
