"""Columns by role. A file's rows are renamed to roles once, when they are read, and every fault is named with its
place.

`kinds` of a task are tuples of roles, the most specific first; a file's kind is the first one whose columns it all
has. A role may be given several columns where the files differ: the first one that a file has is taken.
"""

from collections.abc import Collection, Iterator, Sequence

from configs import InputError
from finetune.reading.rows import Row, first_row, read_rows

Kind = tuple[str, ...]
Columns = dict[str, str | list[str]]
TEXT_ROLES = ("text", "text_a", "text_b", "negative", "query", "target", "question", "context")


def names_of(columns: Columns, role: str) -> list[str]:
    """The columns that may hold a role: as configured; the one of the same name when nothing is configured."""
    names = columns.get(role, []) if columns else role
    return [names] if isinstance(names, str) else names


def has_roles(path: str, kind: Kind, columns: Columns) -> bool:
    """Whether the file has a column for every role of `kind`."""
    has = first_row(path).values
    return all(any(name in has for name in names_of(columns, role)) for role in kind)


def kind_of(path: str, kinds: Sequence[Kind], columns: Columns) -> Kind:
    """The kind of the file; InputError that names what it has and what a kind needs."""
    for kind in kinds:
        if has_roles(path, kind, columns):
            return kind
    needs = " or ".join(f"({', '.join('|'.join(names_of(columns, role)) or role for role in kind)})" for kind in kinds)
    raise InputError(
        f"{path}: has the columns {_listed(first_row(path).values)}; needed: {needs}; map them with "
        "columns: {role: column}"
    )


def check_roles(paths: Sequence[str], known: Sequence[str], columns: Columns) -> None:
    """InputError when `columns` maps a role that the task has not, or to a column that no file has."""
    for role in columns:
        if role not in known:
            raise InputError(f"columns: '{role}' is not a role of this task; allowed: {', '.join(known)}")
        for name in names_of(columns, role):
            if not any(name in first_row(path).values for path in paths):
                has = _listed(first_row(paths[0]).values)
                raise InputError(f"columns: no file has the column '{name}' (for {role}); {paths[0]} has: {has}")


def read_kind(path: str, kind: Kind, columns: Columns) -> Iterator[Row]:
    """Rows of `path` with the roles of `kind` as keys; InputError naming a row without it or no text."""
    has = first_row(path).values
    names = [(role, next(name for name in names_of(columns, role) if name in has)) for role in kind]
    for row in read_rows(path):
        for role, column in names:
            value = row.values.get(column)
            if value is None:
                state = "is null" if column in row.values else "is missing"
            elif role in TEXT_ROLES and not isinstance(value, str):
                state = f"must be text, not {type(value).__name__}"
            else:
                continue
            raise InputError(f"{row.place}: the column '{column}' (for {role}) {state}")
        yield Row(row.place, {role: row.values[column] for role, column in names})


def number_of(row: Row, role: str) -> float:
    """The finite number of a role (text from a csv is read as a number); InputError otherwise."""
    value = row.values[role]
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if number - number != 0:  # nan or infinite
        raise InputError(f"{row.place}: '{role}' must be a number, not {value!r}")
    return number


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(str, names))
