//! Queries of several tables.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray,
};
use datafusion::parquet::arrow::ArrowWriter;

use super::data::STRANGE;

/// Tables beside `t`: `d`, `r` and `u` have a row for each key, `c` for each text, `p` for each two keys, `m` several,
/// and `e` none. `f` has floats. Each `remark` of `u` is another text.
pub(super) const TABLES: [&str; 9] = ["d", "r", "u", "c", "p", "m", "e", "h", "f"];

/// Queries whose aggregates and joins kernels compute.
pub(super) const QUERIES: &[&str] = &[
    "SELECT count(*), sum(b) FROM t JOIN d ON a = k",
    "SELECT label, count(*), sum(price) FROM t JOIN d ON a = k GROUP BY label",
    "SELECT label, flag, count(*) FROM t JOIN d ON a = k WHERE weight > 0 AND b < 100 GROUP BY 1, 2",
    "SELECT max(weight), min(weight), sum(level * (1 - discount)), avg(level), count(weight) FROM t JOIN d ON a = k",
    "SELECT sum(quantity * small), max(small - a) FROM t JOIN d ON a = k WHERE label <> 'x'",
    "SELECT title, label, count(*) FROM t JOIN d ON a = k JOIN r ON d.r = r.r GROUP BY 1, 2",
    "SELECT flag, count(*), sum(price) FROM t JOIN d ON a = k JOIN r ON d.r = r.r WHERE title LIKE 't%' GROUP BY 1",
    "SELECT upper(title), substr(label, 1, 1), min(small) FROM t JOIN d ON a = k JOIN r ON d.r = r.r GROUP BY 1, 2",
    "SELECT one.label, other.label, count(*) FROM t JOIN d one ON a = one.k JOIN d other ON tiny = other.k GROUP BY 1, 2",
    "SELECT count(*) FROM t WHERE a IN (SELECT k FROM m)",
    "SELECT flag, count(*) FROM t WHERE a IN (SELECT k FROM m WHERE v > 3) AND b > 0 GROUP BY flag",
    "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v < 5)",
    "SELECT count(*), sum(b) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v < 5)",
    "SELECT label, count(*), count(weight), sum(small) FROM t LEFT JOIN d ON a = k GROUP BY label",
    "SELECT count(*), max(weight) FROM t LEFT JOIN d ON a = k WHERE label IS NULL",
    "SELECT title, count(*) FROM t LEFT JOIN (SELECT k, title FROM d JOIN r ON d.r = r.r) AS n ON a = k GROUP BY title",
    "SELECT sum(cost * quantity), count(*) FROM t JOIN p ON a = one AND quantity = two",
    "SELECT label, sum(cost) FROM t JOIN p ON a = one AND quantity = two JOIN d ON one = k GROUP BY label",
    "SELECT count(*) FROM t JOIN d ON a = k WHERE weight > b",
    "SELECT count(*) FROM t JOIN d ON a = k AND (label = 'x' OR b > 0)",
    "SELECT count(*) FROM t JOIN d ON a = k AND (label IS NULL OR ok)",
    "SELECT count(*), sum(b) FROM t JOIN e ON a = k",
    "SELECT flag, count(*), max(v) FROM t LEFT JOIN e ON a = k GROUP BY flag",
    "SELECT flag, count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM e WHERE e.k = a) GROUP BY flag",
    "SELECT label, count(*) FROM t JOIN d ON quantity - 30 = odd GROUP BY label",
    "SELECT extract(year FROM day), label, sum(price) FROM t JOIN d ON a = k WHERE day > DATE '1995-05-05' GROUP BY 1, 2",
    "SELECT count(*), sum(coalesce(small, 5)) FROM t LEFT JOIN d ON a = k WHERE coalesce(label, 'x') = 'x'",
    "SELECT coalesce(title, '-'), count(*) FROM t LEFT JOIN d ON a = k LEFT JOIN r ON d.r = r.r GROUP BY 1",
    "SELECT sum(CASE WHEN label = 'x' THEN price ELSE 0 END), count(*) FROM t JOIN d ON a = k",
    "SELECT count(*) FILTER (WHERE label = 'x'), count(label) FROM t LEFT JOIN d ON a = k WHERE ok",
    "SELECT count(*), count(one), sum(y) FROM t LEFT JOIN (SELECT k, 1 AS one, coalesce(small, 5) AS y FROM d) n ON a = k
        WHERE one IS NULL OR b > 0",
    "SELECT y, count(*) FROM t LEFT JOIN (SELECT k, coalesce(label, '-') AS y FROM d) n ON a = k GROUP BY y",
    "SELECT max(weight), min(odd), max(level), count(weight), sum(small) FROM t JOIN d ON a = k WHERE label <> 'x'",
    "SELECT k * 900 + small, count(*), sum(b) FROM t LEFT JOIN d ON a = k GROUP BY 1",
    "SELECT k * 5000 + a, count(*) FROM t JOIN d ON a = k GROUP BY 1",
    "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v <> quantity)",
    "SELECT flag, count(*) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v <> quantity - 20 AND v < 6)
        AND NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND quantity - 25 <> v AND v > 2) GROUP BY flag",
    "SELECT count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM d WHERE d.odd = quantity AND d.small <> b)",
    "SELECT count(*) FROM t WHERE quantity NOT IN (SELECT pieces FROM h)",
    // NULL among the other keys, among those of the rows, and without other rows.
    "SELECT count(*) FROM t WHERE a NOT IN (SELECT k FROM m)",
    "SELECT flag, count(*), count(a) FROM t WHERE a NOT IN (SELECT k FROM m WHERE k IS NOT NULL AND v < 3) GROUP BY flag",
    "SELECT count(*), count(a) FROM t WHERE a NOT IN (SELECT k FROM m WHERE v > 100)",
    "SELECT count(*), count(a) FROM t WHERE a NOT IN (SELECT k FROM e) AND b > 0",
    "SELECT count(*) FROM t WHERE name NOT IN (SELECT label FROM d)",
    "SELECT count(*), count(name) FROM t WHERE name NOT IN (SELECT label FROM d WHERE label <> 'y')",
    "SELECT count(*), count(name) FROM t WHERE upper(name) NOT IN (SELECT code FROM c WHERE n > 3)",
    "SELECT count(*), sum(b) FROM t WHERE a * 1000000000007 NOT IN (SELECT far FROM h WHERE v > 20) AND quantity > 4",
    "SELECT count(*), sum(b) FROM t JOIN d ON a = d.k WHERE label = 'x' AND quantity NOT IN (SELECT m.k FROM m GROUP BY m.k)",
    "SELECT count(*), sum(b) FROM t WHERE quantity NOT IN (SELECT m.k FROM m WHERE m.k > 2 GROUP BY m.k)",
    "SELECT count(*), count(a) FROM t WHERE a NOT IN (SELECT k FROM m WHERE k IS NOT NULL AND v <> quantity - 20)",
    "SELECT count(*), count(a) FROM t WHERE a NOT IN (SELECT k FROM m WHERE v > 3) OR quantity < 10",
    // Outer joins with conditions.
    "SELECT count(*), count(weight), max(weight) FROM t LEFT JOIN d ON a = k AND b > weight",
    "SELECT label, flag, count(*), sum(small) FROM t LEFT JOIN d ON a = k AND (quantity < odd OR label = 'x') GROUP BY 1, 2",
    "SELECT coalesce(title, '-'), count(*), count(small) FROM t LEFT JOIN d ON a = k AND quantity > small * 9
        LEFT JOIN r ON d.r = r.r AND price > 50000 GROUP BY 1",
    "SELECT count(*), count(v) FROM t LEFT JOIN h ON a * 1000000000007 = far AND (ok OR v < 20) WHERE v IS NULL OR b > 0",
    "SELECT count(*), count(s) FROM t LEFT JOIN (SELECT k, sum(v) AS s FROM m GROUP BY k) AS g ON a = g.k AND quantity < s",
    "SELECT count(*), count(label) FROM t LEFT JOIN d ON a = k AND b > weight WHERE weight IS NULL",
    "SELECT count(*) FROM t LEFT JOIN d ON a = k AND quantity > odd WHERE CASE WHEN odd > 3 THEN ok ELSE label IS NULL END",
    // Whether there is a match.
    "SELECT count(*), sum(b) FROM t WHERE a IN (SELECT k FROM m) OR quantity < 10",
    "SELECT flag, count(*) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v <> quantity - 20) OR ok GROUP BY flag",
    "SELECT count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v > 3) OR name = 'x'",
    "SELECT count(*) FROM t WHERE a IN (SELECT k FROM d WHERE label = 'x') OR quantity IN (SELECT v FROM m WHERE v > 9)",
    // Texts as keys.
    "SELECT count(*), sum(n) FROM t JOIN c ON name = code",
    "SELECT code, n, flag, count(*) FROM t JOIN c ON name = code WHERE b > 0 GROUP BY 1, 2, 3",
    "SELECT flag, count(*), count(n) FROM t LEFT JOIN c ON name = code AND b > n GROUP BY flag",
    "SELECT count(*) FROM t WHERE name IN (SELECT label FROM d WHERE odd > 3)",
    "SELECT count(*), sum(b) FROM t WHERE NOT EXISTS (SELECT 1 FROM d WHERE label = name)",
    "SELECT count(*), sum(n) FROM t JOIN c ON upper(name) = code",
    "SELECT count(*), sum(n) FROM t JOIN c ON name = code AND quantity = n + 1",
    "SELECT count(*), max(w) FROM t JOIN (SELECT label, max(weight) AS w FROM d GROUP BY label) AS g ON name = g.label",
    "SELECT code, label, count(*) FROM t JOIN c ON name = code JOIN d ON a = k GROUP BY 1, 2",
    "SELECT count(*) FROM t WHERE substr(note, 1, 1) IN (SELECT substr(code, 1, 1) FROM c)",
    // Scalar subqueries.
    "SELECT count(*), sum(a) FROM t WHERE b > (SELECT min(v) FROM m)",
    "SELECT flag, sum(b) FROM t JOIN d ON a = k AND weight < (SELECT max(far) FROM h) GROUP BY flag",
    "SELECT count(*), sum(a) FROM t WHERE a > (SELECT max(v) FROM m WHERE v > 100) OR ok",
    // Joins with the rows of other plans.
    "SELECT count(*), sum(c) FROM t JOIN (SELECT k, sum(v) AS s, count(*) AS c FROM m GROUP BY k) AS g ON a = g.k
        WHERE quantity < 2 * s",
    "SELECT flag, sum(price * c), max(top) FROM t JOIN (SELECT one, two, count(*) AS c, max(cost) AS top FROM p GROUP BY 1, 2)
        AS g ON a = one AND quantity = two GROUP BY flag",
    "SELECT count(*), sum(b) FROM t JOIN d ON a = k
        WHERE label = 'x' AND quantity < (SELECT sum(o.quantity) / 40 FROM t AS o WHERE o.a = d.k)",
    "SELECT flag, sum(s) FROM t JOIN d ON a = k JOIN (SELECT a AS g, tiny AS h, sum(quantity) AS s FROM t WHERE b > 0
        GROUP BY 1, 2 HAVING count(*) > 1) AS i ON g = a AND h = tiny WHERE label <> 'x' GROUP BY flag",
    "SELECT count(*), count(s) FROM t JOIN d ON a = k LEFT JOIN (SELECT a AS g, sum(b) AS s FROM t GROUP BY 1) AS i ON g = k
        WHERE label IS NOT NULL",
    "SELECT count(*), sum(c) FROM (SELECT k, count(*) AS c FROM m GROUP BY k) AS one JOIN d ON one.k = d.k JOIN t ON t.a = d.k",
    "SELECT count(*) FROM (SELECT k, count(*) AS c FROM m GROUP BY k) AS one
        JOIN (SELECT k, sum(v) AS s FROM m GROUP BY k) AS other ON one.k = other.k JOIN t ON t.a = other.k",
    "SELECT count(*) FROM (SELECT k, count(*) AS c FROM m GROUP BY k) AS one
        JOIN (SELECT k, sum(v) AS s FROM m GROUP BY k) AS other ON one.k = other.k JOIN t ON t.a = one.k",
    "SELECT flag, count(*) FROM t WHERE quantity IN (SELECT v FROM m GROUP BY v HAVING count(*) > 4) GROUP BY flag",
    "SELECT label, count(*) FROM t JOIN d ON a = k WHERE quantity IN (SELECT m.v FROM m JOIN h ON m.v > h.v) GROUP BY label",
    "SELECT count(*), count(c) FROM t LEFT JOIN (SELECT k, count(*) AS c FROM m WHERE v > 70 GROUP BY k) AS g ON a = g.k",
    "SELECT n, count(*) FROM t JOIN (SELECT k, max(v) AS n FROM m GROUP BY k) AS g ON a = g.k GROUP BY n",
    // Outer joins whose other side has several rows for a key.
    "SELECT d.k, label, count(b), sum(quantity), max(price), count(flag) FROM d LEFT JOIN t ON d.k = t.a GROUP BY d.k, label",
    "SELECT c, count(*) FROM (SELECT d.odd, count(t.b) AS c FROM t RIGHT JOIN d ON t.a = d.k AND t.name <> 'x' GROUP BY d.odd)
        GROUP BY c",
    "SELECT label, min(b), sum(price) FROM d LEFT JOIN t ON d.k = t.a AND d.odd = t.quantity GROUP BY label",
    // Groups that a join of the CPU leaves out.
    "SELECT v, g.a, s FROM m JOIN (SELECT a, sum(b) AS s FROM t GROUP BY a) AS g ON g.a = m.k
        WHERE m.k IN (SELECT k FROM d WHERE label = 'x')",
    "SELECT v, s FROM m LEFT JOIN (SELECT a, sum(b) AS s FROM t GROUP BY a) AS g ON g.a = m.k
        WHERE m.k IN (SELECT k FROM d WHERE label <> 'y')",
    "SELECT v FROM m WHERE m.k IN (SELECT k FROM d WHERE label = 'x') AND NOT EXISTS
        (SELECT 1 FROM (SELECT a, sum(b) AS s FROM t GROUP BY a) AS g WHERE g.a = m.k AND s > 0)",
    // Keys that others determine.
    "SELECT a, label, sum(b) FROM t JOIN d ON a = k GROUP BY 1, 2",
    "SELECT k, label, level, title, count(*) FROM t JOIN d ON a = k JOIN r ON d.r = r.r GROUP BY 1, 2, 3, 4",
    "SELECT title, label, k, flag, max(b) FROM t JOIN (SELECT * FROM d LEFT JOIN (SELECT r AS s, title FROM r) ON r = s)
        ON a = k GROUP BY 1, 2, 3, 4",
    "SELECT two, one, cost, count(*) FROM t JOIN p ON a = one AND quantity = two GROUP BY 1, 2, 3",
    "SELECT label, upper(label), k + 1, k, count(*) FROM t LEFT JOIN d ON a = k GROUP BY 1, 2, 3, 4",
    // Keys that are far apart.
    "SELECT count(*), sum(v), max(v) FROM t JOIN h ON a * 1000000000007 = far",
    "SELECT v, flag, count(*), count(v) FROM t LEFT JOIN h ON a * 1000000000007 = far GROUP BY 1, 2",
    "SELECT far, count(*), sum(quantity) FROM t JOIN h ON a * 1000000000007 = far GROUP BY far",
    "SELECT far, flag, sum(b) AS s FROM t LEFT JOIN h ON a * 1000000000007 = far GROUP BY 1, 2 ORDER BY s, 1, 2 LIMIT 5",
    "SELECT count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM h WHERE far = a * 1000000000007 AND v > 20)",
    "SELECT sum(v), count(*) FROM t JOIN h ON a * 1000000000007 = far AND quantity = pieces JOIN d ON a = k",
    "SELECT count(*) FROM t JOIN d ON a = k
        WHERE CAST(small AS DECIMAL(38, 0)) + 99999999999999999999 > CAST(b AS DECIMAL(38, 0))",
];

