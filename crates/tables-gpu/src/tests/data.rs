//! The files of the tests.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, Int32Array,
    Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use datafusion::parquet::arrow::ArrowWriter;

/// Numbers of rows of the files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes(pub(super) &'static [usize]);

/// Texts of the column `name`. Each file has others.
const NAMES: [&str; 7] = ["ab", "cd", "", "abc", "Ab", "über", "x"];

/// Writes the files of the table `t` to a folder.
pub(super) fn write(folder: &Path, sizes: Sizes) {
    for (index, rows) in sizes.0.iter().enumerate() {
        let batch = batch(*rows, index);
        let file = File::create(folder.join(format!("{index}.parquet"))).expect("room");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
        writer.write(&batch).expect("room");
        writer.close().expect("room");
    }
}

fn batch(rows: usize, seed: usize) -> RecordBatch {
    let mut random = fastrand::Rng::with_seed(seed as u64);
    let mut of_rows = |values: &mut dyn FnMut(&mut fastrand::Rng) -> i64| -> Vec<i64> {
        (0..rows).map(|_| values(&mut random)).collect()
    };
    let a = of_rows(&mut |it| it.i64(-2..12));
    let b = of_rows(&mut |it| match it.u8(..4) {
        0 => it.i64(i64::from(i32::MIN)..1 << 40),
        _ => it.i64(-2000..2000),
    });
    let cents = of_rows(&mut |it| it.i64(90_000..10_500_000));
    let percent = of_rows(&mut |it| it.i64(0..11));
    let quantity = of_rows(&mut |it| it.i64(1..51));
    let days = of_rows(&mut |it| it.i64(8_035..10_562));
    let moments = of_rows(&mut |it| it.i64(900_000_000_000_000..1_100_000_000_000_000));
    let choice = of_rows(&mut |it| it.i64(0..1 << 30));
    let wide = of_rows(&mut |it| it.i64(-(1 << 50)..1 << 50));
    // About one in eight is NULL.
    let is_null = |row: usize, salt: i64| (choice[row] >> salt) & 7 == 0;
    let names = (0..rows).map(|row| {
        let name = NAMES[(choice[row] as usize + seed) % (3 + 2 * seed).min(NAMES.len())];
        (!is_null(row, 3)).then_some(name)
    });
    let flags = choice.iter().map(|it| ["A", "N", "R"][*it as usize % 3]);
    let decimals = |numbers: &[i64], scale| {
        let numbers = numbers.iter().map(|it| Some(i128::from(*it)));
        let decimals: Decimal128Array = numbers.collect();
        Arc::new(
            decimals
                .with_precision_and_scale(19, scale)
                .expect("digits"),
        ) as ArrayRef
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "a",
            Arc::new(Int32Array::from_iter(
                (0..rows).map(|row| (!is_null(row, 6)).then_some(a[row] as i32)),
            )),
        ),
        ("b", Arc::new(Int64Array::from(b))),
        ("price", decimals(&cents, 2)),
        ("discount", decimals(&percent, 2)),
        ("quantity", Arc::new(Int64Array::from(quantity))),
        (
            "day",
            Arc::new(Date32Array::from_iter_values(
                days.iter().map(|it| *it as i32),
            )),
        ),
        ("moment", Arc::new(TimestampMicrosecondArray::from(moments))),
        ("flag", Arc::new(StringArray::from_iter_values(flags))),
        ("name", Arc::new(names.collect::<StringArray>())),
        (
            "ok",
            Arc::new(BooleanArray::from_iter(
                (0..rows).map(|row| (!is_null(row, 9)).then_some(choice[row] & 1 == 1)),
            )),
        ),
        ("wide", decimals(&wide, 0)),
        (
            "tiny",
            Arc::new(Int8Array::from_iter_values(a.iter().map(|it| *it as i8))),
        ),
        ("nothing", Arc::new(Int32Array::from(vec![None; rows]))),
        (
            "ratio",
            Arc::new(Float64Array::from_iter_values(
                a.iter().map(|it| *it as f64 / 3.0),
            )),
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(
        columns
            .into_iter()
            .map(|(name, column)| (name, column, true)),
    )
    .expect("columns of one length")
}
