"""Random tables and queries, of the SQL whose meaning PostgreSQL, DuckDB and Forebay share.

Left out, because DuckDB has another meaning: division (of integers, and by zero), remainders by zero, `LIKE` with
escapes, `ORDER BY` without `NULLS FIRST` or `LAST`, casts of other types to texts, `CHAR(n)`, intervals, arrays, JSON,
regular expressions, `IS UNKNOWN`, `substring` from below 1, and integers near the limits of their types. Floats are
multiples of 1/4, so that sums do not depend on their order. Queries for one server only (`wide`) use some of these.
"""

import dataclasses

INT, REAL, DEC, TEXT, DAY, BOOL = "BIGINT", "DOUBLE PRECISION", "NUMERIC(10, 2)", "VARCHAR", "DATE", "BOOLEAN"
TYPES = (INT, INT, REAL, DEC, TEXT, TEXT, DAY, BOOL)
WORDS = ("", "a", "ab", "abc", "b", "B", "é", "x%", "a_c", " ", "NULL", "0")
PATTERNS = ("%", "a%", "%b%", "_", "a_c", "__", "%c", "", "é", "B%")
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN")
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
NULL_SHARE = 0.25

# Defects of Forebay that queries must not meet yet. Remove a name when its defect is mended: queries then use it.
UNMENDED = frozenset({
    # A filter that has no columns once it is simplified is pushed below an aggregate without GROUP BY.
    "constant-filter-above-aggregate",
    # A list that begins with a subquery, as in `a IN ((SELECT 1), 2)`, is a syntax error.
    "subquery-first-in-list",
    # `concat('', NULL)` loses all its arguments.
    "concat-of-nulls",
})  # fmt: skip


def literal(rng, kind, null_share=0.1):
    """Returns a literal of a type."""
    if rng.random() < null_share:
        return f"CAST(NULL AS {kind})"
    if kind == INT:
        return f"CAST({rng.randint(-5, 12)} AS BIGINT)"
    if kind == REAL:
        return f"CAST({rng.randint(-20, 40) / 4} AS DOUBLE PRECISION)"
    if kind == DEC:
        return f"CAST({rng.randint(-500, 1500) / 100:.2f} AS NUMERIC(10, 2))"
    if kind == TEXT:
        return f"'{rng.choice(WORDS)}'"
    if kind == DAY:
        return f"DATE '2020-{rng.randint(1, 3):02}-{rng.randint(1, 5):02}'"
    return rng.choice(("true", "false"))


@dataclasses.dataclass
class Table:
    """A table, or a part of a `FROM` clause. Columns are pairs of a name and a type."""

    name: str
    columns: list

    def columns_of(self, alias):
        return [(f"{alias}.{name}", kind) for name, kind in self.columns]


def random_table(rng, name):
    """Returns a table and the statements that create and fill it."""
    kinds = [INT, rng.choice(TYPES), *(rng.choice(TYPES) for _ in range(rng.randint(1, 4)))]
    letter = "abc"[int(name[-1])] if "same-names-in-join" in UNMENDED else "c"
    table = Table(name, [(f"{letter}{number}", kind) for number, kind in enumerate(kinds)])
    columns = ", ".join(f"{column} {kind}" for column, kind in table.columns)
    filling = [f"CREATE TABLE {name} ({columns})"]
    count = rng.choice((0, 1, 3, 8, 8, 20, 40))
    rows = ["(" + ", ".join(literal(rng, kind, NULL_SHARE) for kind in kinds) + ")" for _ in range(count)]
    if rows:
        filling.append(f"INSERT INTO {name} VALUES {', '.join(rows)}")
    return table, filling


