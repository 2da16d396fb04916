//! Decimals of more than 64 bits, which the device keeps in halves.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::DataType;

use super::data::Sizes;
use super::edges::write_groups;
use super::emulated::{self, Emulated};
use super::{Fixture, compile_longest, windows};
use crate::engine::Engine;
use crate::halves::{decimals, number_of};

/// Numbers at the ends of halves and of decimals.
const ENDS: [i128; 11] = [
    0,
    -1,
    i64::MAX as i128,
    i64::MAX as i128 + 1,
    i64::MIN as i128,
    i64::MIN as i128 - 1,
    u64::MAX as i128,
    u64::MAX as i128 + 1,
    10_i128.pow(38) - 1,
    1 - 10_i128.pow(38),
    10_i128.pow(37),
];

/// Queries that kernels compute.
const QUERIES: [&str; 8] = [
    "SELECT count(*), count(n), sum(m), min(n), max(n), avg(u), avg(m) FROM w WHERE id > 3",
    "SELECT count(*) FILTER (WHERE n > 9223372036854775807), count(*) FILTER (WHERE n <= -9223372036854775809),
        count(*) FILTER (WHERE n = 99999999999999999999999999999999999999), count(*) FILTER (WHERE n IS NULL),
        count(*) FILTER (WHERE n < o), count(*) FILTER (WHERE n IN (0, 18446744073709551615)),
        count(*) FILTER (WHERE n NOT BETWEEN -5 AND 9223372036854775808), count(*) FILTER (WHERE -n > o) FROM w",
    // Sums of up to 38 digits.
    "SELECT g, count(n), min(n), max(n), sum(c) FILTER (WHERE id < 9), sum(u) FROM w WHERE o IS NOT NULL GROUP BY g",
    "SELECT id, g, min(n), max(n), sum(m) FROM w GROUP BY id, g HAVING max(n) > 5
        ORDER BY sum(m) DESC NULLS LAST, id, g LIMIT 9",
    "SELECT n, m, id, u - 1 FROM w WHERE o > 0 AND id < 400",
    "SELECT id, g, min(n) OVER (PARTITION BY g ORDER BY id), max(n) OVER (PARTITION BY g ORDER BY id) FROM w
        WHERE id < 300",
    "SELECT label, max(n), sum(m) FROM w JOIN d ON g = k GROUP BY label",
    // What the CPU computes while it reads the file.
    "SELECT count(*) FILTER (WHERE abs(n) > 5), max(m / 3), sum(CAST(u AS DOUBLE)) FROM w WHERE id > 3",
];

/// Queries whose keys of groups and joins are such decimals. Kernels compute all of them.
const KEYS: [&str; 17] = [
    "SELECT s, count(*), sum(id), min(n) FROM w GROUP BY s",
    // By fingerprints.
    "SELECT n, count(*), sum(id) FROM w GROUP BY n",
    "SELECT count(*), sum(a.id) FROM w AS a JOIN w AS b ON a.n = b.n",
    "SELECT p, s, g, count(n) FROM w WHERE id > 3 GROUP BY p, s, g HAVING count(n) > 1",
    "SELECT DISTINCT c, h FROM w",
    // In a hash table.
    "SELECT u, h, p, s, count(*) FROM w GROUP BY u, h, p, s",
    "SELECT s, g, count(*) FROM w GROUP BY ROLLUP (s, g)",
    "SELECT count(*), sum(w.id), sum(few.id) FROM w JOIN few ON w.p = few.p",
    "SELECT w.g, count(*), sum(few.id) FROM w JOIN few ON w.s = few.s AND w.g = few.g GROUP BY w.g",
    // Of one side, the numbers have 64 bits.
    "SELECT count(*), sum(w.id), sum(few.id) FROM w JOIN few ON w.s = few.t",
    // Columns of the table of a join.
    "SELECT w.id, w.p, few.u, few.s FROM w LEFT JOIN few ON w.p = few.p WHERE w.id < 200",
    "SELECT w.id, few.n FROM w JOIN few ON w.u = few.u",
    "SELECT few.u, count(*), sum(w.id) FROM w JOIN few ON w.c = few.c GROUP BY few.u",
    "SELECT count(*), sum(id) FROM w WHERE c IN (SELECT c FROM few WHERE id > 310)",
    "SELECT count(*), sum(id) FROM w WHERE NOT EXISTS (SELECT 1 FROM few WHERE few.s = w.s AND few.id < 310)",
    "SELECT count(*), sum(id) FROM w WHERE p NOT IN (SELECT p FROM few WHERE id > 310 AND p IS NOT NULL)",
    "SELECT n, id, rank() OVER (PARTITION BY s ORDER BY n DESC NULLS LAST) FROM w WHERE id < 300",
];

