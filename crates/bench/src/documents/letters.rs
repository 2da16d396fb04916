//! Searches of random letters on a GPU, through the driver: the time a client waits, and what many clients get a second.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Document, RawDocumentBuf, doc, rawdoc};
use forebay_text::{Limits, Options, Pattern, Program, Rows, SEPARATOR, Stop};
use futures_util::TryStreamExt;
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection, Database};
use tokio::task::JoinSet;

use super::DocumentsArgs;
use super::session::DATABASE;
use crate::client::{self, Plan};
use crate::process::ServerProcess;
use crate::record::{Measured, Record, Run};
use crate::statistics::{Repeat, Summary, milliseconds};

const COLLECTION: &str = "letters";
/// Letters of a value.
const LETTERS: usize = 8;
/// Documents of a run that only checks the definitions.
const SMOKE_DOCUMENTS: usize = 20_000;
/// Documents that one insert sends; also the seed's step.
const BATCH: usize = 20_000;
/// Connections that insert.
const WRITERS: usize = 12;
/// Clients that search at once.
const CLIENTS: usize = 64;
/// How long all clients search.
const CLIENTS_SECONDS: u64 = 3;
/// Runs of a search, after one that is not counted.
const REPEAT: Repeat = Repeat {
    count: 41,
    budget: Duration::from_secs(10),
};
/// How long the cache may take to have all values on devices.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
/// Patterns whose automata have up to 32 states.
const REGEXES: [&str; 4] = [
    "a.*[xyz].*q",
    "(ab|cd|ef)[aeiou]",
    "^[a-m]{3}.*z$",
    "[aeiou]{3}[^aeiou]{2}[aeiou]",
];
/// A suffix and a substring; exact values and prefixes need no device.
const LITERALS: [&str; 2] = ["bay$", "eba"];
/// A substring that about a thousand of 100 million values have.
const THOUSAND: &str = "fore";

/// A server on a GPU, filled with documents `{_id: n, v: …}`.
struct Letters {
    server: ServerProcess,
    db: Database,
    documents: usize,
    devices: String,
    json: bool,
    run: Run,
    records: Vec<Record>,
}

/// Fills a server in memory and runs all searches.
pub async fn measure(args: &DocumentsArgs) -> Result<Vec<Record>> {
    let mut letters = Letters::start(args).await?;
    letters.fill().await?;
    for pattern in REGEXES {
        letters.count("regex", pattern).await?;
    }
    for pattern in LITERALS {
        letters.count("literal", pattern).await?;
    }
    letters.find().await?;
    for sort in ["literal", "regex"] {
        letters.clients(sort).await?;
    }
    letters.server.stop()?;
    Ok(letters.records)
}

impl Letters {
    async fn start(args: &DocumentsArgs) -> Result<Letters> {
        let binary = std::env::current_exe().context("finding this program")?;
        let devices = args.devices.clone();
        let server = ServerProcess::serve(&binary, &["--memory", "--devices", &devices])?;
        let mut options = ClientOptions::parse(server.uri()).await?;
        options.max_pool_size = Some(CLIENTS as u32 + 1);
        let db = Client::with_options(options)?.database(DATABASE);
        Ok(Letters {
            server,
            db,
            documents: if args.smoke {
                SMOKE_DOCUMENTS
            } else {
                args.rows
            },
            devices,
            json: args.json,
            run: Run::begin("documents"),
            records: Vec::new(),
        })
    }

    /// The name of a case, as in `regex-100m-8b: a.*b`.
    fn case(&self, sort: &str, pattern: &str) -> String {
        let documents = match self.documents {
            count if count % 1_000_000 == 0 => format!("{}m", count / 1_000_000),
            count => count.to_string(),
        };
        format!("{sort}-{documents}-{LETTERS}b: {pattern}")
    }

    fn report(&mut self, case: &str, metric: &'static str, summary: Summary, expect: Option<u64>) {
        let by = Measured {
            engine: "forebay",
            devices: &self.devices,
            expect,
        };
        let record = self.run.record(case, by, metric, summary);
        if self.json {
            println!(
                "{}",
                serde_json::to_string(&record).expect("finite figures")
            );
        } else {
            let Summary {
                median,
                min,
                max,
                count,
            } = summary;
            println!("{case:48} {median:>12.3} {metric:24} ({min:.3} to {max:.3}, n {count})");
        }
        self.records.push(record);
    }