class Generator:
    """Makes random queries over tables. `wide` adds SQL that only one of the servers has, or has otherwise."""

    def __init__(self, rng, tables, wide=False):
        self.rng = rng
        self.tables = tables
        self.wide = wide
        self.start()

    def start(self):
        """Begins a new query."""
        self.aliases = 0
        self.subqueries = 0
        self.has_outer_join = False

    def chance(self, share):
        return self.rng.random() < share

    # FROM clauses.

    def alias(self):
        self.aliases += 1
        return f"r{self.aliases}"

    def source(self, depth=1, used=()):
        """Returns a table or derived table with its alias, and its columns. `used` are the tables beside it."""
        alias = self.alias()
        if depth and self.chance(0.15):
            text, kinds = self.derived()
            names = [f"{alias}k{number}" for number in range(len(kinds))]
            columns = [(f"{alias}.{name}", kind) for name, kind in zip(names, kinds, strict=True)]
            return f"({text}) AS {alias} ({', '.join(names)})", columns
        tables = [table for table in self.tables if table.name not in used]
        table = self.rng.choice(tables if "same-names-in-join" in UNMENDED else self.tables)
        return f"{table.name} AS {alias}", table.columns_of(alias)

    def derived(self):
        """Returns a query for a `FROM` clause and the types of its columns."""
        text, columns = self.sources(1, depth=0)
        kinds = [self.kind() for _ in range(self.rng.randint(1, 3))]
        if self.chance(0.5):
            return self.grouped(text, columns, int("constant-filter-above-aggregate" in UNMENDED))
        distinct = "DISTINCT " if self.chance(0.3) else ""
        names = ", ".join(f"{self.value(kind, columns, 1)} AS k{number}" for number, kind in enumerate(kinds))
        return f"SELECT {distinct}{names} FROM {text}{self.where(columns, 0.5)}", kinds

    def sources(self, count=None, depth=1):
        """Returns a `FROM` clause of at most three sources, and their columns."""
        count = count or self.rng.choice((1, 1, 2, 2, 3))
        text, columns = self.source(depth)
        used = [text.split()[0]]
        for _ in range(count - 1):
            join = self.rng.choice(JOINS)
            right, right_columns = self.source(depth, used)
            used.append(right.split()[0])
            self.has_outer_join |= join in ("LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            on = "" if join == "CROSS JOIN" else f" ON {self.condition_of_join(columns, right_columns)}"
            text, columns = f"{text} {join} {right}{on}", columns + right_columns
        return text, columns

    def condition_of_join(self, left, right):
        pairs = [(a, b) for a, kind in left for b, other in right if kind == other]
        parts = []
        if pairs and (self.chance(0.85) or "constant-join-condition" in UNMENDED):
            a, b = self.rng.choice(pairs)
            operator = self.rng.choice(("=", "=", "=", "=", "IS NOT DISTINCT FROM", "<", "<>"))
            parts.append(f"{a} {operator} {b}")
        if "constant-join-condition" in UNMENDED:
            return parts[0] if parts else f"{left[0][0]} IS NULL OR {right[0][0]} IS NULL"
        if not parts or self.chance(0.3):
            parts.append(self.predicate(left + right, 1, subqueries=False))
        return f" {self.rng.choice(('AND', 'AND', 'OR'))} ".join(parts)

    def where(self, columns, share=0.8):
        return f" WHERE {self.predicate(columns, 2)}" if self.chance(share) else ""

    # Expressions.

    def kind(self):
        return self.rng.choice(TYPES)

    def value(self, kind, columns, depth):
        """Returns an expression of a type."""
        found = [name for name, other in columns if other == kind]
        if depth <= 0 or self.chance(0.35):
            return self.rng.choice(found) if found and self.chance(0.8) else literal(self.rng, kind)
        if self.chance(0.3):
            return self.general(kind, columns, depth)
        return getattr(self, NAMES[kind])(columns, depth)

    def general(self, kind, columns, depth):
        """Returns an expression that all types have."""
        one, other = (self.value(kind, columns, depth - 1) for _ in range(2))
        form = self.rng.randrange(6)
        if form == 0:
            return f"coalesce({one}, {other})"
        if form == 1:
            return f"nullif({one}, {other})"
        if form == 2 and kind != BOOL:
            return f"{self.rng.choice(('greatest', 'least'))}({one}, {other})"
        if form == 3:
            tested, when = self.value(INT, columns, 0), self.value(INT, columns, 0)
            return f"CASE {tested} WHEN {when} THEN {one} ELSE {other} END"
        orelse = f" ELSE {other}" if self.chance(0.7) else ""
        return f"CASE WHEN {self.predicate(columns, depth - 1)} THEN {one}{orelse} END"

    def integer(self, columns, depth):
        one, other = (self.value(INT, columns, depth - 1) for _ in range(2))
        forms = [
            lambda: f"({one} {self.rng.choice('+-*')} {other})",
            lambda: f"({one} % {self.rng.choice((2, 3, -3))})",
            lambda: f"(- {one})",
            lambda: f"abs({one})",
            lambda: f"CAST(length({self.value(TEXT, columns, depth - 1)}) AS BIGINT)",
            lambda: f"CAST(extract(day FROM {self.value(DAY, columns, depth - 1)}) AS BIGINT)",
            lambda: f"CAST({self.predicate(columns, depth - 1)} AS INT)",
            lambda: self.scalar(INT, columns),
        ]
        if self.wide:
            forms.append(lambda: f"({one} / {self.rng.choice((2, 3, -3))})")
            if "cast-through-text" not in UNMENDED:
                forms.append(lambda: f"CAST(CAST({one} AS text) AS bigint)")
        return self.rng.choice(forms)()

    def real(self, columns, depth):
        one, other = (self.value(REAL, columns, depth - 1) for _ in range(2))
        forms = [
            lambda: f"({one} {self.rng.choice('+-')} {other})",
            lambda: f"(- {one})",
            lambda: f"abs({one})",
            lambda: f"floor({one})",
            lambda: f"CAST({self.value(INT, columns, depth - 1)} AS DOUBLE PRECISION)",
            lambda: self.scalar(REAL, columns),
        ]
        return self.rng.choice(forms)()

    def decimal(self, columns, depth):
        one, other = (self.value(DEC, columns, depth - 1) for _ in range(2))
        forms = [
            lambda: f"CAST(({one} {self.rng.choice('+-')} {other}) AS NUMERIC(10, 2))",
            lambda: f"(- {one})",
            lambda: f"abs({one})",
            lambda: self.scalar(DEC, columns),
        ]
        return self.rng.choice(forms)()

    def text(self, columns, depth):
        one, other = (self.value(TEXT, columns, depth - 1) for _ in range(2))
        third = "'q'" if "concat-of-nulls" in UNMENDED else "''"
        forms = [
            lambda: f"({one} || {other})",
            lambda: f"{self.rng.choice(('upper', 'lower', 'trim', 'reverse'))}({one})",
            lambda: f"substring({one}, {self.rng.randint(1, 2)}, {self.rng.randint(0, 2)})",
            lambda: f"replace({one}, 'a', {other})",
            lambda: f"concat({one}, {other}, {third})",
            lambda: f"left({one}, {self.rng.randint(0, 2)})",
            lambda: self.scalar(TEXT, columns),
        ]
        if self.wide:
            forms.append(lambda: f"CAST({self.value(self.kind(), columns, depth - 1)} AS text)")
            forms.append(lambda: f"regexp_replace({one}, '[ab]', 'z')")
        return self.rng.choice(forms)()

    def day(self, columns, depth):
        one = self.value(DAY, columns, depth - 1)
        if self.wide and self.chance(0.3):
            return f"CAST(date_trunc('month', {one}) AS date)"
        return one if self.chance(0.7) else self.scalar(DAY, columns)

    def boolean(self, columns, depth):
        return self.predicate(columns, depth)

    def scalar(self, kind, columns):
        """Returns a subquery that has one row with an aggregate."""
        if self.subqueries >= 2:
            return literal(self.rng, kind)
        self.subqueries += 1
        table, inner = self.source(0)
        name = self.rng.choice(("min", "max") + (("sum",) if kind in (INT, REAL) else ()))
        value = self.value(kind, inner, 1)
        cast = f"CAST({name}({value}) AS {kind})" if name == "sum" else f"{name}({value})"
        if kind == INT and self.chance(0.4):
            cast = "count(*)"
        return f"(SELECT {cast} FROM {table} WHERE {self.inner_condition(inner, columns)})"

    def inner_condition(self, inner, outer):
        """Returns the condition of a subquery, which may name columns of the outer query."""
        pairs = [(a, b) for a, kind in inner for b, other in outer if kind == other]
        parts = []
        if pairs and self.chance(0.6):
            a, b = self.rng.choice(pairs)
            parts.append(f"{a} = {b}")
        if not parts or self.chance(0.4):
            parts.append(self.predicate(inner, 1, subqueries=False))
        return " AND ".join(parts)

    def predicate(self, columns, depth, subqueries=True):
        """Returns a condition."""
        if depth > 0 and self.chance(0.45):
            one, other = (self.predicate(columns, depth - 1, subqueries) for _ in range(2))
            return self.rng.choice((f"({one} AND {other})", f"({one} OR {other})", f"(NOT {one})"))
        before, self.subqueries = self.subqueries, self.subqueries if subqueries else 9
        text = self.simple_predicate(columns, depth)
        self.subqueries = self.subqueries if subqueries else before
        return text

    def simple_predicate(self, columns, depth):
        kind = self.kind()
        one, other, third = (self.value(kind, columns, depth - 1) for _ in range(3))
        form = self.rng.randrange(12)
        if form < 4:
            return f"({one} {self.rng.choice(COMPARISONS)} {other})"
        if form == 4:
            return f"({one} IS {self.rng.choice(('', 'NOT '))}NULL)"
        if form == 5:
            return f"({one} IS {self.rng.choice(('', 'NOT '))}DISTINCT FROM {other})"
        if form == 6 and kind != BOOL:
            return f"({one} {self.rng.choice(('', 'NOT '))}BETWEEN {other} AND {third})"
        if form == 7:
            if "subquery-in-list" in UNMENDED:
                other = third = self.value(kind, columns, 0)
            first = literal(self.rng, kind) if "subquery-first-in-list" in UNMENDED else other
            items = ", ".join([first, third, *(literal(self.rng, kind, 0.2) for _ in range(self.rng.randint(0, 4)))])
            return f"({one} {self.rng.choice(('', 'NOT '))}IN ({items}))"
        if form == 8:
            tested = self.value(TEXT, columns, depth - 1)
            operator = self.rng.choice(("LIKE", "NOT LIKE", "ILIKE"))
            return f"({tested} {operator} '{self.rng.choice(PATTERNS)}')"
        if form == 9:
            tested = self.value(BOOL, columns, depth - 1)
            return f"(({tested}) IS {self.rng.choice(('TRUE', 'NOT TRUE', 'FALSE', 'NOT FALSE'))})"
        if form == 10 and self.subqueries < 2:
            return self.subquery(kind, one, columns)
        return self.value(BOOL, columns, 0)

    def subquery(self, kind, tested, columns):
        self.subqueries += 1
        table, inner = self.source(0)
        condition = self.inner_condition(inner, columns)
        negation = self.rng.choice(("", "NOT "))
        if self.chance(0.5):
            return f"({negation}EXISTS (SELECT 1 FROM {table} WHERE {condition}))"
        return f"({tested} {negation}IN (SELECT {self.value(kind, inner, 0)} FROM {table} WHERE {condition}))"

    # Whole queries.

    def aggregate(self, columns):
        """Returns an aggregate and its type."""
        kind = self.kind()
        value = self.value(kind, columns, 1)
        forms = [("count(*)", INT), (f"count({value})", INT), (f"count(DISTINCT {value})", INT)]
        if kind == BOOL:
            forms += [(f"bool_and({value})", BOOL), (f"bool_or({value})", BOOL)]
        else:
            forms += [(f"min({value})", kind), (f"max({value})", kind)]
        if kind in (INT, REAL):
            distinct = "DISTINCT " if self.chance(0.2) else ""
            forms += [(f"CAST(sum({distinct}{value}) AS {kind})", kind), (f"CAST(avg({value}) AS {REAL})", REAL)]
        if kind == DEC:
            forms.append((f"CAST(sum({value}) AS {DEC})", DEC))
        text, kind = self.rng.choice(forms)
        if self.chance(0.15) and not text.startswith("CAST"):
            text = f"{text} FILTER (WHERE {self.predicate(columns, 1, subqueries=False)})"
        return text, kind

    def grouped(self, text, columns, keys_min=0):
        """Returns a query with groups and the types of its columns."""
        kinds = [self.kind() for _ in range(self.rng.randint(keys_min, 2))]
        keys = [self.value(kind, columns, 1) for kind in kinds]
        self.subqueries = 9
        aggregates = [self.aggregate(columns) for _ in range(self.rng.randint(1, 3))]
        items = ", ".join(f"{item} AS k{n}" for n, item in enumerate([*keys, *(item for item, _ in aggregates)]))
        query = f"SELECT {items} FROM {text}{self.where(columns, 0.5)}"
        if keys:
            query += " GROUP BY " + ", ".join(str(number + 1) for number in range(len(keys)))
        if self.chance(0.3) and (keys or "constant-filter-above-aggregate" not in UNMENDED):
            (one, kind), (other, _) = self.aggregate(columns), self.aggregate(columns)
            negation = self.rng.choice(("", "NOT "))
            having = f"({one} {self.rng.choice(COMPARISONS)} {literal(self.rng, kind)})"
            query += f" HAVING {negation}{having}" + (f" OR {other} IS NULL" if self.chance(0.3) else "")
        return query, kinds + [kind for _, kind in aggregates]

    def rows(self):
        """Returns a query of rows."""
        text, columns = self.sources()
        kinds = [self.kind() for _ in range(self.rng.randint(1, 4))]
        items = ", ".join(f"{self.value(kind, columns, 2)} AS k{number}" for number, kind in enumerate(kinds))
        distinct = "DISTINCT " if self.chance(0.2) else ""
        query = f"SELECT {distinct}{items} FROM {text}{self.where(columns)}"
        if self.chance(0.2) and self.may_order():
            order = ", ".join(
                f"k{n} {self.rng.choice(('ASC', 'DESC'))} NULLS {self.rng.choice(('FIRST', 'LAST'))}"
                for n in range(len(kinds))
            )
            query += f" ORDER BY {order} LIMIT {self.rng.randint(0, 6)}"
            query += f" OFFSET {self.rng.randint(0, 3)}" if self.chance(0.3) else ""
        return query

    def sets(self):
        """Returns a query with a set operation."""
        kinds = [self.kind() for _ in range(self.rng.randint(1, 2))]
        parts = []
        for _ in range(self.rng.choice((2, 2, 3))):
            text, columns = self.sources(1)
            items = ", ".join(f"{self.value(kind, columns, 1)} AS k{n}" for n, kind in enumerate(kinds))
            parts.append(f"(SELECT {items} FROM {text}{self.where(columns, 0.5)})")
        operators = ("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
        query = parts[0]
        for part in parts[1:]:
            query = f"({query} {self.rng.choice(operators)} {part})"
        return query

    def may_order(self):
        return not (self.has_outer_join and "order-after-outer-join" in UNMENDED)

    def window(self):
        """Returns a query with a window function whose answer does not depend on the order of equal rows."""
        text, columns = self.sources()
        while not self.may_order():
            self.start()
            text, columns = self.sources()
        key = self.value(self.kind(), columns, 0)
        order = self.value(self.rng.choice((INT, TEXT, DAY)), columns, 0)
        nulls = f"{self.rng.choice(('ASC', 'DESC'))} NULLS {self.rng.choice(('FIRST', 'LAST'))}"
        whole, _ = self.aggregate(columns)
        while "DISTINCT" in whole or "FILTER" in whole or whole.startswith("CAST"):
            whole, _ = self.aggregate(columns)
        function = self.rng.choice(("rank()", "dense_rank()", whole, whole, "cume_dist()"))
        partition = f"PARTITION BY {key} " if self.chance(0.6) else ""
        items = f"{key} AS k0, {order} AS k1, {function} OVER ({partition}ORDER BY {order} {nulls}) AS k2"
        return f"SELECT {items} FROM {text}{self.where(columns, 0.4)}"

    def query(self):
        """Returns a query of any form."""
        self.start()
        form = self.rng.randrange(10)
        if form < 5:
            return self.rows()
        if form < 8:
            return self.grouped(*self.sources())[0]
        return self.sets() if form == 8 else self.window()


NAMES = {INT: "integer", REAL: "real", DEC: "decimal", TEXT: "text", DAY: "day", BOOL: "boolean"}