/// Queries whose rows kernels list.
pub(super) const LISTS: &[&str] = &[
    "SELECT a, label, price, day FROM t JOIN d ON a = k WHERE b > 0",
    "SELECT t.a, name, flag, label, title, weight, ok FROM t JOIN d ON a = k JOIN r ON d.r = r.r WHERE quantity < 20",
    "SELECT a, label, fare, tip FROM t JOIN d ON a = k WHERE b > 0",
    "SELECT label, spread, fare * 2 FROM t LEFT JOIN d ON a = k WHERE quantity < 20",
    "SELECT a, quantity FROM t WHERE a IN (SELECT k FROM m WHERE v > 3)",
    "SELECT a, quantity + 1, upper(name) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v > 3) AND name <> 'x'",
    "SELECT a, label, weight FROM t LEFT JOIN d ON a = k",
    "SELECT a, label, price FROM t JOIN d ON a = k ORDER BY price DESC, a, label LIMIT 5",
    "SELECT t.a, s, flag FROM t JOIN (SELECT k, sum(v) AS s FROM m GROUP BY k) AS g ON t.a = g.k WHERE quantity < s",
    "SELECT a, label FROM t JOIN d ON a = k WHERE b > 1000 UNION ALL SELECT k, label FROM d",
    "SELECT a, label, sum(b) OVER (PARTITION BY label) FROM t JOIN d ON a = k WHERE quantity = 7",
    "SELECT b, far FROM t JOIN h ON a * 1000000000007 = far WHERE quantity > 3",
    "SELECT 1 AS one, price FROM t JOIN e ON a = k",
    "SELECT name, code, n, a FROM t JOIN c ON name = code WHERE b > 0",
    "SELECT a, label, weight FROM t LEFT JOIN d ON a = k AND b > weight WHERE quantity < 30",
    "SELECT a, b FROM t WHERE a IN (SELECT k FROM m) OR quantity < 10",
];

