"""Answers of SQL servers as texts, and how two of them compare. Case files are in the folder `sql`."""

import dataclasses
import decimal
import math
import pathlib
import re

import psycopg
from psycopg.pq import ExecStatus

FOLDER = pathlib.Path(__file__).parent / "sql"

# Types that compare as one, by their numbers in pg_type.
INTEGERS = {20, 21, 23, 26}
FLOATS = {700, 701}
NUMERIC = 1700
TEXTS = {18, 19, 25, 705, 1042, 1043}
NUMBERS = INTEGERS | FLOATS | {NUMERIC}

# Digits that two floats, or a float and a numeric, must share.
RELATIVE = 1e-9


@dataclasses.dataclass(frozen=True)
class Answer:
    """The rows of a statement as texts with the types of the columns, or the code and message of its error."""

    rows: tuple = ()
    types: tuple = ()
    code: str = ""
    message: str = ""

    def __str__(self):
        if self.code:
            return f"error {self.code} {self.message}"
        return f"{list(self.rows)} of types {list(self.types)}"


def ask(connection, statement, values=()):
    """Runs a statement by the extended protocol, with texts or nulls as parameters, and returns its answer as texts."""
    values = [None if value is None else value.encode() for value in values]
    result = connection.pgconn.exec_params(statement.encode(), values)
    if result.status != ExecStatus.TUPLES_OK:
        code = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b"lost"
        message = result.error_field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        return Answer(code=code.decode(), message=message.decode())
    columns = range(result.nfields)
    cells = [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]
    rows = tuple(tuple(None if cell is None else cell.decode() for cell in row) for row in cells)
    return Answer(rows, tuple(result.ftype(column) for column in columns))


def family(number):
    """Returns the number of a type that stands for all that compare as one."""
    for types in (INTEGERS, FLOATS, TEXTS):
        if number in types:
            return min(types)
    return number


def same_number(ours, theirs, relative=RELATIVE):
    """Returns whether two texts are the same number. With a fraction in either, rounding is allowed."""
    ours, theirs = (decimal.Decimal(text) for text in (ours, theirs))
    return ours == theirs or math.isclose(ours, theirs, rel_tol=relative, abs_tol=1e-300)


def same_cell(ours, theirs, kind):
    if ours is None or theirs is None:
        return ours is theirs
    return ours == theirs or (kind in NUMBERS and is_number(ours) and is_number(theirs) and same_number(ours, theirs))


def is_number(text):
    return re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?|NaN|-?Infinity", text) is not None


def is_ordered(statement):
    """Returns whether the whole result of a statement has an order."""
    return re.search(r"\bORDER BY\b[^)]*$", statement.strip(), re.IGNORECASE) is not None


def sort_key(row):
    """Orders rows that contain nulls. Numbers are rounded, so that the same numbers of two servers sort alike."""
    return [(cell is None, f"{float(cell):.6e}" if cell and is_number(cell) else cell or "") for cell in row]


def difference(statement, ours, theirs):
    """Returns how the rows of two answers differ, or `None`. Numbers of different types may be the same."""
    if ours.code or theirs.code:
        return None if ours.code[:2] == theirs.code[:2] else "error"
    if len(ours.types) != len(theirs.types) or len(ours.rows) != len(theirs.rows):
        return "rows"
    pair = [ours.rows, theirs.rows]
    if not is_ordered(statement):
        pair = [sorted(rows, key=sort_key) for rows in pair]
    for our_row, their_row in zip(*pair, strict=True):
        if not all(map(same_cell, our_row, their_row, theirs.types)):
            return "values"
    return None


def strict_difference(ours, theirs):
    """Returns how two answers differ, or `None`: values as texts, families of types, classes of errors."""
    if ours.code or theirs.code:
        return None if ours.code[:2] == theirs.code[:2] else "error"
    if ours.rows != theirs.rows:
        return "values"
    if [*map(family, ours.types)] != [*map(family, theirs.types)]:
        return "types"
    return None


def lines(name):
    """Returns the lines of a case file that are not comments."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("-- ")]


def statements(name):
    """Returns the statements of a case file, each of which ends with a semicolon at the end of a line."""
    parts = "\n".join(lines(name)).split(";\n")
    return [part.strip().removesuffix(";").replace("\n", " ") for part in parts if part.strip()]


def known(name):
    """Returns the known differences of a file, with the comment before them as their reason."""
    reason, found = None, {}
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("-- "):
            reason = line.removeprefix("-- ")
        elif line:
            found[line] = reason
    return found
