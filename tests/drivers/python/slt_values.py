"""Values as texts of PostgreSQL's protocol, written as the sqllogictest runner of DataFusion writes them."""

import decimal
import hashlib
import json
import re

decimal.getcontext().prec = 100

# Letters of types in the files, by the numbers of types in pg_type. Others are `?`.
LETTERS = {16: "B", 1082: "D", 1083: "D", 1114: "P", 1184: "P"}
LETTERS |= dict.fromkeys((20, 21, 23, 26), "I")
LETTERS |= dict.fromkeys((700, 701, 1700), "R")
LETTERS |= dict.fromkeys((18, 19, 25, 1042, 1043), "T")
# Types of elements, by those of arrays.
ELEMENTS = {
    1000: 16, 1001: 17, 1005: 21, 1007: 23, 1009: 25, 1014: 1042, 1015: 1043, 1016: 20, 1021: 700, 1022: 701, 1028: 26,
    1115: 1114, 1182: 1082, 1183: 1083, 1185: 1184, 1187: 1186, 1231: 1700, 199: 114, 3807: 3802,
}  # fmt: skip
FLOATS, NUMERIC, BYTEA, INTERVAL = (700, 701), 1700, 17, 1186
TEXTS, JSON = (18, 19, 25, 1042, 1043), (114, 3802)
# Decimal places to which the runner rounds a float.
PLACES, PLACES_OF_SPARK = 12, 15


def letters(types):
    """Returns the letters of the types of columns."""
    return "".join(LETTERS.get(kind, "?") for kind in types)


def plain(text, places=None):
    """Returns a number without exponent and trailing zeros, rounded to decimal places."""
    if text.lstrip("+-") in ("NaN", "Infinity"):
        return text
    number = decimal.Decimal(text)
    if places is not None and number.as_tuple().exponent < -places:
        number = number.quantize(decimal.Decimal(1).scaleb(-places), decimal.ROUND_HALF_EVEN)
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def moment(text):
    """Returns a time, timestamp or timestamp with a zone as Arrow displays it: fractions have 3, 6 or 9 digits."""
    text = text.replace(" ", "T", 1) if re.match(r"\d{4,}-\d\d-\d\d \d", text) else text
    if found := re.search(r"\.(\d+)", text):
        digits = found[1].ljust(-(-len(found[1]) // 3) * 3, "0")
        text = text[: found.start(1)] + digits + text[found.end(1) :]
    if found := re.search(r"[+-]\d\d(:\d\d)?$", text[11:]):
        zone = "Z" if re.fullmatch(r"[+-]00(:00)?", found[0]) else found[0] + ("" if found[1] else ":00")
        text = text[: 11 + found.start()] + zone
    return text


def interval(text):
    """Returns an interval as Arrow displays one of months, days and nanoseconds."""
    months, days = 0, 0
    for count, unit in re.findall(r"([+-]?\d+) (year|mon|day)", text):
        months += int(count) * {"year": 12, "mon": 1}.get(unit, 0)
        days += int(count) if unit == "day" else 0
    parts = [f"{months} mons"] if months else []
    parts += [f"{days} days"] if days else []
    if found := re.search(r"([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?", text):
        sign, (hours, minutes, seconds) = found[1].strip("+"), map(int, found.group(2, 3, 4))
        fraction = (found[5] or "").ljust(9, "0")
        parts += [f"{sign}{hours} hours"] if hours else []
        parts += [f"{sign}{minutes} mins"] if minutes else []
        parts += [f"{sign}{seconds}.{fraction} secs"] if seconds or fraction.strip("0") else []
    return " ".join(parts) or "0 secs"


def elements(text):
    """Returns the elements of the text of an array: texts, lists of elements, and `None` for nulls."""
    stack = [[]]
    pattern = r'\{|\}|"((?:[^"\\]|\\.)*)"|[^{},"]+'
    for found in re.finditer(pattern, text.partition("=")[2] if text.startswith("[") else text, re.DOTALL):
        token = found[0]
        if token == "{":
            stack.append([])
        elif token == "}":
            last = stack.pop()
            stack[-1].append(last)
        elif token.startswith('"'):
            stack[-1].append(re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL))
        else:
            stack[-1].append(None if token == "NULL" else token)
    return stack[0][0]


def shown(value, kind):
    """Returns an element of a list as Arrow displays it."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return f"[{', '.join(shown(element, kind) for element in value)}]"
    if kind in FLOATS and re.fullmatch(r"-?\d+", value):
        return f"{value}.0"
    if kind in (*TEXTS, NUMERIC, *FLOATS):
        return value
    return cell(value, kind, None)


def shown_json(value):
    """Returns a value of a struct as Arrow displays it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {shown_json(field)}' for name, field in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(shown_json, value))}]"
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    # Fields have the texts that they would have as columns.
    return moment(value) if re.match(r"\d{4}-\d\d-\d\d[ T]\d\d:", str(value)) else str(value)


def cell(text, kind, places):
    """Returns a value as the runner writes it. Without `places`, a number keeps all its digits."""
    if text is None:
        return "NULL"
    if kind == 16:
        return {"t": "true", "f": "false"}[text]
    if kind in FLOATS:
        return plain(text, places or PLACES)
    if kind == NUMERIC:
        return plain(text, places)
    if kind in TEXTS:
        return text.rstrip("\n").replace("\0", "\\0") or "(empty)"
    if kind == BYTEA:
        return text.removeprefix("\\x")
    if kind == INTERVAL:
        return interval(text)
    if kind in JSON:
        return shown_json(json.loads(text, parse_float=str))
    if kind in ELEMENTS:
        return shown(elements(text), ELEMENTS[kind])
    return moment(text) if LETTERS.get(kind) in ("D", "P") else text


def expanded(row):
    """Yields a row, of which each line of the last value is a row of its own if there are several, as in plans."""
    *first, last = row
    lines = last.split("\n")
    if len(lines) == 1:
        yield row
        return
    if first:
        yield first
    for number, line in enumerate(lines, 1):
        content = line.lstrip()
        yield [f"{number:02}){'-' * (len(line) - len(content))}{content}"]


def written(rows, types, sort, hash_threshold, places):
    """Returns the lines that the runner writes for rows of texts."""
    rows = [[cell(text, kind, places) for text, kind in zip(row, types, strict=True)] for row in rows]
    rows = [part for row in rows for part in (expanded(row) if row else [row])]
    if sort == "rowsort":
        rows.sort()
    elif sort == "valuesort":
        rows = [[value] for value in sorted(value for row in rows for value in row)]
    count = sum(map(len, rows))
    if 0 < hash_threshold < count:
        digest = hashlib.md5("".join(f"{value}\n" for row in rows for value in row).encode()).hexdigest()
        return [f"{count} values hashing to {digest}"]
    return [" ".join(row).rstrip() for row in rows]
