//! Measures searches of random letters on a GPU, through the driver: the latency of one client, and the searches per
//! second of many clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use forebay_peers::client::{self, Plan};
use forebay_peers::process::ServerProcess;
use forebay_text::Program;
use futures_util::TryStreamExt;
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection, Database};
use tokio::task::JoinSet;

use super::DocumentsArgs;
use super::random::{self, LETTERS, expected, program};
use super::report::Report;
use super::session::DATABASE;
use crate::record::{Measured, Record};
use crate::statistics::{Repeat, Summary, milliseconds};
use crate::timed;

const COLLECTION: &str = "letters";
/// Number of documents in a smoke run.
const SMOKE_DOCUMENTS: usize = 20_000;
/// Default number of documents.
const DOCUMENTS: usize = 100_000_000;
/// Default devices.
const DEVICES: &str = "cuda:0";
/// Number of clients that search concurrently.
const CLIENTS: usize = 64;
/// Number of clients that search while a device leaves and joins.
const STORM_CLIENTS: usize = 16;
/// Number of times that the device leaves and joins.
const MOVES: usize = 5;
/// Duration of the measurement with all clients.
const CLIENTS_SECONDS: u64 = 3;
/// Timed runs of a search, after one untimed run.
const REPEAT: Repeat = Repeat {
    count: 41,
    budget: Duration::from_secs(10),
};
/// Patterns whose automata have up to 32 states.
const REGEXES: [&str; 4] = [
    "a.*[xyz].*q",
    "(ab|cd|ef)[aeiou]",
    "^[a-m]{3}.*z$",
    "[aeiou]{3}[^aeiou]{2}[aeiou]",
];
/// A suffix and a substring. Exact and prefix searches are not measured here, because they use no device.
const LITERALS: [&str; 2] = ["bay$", "eba"];
/// A substring that occurs in about a thousand of 100 million values.
const THOUSAND: &str = "fore";

/// A server on a GPU, filled with documents `{_id: n, v: …}`.
struct Letters {
    server: ServerProcess,
    client: Client,
    db: Database,
    documents: usize,
    devices: String,
    report: Report,
}

/// Starts a server that keeps documents in memory, fills it, and then runs all searches on it.
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
    if let Some((_, last)) = letters.devices.clone().rsplit_once(',') {
        letters.leave_and_join(last).await?;
    }
    letters.server.stop()?;
    Ok(letters.report.finish())
}

impl Letters {
    async fn start(args: &DocumentsArgs) -> Result<Letters> {
        let binary = std::env::current_exe().context("finding the path of this executable")?;
        let devices = args.devices.clone().unwrap_or_else(|| DEVICES.to_owned());
        let server = ServerProcess::serve(&binary, &["--memory", "--devices", &devices])?;
        let mut options = ClientOptions::parse(server.uri()).await?;
        options.max_pool_size = Some(CLIENTS as u32 + 1);
        let client = Client::with_options(options)?;
        Ok(Letters {
            server,
            db: client.database(DATABASE),
            client,
            documents: if args.smoke {
                SMOKE_DOCUMENTS
            } else {
                args.rows.unwrap_or(DOCUMENTS)
            },
            devices,
            report: Report::begin(args),
        })
    }

    /// Returns the name of a case, as in `regex-100m-8b: a.*b`.
    fn case(&self, sort: &str, pattern: &str) -> String {
        let documents = match self.documents {
            count if count % 1_000_000 == 0 => format!("{}m", count / 1_000_000),
            count => count.to_string(),
        };
        format!("{sort}-{documents}-{LETTERS}b: {pattern}")
    }

    fn report(
        &mut self,
        case: &str,
        metric: &str,
        summary: Summary,
        expect: Option<u64>,
    ) -> Result<()> {
        let by = Measured {
            engine: "forebay",
            devices: &self.devices,
            expect,
        };
        self.report.add(case, by, metric, summary)
    }

    async fn fill(&mut self) -> Result<()> {
        let begin = Instant::now();
        let documents = self.documents;
        random::insert(
            &self.db.collection(COLLECTION),
            0..documents,
            random::one_field,
        )
        .await?;
        let rate = documents as f64 / begin.elapsed().as_secs_f64();
        self.report(
            "fill",
            "documents_per_s",
            Summary::once(rate),
            Some(documents as u64),
        )?;
        let begin = Instant::now();
        client::declare_cache(&self.db, COLLECTION, "v").await?;
        random::all_on_devices(&self.db, COLLECTION, "v").await?;
        let rate = documents as f64 / begin.elapsed().as_secs_f64();
        self.report(
            "declare-cache",
            "documents_per_s",
            Summary::once(rate),
            Some(documents as u64),
        )?;
        // The server may still be merging buckets that grew during the load.
        self.server.wait_until_idle().await;
        Ok(())
    }

