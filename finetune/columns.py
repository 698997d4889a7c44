"""Columns by role. A file's rows are renamed to roles once, when they are read, and every fault is named with its
place.

`kinds` of a task are tuples of roles, the most specific first; a file's kind is the first one whose columns it all has.
"""

from collections.abc import Iterator, Sequence

from finetune.rows import Row, first_row, read_rows

Kind = tuple[str, ...]
TEXT_ROLES = ("text", "text_a", "text_b", "negative", "query", "target", "question", "context")


def column_of(columns: dict[str, str], role: str) -> str | None:
    """The column for a role: as configured; of the same name when nothing is configured."""
    return columns.get(role) if columns else role


def kind_of(path: str, kinds: Sequence[Kind], columns: dict[str, str]) -> Kind:
    """The kind of the file; ValueError that names what it has and what a kind needs."""
    has = first_row(path).values
    for kind in kinds:
        if has_roles(path, kind, columns):
            return kind
    needs = " or ".join("(" + ", ".join(column_of(columns, role) or role for role in kind) + ")" for kind in kinds)
    raise ValueError(
        f"{path}: has the columns {', '.join(map(str, has))}; needed: {needs}; map them with columns: {{role: column}}"
    )


def has_roles(path: str, kind: Kind, columns: dict[str, str]) -> bool:
    """Whether the file has the columns for every role of `kind`."""
    has = first_row(path).values
    return all(column_of(columns, role) in has for role in kind)


def check_roles(paths: Sequence[str], known: Sequence[str], columns: dict[str, str]) -> None:
    """ValueError when `columns` maps a role that the task has not, or to a column that no file has."""
    for role, column in columns.items():
        if role not in known:
            raise ValueError(f"columns: '{role}' is not a role of this task; allowed: {', '.join(known)}")
        if not any(column in first_row(path).values for path in paths):
            raise ValueError(
                f"columns: no file has the column '{column}' (for {role}); {paths[0]} has: "
                f"{', '.join(map(str, first_row(paths[0]).values))}"
            )


def read_kind(path: str, kind: Kind, columns: dict[str, str]) -> Iterator[Row]:
    """Rows of `path` with the roles of `kind` as keys; ValueError naming a row without it or no text."""
    names = [(role, column_of(columns, role) or role) for role in kind]
    for row in read_rows(path):
        for role, column in names:
            if row.values.get(column) is None:
                state = "is null" if column in row.values else "is missing"
                raise ValueError(f"{row.place}: the column '{column}' (for {role}) {state}")
            if role in TEXT_ROLES and not isinstance(row.values[column], str):
                kind_of_value = type(row.values[column]).__name__
                raise ValueError(f"{row.place}: the column '{column}' (for {role}) must be text, not {kind_of_value}")
        yield Row(row.place, {role: row.values[column] for role, column in names})


def number_of(row: Row, role: str) -> float:
    """The finite number of a role (text from a csv is read as a number); ValueError otherwise."""
    value = row.values[role]
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if number - number != 0:  # nan or infinite
        raise ValueError(f"{row.place}: '{role}' must be a number, not {value!r}")
    return number
