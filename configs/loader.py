"""The one configuration mechanism: defaults, then the yaml file, then `key.sub=value` on the command line.

A configuration is a tree of frozen pydantic models, each beside the thing that it configures. Everything that a user
can get wrong is a `InputError` of one line that names the key and the nearest right one; `run_command` turns it into
exit code 2. Cost: one yaml parse at start.
"""

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from configs.errors import InputError

BAD_INPUT = 2  # exit code: the user's input is wrong


class Config(BaseModel):
    """Base of every section: frozen, no unknown keys, text such as `1e-4` read by the field's type."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _no_booleans_as_numbers(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(key)
            if isinstance(value, bool) and field and field.annotation in (int, float):
                raise InputError(f"'{key}' must be a number, not {str(value).lower()}")
        return values


C = TypeVar("C", bound=Config)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where yaml would keep the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _parse(text: str, place: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{place}{where}: not valid yaml: {getattr(error, 'problem', None) or error}") from None


def load_config(
    model: type[C], path: str | Path, overrides: Sequence[str] = (), *, ignore_other_sections: bool = False
) -> C:
    """Read `path`, apply `overrides` (`key.sub=value`, values as yaml) and validate.

    `ignore_other_sections` passes over top-level keys that `model` lacks: commands that read a part of a run's file.
    Raises InputError naming the file and the key, in one line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the config {path}: {getattr(error, 'strerror', None) or error}") from None
    values = _parse(text, str(path)) or {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: a config is a map of keys, not a {type(values).__name__}")
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise InputError(f"'{override}' on the command line is not of the form key.sub=value")
        set_key(values, key, _parse(value, f"command line, '{key}'"))
    if ignore_other_sections:
        values = {key: value for key, value in values.items() if key in model.model_fields}
    return validate(model, values, str(path))


def validate(model: type[C], values: Any, place: str) -> C:
    """Build `model` from plain values; InputError of one line, prefixed with `place`, naming key and nearest key."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        known = list(keys(model))
        lines = [_describe(item, known) for item in error.errors()]
        raise InputError(f"{place}: " + "; ".join(dict.fromkeys(lines))) from None


def set_key(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `a.b.0.c` in nested maps and lists, creating maps on the way; InputError when it names no place."""
    *parents, last = dotted.split(".")
    here: Any = values
    try:
        for name in parents:
            if isinstance(here, dict) and here.get(name) is None:
                here[name] = {}
            here = here[int(name)] if isinstance(here, list) else here[name]
        here[int(last) if isinstance(here, list) else last] = value
    except (TypeError, ValueError, IndexError, KeyError):
        raise InputError(f"'{dotted}' does not name a key of the config") from None


def _describe(item: Any, known: list[str]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        shape = ".".join("0" if isinstance(part, int) else str(part) for part in item["loc"])
        return f"unknown key '{key}'{_nearest(shape, known)}"
    if item["type"] == "missing":
        return f"the key '{key}' is required"
    if item["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"'{key}': {message[0].lower()}{message[1:]}, not {item['input']!r}"


def _nearest(key: str, known: list[str]) -> str:
    leaf = key.rsplit(".", 1)[-1]
    by_leaf = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    close = by_leaf or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not close:
        leaves = {name.rsplit(".", 1)[-1]: name for name in known}
        close = [leaves[name] for name in difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.6)]
    return f"; did you mean '{close[0]}'?" if close else ""


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a configuration; an entry of a list is written as `0`."""
    for name, _, submodel, is_list in _fields(model):
        yield f"{prefix}{name}"
        if submodel:
            yield from keys(submodel, f"{prefix}{name}.{'0.' if is_list else ''}")


def help_text(model: type[BaseModel], prefix: str = "") -> str:
    """One line a key: name, default, description with unit; for `--help`."""
    lines = []
    for name, field, submodel, is_list in _fields(model):
        default = "required" if field.is_required() else field.get_default(call_default_factory=True)
        if submodel and (is_list or not isinstance(default, list)):
            lines.append(f"\n{prefix}{name}: {field.description or (submodel.__doc__ or '').splitlines()[0]}")
            lines.append(help_text(submodel, f"{prefix}{name}.{'0.' if is_list else ''}"))
        else:
            shown = f" [{default}]" if default != "" else ""
            lines.append(f"  {prefix}{name}{shown}  {field.description or ''}".rstrip())
    return "\n".join(lines)


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, Any, type[BaseModel] | None, bool]]:
    for name, field in model.model_fields.items():
        candidates = [field.annotation, *get_args(field.annotation)]
        candidates += [inner for outer in candidates for inner in get_args(outer)]
        submodel = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        is_list = submodel is not None and "list" in str(field.annotation)
        yield name, field, submodel, is_list


def run_command(main: Callable[[list[str]], int | None], model: type[Config] | None = None, usage: str = "") -> None:
    """Run a command's `main(arguments)` and exit; a InputError is one line on stderr and exit code 2.

    With `model`, `--help` prints `usage` and every key with its default. The `--local_rank=N` that the `deepspeed`
    launcher adds is dropped (the environment says the same).
    """
    arguments = [a for a in sys.argv[1:] if not a.startswith(("--local_rank=", "--local-rank="))]
    if "--help" in arguments or "-h" in arguments:
        print(usage or (main.__doc__ or ""))
        print(help_text(model) if model else "", end="\n" if model else "")
        sys.exit(0)
    try:
        code = main(arguments)
    except InputError as error:
        line = " ".join(str(error).split())
        print(f"error: {line}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code or 0)