/// Sorts by such decimals, in which no two different rows are equal.
const SORTS: [&str; 7] = [
    "SELECT n, id FROM w ORDER BY n, id",
    "SELECT n, id FROM w ORDER BY n DESC NULLS LAST, id DESC",
    "SELECT m, s, id FROM w ORDER BY m NULLS FIRST, s DESC, id",
    "SELECT n, id FROM w WHERE id > 3 ORDER BY n, id LIMIT 5",
    "SELECT n, id FROM w ORDER BY n DESC NULLS FIRST, id LIMIT 300",
    "SELECT s, p, id FROM w ORDER BY s DESC NULLS LAST, p, id LIMIT 40",
    "SELECT u, id FROM w ORDER BY u DESC LIMIT 3",
];

/// Writes the file of the table `w` to a folder.
pub(super) fn write(folder: &Path) {
    write_groups(folder, &[rows(0..900), rows(900..1500)]);
}

fn rows(numbers: Range<usize>) -> RecordBatch {
    let decimals = |precision, scale, number: &dyn Fn(usize) -> Option<i128>| {
        let numbers = numbers.clone().map(number).collect();
        decimals(numbers, &DataType::Decimal128(precision, scale)).expect("decimals")
    };
    let end = |row: usize, is_some: bool| is_some.then(|| ENDS[row % ENDS.len()]);
    let far = |row: usize| (row % 1000) as i128 * 10_i128.pow(20) - 4 * 10_i128.pow(22);
    let both = |row: usize| {
        let [upper, lower] = [row % 5, row % 4].map(|it| it as i64 - 2);
        number_of(upper.cast_unsigned(), lower.cast_unsigned())
    };
    let id = numbers.clone().map(|row| (row % 700) as i64);
    let g = numbers.clone().map(|row| (row % 3) as i32);
    let columns: [(&str, ArrayRef, bool); 11] = [
        ("n", decimals(38, 0, &|row| end(row, row % 7 != 3)), true),
        (
            "o",
            decimals(38, 0, &|row| end(row * 5 + 3, row % 6 != 1)),
            true,
        ),
        (
            "m",
            decimals(30, 4, &|row| (row % 9 > 0).then(|| far(row))),
            true,
        ),
        (
            "u",
            decimals(25, 2, &|row| Some((7_i128 << 64) + row as i128)),
            true,
        ),
        // Some have equal upper halves, others equal lower ones.
        (
            "p",
            decimals(20, 0, &|row| {
                (row % 8 > 0).then(|| (1_i128 << 63) + (row % 40) as i128)
            }),
            true,
        ),
        (
            "c",
            decimals(38, 0, &|row| Some(10_i128.pow(37) + (row % 50) as i128)),
            true,
        ),
        (
            "h",
            decimals(38, 3, &|row| Some((((row % 13) as i128 - 6) << 64) + 5)),
            true,
        ),
        (
            "s",
            decimals(38, 2, &|row| (row % 11 != 5).then(|| both(row))),
            true,
        ),
        (
            "t",
            decimals(38, 2, &|row| (row % 3 > 0).then_some(row as i128 % 7 - 3)),
            true,
        ),
        ("id", Arc::new(id.collect::<Int64Array>()), true),
        ("g", Arc::new(g.collect::<Int32Array>()), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

/// Compares the queries of the table `w` on engines with those of the CPU.
pub(super) async fn compared(engines: Vec<Arc<dyn Engine>>) -> Fixture {
    let fixture = Fixture::new(engines, Sizes(&[1])).await;
    write(&fixture._folder.path().join("w"));
    fixture.register("w").await;
    fixture.compare(&QUERIES).await;
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decimals_of_more_than_64_bits() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = compared(emulated::devices(&emulated, 1)).await;
    compile_longest(&emulated, |_| true, [2; 3]);
    let too_long = "SELECT g, sum(n) FROM w GROUP BY g";
    let refused = [(too_long, "a sum has more than 38 digits")];
    fixture.compare_refused(&refused).await;
    // An average has four digits more. The CPU raises the error.
    let query = "SELECT avg(n) FROM w WHERE n > 9223372036854775808";
    for context in [&fixture.lenient, &fixture.without] {
        let (rows, _) = Fixture::rows(context, query).await;
        let error = rows.expect_err(query);
        assert!(error.contains("verflow"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decimals_of_more_than_64_bits_are_keys() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = Fixture::new(emulated::devices(&emulated, 1), Sizes(&[1])).await;
    let folder = fixture._folder.path();
    write(&folder.join("w"));
    write_groups(&folder.join("few"), &[rows(1000..1040)]);
    for table in ["w", "few"] {
        fixture.register(table).await;
    }
    fixture.compare(KEYS.iter().chain(&SORTS)).await;
    for query in SORTS {
        let (with, _) = windows::rows(&fixture.with, query).await;
        let (without, _) = windows::rows(&fixture.without, query).await;
        assert_eq!(with, without, "{query}");
    }
    // Kernels do not group such groups again.
    let query = "SELECT count(DISTINCT p), count(DISTINCT s) FROM w";
    let (lenient, _) = Fixture::rows(&fixture.lenient, query).await;
    let (without, _) = Fixture::rows(&fixture.without, query).await;
    assert!(without.is_ok(), "{without:?}");
    assert_eq!(lenient, without);
    compile_longest(&emulated, |_| true, [2; 3]);
}