    async fn fill(&mut self) -> Result<()> {
        let begin = Instant::now();
        let collection: Collection<RawDocumentBuf> = self.db.collection(COLLECTION);
        let documents = self.documents;
        let writers: JoinSet<Result<()>> = (0..WRITERS)
            .map(|writer| insert_share(collection.clone(), documents, writer))
            .collect();
        writers
            .join_all()
            .await
            .into_iter()
            .collect::<Result<()>>()?;
        let rate = documents as f64 / begin.elapsed().as_secs_f64();
        self.report(
            "fill",
            "documents_per_s",
            Summary::once(rate),
            Some(documents as u64),
        );
        let begin = Instant::now();
        client::declare_cache(&self.db, COLLECTION, "v").await?;
        self.all_on_devices().await?;
        let rate = documents as f64 / begin.elapsed().as_secs_f64();
        self.report(
            "declare-cache",
            "documents_per_s",
            Summary::once(rate),
            Some(documents as u64),
        );
        Ok(())
    }

    /// Waits until a search finds all values sorted into buckets that are on devices.
    async fn all_on_devices(&self) -> Result<()> {
        let end = Instant::now() + SETTLED_WITHIN;
        let filter = doc! { "v": { "$regex": REGEXES[0] } };
        let command = client::count_command(COLLECTION, &filter, Plan::Chosen);
        let explain = doc! { "explain": command, "verbosity": "executionStats" };
        loop {
            let reply = self.db.run_command(explain.clone()).await?;
            let mut on_host = 0;
            client::each_document(&reply, &mut |part| {
                on_host += client::integer(part.get("tailRows")).unwrap_or(0);
                if let Ok(host) = part.get_document("host") {
                    on_host += client::integer(host.get("rows")).unwrap_or(0);
                }
            });
            if on_host == 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "{on_host} rows are still searched by the host: {reply}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn count(&mut self, sort: &str, pattern: &str) -> Result<()> {
        let expect = expected(self.documents, &[program(pattern)?])[0];
        let filter = doc! { "v": { "$regex": pattern } };
        let (count, _) = self.timed(&filter, Repeat { count: 1, ..REPEAT }).await?;
        ensure!(
            count == expect,
            "/{pattern}/ counted {count}, expected {expect}"
        );
        let (count, summary) = self.timed(&filter, REPEAT).await?;
        ensure!(
            count == expect,
            "/{pattern}/ counted {count}, expected {expect}"
        );
        self.report(
            &self.case(sort, pattern),
            "client_ms",
            summary,
            Some(expect),
        );
        Ok(())
    }

    async fn timed(&self, filter: &Document, repeat: Repeat) -> Result<(u64, Summary)> {
        client::timed_count(&self.db, COLLECTION, filter, Plan::Chosen, repeat).await
    }

    /// Finds all documents with a rare substring, their `_id` only.
    async fn find(&mut self) -> Result<()> {
        let expect = expected(self.documents, &[program(THOUSAND)?])[0];
        let collection: Collection<Document> = self.db.collection(COLLECTION);
        let mut samples = Vec::new();
        let begin = Instant::now();
        while REPEAT.goes_on(samples.len(), begin) {
            let start = Instant::now();
            let found = collection
                .find(doc! { "v": { "$regex": THOUSAND } })
                .projection(doc! { "_id": 1 })
                .batch_size(10_000)
                .await?;
            let found: Vec<Document> = found.try_collect().await?;
            samples.push(milliseconds(start.elapsed()));
            ensure!(
                found.len() as u64 == expect,
                "found {} of {expect}",
                found.len()
            );
        }
        let summary = Summary::of(&samples).context("at least one find")?;
        self.report(
            &self.case("find", THOUSAND),
            "client_ms",
            summary,
            Some(expect),
        );
        Ok(())
    }

    /// How many searches a second one client gets, and many together; each searches for something else each time.
    async fn clients(&mut self, sort: &'static str) -> Result<()> {
        let patterns: Vec<String> = patterns(sort);
        let programs = patterns.iter().map(|pattern| program(pattern));
        let programs = programs.collect::<Result<Vec<Program>>>()?;
        let expect: Arc<[u64]> = expected(self.documents, &programs).into();
        let patterns: Arc<[String]> = patterns.into();
        for clients in [1, CLIENTS] {
            let begin = Instant::now();
            let end = begin + Duration::from_secs(CLIENTS_SECONDS);
            let searching: JoinSet<Result<u64>> = (0..clients)
                .map(|first| {
                    let (patterns, expect) = (Arc::clone(&patterns), Arc::clone(&expect));
                    search_until(self.db.clone(), patterns, expect, first, end)
                })
                .collect();
            let searches = searching
                .join_all()
                .await
                .into_iter()
                .collect::<Result<Vec<u64>>>()?;
            let rate = searches.iter().sum::<u64>() as f64 / begin.elapsed().as_secs_f64();
            let case = format!("clients-{clients}-{sort}");
            self.report(&case, "searches_per_s", Summary::once(rate), None);
        }
        Ok(())
    }
}

/// Inserts every so many-th batch.
async fn insert_share(
    collection: Collection<RawDocumentBuf>,
    documents: usize,
    writer: usize,
) -> Result<()> {
    for start in (0..documents).step_by(BATCH).skip(writer).step_by(WRITERS) {
        let values = values(start, BATCH.min(documents - start));
        let document = |(index, value): (usize, &[u8])| {
            let value = std::str::from_utf8(value).expect("letters");
            rawdoc! { "_id": (start + index) as i32, "v": value }
        };
        let batch: Vec<RawDocumentBuf> = values.chunks(LETTERS).enumerate().map(document).collect();
        collection.insert_many(&batch).ordered(false).await?;
    }
    Ok(())
}

/// Searches for one pattern after the other until a moment; how many it searched for.
async fn search_until(
    db: Database,
    patterns: Arc<[String]>,
    expect: Arc<[u64]>,
    first: usize,
    end: Instant,
) -> Result<u64> {
    let mut searches = 0;
    while Instant::now() < end {
        let index = (first + searches as usize) % patterns.len();
        let filter = doc! { "v": { "$regex": &patterns[index] } };
        let count = client::count(&db, COLLECTION, &filter, Plan::Chosen).await?;
        ensure!(
            count == expect[index],
            "/{}/ counted {count}",
            patterns[index]
        );
        searches += 1;
    }
    Ok(searches)
}

/// Different patterns of one sort, the same in every run.
fn patterns(sort: &str) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(CLIENTS as u64);
    let mut word =
        |length: usize| -> String { (0..length).map(|_| random.char('a'..='z')).collect() };
    (0..CLIENTS)
        .map(|index| match sort {
            "literal" => word(4 + index % 3),
            _ => format!("{}.*[{}].*{}", word(1), word(3), word(1)),
        })
        .collect()
}