/// Lists, if `t` is larger than `u`.
pub(super) const LISTS_OF_LARGE: &[&str] = &[
    "SELECT id, remark, same, quantity FROM t JOIN u ON b = id",
    "SELECT remark, title, note, b FROM t JOIN u ON b = id JOIN r ON u.r = r.r WHERE quantity < 9",
];

/// The others, if `t` is larger than `u`.
pub(super) const OF_LARGE: &[&str] = &[
    // Equal texts of several rows are one group.
    "SELECT x, y, count(*) FROM (SELECT remark AS x, remark AS y FROM t JOIN u ON b = id) GROUP BY 1, 2",
    "SELECT remark, count(*) FROM t JOIN u ON b = id GROUP BY 1",
    "SELECT id, remark, count(remark) FROM t JOIN u ON b = id GROUP BY 1, 2",
    "SELECT k, weight, label, level, title, count(*) FROM t JOIN d ON a = k JOIN r ON d.r = r.r GROUP BY 1, 2, 3, 4, 5",
    "SELECT id, remark, score, count(*), sum(quantity) FROM t JOIN u ON b = id GROUP BY 1, 2, 3",
    "SELECT remark, title, same, b, min(price) FROM t JOIN u ON b = id JOIN r ON u.r = r.r WHERE remark LIKE '%1%'
        GROUP BY 1, 2, 3, 4",
    "SELECT remark, flag, id, day, sum(price) AS s FROM t JOIN u ON b = id GROUP BY 1, 2, 3, 4
        ORDER BY s DESC, id, flag LIMIT 5",
    "SELECT remark, label, s FROM (SELECT id, remark, label, sum(quantity) AS s FROM t JOIN u ON b = id JOIN d ON u.r = d.k
        GROUP BY 1, 2, 3) WHERE s > 20",
];

