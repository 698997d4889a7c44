"""Columns by role: what a task uses a column for (text, label, …). Rows are renamed to roles once, when they are read.

A task lists the sets of roles that it can read, the most specific first; the first one for which a file has all columns
is read. A role may be given several columns where files differ: the first one that a file has is taken.
"""

import math
from collections.abc import Iterator, Sequence

from configs import InputError
from finetune.config import ColumnMapping
from finetune.reading.rows import Row, column_names, read_rows

RoleSet = tuple[str, ...]
TEXT_ROLES = ("text", "text_a", "text_b", "negative", "query", "target", "question", "context")


def column_candidates(role: str, mapping: ColumnMapping) -> list[str]:
    """The columns that may hold a role: as configured; the one of the same name when nothing is configured."""
    names = mapping.get(role, []) if mapping else role
    return [names] if isinstance(names, str) else names


def choose_roles(path: str, allowed: Sequence[RoleSet], mapping: ColumnMapping) -> RoleSet:
    """The first of `allowed` whose columns the file has; InputError that names what it has and what is needed."""
    names = column_names(path)
    for roles in allowed:
        if has_roles(names, roles, mapping):
            return roles
    needed = " or ".join(
        f"({', '.join('|'.join(column_candidates(role, mapping)) or role for role in roles)})" for roles in allowed
    )
    remedy = "map them with columns: {role: column}"
    raise InputError(f"{path}: has the columns {', '.join(names)}; needed: {needed}; {remedy}")


def has_roles(names: Sequence[str], roles: RoleSet, mapping: ColumnMapping) -> bool:
    """Whether the columns `names` fill all of `roles`."""
    return all(any(name in names for name in column_candidates(role, mapping)) for role in roles)


def check_mapping(paths: Sequence[str], role_sets: Sequence[RoleSet], mapping: ColumnMapping) -> None:
    """InputError when `mapping` has a role that is in none of the sets, or a column that no file has."""
    known = dict.fromkeys(role for roles in role_sets for role in roles)
    for role in mapping:
        if role not in known:
            raise InputError(f"columns: '{role}' is not a role of this task; allowed: {', '.join(known)}")
    columns = [column_names(path) for path in paths] if mapping else []
    for role in mapping:
        for name in column_candidates(role, mapping):
            if not any(name in names for names in columns):
                has = f"{paths[0]} has: {', '.join(columns[0])}"
                raise InputError(f"columns: no file has the column '{name}' (for {role}); {has}")


def read_roles(path: str, allowed: Sequence[RoleSet], mapping: ColumnMapping) -> Iterator[Row]:
    """Rows of `path` with the roles that it has as keys (`choose_roles`).

    InputError naming a row that lacks one or whose text is no text.
    """
    roles, names = choose_roles(path, allowed, mapping), column_names(path)
    columns = {role: next(name for name in column_candidates(role, mapping) if name in names) for role in roles}
    for row in read_rows(path):
        for role, column in columns.items():
            value = row.values.get(column)
            if value is None:
                problem = "is null" if column in row.values else "is missing"
            elif role in TEXT_ROLES and not isinstance(value, str):
                problem = f"must be text, not {type(value).__name__}"
            else:
                continue
            raise InputError(f"{row.place}: the column '{column}' (for {role}) {problem}")
        yield Row(row.place, {role: row.values[column] for role, column in columns.items()})


def number_of(row: Row, role: str) -> float:
    """The finite number of a role (text from a csv is read as a number); InputError otherwise."""
    value = row.values[role]
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{row.place}: '{role}' must be a number, not {value!r}")
    return number
