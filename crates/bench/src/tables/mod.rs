//! `forebay bench tables`: generates the tables of SQL benchmarks as Parquet files.

pub mod client;
mod columns;
pub mod parquet_file;
pub(crate) mod plots;
pub mod ssb;
pub mod tpch;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use forebay_terminal::print_line;

use parquet_file::{Table, Written};

/// Minimum scale factor. Below it, tables of TPC-H are empty.
const SCALE_MIN: f64 = 0.001;
/// Maximum scale factor, the largest whose keys fit in 32 bits.
const SCALE_MAX: f64 = 1_000.0;

/// Generate the tables of SQL benchmarks as Parquet files, one per table.
#[derive(Args, Clone, Debug)]
pub struct TablesArgs {
    /// Benchmark to generate the tables of.
    #[arg(long, value_enum)]
    pub generate: Dataset,
    /// Scale factor, as in 0.01 or 10; 1 is about 6 million rows of the largest table.
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = scale)]
    pub scale: f64,
    /// Folder for the files; older files of the same tables are replaced.
    #[arg(long, value_name = "DIR")]
    pub folder: PathBuf,
    /// Number of threads; by default, one per processor core. It does not change the rows.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print one JSON object per table.
    #[arg(long)]
    pub json: bool,
}

/// The benchmarks whose tables can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dataset {
    /// The Star Schema Benchmark: five tables
    Ssb,
    /// TPC-H: eight tables
    Tpch,
}

impl Dataset {
    fn tables(self, scale: f64) -> Vec<Table> {
        match self {
            Dataset::Ssb => ssb::tables(scale),
            Dataset::Tpch => tpch::tables(scale),
        }
    }

    /// Returns the names of the tables.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let tables = self.tables(SCALE_MIN);
        tables.iter().map(|table| table.name).collect()
    }
}

fn scale(text: &str) -> Result<f64, String> {
    let range = SCALE_MIN..=SCALE_MAX;
    let scale = text.parse().ok().filter(|scale| range.contains(scale));
    scale.ok_or_else(|| format!("use a number from {SCALE_MIN} to {SCALE_MAX}"))
}

pub(crate) fn run(args: &TablesArgs) -> Result<()> {
    let threads = args.threads.map_or_else(cores, usize::from);
    generate(
        args.generate,
        args.scale,
        &args.folder,
        threads,
        |written| {
            let line = match args.json {
                true => serde_json::to_string(written)?,
                false => line(written),
            };
            Ok(print_line(line)?)
        },
    )
}

/// Returns the number of processor cores.
pub(crate) fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Generates all tables into `folder` and calls `tell` after each.
///
/// # Errors
/// If a file cannot be written, or `tell` fails.
pub(crate) fn generate(
    dataset: Dataset,
    scale: f64,
    folder: &Path,
    threads: usize,
    mut tell: impl FnMut(&Written) -> Result<()>,
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for table in dataset.tables(scale) {
        tell(&parquet_file::write(&table, folder, threads)?)?;
    }
    Ok(())
}

fn line(written: &Written) -> String {
    let Written {
        table,
        rows,
        bytes,
        seconds,
    } = written;
    format!("{table:10} {rows:>12} rows  {bytes:>14} bytes  {seconds:>7.1} s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    use arrow::array::{AsArray, RecordBatch};
    use arrow::datatypes::Int32Type;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    fn read(folder: &Path, table: &str) -> Vec<RecordBatch> {
        let file = File::open(folder.join(format!("{table}.parquet"))).expect("just written");
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).expect("a Parquet file");
        let batches = builder.build().expect("columns that arrow knows");
        batches.map(|batch| batch.expect("whole pages")).collect()
    }

    fn written(dataset: Dataset, folder: &Path, threads: usize) -> Vec<(&'static str, u64)> {
        let mut tables = Vec::new();
        let tell = |written: &Written| {
            let file = folder.join(format!("{}.parquet", written.table));
            assert_eq!(fs::metadata(file)?.len(), written.bytes);
            tables.push((written.table, written.rows));
            Ok(())
        };
        generate(dataset, 0.01, folder, threads, tell).expect("the folder is writable");
        tables
    }

    #[test]
    fn ssb_files_have_the_same_rows_with_any_number_of_threads() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        let (one, many) = (folders[0].path(), folders[1].path());
        let tables = written(Dataset::Ssb, one, 1);
        assert_eq!(tables, written(Dataset::Ssb, many, 3));
        let dimensions = [
            ("date", 2_556),
            ("supplier", 20),
            ("customer", 300),
            ("part", 2_000),
        ];
        assert_eq!(tables[..4], dimensions);
        assert!((59_000..61_000).contains(&tables[4].1), "{tables:?}");
        for (table, rows) in tables {
            let batches = read(one, table);
            assert_eq!(batches, read(many, table), "{table}");
            let read: usize = batches.iter().map(RecordBatch::num_rows).sum();
            assert_eq!(read as u64, rows, "{table}");
        }
    }

    #[test]
    fn ssb_rows_are_those_of_earlier_versions() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        written(Dataset::Ssb, folder.path(), 2);
        let sum = |column: &str| -> i64 {
            let batches = read(folder.path(), "lineorder");
            let values = |batch: &RecordBatch| {
                let column = batch.column_by_name(column).expect("a column of SSB");
                let values = column.as_primitive::<Int32Type>().values();
                values.iter().map(|value| i64::from(*value)).sum::<i64>()
            };
            batches.iter().map(values).sum()
        };
        assert_eq!(sum("lo_revenue"), 203_074_730_952);
        assert_eq!(sum("lo_orderdate"), 1_195_679_151_967);
    }

    #[test]
    fn tpch_files_have_the_rows_of_dbgen() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let expected = [
            ("region", 5),
            ("nation", 25),
            ("supplier", 100),
            ("customer", 1_500),
            ("part", 2_000),
            ("partsupp", 8_000),
            ("orders", 15_000),
            ("lineitem", 60_175),
        ];
        assert_eq!(written(Dataset::Tpch, folder.path(), 2), expected);
        let read = |table| {
            read(folder.path(), table)
                .iter()
                .map(RecordBatch::num_rows)
                .sum::<usize>()
        };
        assert_eq!(
            expected.map(|(table, _)| read(table)),
            expected.map(|(_, rows)| rows as usize)
        );
    }

    #[test]
    fn scale_factors_are_numbers_in_a_range() {
        assert_eq!(scale("0.01"), Ok(0.01));
        for wrong in ["0", "-1", "NaN", "inf", "1001", "x", ""] {
            assert!(scale(wrong).is_err(), "{wrong}");
        }
    }
}