/// Queries that the CPU computes if `t` is large, and a part of the reason.
pub(super) const REFUSED_OF_LARGE: &[(&str, &str)] = &[
    (
        "SELECT t.a, b, price, discount, quantity, day, flag, label, weight, odd, level FROM t LEFT JOIN d ON a = k",
        "too many rows",
    ),
    (
        "SELECT id, remark, count(*) FILTER (WHERE length(remark) > b) FROM t JOIN u ON b = id GROUP BY 1, 2",
        "",
    ),
];

/// Queries that the CPU computes, and a part of the reason.
pub(super) const REFUSED: &[(&str, &str)] = &[
    (
        "SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM d WHERE d.k = a AND label <> name)",
        "is of type",
    ),
    (
        "SELECT count(*) FROM t JOIN d ON a = k JOIN c ON label = code",
        "text of another join",
    ),
];

fn write(folder: &Path, table: &str, columns: Columns) {
    let columns = columns
        .into_iter()
        .map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length");
    let folder = folder.join(table);
    std::fs::create_dir_all(&folder).expect("room");
    // Two files, so that a text has several numbers.
    let half = batch.num_rows() / 2;
    for (index, rows) in [
        batch.slice(0, half),
        batch.slice(half, batch.num_rows() - half),
    ]
    .iter()
    .enumerate()
    {
        let file = File::create(folder.join(format!("{index}.parquet"))).expect("room");
        let mut writer = ArrowWriter::try_new(file, rows.schema(), None).expect("a writer");
        writer.write(rows).expect("room");
        writer.close().expect("room");
    }
}

