"""The records of a file of sqllogictest, as the crate `sqllogictest` reads them."""

import dataclasses
import pathlib

SORT_MODES = {"nosort", "rowsort", "valuesort"}


@dataclasses.dataclass(frozen=True)
class Record:
    """A statement of a file, and what it should give.

    `expects` is `ok`, `error`, `count` (of rows written) or `rows`; `types` has a letter per column.
    """

    file: str
    line: int
    sql: str
    expects: str
    count: int = 0
    types: str = ""
    sort: str = "nosort"
    lines: tuple = ()
    hash_threshold: int = 0


class Reader:
    """Lines of a file, from which records are taken."""

    def __init__(self, path, name):
        self.path, self.name = path, name
        self.lines = path.read_text(encoding="utf-8").split("\n")
        self.at = 0
        self.hash_threshold = 0

    def records(self):
        """Yields the records of the file and of those that it includes."""
        is_skipped = False
        while self.at < len(self.lines):
            line, number = self._next().strip(), self.at
            if not line or line.startswith("#"):
                continue
            word, *rest = line.split()
            if word == "halt":
                return
            if word in ("onlyif", "skipif"):
                is_skipped |= (word == "onlyif") == (rest[0].lower() != "datafusion")
            elif word == "hash-threshold":
                self.hash_threshold = int(rest[0])
            elif word == "include":
                yield from self._included(rest[0])
            elif word in ("statement", "query"):
                record = self._record(word, rest, number)
                if not is_skipped:
                    yield record
                is_skipped = False
            else:
                raise ValueError(f"{self.name}:{number}: unknown record {line!r}")

    def _included(self, pattern):
        paths = sorted(self.path.parent.glob(pattern))
        assert paths, f"{self.name} includes {pattern}, which does not exist"
        for path in paths:
            yield from Reader(path, self.name).records()

    def _record(self, word, rest, number):
        sql, has_results = self._statement()
        fields = {"file": self.name, "line": number, "sql": sql, "hash_threshold": self.hash_threshold}
        if rest[:1] == ["error"]:
            if has_results:
                self._skip_message()
            return Record(expects="error", **fields)
        lines = self._results() if has_results else ()
        if word == "statement":
            count = int(rest[1]) if rest[0] == "count" else 0
            return Record(expects=rest[0], count=count, **fields)
        types = rest.pop(0) if rest and rest[0] not in SORT_MODES else ""
        sort = next((mode for mode in rest if mode in SORT_MODES), "nosort")
        return Record(expects="rows", types=types, sort=sort, lines=lines, **fields)

    def _statement(self):
        """Returns the text of a statement, whose first line may be empty, and whether its results follow."""
        lines = [self._next()]
        while self.at < len(self.lines) and (line := self._next()):
            if line.strip() == "----":
                return "\n".join(lines), True
            lines.append(line)
        return "\n".join(lines), False

    def _results(self):
        lines = []
        while self.at < len(self.lines) and (line := self._next()):
            lines.append(line)
        return tuple(lines)

    def _skip_message(self):
        """Skips the message of an error, which ends with two empty lines."""
        while self.at < len(self.lines):
            if not self._next() and (self.at == len(self.lines) or not self.lines[self.at]):
                return

    def _next(self):
        self.at += 1
        return self.lines[self.at - 1].rstrip("\r")


def records(folder, name):
    """Returns the records of the file `name` in a folder."""
    return list(Reader(pathlib.Path(folder) / name, name).records())


def names(folder):
    """Returns the names of the files of a folder, without those that are only included."""
    folder = pathlib.Path(folder)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.slt"))
