//! `forebay sql`: runs SQL statements in this process, or starts a shell.

mod cells;
mod columns;
mod commands;
mod complete;
mod csv;
mod describe;
mod failure;
mod history;
mod output;
mod progress;
mod run;
mod shell;
mod statements;
mod table;

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use forebay_documents::{DirectoryLock, lock_directory};
use forebay_memory::Account;
use forebay_tables::{Paths, Scratch, Settings, Tables};
use tokio::sync::Mutex;

use self::failure::Failure;
use self::output::{Format, Output};
use self::run::{Interrupts, Runner};
pub use self::statements::split;
use crate::doors::tables::{FOLDER, check_folder};
use crate::settings::{Kind, Value};
use crate::stop::Stop;

/// Name that stands for standard input.
const STDIN: &str = "-";
/// User of the session.
const USER: &str = "forebay";
/// Folder of the engine's temporary files, below the folder of the definitions.
const SPILL_FOLDER: &str = "spill";
/// Part of the memory that queries may reserve: the rest is for what they do not count, and for the program.
const QUERIES_PART: (u64, u64) = (3, 4);
/// Limits of `--memory-bytes-max`.
const MEMORY_BYTES: Kind = Kind::Bytes {
    min: 128 << 20,
    max: 1 << 50,
};
/// Limits of `--spill-bytes-max`.
const SPILL_BYTES: Kind = Kind::Bytes {
    min: 0,
    max: 1 << 50,
};

const EXAMPLES: &str = "\
Examples:
  forebay sql \"SELECT count(*) FROM 'lineitem.parquet'\"
  forebay sql --tables data/ --json \"SELECT * FROM orders LIMIT 5\"
  forebay sql --csv -f report.sql > report.csv
  echo 'SELECT 1' | forebay sql
  forebay sql                             a shell; \\? lists its commands

A table is a path in quotes (a Parquet, CSV, JSON lines or Arrow file, a folder, or a pattern with
*), a file or folder of --tables, or what CREATE TABLE, CREATE EXTERNAL TABLE or CREATE VIEW defines.";

/// Run SQL statements on files and managed tables, or start a shell
///
/// The statements run in this process; no server is needed. Without statements, standard input is read, and if it is a
/// terminal, a shell starts. The first statement that fails ends the command.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SqlArgs {
    /// Statements, separated by semicolons; `-` reads them from standard input.
    #[arg(value_name = "STATEMENTS")]
    statements: Vec<String>,
    /// File of statements, which run before those of the arguments; may be given several times.
    #[arg(long = "file", short = 'f', value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON object a row.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values with a header.
    #[arg(long)]
    csv: bool,
    /// Directory whose files and subdirectories are tables.
    #[arg(long, value_name = "DIR")]
    tables: Option<PathBuf>,
    /// Data directory that keeps managed tables and declarations; without this flag, they end with the command.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Maximum number of rows printed per result, 0 for all [default: 40 at a terminal, else all].
    #[arg(long, value_name = "COUNT")]
    rows: Option<usize>,
    /// Maximum memory of the process [default: three quarters of this machine's memory].
    ///
    /// Sorts, joins and groups that need more use temporary files.
    #[arg(long, value_name = "BYTES", value_parser = memory_bytes)]
    memory_bytes_max: Option<u64>,
    /// Maximum bytes of temporary files.
    #[arg(long, value_name = "BYTES", value_parser = spill_bytes, default_value = "100GiB")]
    spill_bytes_max: u64,
    /// Number of threads that run queries [default: all cores].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

fn memory_bytes(text: &str) -> Result<u64, String> {
    bytes(MEMORY_BYTES, text)
}

fn spill_bytes(text: &str) -> Result<u64, String> {
    bytes(SPILL_BYTES, text)
}

fn bytes(kind: Kind, text: &str) -> Result<u64, String> {
    match kind.parse(text)? {
        Value::Number(bytes) => Ok(bytes),
        other => Err(format!("{other:?} is no number")),
    }
}