fn program(pattern: &str) -> Result<Program> {
    let limits = Limits::default();
    let pattern = Pattern::new(pattern, Options::default(), &limits)?;
    Ok(Program::compile(pattern, &limits))
}

/// Random letters of `count` values from number `start` on, without anything between them.
fn values(start: usize, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(start as u64);
    (0..count * LETTERS)
        .map(|_| random.u8(b'a'..=b'z'))
        .collect()
}

/// How many values match each program, by the host's engine in this process, on all cores.
fn expected(documents: usize, programs: &[Program]) -> Vec<u64> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let counted = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores)
            .map(|core| scope.spawn(move || count_share(documents, programs, (core, cores))))
            .collect();
        let counts = workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"));
        counts.collect::<Vec<Vec<u64>>>()
    });
    let sum = |index: usize| counted.iter().map(|counts| counts[index]).sum();
    (0..programs.len()).map(sum).collect()
}

fn count_share(documents: usize, programs: &[Program], (core, cores): (usize, usize)) -> Vec<u64> {
    let mut counts = vec![0; programs.len()];
    for start in (0..documents).step_by(BATCH).skip(core).step_by(cores) {
        let count = BATCH.min(documents - start);
        let mut bytes = Vec::with_capacity(count * (LETTERS + 1));
        for value in values(start, count).chunks(LETTERS) {
            bytes.extend_from_slice(value);
            bytes.push(SEPARATOR);
        }
        let offsets: Vec<u32> = (0..=count)
            .map(|row| (row * (LETTERS + 1)) as u32)
            .collect();
        let rows = Rows {
            bytes: &bytes,
            offsets: &offsets,
        };
        for (count, program) in counts.iter_mut().zip(programs) {
            *count += program
                .count_rows(rows, &Stop::never())
                .expect("nothing stops it");
        }
    }
    counts
}
