//! `forebay import`: inserts the documents of files into a collection of a running server.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bson::RawDocumentBuf;
use clap::Args;
use forebay_terminal::note;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mongodb::Collection;
use tokio::sync::watch;

use super::client::ServerArgs;
use super::documents;
use crate::import::{
    Format, Origin, Outcome, ReadError, Sender, Shape, check_field_name, other_delimiter, read,
};
use crate::logging::one_line;
use crate::stop::Stop;

/// Bytes read ahead of the parser.
const BUFFER_BYTES: usize = 256 * 1024;
const STDIN: &str = "-";

/// Import JSON, JSON lines, CSV or BSON files into a collection
///
/// If an import ends early, the documents imported so far stay. Importing again adds documents a second time, unless
/// the files give them an `_id`. Documents in JSON nest at most 127 levels, an enclosing array included;
/// documents in BSON nest at most 200. Integers in JSON that need more than 64 bits become doubles. If a document in
/// JSON has several fields of the same name, the last one stays.
#[derive(Debug, Args)]
pub struct ImportArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Database to import into.
    #[arg(long)]
    db: String,
    /// Collection to import into.
    #[arg(long)]
    collection: String,
    /// Format of the files; detected from their names and first bytes by default.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Import strings in JSON files as documents that have only this field.
    #[arg(long, value_name = "NAME", value_parser = parse_field)]
    field: Option<String>,
    /// Delimiter between the columns of CSV files [default: comma; tab for .tsv files].
    #[arg(long, value_name = "CHARACTER", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    /// Import all values of CSV files as strings.
    ///
    /// Without this flag, the type of each value is inferred from the value alone. `true` and `false` become booleans.
    /// Integers of at most 64 bits become integers. Numbers with a decimal point or an exponent become doubles, which
    /// keep 15 to 17 digits and no trailing zeros: `1.10` becomes 1.1. All other values become strings, which caches
    /// can search: larger integers, numbers with a plus sign, leading zeros or no digit before the point, and quoted
    /// values. With and without this flag, an empty value becomes no field unless it is quoted.
    #[arg(long)]
    as_text: bool,
    /// Files to import; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text {
        "\\t" => Ok(b'\t'),
        text if text.len() == 1 && !text.starts_with('"') => Ok(text.as_bytes()[0]),
        _ => Err("must be one ASCII character, or \\t".to_owned()),
    }
}

fn parse_field(name: &str) -> Result<String, String> {
    check_field_name(name).map(|()| name.to_owned())
}

/// Runs the import.
///
/// # Errors
/// - If a file cannot be read. The error names the line; the documents before that line are imported and counted.
/// - If documents were too large or the server refused them. All others are imported.
/// - If a stop was requested. The inserts in flight are finished and counted.
pub async fn run(args: ImportArgs, stop: &Stop) -> Result<()> {
    // Fail on a missing file before the first document is imported.
    for path in args.files.iter().filter(|path| **path != Path::new(STDIN)) {
        open(path)?;
    }
    let begun = Instant::now();
    let client = args.server.connect().await?;
    let collection = client.database(&args.db).collection(&args.collection);
    let progress = progress_bar(&args.files);
    let (outcome, ended) = import(args, collection, progress.clone(), stop.listen()).await;
    progress.finish_and_clear();
    if outcome.inserted + outcome.refused > 0 || ended.is_ok() {
        note(summary(&outcome, begun.elapsed(), ended.is_ok()));
    }
    match (refusals(&outcome), ended) {
        (None, ended) => ended,
        (Some(refusals), Ok(())) => bail!(refusals),
        (Some(refusals), Err(error)) => {
            note(one_line(&refusals));
            Err(error)
        }
    }
}

/// Returns a sentence about the refused documents, or `None` if no document was refused. If several were refused,
/// prints the reasons for the first of them.
fn refusals(outcome: &Outcome) -> Option<String> {
    let (_, first) = outcome.reasons.first_key_value()?;
    let refused = documents(outcome.refused);
    if outcome.refused == 1 {
        return Some(format!("{refused} was refused: {first}"));
    }
    for reason in outcome.reasons.values() {
        note(one_line(&format!("refused: {reason}")));
    }
    Some(match outcome.reasons.len() as u64 {
        told if told == outcome.refused => format!("{refused} were refused, as listed above"),
        told => format!("{refused} were refused; the first {told} are listed above"),
    })
}

/// Reads the files and sends their documents. Returns the outcome, with an error if the import ended early.
async fn import(
    args: ImportArgs,
    collection: Collection<RawDocumentBuf>,
    progress: ProgressBar,
    stopped: watch::Receiver<bool>,
) -> (Outcome, Result<()>) {
    let counter = progress.clone();
    let show_count = move |count| show_count(&counter, count);
    let (mut sender, inserts) = Sender::start(collection, &stopped, show_count);
    let reading = tokio::task::spawn_blocking(move || {
        let ended = read_files(&args, &mut sender, &progress);
        sender.flush();
        ended
    });
    let (outcome, sent) = inserts.finish().await;
    if let Err(error) = sent {
        return (outcome, Err(error.into()));
    }
    if *stopped.borrow() {
        // Do not wait for the reading thread, which may block on standard input forever.
        return (outcome, Err(anyhow!("interrupted")));
    }
    let read = reading.await.context("reading the files");
    (outcome, read.and_then(|read| read))
}