type Columns = Vec<(&'static str, ArrayRef)>;

/// Some values of `a` have no row, and some rows no value.
const KEYS: [i32; 10] = [7, -3, 2, 0, 9, 14, 5, 1, -1, 3];

fn numbers(values: Vec<Option<i32>>) -> ArrayRef {
    Arc::new(Int32Array::from(values))
}

fn long(values: Vec<Option<i64>>) -> ArrayRef {
    Arc::new(Int64Array::from(values))
}

fn texts(values: Vec<Option<&str>>) -> ArrayRef {
    Arc::new(StringArray::from(values))
}

fn decimals(values: Vec<i128>) -> ArrayRef {
    let values = Decimal128Array::from(values).with_precision_and_scale(12, 2);
    Arc::new(values.expect("digits"))
}

/// Returns the columns of `d`.
fn of_keys() -> Columns {
    let labels = ["x", "y", "", "z"];
    vec![
        (
            "k",
            numbers(
                KEYS.iter()
                    .map(|it| Some(*it))
                    .chain([None, None])
                    .collect(),
            ),
        ),
        (
            "label",
            texts(
                (0..12)
                    .map(|row| (row % 5 != 3).then_some(labels[row % 4]))
                    .collect(),
            ),
        ),
        (
            "weight",
            long(
                (0..12)
                    .map(|row: i64| (row % 4 != 2).then_some((row * (row - 5)) << (row * 4)))
                    .collect(),
            ),
        ),
        ("odd", long((0..12).map(|row| Some(row * 2 + 1)).collect())),
        ("small", long((0..12).map(|row| Some(row % 3)).collect())),
        (
            "level",
            decimals((0..12).map(|row| row * 137 - 300).collect()),
        ),
        (
            "r",
            numbers(
                (0..12)
                    .map(|row| (row != 4).then_some(row % 3 + 10))
                    .collect(),
            ),
        ),
    ]
}

/// Returns the columns of `p`.
fn of_pairs() -> Columns {
    let pairs = (0..KEYS.len()).flat_map(|one| (0..9).map(move |two| (one, two)));
    let (mut one, mut two, mut cost) = (Vec::new(), Vec::new(), Vec::new());
    for (index, of_two) in pairs {
        one.push(Some(KEYS[index]));
        two.push(Some(of_two * 6 + index as i64 % 3));
        cost.push(index as i128 * 1000 + i128::from(of_two));
    }
    vec![
        ("one", numbers(one)),
        ("two", long(two)),
        ("cost", decimals(cost)),
    ]
}

/// Returns the columns of `u`.
fn of_remarks() -> Columns {
    let remarks = (0..2400).map(|row| (row % 13 != 1).then(|| format!("{row} is {}", row * row)));
    let remarks: StringArray = remarks.collect();
    let same = remarks.clone();
    vec![
        ("id", long((0..2400).map(|row| Some(1200 - row)).collect())),
        ("remark", Arc::new(remarks)),
        ("same", Arc::new(same)),
        (
            "score",
            long(
                (0..2400)
                    .map(|row| (row % 7 != 2).then_some(row * 31))
                    .collect(),
            ),
        ),
        (
            "r",
            numbers((0..2400).map(|row| Some(row % 5 + 9)).collect()),
        ),
    ]
}

/// Returns the columns of `f`: `x` has one row for each key, `y` has 0 and -0, and `z` is at most -0.
fn of_floats() -> Columns {
    let strange = |first: usize| STRANGE.into_iter().skip(first).map(Some);
    let thirds = |end: i32| (1..end).map(|row| Some(f64::from(row) / 3.0));
    let floats = |values: Vec<Option<f64>>| Arc::new(Float64Array::from(values)) as ArrayRef;
    let of_rows = |value: fn(f64) -> f64| {
        let values = (0_i32..12).map(|row| (row != 7).then_some(value(row.into())));
        floats(values.collect())
    };
    let single = (0_u8..12).map(|row| f32::from(row) / 20.0);
    let x = strange(1).chain(thirds(6)).chain([None]);
    let y = strange(0).chain(thirds(5)).chain([None]);
    vec![
        ("x", floats(x.collect())),
        ("y", floats(y.collect())),
        ("z", of_rows(|row| -row / 3.0)),
        ("cents", of_rows(|row| (row * 15.0 - 30.0) / 100.0)),
        ("n", of_rows(|row| row - 1.0)),
        ("single", Arc::new(Float32Array::from_iter_values(single))),
        ("v", numbers((0..12).map(Some).collect())),
    ]
}

/// Writes the tables.
pub(super) fn write_all(folder: &Path) {
    write(folder, "d", of_keys());
    let codes = [
        Some("ab"),
        Some("zz"),
        Some(""),
        None,
        Some("x"),
        Some("Ab"),
        Some("AB"),
        None,
    ];
    write(
        folder,
        "c",
        vec![
            ("code", texts(codes.to_vec())),
            (
                "n",
                long((0..8).map(|row| (row != 2).then_some(row * 3)).collect()),
            ),
        ],
    );
    write(folder, "u", of_remarks());
    write(
        folder,
        "r",
        vec![
            ("r", numbers(vec![Some(10), Some(12), Some(13)])),
            ("title", texts(vec![Some("ten"), None, Some("thirteen")])),
        ],
    );
    write(folder, "p", of_pairs());
    write(folder, "f", of_floats());
    write(
        folder,
        "m",
        vec![
            (
                "k",
                numbers(
                    (0..40)
                        .map(|row| (row % 7 != 0).then_some(row % 11 * 2))
                        .collect(),
                ),
            ),
            ("v", numbers((0..40).map(|row| Some(row % 9)).collect())),
        ],
    );
    write(
        folder,
        "h",
        vec![
            (
                "far",
                long((-5..35).map(|row| Some(row * 1_000_000_000_007)).collect()),
            ),
            (
                "v",
                numbers((0..40).map(|row| (row % 9 != 0).then_some(row)).collect()),
            ),
            ("pieces", numbers((0..40).map(Some).collect())),
        ],
    );
    write(
        folder,
        "e",
        vec![("k", numbers(vec![])), ("v", numbers(vec![]))],
    );
}