/// Runs the statements or the shell.
///
/// # Errors
/// - If a file cannot be read, or the data directory is in use.
/// - If a statement fails. Those before it have taken effect.
/// - If a stop was requested.
pub async fn run(args: SqlArgs, stop: &Stop) -> Result<()> {
    let is_shell = args.statements.is_empty() && args.files.is_empty() && io::stdin().is_terminal();
    let texts = match is_shell {
        true => Vec::new(),
        false => tokio::task::block_in_place(|| texts(&args))?,
    };
    // Dropped last: when no query uses the files in it.
    let place = tokio::task::block_in_place(|| Place::new(args.data.as_deref()))?;
    let tables = tokio::task::block_in_place(|| open(&args, &place))?;
    let format = match (args.json, args.csv) {
        (true, _) => Format::Json,
        (_, true) => Format::Csv,
        _ => Format::Table,
    };
    let mut runner = Runner {
        session: Arc::new(Mutex::new(tables.session(USER))),
        output: Output::new(format, args.rows),
    };
    if is_shell {
        return shell::run(runner, stop).await;
    }
    let mut interrupts = Interrupts::of_process(stop);
    for text in texts {
        let ended = runner.run(&text, &mut interrupts).await;
        ended.map_err(Failure::into_error)?;
    }
    Ok(())
}

/// Reads the statements of all files and arguments, before the first of them runs.
fn texts(args: &SqlArgs) -> Result<Vec<String>> {
    if args.statements.is_empty() && args.files.is_empty() {
        return Ok(vec![read_stdin()?]);
    }
    let files = args.files.iter().map(|path| match path {
        path if path == Path::new(STDIN) => read_stdin(),
        path => fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display())),
    });
    let arguments = args.statements.iter().map(|text| match text.as_str() {
        STDIN => read_stdin(),
        text => Ok(text.to_owned()),
    });
    files.chain(arguments).collect()
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().lock().read_to_string(&mut text);
    read.context("cannot read standard input")?;
    Ok(text)
}

/// The folder with the definitions of tables and the temporary files of queries.
struct Place {
    folder: PathBuf,
    /// The folder, if it is removed at the end.
    _temporary: Option<Scratch>,
    /// Keeps a server or another shell from changing the definitions.
    _lock: Option<DirectoryLock>,
}

impl Place {
    fn new(data: Option<&Path>) -> Result<Place> {
        if let Some(data) = data {
            let lock = lock_directory(data)?;
            return Ok(Place {
                folder: data.join(FOLDER),
                _temporary: None,
                _lock: Some(lock),
            });
        }
        let temporary = Scratch::new().context("cannot create a folder for temporary files")?;
        Ok(Place {
            folder: temporary.path().to_owned(),
            _temporary: Some(temporary),
            _lock: None,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A query that was cancelled may not have removed its files yet, and the process does not wait for it.
        let _ = fs::remove_dir_all(self.folder.join(SPILL_FOLDER));
    }
}

fn open(args: &SqlArgs, place: &Place) -> Result<Arc<Tables>> {
    args.tables.as_deref().map_or(Ok(()), check_folder)?;
    let machine_bytes = forebay_memory::machine_bytes();
    let limit_bytes = args.memory_bytes_max.unwrap_or(machine_bytes / 4 * 3);
    // No thread measures the resident memory, as one does in the server: after such a measurement, memory that a sort
    // released by spilling stays taken for a moment, in which the sort would fail.
    let account = Account::new(limit_bytes);
    forebay_device::keep_free_memory(limit_bytes);
    let threads = args.threads.map_or_else(cores, usize::from);
    let settings = Settings {
        folder: Some(place.folder.clone()),
        tables: args.tables.clone(),
        source: None,
        gpu_rules: Vec::new(),
        paths: Paths::Any,
        memory: account,
        memory_bytes_max: usize::try_from(limit_bytes / QUERIES_PART.1 * QUERIES_PART.0)?,
        spill_bytes_max: args.spill_bytes_max,
        threads,
        slow_statement: Duration::MAX,
    };
    Tables::open(settings).context("starting the SQL engine")
}

fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}
