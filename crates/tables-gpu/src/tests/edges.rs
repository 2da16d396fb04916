//! Tables at the edges of what there is: without rows, with a thousand columns, with one key in all rows, in slices
//! that begin within a byte, and with numbers that are too large for their sums.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;

use super::data::Sizes;
use super::sessions::{self, ON, done};
use super::{Fixture, emulated};
use crate::packed::CHUNK_ROWS;

/// Number of columns of a wide table, and of those that a query reads at most.
const COLUMNS: usize = 1000;
const READ: usize = 128;

/// Writes the file of a table, in a row group for each batch.
pub(super) fn write_groups(folder: &Path, groups: &[RecordBatch]) {
    std::fs::create_dir_all(folder).expect("room");
    let file = File::create(folder.join("0.parquet")).expect("room");
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let writer = ArrowWriter::try_new(file, groups[0].schema(), Some(properties.build()));
    let mut writer = writer.expect("a writer");
    for group in groups {
        writer.write(group).expect("room");
        writer.flush().expect("room");
    }
    writer.close().expect("room");
}

/// Returns 300 rows of all columns, some of them NULL.
fn wide_rows() -> RecordBatch {
    let columns = (0..COLUMNS).map(|column| {
        let values = (0..300).map(|row| {
            let value = (column * 31 + row * 7) % 101;
            ((column + row) % 13 != 0).then_some(value as i32)
        });
        let values: ArrayRef = Arc::new(values.collect::<Int32Array>());
        (format!("c{column}"), values, true)
    });
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn some_of_a_thousand_columns_are_read() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(emulated::device(), Sizes(&[1])).await;
    write_groups(&fixture._folder.path().join("wide"), &[wide_rows()]);
    fixture.register("wide").await;
    let names = |count: usize| {
        let names = (0..count).map(|index| format!("c{}", 7 * index));
        names.collect::<Vec<_>>()
    };
    let list = format!("SELECT {} FROM wide WHERE c0 > 70", names(READ).join(", "));
    fixture
        .compare([
            &"SELECT count(*), sum(c1), max(c998) FROM wide WHERE c500 > 5",
            &"SELECT c999, count(*), min(c0) FROM wide GROUP BY c999",
            &"SELECT c3, c4, c5 FROM wide WHERE c996 = 7 ORDER BY c3, c4, c5 LIMIT 3",
            &list.as_str(),
        ])
        .await;
    // Those that are read, and no others.
    assert_eq!(fixture.columns.held().0, READ + 8);
    // The planner leaves wider lists to the CPU, and aggregates of more columns than a thread has registers for.
    let all = "SELECT * FROM wide WHERE c0 > 70";
    let (with, has_operator) = Fixture::rows(&fixture.with, all).await;
    let (without, _) = Fixture::rows(&fixture.without, all).await;
    assert!(!has_operator && without.is_ok() && with == without);
    let sums = names(17).join("), sum(");
    let sums = format!("SELECT sum({sums}) FROM wide WHERE c1 > 3");
    fixture
        .compare_refused([&(sums.as_str(), "more than 16 columns")])
        .await;
}

/// Returns rows of these numbers, some of their values NULL.
fn rows(numbers: std::ops::Range<i64>) -> RecordBatch {
    let names = ["ab", "", "x", "long enough for a buffer of its own"];
    let n = numbers.clone().map(|row| (row % 5 != 0).then_some(row % 7));
    let ok = numbers
        .clone()
        .map(|row| (row % 11 != 0).then_some(row % 3 == 0));
    let name = numbers.map(|row| (row % 13 != 0).then_some(names[row as usize % 4]));
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("n", Arc::new(n.collect::<Int64Array>()), true),
        ("ok", Arc::new(ok.collect::<BooleanArray>()), true),
        ("name", Arc::new(name.collect::<StringArray>()), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

/// The first chunk ends within a batch whose first row is the fourth of the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_end_within_a_byte_of_a_batch() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(emulated::device(), Sizes(&[1])).await;
    let end = CHUNK_ROWS as i64 + 100;
    let groups = [rows(0..3), rows(3..end)];
    write_groups(&fixture._folder.path().join("s"), &groups);
    fixture.register("s").await;
    fixture
        .compare([&"SELECT ok, name, count(*), count(n), sum(n) FROM s GROUP BY ok, name"])
        .await;
}

/// A table of 3,000 rows: `one` is the same number in all, `most` and `far` in 19 of 20.
const SKEWED: &str =
    "COPY (SELECT CAST(7 AS INT) AS one, CASE WHEN value % 20 = 0 THEN value ELSE 7 END AS most,
        CASE WHEN value % 20 = 0 THEN value ELSE 7 END * 1000000000007 AS far, value AS n,
        value * 1000000007 AS big, 'x' AS name FROM generate_series(1, 3000)) TO";

