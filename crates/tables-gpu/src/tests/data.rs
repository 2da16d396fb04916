//! The files of the tests.

use std::fs::File;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, DurationMillisecondArray, Float32Array,
    Float64Array, Int8Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampSecondArray,
};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;

/// Numbers of rows of the files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes(pub(super) &'static [usize]);

/// Numbers of rows of the files with row groups of [`GROUP_ROWS`], each of which another task reads. Smaller files
/// have chunks of about a tile, larger ones full chunks.
const GROUPED: RangeInclusive<usize> = 2_100..=100_000;

/// Rows of a row group: more bytes than a task reads.
const GROUP_ROWS: usize = 700;

/// Texts of the column `name`. Each file has others.
const NAMES: [&str; 7] = ["ab", "cd", "", "abc", "Ab", "über", "x"];

/// Texts within those of the column `note`: what patterns have a meaning for, and letters with several cases.
const MARKS: [&str; 9] = ["", "", "", "", "\n", "\u{212A}", "\u{17F}", "%_\\", "É"];

/// Floats of the column `strange` besides numbers.
pub(super) const STRANGE: [f64; 7] = [
    0.0,
    -0.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    -f64::NAN,
    5e-324,
];

/// Writes the files of the table `t` to a folder.
pub(super) fn write(folder: &Path, sizes: Sizes) {
    std::fs::create_dir_all(folder).expect("room");
    for (index, rows) in sizes.0.iter().enumerate() {
        let batch = batch(*rows, index);
        let file = File::create(folder.join(format!("{index}.parquet"))).expect("room");
        let group_rows = GROUPED.contains(rows).then_some(GROUP_ROWS);
        let properties = WriterProperties::builder().set_max_row_group_row_count(group_rows);
        let properties = Some(properties.build());
        let writer = ArrowWriter::try_new(file, batch.schema(), properties);
        let mut writer = writer.expect("a writer");
        writer.write(&batch).expect("room");
        writer.close().expect("room");
    }
}

/// Numbers of the rows of a file.
struct Numbers {
    a: Vec<i64>,
    b: Vec<i64>,
    cents: Vec<i64>,
    percent: Vec<i64>,
    quantity: Vec<i64>,
    days: Vec<i64>,
    moments: Vec<i64>,
    choice: Vec<i64>,
    wide: Vec<i64>,
}

impl Numbers {
    fn new(rows: usize, seed: usize) -> Numbers {
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let mut of_rows = |values: &mut dyn FnMut(&mut fastrand::Rng) -> i64| -> Vec<i64> {
            (0..rows).map(|_| values(&mut random)).collect()
        };
        Numbers {
            a: of_rows(&mut |it| it.i64(-2..12)),
            b: of_rows(&mut |it| match it.u8(..4) {
                0 => it.i64(i64::from(i32::MIN)..1 << 40),
                _ => it.i64(-2000..2000),
            }),
            cents: of_rows(&mut |it| it.i64(90_000..10_500_000)),
            percent: of_rows(&mut |it| it.i64(0..11)),
            quantity: of_rows(&mut |it| it.i64(1..51)),
            days: of_rows(&mut |it| it.i64(8_035..10_562)),
            moments: of_rows(&mut |it| it.i64(900_000_000_000_000..1_100_000_000_000_000)),
            choice: of_rows(&mut |it| it.i64(0..1 << 30)),
            wide: of_rows(&mut |it| it.i64(-(1 << 50)..1 << 50)),
        }
    }

    /// Returns whether a value of a row is NULL, about one in eight.
    fn is_null(&self, row: usize, salt: i64) -> bool {
        (self.choice[row] >> salt) & 7 == 0
    }
}

fn decimals(numbers: &[i64], scale: i8) -> ArrayRef {
    let numbers = numbers.iter().map(|it| Some(i128::from(*it)));
    let decimals: Decimal128Array = numbers.collect();
    Arc::new(
        decimals
            .with_precision_and_scale(19, scale)
            .expect("digits"),
    )
}

