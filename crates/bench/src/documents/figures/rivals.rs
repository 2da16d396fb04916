//! Figures 11 and 12: measures exact searches and regular expressions in Forebay and in other programs, which all hold
//! the same values.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::doc;
use forebay_peers::client::{self, Plan};
use forebay_peers::column::ColumnSearch;
use forebay_peers::ferretdb::{self, FerretDb};
use forebay_peers::postgres::Postgres;
use forebay_peers::ripgrep;
use mongodb::Database;

use super::fixture::{COLLECTION, RunningServer};
use super::samples::Samples;
use super::{ExpectedCounts, Figure, Figures, PATTERNS};
use crate::documents::random;
use crate::documents::session::DATABASE;
use crate::record::Measured;
use crate::statistics::{Repeat, Summary, milliseconds};

/// Maximum documents for FerretDB, whose search by regular expression takes half a minute per million documents.
const FERRETDB_DOCUMENTS_MAX: usize = 1_000_000;
/// Maximum documents for FerretDB in a smoke run.
const FERRETDB_SMOKE_MAX: usize = random::BATCH;
/// Maximum documents for PostgreSQL, which takes minutes per ten million documents to build its trigram index.
const POSTGRES_DOCUMENTS_MAX: usize = 10_000_000;
/// Latency in milliseconds above which a program is measured only once.
const SLOW_MS: f64 = 5_000.0;
/// Repetitions of an exact search in a round.
const EXACT_REPEAT: Repeat = Repeat {
    count: 200,
    budget: Duration::from_secs(1),
};
/// Repetitions of a search by pattern in a round.
const PATTERN_REPEAT: Repeat = Repeat {
    count: 7,
    budget: Duration::from_secs(2),
};

