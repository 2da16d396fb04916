//! The subcommands of `forebay bench`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use forebay_peers::{column, ferretdb};
use forebay_terminal::print_line;

use crate::documents::{self, DocumentsArgs};
use crate::io::{self, IoArgs};
use crate::joins::{self, JoinsArgs};
use crate::plot::{self, PlotArgs};
use crate::q6::{self, Q6Args};
#[cfg(feature = "tables")]
use crate::tables::{self, TablesArgs};
use crate::transfer::{self, TransferArgs};

/// Measure Forebay, and compare it with other programs.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub bench: Bench,
}

/// The subcommands of `forebay bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// Measure searches and writes of the documents server.
    Documents(DocumentsArgs),
    /// Measure query 6 of TPC-H from disk, host memory and device memory.
    Q6(Q6Args),
    /// Measure every way of moving bytes between host memory and GPUs, and reads of every memory.
    Transfer(TransferArgs),
    /// Measure reads and writes of files, into host memory and into the memory of a GPU.
    Io(IoArgs),
    /// Measure hash joins in device memory, from host memory, on the CPU, and by several processors.
    Joins(JoinsArgs),
    /// Generate the tables of SQL benchmarks as Parquet files, one per table.
    #[cfg(feature = "tables")]
    Tables(TablesArgs),
    /// Draw the papers' figures from records of documents, io, joins, q6, transfer and SQL.
    Plot(PlotArgs),
    /// Build FerretDB if it is missing, and print its path, for tests that compare with FerretDB.
    Ferretdb,
    /// Read a page of a file by cuFile, in a process that may crash.
    #[command(hide = true, name = io::probe::COMMAND)]
    CufileProbe {
        /// The file.
        file: PathBuf,
    },
    /// Search a file of values with Rust's `regex`, for benchmarks that compare with it.
    #[command(hide = true)]
    ColumnRegex {
        /// The values, one per line.
        file: PathBuf,
    },
}

pub(crate) async fn run(args: BenchArgs) -> Result<()> {
    match args.bench {
        Bench::Documents(args) => documents::run(&args).await,
        Bench::Q6(args) => q6::run(&args),
        Bench::Transfer(args) => transfer::run(&args),
        Bench::Io(args) => io::run(&args),
        Bench::Joins(args) => joins::run(&args),
        #[cfg(feature = "tables")]
        Bench::Tables(args) => tables::run(&args),
        Bench::CufileProbe { file } => io::probe::run(&file),
        Bench::Plot(args) => plot::run(&args),
        Bench::Ferretdb => Ok(print_line(ferretdb::binary()?.display())?),
        Bench::ColumnRegex { file } => column::serve_regex_crate(&file),
    }
}