fn batch(rows: usize, seed: usize) -> RecordBatch {
    let of = Numbers::new(rows, seed);
    let names = (0..rows).map(|row| {
        let name = NAMES[(of.choice[row] as usize + seed) % (3 + 2 * seed).min(NAMES.len())];
        (!of.is_null(row, 3)).then_some(name)
    });
    let flags = of.choice.iter().map(|it| ["A", "N", "R"][*it as usize % 3]);
    let a = (0..rows).map(|row| (!of.is_null(row, 6)).then_some(of.a[row] as i32));
    let ok = (0..rows).map(|row| (!of.is_null(row, 9)).then_some(of.choice[row] & 1 == 1));
    let days = of.days.iter().map(|it| *it as i32);
    let tiny = of.a.iter().map(|it| *it as i8);
    let ratio = of.a.iter().map(|it| *it as f64 / 3.0);
    let fare = (0..rows).map(|row| (!of.is_null(row, 15)).then_some(of.cents[row] as f64 / 100.0));
    let tip = of.percent.iter().map(|it| *it as f32 / 10.0);
    let third = (0..rows).map(|row| (!of.is_null(row, 18)).then_some(of.b[row] as f32 / 3.0));
    let strange = of.choice.iter().map(|it| match it % 16 {
        index @ 0..7 => STRANGE[index as usize],
        _ => *it as f64 / 7.0 - 5e7,
    });
    let lone = |undefined: f64| {
        let lone = of.choice.iter().map(move |it| match it % 16 {
            0 => undefined,
            _ => (it % 1000 - 50) as f64 / 10.0,
        });
        Arc::new(Float64Array::from_iter_values(lone)) as ArrayRef
    };
    let tenth = of.a.iter().map(|it| *it as f64 / 10.0);
    let spread = of
        .choice
        .iter()
        .map(|it| 10_f64.powi((it % 64) as i32 - 32));
    let notes = (0..rows).map(|row| {
        let mark = MARKS[of.choice[row] as usize % MARKS.len()];
        let note = format!("{}{mark} or {}", of.cents[row], of.choice[row] % 100);
        (!of.is_null(row, 12)).then_some(note)
    });
    let columns: [(&str, ArrayRef); 24] = [
        ("a", Arc::new(a.collect::<Int32Array>())),
        ("b", Arc::new(Int64Array::from(of.b.clone()))),
        ("price", decimals(&of.cents, 2)),
        ("discount", decimals(&of.percent, 2)),
        ("quantity", Arc::new(Int64Array::from(of.quantity.clone()))),
        ("day", Arc::new(Date32Array::from_iter_values(days))),
        (
            "moment",
            Arc::new(TimestampMicrosecondArray::from(of.moments.clone())),
        ),
        ("flag", Arc::new(StringArray::from_iter_values(flags))),
        ("name", Arc::new(names.collect::<StringArray>())),
        ("note", Arc::new(notes.collect::<StringArray>())),
        ("ok", Arc::new(ok.collect::<BooleanArray>())),
        ("wide", decimals(&of.wide, 0)),
        ("tiny", Arc::new(Int8Array::from_iter_values(tiny))),
        ("nothing", Arc::new(Int32Array::from(vec![None; rows]))),
        ("ratio", Arc::new(Float64Array::from_iter_values(ratio))),
        ("fare", Arc::new(fare.collect::<Float64Array>())),
        ("tip", Arc::new(Float32Array::from_iter_values(tip))),
        ("third", Arc::new(third.collect::<Float32Array>())),
        ("strange", Arc::new(Float64Array::from_iter_values(strange))),
        ("nan", lone(f64::NAN.copysign(1.0))),
        ("negative_nan", lone(f64::NAN.copysign(-1.0))),
        ("infinite", lone(f64::INFINITY)),
        ("tenth", Arc::new(Float64Array::from_iter_values(tenth))),
        ("spread", Arc::new(Float64Array::from_iter_values(spread))),
    ];
    let columns = columns.into_iter().chain(times(&of, rows));
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
        .expect("columns of one length")
}

/// Returns columns of times before and after 1970, in all units, and of durations.
fn times(of: &Numbers, rows: usize) -> [(&'static str, ArrayRef); 5] {
    let until = of.moments.iter().zip(&of.choice).enumerate();
    let until = until.map(|(row, (moment, choice))| {
        (!of.is_null(row, 20)).then_some(moment + choice % 5_000_000 * 1_000_003)
    });
    let zoned = of
        .choice
        .iter()
        .map(|it| (it % (1 << 20) - 300_000) * 1_000_003);
    let night = of.choice.iter().map(|it| it * 5 - 2_200_000_000);
    let early = of.choice.iter().map(|it| it % 100_000 - 90_007);
    let took = (0..rows).map(|row| (!of.is_null(row, 21)).then_some(of.cents[row] % 5_000));
    [
        (
            "until",
            Arc::new(until.collect::<TimestampMicrosecondArray>()),
        ),
        (
            "zoned",
            Arc::new(TimestampMillisecondArray::from_iter_values(zoned).with_timezone("+00:00")),
        ),
        (
            "night",
            Arc::new(TimestampSecondArray::from_iter_values(night)),
        ),
        ("took", Arc::new(took.collect::<DurationMillisecondArray>())),
        (
            "early",
            Arc::new(TimestampMicrosecondArray::from_iter_values(early)),
        ),
    ]
}
