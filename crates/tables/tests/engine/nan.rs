//! NaN in Parquet files, whose statistics leave it out. Queries of the same rows in memory give the expected answers.

use datafusion::arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;

use super::*;

const NAN: Option<f64> = Some(f64::NAN);
/// The numbers of each file. All numbers of the second are 3, and the third has none.
const FILES: [&[Option<f64>]; 3] = [
    &[
        Some(1.0),
        Some(2.0),
        NAN,
        Some(2.5),
        Some(3.0),
        Some(3.0),
        NAN,
        NAN,
        Some(7.0),
        Some(8.0),
        None,
        Some(-0.0),
    ],
    &[Some(3.0), NAN, Some(3.0), Some(3.0)],
    &[NAN, NAN],
];

const CONDITIONS: [&str; 38] = [
    "TRUE",
    "x > 100",
    "100 < x",
    "x >= 100",
    "x > 2.5",
    "x < 5",
    "x <= 2",
    "5 >= x",
    "x = 3",
    "x = 0",
    "x <> 3",
    "x = 'NaN'::double precision",
    "x > 'NaN'::double precision",
    "x >= 'NaN'::double precision",
    "x < 'NaN'::double precision",
    "x <> 'NaN'::double precision",
    "NOT (x < 5)",
    "NOT (x > 5)",
    "NOT (x < 5 AND id < 7)",
    "x IN (3, 7)",
    "x IN (50, 'NaN'::double precision)",
    "x NOT IN (3, 4)",
    "x BETWEEN 1 AND 5",
    "x NOT BETWEEN 0 AND 50",
    "x IS DISTINCT FROM 3",
    "x IS NOT DISTINCT FROM 'NaN'::double precision",
    "x IS NULL",
    "x IS NOT NULL",
    "-x < -50",
    "x > y",
    "x = y AND y > 2.75",
    "y > 100",
    "y <> 3",
    "y < 2",
    "y::double precision > 100",
    "x > 100 AND id > 4",
    "x > 100 OR id = 4",
    "(x < 2 OR x > 100) AND id > 2",
];

/// Queries of a table `t`.
const QUERIES: [&str; 7] = [
    "SELECT max(x), min(y), max(y), count(x) FROM t",
    "SELECT max(x) FROM t WHERE x >= 3",
    "SELECT max(x) FROM t WHERE id BETWEEN 13 AND 16",
    "SELECT id, x FROM t ORDER BY x DESC, id LIMIT 4",
    "SELECT id, x FROM t ORDER BY x, id LIMIT 4",
    "SELECT x, count(*) FROM t WHERE x > 2 GROUP BY x ORDER BY x",
    "SELECT a.id, b.id FROM t a JOIN (SELECT id, x FROM t WHERE id > 12) b ON a.x = b.x ORDER BY 1, 2",
];

/// Writes a file whose row groups have two pages for each column.
fn write(path: &Path, columns: Vec<(&str, ArrayRef)>, group_rows: usize) {
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_write_batch_size(group_rows / 2)
        .set_data_page_row_count_limit(group_rows / 2)
        .set_bloom_filter_enabled(true)
        .build();
    let file = fs::File::create(path).expect("room");
    let writer = ArrowWriter::try_new(file, batch.schema(), Some(properties));
    let mut writer = writer.expect("a file");
    writer.write(&batch).expect("room");
    writer.close().expect("room");
}

/// Writes the files of the table `floats`. Returns the statement that makes the table `kept` of the same rows.
fn write_floats(root: &Path) -> String {
    let folder = root.join("files/floats");
    fs::create_dir_all(&folder).expect("room");
    let (mut id, mut rows) = (0, Vec::new());
    for (index, numbers) in FILES.into_iter().enumerate() {
        let ids = id + 1..=id + numbers.len() as i64;
        for (id, number) in ids.clone().zip(numbers) {
            let text = number.map_or_else(|| "NULL".to_owned(), |it| format!("'{it:?}'"));
            rows.push(format!("({id}, {text}::double precision, {text}::real)"));
        }
        id += numbers.len() as i64;
        let single = numbers.iter().map(|number| number.map(|it| it as f32));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from_iter_values(ids)) as _),
            ("x", Arc::new(Float64Array::from(numbers.to_vec())) as _),
            ("y", Arc::new(single.collect::<Float32Array>()) as _),
        ];
        write(&folder.join(format!("{index}.parquet")), columns, 4);
    }
    let rows = rows.join(", ");
    format!("CREATE VIEW kept AS SELECT * FROM (VALUES {rows}) v(id, x, y)")
}

#[tokio::test]
async fn rows_with_nan_are_found_in_parquet_files() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let view = write_floats(fixture.root());
    run(&mut session, &view).await.expect(&view);
    let filtered = CONDITIONS.map(|it| format!("SELECT * FROM t WHERE {it} ORDER BY id"));
    for query in filtered.into_iter().chain(QUERIES.map(str::to_owned)) {
        let of = |table: &str| query.replace("FROM t", &format!("FROM {table}"));
        let (of_files, of_rows) = (of("floats"), of("kept"));
        let expected = run(&mut session, &of_rows).await.expect(&of_rows);
        let found = run(&mut session, &of_files).await.expect(&of_files);
        assert_eq!(found, expected, "{of_files}");
    }
    let greatest = "SELECT count(*), max(x) FROM floats WHERE x > 100";
    let found = run(&mut session, greatest).await.expect(greatest);
    assert_eq!(found, ["6|NaN"]);
}

/// Once the row group of the larger numbers was read, the filter of the limit would skip the other one, which has
/// NaN.
#[tokio::test]
async fn the_greatest_of_many_rows_is_nan() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let rows = 8_192;
    let numbers = (0..2 * rows).map(|row| match row {
        12_000 => f64::NAN,
        row if row < rows => f64::from(rows + row),
        row => f64::from(row - rows),
    });
    let numbers: ArrayRef = Arc::new(Float64Array::from_iter_values(numbers));
    let path = fixture.root().join("files/many.parquet");
    write(&path, vec![("x", numbers)], rows as usize);
    for (query, expected) in [
        (
            "SELECT x FROM many ORDER BY x DESC LIMIT 2",
            ["NaN", "16383.0"],
        ),
        ("SELECT x FROM many ORDER BY x LIMIT 2", ["0.0", "1.0"]),
    ] {
        let found = run(&mut session, query).await.expect(query);
        assert_eq!(found, expected, "{query}");
    }
}
