//! The SQL of the demonstration: its tables, and the measured queries.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_peers::cache_folder;
use forebay_terminal::{note, print_line};
use serde::Serialize;

use super::questions::{FLIGHTS, MOVIES, NAMES, ORDERS, Question};
use super::table::duration;
use crate::data;
use crate::statistics::{Repeat, Summary, milliseconds};
use crate::tables::client::{Client, Row};
use crate::tables::{self, Dataset};

/// Scale factor of TPC-H beside real data: 600,000 rows of the largest table.
const SCALE: f64 = 0.1;
/// Scale factor of TPC-H beside generated names.
const SCALE_SMALL: f64 = 0.01;
/// Repetitions of a query. The table shows the median latency.
const REPEAT: Repeat = Repeat {
    count: 5,
    budget: Duration::from_millis(500),
};
/// Maximum letters of an answer in the table.
const ANSWER_LETTERS: usize = 60;

/// The folder of tables, beside the fetched data: a new server refuses a data directory with other files.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    has_movies: bool,
    has_flights: bool,
}

/// Result of a query.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The question in plain words.
    pub question: &'static str,
    /// The query.
    pub sql: &'static str,
    /// Number of rows of the answer.
    pub rows: usize,
    /// Values of the first row, as text.
    pub first: Row,
    /// Median latency measured by the client, in milliseconds.
    pub median_ms: f64,
}

impl Folder {
    /// Makes the tables that an earlier run has not left in the user's cache folder. Adds real tables if `is_real` is
    /// set and they can be fetched. Returns `None` in a build without the tables server.
    ///
    /// # Errors
    /// If the disk is full, or the folder cannot be written.
    pub fn prepare(is_real: bool) -> Result<Option<Folder>> {
        let scale = if is_real { SCALE } else { SCALE_SMALL };
        let path = cache_folder()?.join(format!("demo-tables-{scale}"));
        generate(&path, scale)?;
        let has_flights = is_real && link_flights(&path);
        Ok(Some(Folder {
            path,
            has_movies: is_real,
            has_flights,
        }))
    }

    /// Returns the path, as an argument of the server.
    ///
    /// # Errors
    /// If the path is not UTF-8.
    pub fn argument(&self) -> Result<&str> {
        let path = self.path.to_str();
        path.with_context(|| format!("{} is not UTF-8", self.path.display()))
    }

    fn questions(&self) -> Vec<Question> {
        let movies: &[Question] = if self.has_movies { &MOVIES } else { &[] };
        let flights: &[Question] = if self.has_flights { &FLIGHTS } else { &[] };
        [&NAMES, movies, flights, &ORDERS].concat()
    }
}

/// Generates the tables of TPC-H into `folder`, unless all are there.
fn generate(folder: &Path, scale: f64) -> Result<()> {
    let is_there = |name: &&str| folder.join(format!("{name}.parquet")).exists();
    if Dataset::Tpch.names().iter().all(is_there) {
        return Ok(());
    }
    note(format_args!(
        "Generating the tables of TPC-H at scale factor {scale} (kept for later runs) ..."
    ));
    tables::generate(Dataset::Tpch, scale, folder, tables::cores(), |_| Ok(()))
}

/// Links the fetched tables of flights and airports into the folder. Returns whether it could.
fn link_flights(folder: &Path) -> bool {
    let linked = data::flights().and_then(|[flights, airports]| {
        link(&flights, &folder.join("flights.parquet"))?;
        link(&airports, &folder.join("airports.csv"))
    });
    if let Err(error) = &linked {
        note(format_args!("The flights could not be fetched: {error:#}"));
    }
    linked.is_ok()
}

/// Gives a file a second name, unless that is taken by an earlier run.
fn link(file: &Path, name: &Path) -> Result<()> {
    match fs::hard_link(file, name) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked.with_context(|| format!("linking {}", name.display())),
    }
}

/// Runs all queries through PostgreSQL's protocol, and prints a table or JSON.
///
/// # Errors
/// If the server refuses a query, two runs of it have different answers, or standard output cannot be written.
pub async fn ask_all(uri: &str, folder: &Folder, is_json: bool) -> Result<()> {
    let mut client = Client::connect(uri).await?;
    let questions = folder.questions();
    let longest = questions.iter().map(|question| question.text.len()).max();
    let width = longest.unwrap_or(0);
    if !is_json {
        print_line("")?;
        print_row(width, "SQL", "rows", "first row", "median")?;
    }
    for question in &questions {
        let answer = ask(&mut client, question).await?;
        if is_json {
            print_line(serde_json::to_string(&answer)?)?;
        } else {
            let (rows, median) = (answer.rows.to_string(), duration(answer.median_ms));
            print_row(width, question.text, &rows, &first(&answer.first), &median)?;
        }
    }
    Ok(())
}

fn print_row(width: usize, question: &str, rows: &str, first: &str, median: &str) -> Result<()> {
    Ok(print_line(format_args!(
        "{question:width$}  {rows:>6}  {first:ANSWER_LETTERS$}  {median:>9}"
    ))?)
}

/// Measures a query, and checks that each run has the same answer.
async fn ask(client: &mut Client, question: &Question) -> Result<Answer> {
    let refused = || format!("asking {:?}", question.text);
    let begin = Instant::now();
    let mut answer: Option<Vec<Row>> = None;
    let mut samples = Vec::new();
    while REPEAT.continues(samples.len(), begin) {
        let start = Instant::now();
        let rows = client.query(question.sql).await.with_context(refused)?;
        samples.push(milliseconds(start.elapsed()));
        let earlier = answer.get_or_insert_with(|| rows.clone());
        ensure!(
            *earlier == rows,
            "runs of the same query disagree: {}",
            question.sql
        );
    }
    let rows = answer.unwrap_or_default();
    let first = rows.first().cloned();
    Ok(Answer {
        question: question.text,
        sql: question.sql,
        rows: rows.len(),
        first: first.with_context(|| format!("no row answers {:?}", question.text))?,
        median_ms: Summary::of(&samples).context("no run was timed")?.median,
    })
}

/// Formats the first row of an answer in the space of the table.
fn first(row: &Row) -> String {
    let values = row.iter().map(|value| value.as_deref().unwrap_or("NULL"));
    let text = values.collect::<Vec<_>>().join(", ");
    match text.char_indices().nth(ANSWER_LETTERS) {
        None => text,
        Some(_) => text.chars().take(ANSWER_LETTERS - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_an_earlier_run_are_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let generate = || generate(folder.path(), SCALE_SMALL).expect("the folder is writable");
        generate();
        let modified = || {
            let file = fs::metadata(folder.path().join("lineitem.parquet"));
            let modified = file.and_then(|file| file.modified());
            modified.expect("a table of TPC-H")
        };
        let before = modified();
        generate();
        assert_eq!(modified(), before);
    }

    #[test]
    fn long_answers_are_cut() {
        let row = |text: &str| first(&vec![Some(text.to_owned()), None]);
        assert_eq!(row("Atlanta"), "Atlanta, NULL");
        let long = row(&"ä".repeat(100));
        assert_eq!(long.chars().count(), ANSWER_LETTERS);
        assert!(long.ends_with('…'));
    }
}