fn read_files(args: &ImportArgs, sender: &mut Sender, progress: &ProgressBar) -> Result<()> {
    for path in &args.files {
        let mut input = BufReader::with_capacity(BUFFER_BYTES, progress.wrap_read(open(path)?));
        let format = match args.format {
            Some(format) => format,
            None => Format::detect(Some(path), &mut input)
                .with_context(|| path.display().to_string())?,
        };
        let warn = |problem: &str| {
            let warning = format!("warning: {}: {problem}", path.display());
            progress.suspend(|| note(one_line(&warning)));
        };
        idle_flags(args, format).into_iter().for_each(warn);
        let shape = shape(args, path);
        if format == Format::Csv
            && shape.delimiter.is_none()
            && let Some(delimiter) = other_delimiter(&mut input)?
        {
            warn(&format!(
                "there is one column; --delimiter '{delimiter}' would split its name"
            ));
        }
        let file: Arc<str> = path.display().to_string().into();
        let ended = read(&mut input, format, &shape, &mut |position, document| {
            let file = file.clone();
            sender.push(document, Origin { file, position })
        });
        match ended {
            Err(ReadError::Stopped) => return Ok(()),
            ended => {
                let mixed = ended.with_context(|| path.display().to_string())?;
                mixed.iter().for_each(|column| warn(&of_mixed(column)));
            }
        }
    }
    Ok(())
}

/// Returns the warning about a column that has both strings and other values.
fn of_mixed(column: &str) -> String {
    format!(
        "column {column} has strings beside numbers or booleans; searches for strings do not find the others: --as-text imports all values as strings"
    )
}

/// Returns warnings about flags that have no effect on files of a format.
fn idle_flags(args: &ImportArgs, format: Format) -> Vec<&'static str> {
    let is_csv = format == Format::Csv;
    let is_json = matches!(format, Format::Json | Format::JsonLines);
    let flags = [
        (args.as_text && !is_csv, "--as-text is for CSV files"),
        (
            args.delimiter.is_some() && !is_csv,
            "--delimiter is for CSV files",
        ),
        (
            args.field.is_some() && !is_json,
            "--field is for JSON files",
        ),
    ];
    flags
        .into_iter()
        .filter_map(|(is_idle, problem)| is_idle.then_some(problem))
        .collect()
}

fn open(path: &Path) -> Result<Box<dyn Read>> {
    if path == Path::new(STDIN) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(file))
}

fn shape(args: &ImportArgs, path: &Path) -> Shape {
    let tabs = path.extension().is_some_and(|extension| extension == "tsv");
    let delimiter = args.delimiter.or_else(|| tabs.then_some(b'\t'));
    Shape {
        field: args.field.clone(),
        delimiter,
        as_text: args.as_text,
    }
}

/// Creates a progress bar over the bytes of all files, or a spinner if their size is unknown.
fn progress_bar(files: &[PathBuf]) -> ProgressBar {
    let size: Option<u64> = files
        .iter()
        .map(|path| Some(std::fs::metadata(path).ok()?.len()))
        .sum();
    let known = "{bar:30} {percent:>3} %  {msg}  {eta} left";
    let unknown = "{spinner} {decimal_bytes}  {msg}";
    let (bar, template) = match size.filter(|size| *size > 0) {
        Some(size) => (ProgressBar::new(size), known),
        None => (ProgressBar::no_length(), unknown),
    };
    if !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.with_style(ProgressStyle::with_template(template).expect("the template is well-formed"))
}

fn show_count(progress: &ProgressBar, count: u64) {
    progress.set_message(format!(
        "{count} documents  {}/s",
        per_second(count, progress.elapsed())
    ));
}

fn per_second(count: u64, elapsed: Duration) -> u64 {
    (count as f64 / elapsed.as_secs_f64().max(1e-3)) as u64
}

fn summary(outcome: &Outcome, elapsed: Duration, is_complete: bool) -> String {
    let Outcome {
        inserted, refused, ..
    } = outcome;
    let rate = per_second(*inserted, elapsed);
    let seconds = elapsed.as_secs_f64();
    let refused = match refused {
        0 => String::new(),
        refused => format!(", {refused} refused"),
    };
    let advice = match is_complete {
        true => "",
        false => {
            "; the imported documents stay: importing again adds them twice, unless they have an _id"
        }
    };
    format!(
        "{} imported in {seconds:.1} s ({rate}/s){refused}{advice}",
        documents(*inserted)
    )
}