    async fn count(&mut self, sort: &str, pattern: &str) -> Result<()> {
        let expect = expected(self.documents, &[program(pattern)?])[0];
        let filter = doc! { "v": { "$regex": pattern } };
        let (count, _) = self.timed(&filter, Repeat { count: 1, ..REPEAT }).await?;
        ensure!(
            count == expect,
            "/{pattern}/ matches {count} documents instead of {expect}"
        );
        let (count, summary) = self.timed(&filter, REPEAT).await?;
        ensure!(
            count == expect,
            "/{pattern}/ matches {count} documents instead of {expect}"
        );
        self.report(
            &self.case(sort, pattern),
            "client_ms",
            summary,
            Some(expect),
        )
    }

    async fn timed(&self, filter: &Document, repeat: Repeat) -> Result<(u64, Summary)> {
        timed::count(&self.db, COLLECTION, filter, Plan::Chosen, repeat).await
    }

    /// Measures a find that returns the `_id`s of all documents with a rare substring.
    async fn find(&mut self) -> Result<()> {
        let expect = expected(self.documents, &[program(THOUSAND)?])[0];
        let collection: Collection<Document> = self.db.collection(COLLECTION);
        let mut samples = Vec::new();
        let begin = Instant::now();
        while REPEAT.continues(samples.len(), begin) {
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
                "the find returned {} documents instead of {expect}",
                found.len()
            );
        }
        let summary = Summary::of(&samples).context("no find was timed")?;
        self.report(
            &self.case("find", THOUSAND),
            "client_ms",
            summary,
            Some(expect),
        )
    }

    /// Measures the searches per second of one client, and of many clients together. Each search uses a different
    /// pattern.
    async fn clients(&mut self, sort: &'static str) -> Result<()> {
        let searches = Searches::new(sort, self.documents)?;
        for clients in [1, CLIENTS] {
            let begin = Instant::now();
            let end = begin + Duration::from_secs(CLIENTS_SECONDS);
            let searching = searches.begin(&self.db, clients, move || Instant::now() < end);
            let searches: u64 = searching
                .join_all()
                .await
                .into_iter()
                .sum::<Result<u64>>()?;
            let rate = searches as f64 / begin.elapsed().as_secs_f64();
            let case = format!("clients-{clients}-{sort}");
            self.report(&case, "searches_per_s", Summary::once(rate), None)?;
        }
        Ok(())
    }

    /// Lets the last device leave and join again, repeatedly, while clients search. Fails if a client gets an error or
    /// a wrong count.
    async fn leave_and_join(&mut self, last: &str) -> Result<()> {
        let searches = Searches::new("regex", self.documents)?;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let is_running = move || !is_over.load(Ordering::Relaxed);
        let searching = searches.begin(&self.db, STORM_CLIENTS, is_running);
        let (mut leave, mut join) = (Vec::new(), Vec::new());
        for _ in 0..MOVES {
            leave.push(milliseconds(
                client::remove_last_device(&self.client).await?,
            ));
            join.push(milliseconds(client::add_device(&self.client, last).await?));
        }
        over.store(true, Ordering::Relaxed);
        let searches: u64 = searching
            .join_all()
            .await
            .into_iter()
            .sum::<Result<u64>>()?;
        for (case, times) in [("leave-in-storm", leave), ("join-in-storm", join)] {
            let summary = Summary::of(&times).context("no move was timed")?;
            self.report(case, "client_ms", summary, Some(self.documents as u64))?;
        }
        self.report("storm", "searches", Summary::once(searches as f64), None)
    }
}

/// Patterns and their expected counts.
struct Searches {
    patterns: Arc<[String]>,
    expect: Arc<[u64]>,
}

impl Searches {
    fn new(sort: &str, documents: usize) -> Result<Searches> {
        let patterns = patterns(sort);
        let programs = patterns.iter().map(|pattern| program(pattern));
        let programs = programs.collect::<Result<Vec<Program>>>()?;
        Ok(Searches {
            patterns: patterns.into(),
            expect: expected(documents, &programs).into(),
        })
    }

    /// Starts clients that search for the patterns in rotation while `is_running`. Each client returns its number of
    /// searches.
    fn begin(
        &self,
        db: &Database,
        clients: usize,
        is_running: impl Fn() -> bool + Clone + Send + 'static,
    ) -> JoinSet<Result<u64>> {
        let client = |first: usize| {
            let (db, is_running) = (db.clone(), is_running.clone());
            let (patterns, expect) = (Arc::clone(&self.patterns), Arc::clone(&self.expect));
            async move {
                let mut searches = 0;
                while is_running() {
                    let index = (first + searches as usize) % patterns.len();
                    let filter = doc! { "v": { "$regex": &patterns[index] } };
                    let count = client::count(&db, COLLECTION, &filter, Plan::Chosen).await?;
                    ensure!(
                        count == expect[index],
                        "/{}/ matches {count} documents, which is not the expected count",
                        patterns[index]
                    );
                    searches += 1;
                }
                Ok(searches)
            }
        };
        (0..clients).map(client).collect()
    }
}

/// Returns different patterns of the kind `sort`. Every run gets the same patterns.
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