/// A search that counts the values equal to a text, or the values that match a pattern.
#[derive(Clone, Copy)]
enum Search<'a> {
    Exact(&'a str),
    Pattern(&'a str),
}

/// A program in the comparison.
struct Engine {
    name: String,
    devices: String,
    access: Access,
}

/// How a program is queried.
enum Access {
    /// Through the official MongoDB driver.
    Driver {
        db: Database,
        _server: Option<FerretDb>,
    },
    /// Through `psql`.
    Psql(Postgres),
    /// By starting a process for each search.
    Ripgrep,
    /// By sending a line for each search to a process that holds all values.
    Column(ColumnSearch),
}

/// Measures Forebay with all devices, and the installed rivals. Each round measures every program.
pub async fn measure(
    figures: &mut Figures,
    server: &mut RunningServer,
    documents: usize,
    expected: &ExpectedCounts,
) -> Result<()> {
    let folder = tempfile::tempdir_in(forebay_peers::cache_folder()?)?;
    let file = folder.path().join("values.txt");
    random::write_values(&file, documents)?;
    server.set_devices(figures.devices.len()).await?;
    let mut engines = engines(figures, server, documents, &file).await?;
    let mut samples = Samples::default();
    if figures.wants(&[Figure::ExactBesideRivals]) {
        let searches: Vec<(Search<'_>, u64)> = expected
            .known
            .iter()
            .map(|(value, count)| (Search::Exact(value), *count))
            .collect();
        let case = format!("figure-11/{documents}");
        let indexed = engines.iter_mut().filter(|engine| engine.has_index());
        let indexed: Vec<&mut Engine> = indexed.collect();
        in_turns(
            figures,
            indexed,
            &case,
            &searches,
            EXACT_REPEAT,
            &file,
            &mut samples,
        )
        .await?;
    }
    if figures.wants(&[Figure::RegexBesideRivals]) {
        for ((name, pattern), count) in PATTERNS.iter().zip(&expected.patterns) {
            let searches = [(Search::Pattern(pattern), *count)];
            let case = format!("figure-12-{name}/{documents}");
            let all = engines.iter_mut().collect();
            in_turns(
                figures,
                all,
                &case,
                &searches,
                PATTERN_REPEAT,
                &file,
                &mut samples,
            )
            .await?;
        }
    }
    drop(engines);
    samples.report(&mut figures.report)
}

/// Starts the rivals, and loads all values into them. Returns Forebay and the rivals. Reports rivals that cannot be
/// started, and leaves them out.
async fn engines(
    figures: &Figures,
    server: &RunningServer,
    documents: usize,
    file: &Path,
) -> Result<Vec<Engine>> {
    let mut engines = vec![Engine {
        name: "forebay".to_owned(),
        devices: server.devices(),
        access: Access::Driver {
            db: server.db.clone(),
            _server: None,
        },
    }];
    let rivals = [
        ferretdb(figures, documents).await,
        postgres(documents, file),
        ripgrep(),
        regex_crate(file).and_then(column),
        ColumnSearch::libhs(file).and_then(column),
    ];
    for rival in rivals {
        match rival {
            Ok(engine) => engines.push(engine),
            Err(why) => figures.report.note(&format!(
                "a rival is left out of the measurement with {documents} documents: {why:#}"
            )),
        }
    }
    Ok(engines)
}

async fn ferretdb(figures: &Figures, documents: usize) -> Result<Engine> {
    let max = if figures.smoke {
        FERRETDB_SMOKE_MAX
    } else {
        FERRETDB_DOCUMENTS_MAX
    };
    ensure!(
        documents <= max,
        "FerretDB takes half a minute per search in a million documents"
    );
    let server = FerretDb::start()?;
    let db = client::connect(server.uri()).await?.database(DATABASE);
    random::insert(&db.collection(COLLECTION), 0..documents, random::one_field).await?;
    let index = doc! { "key": { "v": 1 }, "name": "v_1" };
    db.run_command(doc! { "createIndexes": COLLECTION, "indexes": [index] })
        .await?;
    Ok(Engine {
        name: format!("FerretDB {} SQLite", ferretdb::VERSION),
        devices: "its own".to_owned(),
        access: Access::Driver {
            db,
            _server: Some(server),
        },
    })
}

fn postgres(documents: usize, file: &Path) -> Result<Engine> {
    ensure!(
        documents <= POSTGRES_DOCUMENTS_MAX,
        "PostgreSQL takes minutes to build its index of ten million documents"
    );
    let mut postgres = Postgres::start()?;
    postgres.execute("CREATE TABLE letters (id serial, v text NOT NULL)")?;
    postgres.execute(&format!("\\copy letters (v) FROM '{}'", file.display()))?;
    postgres.execute("CREATE EXTENSION pg_trgm")?;
    postgres.execute("CREATE INDEX ON letters (v)")?;
    postgres.execute("CREATE INDEX ON letters USING gin (v gin_trgm_ops)")?;
    postgres.execute("VACUUM ANALYZE letters")?;
    Ok(Engine {
        name: format!("{} pg_trgm", postgres.name()),
        devices: "its own".to_owned(),
        access: Access::Psql(postgres),
    })
}

fn ripgrep() -> Result<Engine> {
    Ok(Engine {
        name: ripgrep::version()?,
        devices: "1 thread".to_owned(),
        access: Access::Ripgrep,
    })
}

/// Returns a searcher that uses Rust's `regex` crate, in a child process that runs this executable.
fn regex_crate(file: &Path) -> Result<ColumnSearch> {
    let mut command =
        Command::new(std::env::current_exe().context("finding the path of this executable")?);
    command.args(["bench", "column-regex"]).arg(file);
    ColumnSearch::regex_crate(command)
}

fn column(search: ColumnSearch) -> Result<Engine> {
    Ok(Engine {
        name: search.name().to_owned(),
        devices: "all cores".to_owned(),
        access: Access::Column(search),
    })
}

impl Engine {
    /// Returns whether the program has an index for exact searches. Programs without one read every value.
    fn has_index(&self) -> bool {
        matches!(self.access, Access::Driver { .. } | Access::Psql(_))
    }

    /// Returns the number of matching values and the time in milliseconds.
    async fn count(&mut self, search: Search<'_>, file: &Path) -> Result<(u64, f64)> {
        match (&mut self.access, search) {
            (Access::Driver { db, .. }, search) => {
                let filter = match search {
                    Search::Exact(value) => doc! { "v": value },
                    Search::Pattern(pattern) => doc! { "v": { "$regex": pattern } },
                };
                let start = Instant::now();
                let count = client::count(db, COLLECTION, &filter, Plan::Chosen).await?;
                Ok((count, milliseconds(start.elapsed())))
            }
            (Access::Psql(postgres), search) => {
                let condition = match search {
                    Search::Exact(value) => format!("v = '{value}'"),
                    Search::Pattern(pattern) => format!("v ~ '{pattern}'"),
                };
                postgres.count(&format!("SELECT count(*) FROM letters WHERE {condition}"))
            }
            (Access::Column(column), Search::Pattern(pattern)) => column.count(pattern),
            (Access::Column(column), Search::Exact(value)) => column.count(&format!("^{value}$")),
            (Access::Ripgrep, Search::Pattern(pattern)) => timed_ripgrep(file, pattern),
            (Access::Ripgrep, Search::Exact(value)) => timed_ripgrep(file, &format!("^{value}$")),
        }
    }
}

fn timed_ripgrep(file: &Path, pattern: &str) -> Result<(u64, f64)> {
    let start = Instant::now();
    let count = ripgrep::count(file, pattern, false)?;
    Ok((count, milliseconds(start.elapsed())))
}

/// Measures every program in every round, after one untimed search. A slow program is measured only once.
async fn in_turns(
    figures: &Figures,
    engines: Vec<&mut Engine>,
    case: &str,
    searches: &[(Search<'_>, u64)],
    repeat: Repeat,
    file: &Path,
    samples: &mut Samples,
) -> Result<()> {
    let expect = match searches {
        [(_, count)] => Some(*count),
        _ => None,
    };
    let mut engines: Vec<(&mut Engine, bool)> =
        engines.into_iter().map(|engine| (engine, true)).collect();
    for _ in 0..figures.rounds() {
        for (engine, is_fast) in engines.iter_mut().filter(|(_, is_fast)| *is_fast) {
            let time = round(engine, searches, figures.repeat(repeat), file).await?;
            let by = Measured {
                engine: &engine.name,
                devices: &engine.devices,
                expect,
            };
            samples.add(case, by, "client_ms", time);
            *is_fast = time < SLOW_MS;
        }
    }
    Ok(())
}

/// Measures the median latency of the searches in a round, and checks every count.
async fn round(
    engine: &mut Engine,
    searches: &[(Search<'_>, u64)],
    repeat: Repeat,
    file: &Path,
) -> Result<f64> {
    let mut times = Vec::new();
    let (mut warm, mut begin) = (false, Instant::now());
    for (search, expect) in searches.iter().cycle() {
        let (count, time) = engine.count(*search, file).await?;
        ensure!(
            count == *expect,
            "{} counted {count} matches instead of {expect}",
            engine.name
        );
        if !warm && time < SLOW_MS && repeat.count > 1 {
            (warm, begin) = (true, Instant::now());
            continue;
        }
        times.push(time);
        if !repeat.continues(times.len(), begin) {
            break;
        }
    }
    let summary = Summary::of(&times).context("no search was timed")?;
    Ok(summary.median)
}