const OF_SKEWED: [&str; 11] = [
    "SELECT one, count(*), sum(n) FROM skewed GROUP BY one",
    "SELECT most, count(*), sum(n), max(n) FROM skewed GROUP BY most",
    "SELECT far, count(*), sum(n) FROM skewed GROUP BY far",
    "SELECT name, one, count(*), min(n) FROM skewed GROUP BY name, one",
    // A group for each row, by keys of 54 bits.
    "SELECT n, big, count(*), sum(one) FROM skewed GROUP BY n, big",
    // Joins with one row, and with many.
    "SELECT label, count(*), sum(n) FROM skewed JOIN d ON one = k GROUP BY label",
    "SELECT count(*), sum(n) FROM skewed JOIN d ON most = k",
    "SELECT count(*), sum(x.n) FROM skewed AS x JOIN skewed AS y ON x.one = y.one WHERE y.n <= 40",
    "SELECT x.name, count(*), sum(x.n), max(y.n) FROM skewed AS x JOIN skewed AS y ON x.far = y.far WHERE y.n <= 40
        GROUP BY x.name",
    "SELECT count(*), sum(n) FROM skewed WHERE most IN (SELECT k FROM m WHERE v > 3)",
    "SELECT count(*), sum(n) FROM skewed WHERE NOT EXISTS (SELECT 1 FROM d WHERE k = most)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_has_nearly_all_rows() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(emulated::device(), Sizes(&[1])).await;
    let path = fixture._folder.path().join("skewed/0.parquet");
    fixture
        .copy(&format!("{SKEWED} '{}'", path.display()))
        .await;
    fixture.register("skewed").await;
    fixture.compare(&OF_SKEWED).await;
}

/// Queries of a table that may have no rows.
const OF_EMPTY: [&str; 9] = [
    "SELECT count(*), sum(a), min(b), max(price), avg(price) FROM t WHERE b > 0",
    "SELECT flag, count(*), sum(quantity) FROM t GROUP BY flag",
    "SELECT b, day, count(*) FROM t GROUP BY b, day ORDER BY 3 DESC, 1, 2 LIMIT 5",
    "SELECT label, count(*), max(quantity) FROM t JOIN d ON a = k GROUP BY label",
    "SELECT d.k, count(b) FROM d LEFT JOIN t ON d.k = t.a GROUP BY d.k",
    "SELECT a, b FROM t WHERE quantity > 3",
    "SELECT a, b FROM t WHERE quantity > 3 ORDER BY b DESC, a LIMIT 5",
    "SELECT a, b, rank() OVER (PARTITION BY a ORDER BY b) FROM t",
    "SELECT count(*) FROM t WHERE note LIKE '%7%3%'",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_without_rows() {
    if !emulated::has_compiler() {
        return;
    }
    // Such a file beside another one.
    let fixture = Fixture::new(emulated::device(), Sizes(&[0, 33])).await;
    fixture.compare(&OF_EMPTY).await;
    // Alone it has no row group. The device may leave it to the CPU.
    let fixture = Fixture::new(emulated::device(), Sizes(&[0])).await;
    for query in OF_EMPTY {
        let (without, _) = Fixture::rows(&fixture.without, query).await;
        let (lenient, _) = Fixture::rows(&fixture.lenient, query).await;
        assert!(without.is_ok(), "{query}: {without:?}");
        assert_eq!(lenient, without, "{query}");
        match Fixture::rows(&fixture.with, query).await {
            (Ok(rows), _) => assert_eq!(Ok(rows), without, "{query}"),
            (Err(reason), _) => println!("{query}: {reason}"),
        }
    }
}

/// Queries of a table without files.
const OF_NOTHING: [&str; 5] = [
    "SELECT count(*), sum(v), min(k) FROM z WHERE v > 0",
    "SELECT count(*) FROM (SELECT k, sum(v) FROM z GROUP BY k) AS g",
    "SELECT count(*), max(v) FROM t JOIN z ON a = k",
    "SELECT flag, count(*), count(v), sum(b) FROM t LEFT JOIN z ON a = k GROUP BY flag",
    "SELECT flag, count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM z WHERE k = a) GROUP BY flag",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_without_files() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = sessions::Fixture::new(Sizes(&[100]));
    let mut with = fixture.session(ON).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    done(&mut with, "CREATE TABLE z (k int, v bigint)").await;
    for query in OF_NOTHING {
        let wanted = sessions::rows(&mut without, query).await;
        assert!(wanted.is_ok(), "{query}: {wanted:?}");
        for _ in 0..2 {
            assert_eq!(sessions::rows(&mut with, query).await, wanted, "{query}");
        }
    }
}

/// What could have more digits than its type is left to the CPU.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decimals_that_overflow_are_left_to_the_cpu() {
    let fixture = Fixture::new(emulated::device(), Sizes(&[100])).await;
    // The CPU cannot compute the product either.
    let query = "SELECT flag, sum(wide * wide * wide) FROM t GROUP BY flag";
    let (strict, _) = Fixture::rows(&fixture.with, query).await;
    let reason = strict.expect_err(query);
    assert!(reason.contains("the GPU does not compute"), "{reason}");
    for context in [&fixture.lenient, &fixture.without] {
        let (rows, _) = Fixture::rows(context, query).await;
        let error = rows.expect_err(query);
        assert!(error.contains("verflow"), "{error}");
    }
}
