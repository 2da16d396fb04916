//! Decimals of more than 64 bits, which the device keeps in halves.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::DataType;

use super::data::Sizes;
use super::edges::write_groups;
use super::emulated::{self, Emulated};
use super::{Fixture, compile_longest};
use crate::engine::Engine;
use crate::halves::decimals;

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
    // The CPU's sums wrap, too.
    "SELECT g, count(n), min(n), max(n), sum(n), sum(u) FROM w WHERE o IS NOT NULL GROUP BY g",
    "SELECT id, g, min(n), max(n), sum(m) FROM w GROUP BY id, g HAVING max(n) > 5
        ORDER BY sum(m) DESC NULLS LAST, id, g LIMIT 9",
    "SELECT n, m, id, u - 1 FROM w WHERE o > 0 AND id < 400",
    "SELECT id, g, min(n) OVER (PARTITION BY g ORDER BY id), max(n) OVER (PARTITION BY g ORDER BY id) FROM w
        WHERE id < 300",
    "SELECT label, max(n), sum(m) FROM w JOIN d ON g = k GROUP BY label",
    // What the CPU computes while it reads the file.
    "SELECT count(*) FILTER (WHERE abs(n) > 5), max(m / 3), sum(CAST(u AS DOUBLE)) FROM w WHERE id > 3",
];

/// Queries that the CPU computes, and a part of the reason.
const REFUSED: [(&str, &str); 3] = [
    (
        "SELECT n, count(*) FROM w GROUP BY n",
        "groups by numbers of more than 64 bits",
    ),
    (
        "SELECT id FROM w WHERE id > 3 ORDER BY n, id LIMIT 5",
        "an order by numbers of more than 64 bits",
    ),
    (
        "SELECT count(*), sum(a.id) FROM w AS a JOIN w AS b ON a.n = b.n",
        "a join by a key of more than 63 bits",
    ),
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
    let id = numbers.clone().map(|row| (row % 700) as i64);
    let g = numbers.clone().map(|row| (row % 3) as i32);
    let columns: [(&str, ArrayRef, bool); 6] = [
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
    fixture.compare_refused(&REFUSED).await;
    compile_longest(&emulated, |_| true, [2; 3]);
    // An average has four digits more. The CPU raises the error.
    let query = "SELECT avg(n) FROM w WHERE n > 9223372036854775808";
    for context in [&fixture.lenient, &fixture.without] {
        let (rows, _) = Fixture::rows(context, query).await;
        let error = rows.expect_err(query);
        assert!(error.contains("verflow"), "{error}");
    }
}
