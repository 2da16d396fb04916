//! Measures Forebay as a proxy: the cost of forwarding commands to the upstream, and the gain from caches of its
//! collections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use forebay_peers::client;
use forebay_peers::ferretdb::{self, FerretDb};
use forebay_peers::process::ServerProcess;
use mongodb::{Client, Database};
use tokio::task::JoinSet;

use super::counts;
use super::session::{DATABASE, HOST_DEVICES, Session};
use crate::record::Measured;
use crate::statistics::{Summary, milliseconds};

/// Collection of names.
const COLLECTION: &str = "million";
/// Collection of the finds that measure the cost of forwarding. It is small, because FerretDB on SQLite reads the whole
/// collection for every find.
const FEW_COLLECTION: &str = "few";
/// Number of documents in [`FEW_COLLECTION`].
const FEW: usize = 100;
/// Number of rounds, each with direct and proxied finds.
const ROUNDS: usize = 15;
/// Finds by one client in a round.
const FINDS: usize = 500;
/// Number of connections of a rate measurement.
const CONNECTIONS: usize = 8;
/// Duration of a rate measurement.
const RATE_DURATION: Duration = Duration::from_secs(1);

/// Measurements of one route to the upstream (direct or proxied), one per round.
#[derive(Default)]
struct Route {
    median_us: Vec<f64>,
    finds_per_s: Vec<f64>,
}

/// Measures Forebay as a proxy of FerretDB.
///
/// # Errors
/// If a server fails, or the proxy's result of a find or a count differs from FerretDB's own.
pub async fn in_front_of_ferretdb(session: &mut Session) -> Result<()> {
    let store = FerretDb::start()?;
    let binary = std::env::current_exe().context("finding the path of this executable")?;
    let arguments = [
        "--memory",
        "--upstream",
        store.uri(),
        "--upstream-writes",
        "exclusive",
        "--devices",
        HOST_DEVICES,
    ];
    let front = ServerProcess::serve(&binary, &arguments)?;
    let direct = client::connect(store.uri()).await?.database(DATABASE);
    let proxied = client::connect(front.uri()).await?.database(DATABASE);
    let count = counts::million(session);
    let few = session.some_names(FEW);
    client::insert_all(
        &direct.collection(FEW_COLLECTION),
        few,
        &session.progress(FEW),
    )
    .await?;
    pass_on(session, &direct, &proxied).await?;
    let documents = session.some_names(count);
    let progress = session.progress(count);
    client::insert_all(&direct.collection(COLLECTION), documents, &progress).await?;
    load(session, &proxied, count).await?;
    counts::compare_with_ferretdb(session, "upstream", COLLECTION, &proxied, &direct).await?;
    front.stop()
}

/// Measures finds by `_id`. The upstream answers them all. Direct and proxied finds alternate.
async fn pass_on(session: &mut Session, direct: &Database, proxied: &Database) -> Result<()> {
    let (rounds, finds, duration) = if session.smoke {
        (1, 20, Duration::from_millis(50))
    } else {
        (ROUNDS, FINDS, RATE_DURATION)
    };
    let mut routes = [Route::default(), Route::default()];
    for round in 0..rounds {
        let mut turns = [(0, direct), (1, proxied)];
        turns.rotate_left(round % 2);
        for (route, db) in turns {
            let route = &mut routes[route];
            route.median_us.push(latency(db, finds).await?);
            route.finds_per_s.push(rate(db, duration).await?);
        }
    }
    report(session, &routes)
}

/// Reports both routes. Keeps the names that the metrics have in earlier records, so that records can be compared.
fn report(session: &mut Session, [direct, proxied]: &[Route; 2]) -> Result<()> {
    let each = |by: fn(f64, f64) -> f64, one: &[f64], other: &[f64]| -> Vec<f64> {
        let pairs = one.iter().zip(other);
        pairs.map(|(one, other)| by(*one, *other)).collect()
    };
    let more_us = each(
        |one, other| one - other,
        &proxied.median_us,
        &direct.median_us,
    );
    let ratio = each(
        |one, other| one / other,
        &proxied.finds_per_s,
        &direct.finds_per_s,
    );
    let alone = format!("FerretDB {} SQLite", ferretdb::VERSION);
    let figures = [
        (&*alone, "client_us", &direct.median_us),
        ("forebay in front", "client_us", &proxied.median_us),
        ("forebay in front", "more_us", &more_us),
        (&*alone, "finds_per_s", &direct.finds_per_s),
        ("forebay in front", "finds_per_s", &proxied.finds_per_s),
        ("forebay in front", "times_straight", &ratio),
    ];
    for (engine, metric, samples) in figures {
        let summary = Summary::of(samples).context("no round was run")?;
        let by = Measured {
            engine,
            devices: "none",
            expect: Some(1),
        };
        session
            .report
            .add("upstream-find-by-id", by, metric, summary)?;
    }
    Ok(())
}

/// Measures the median latency of finds by one client, in microseconds.
async fn latency(db: &Database, finds: usize) -> Result<f64> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut times = Vec::with_capacity(finds);
    for _ in 0..finds {
        let begun = Instant::now();
        find(db, random.usize(..FEW)).await?;
        times.push(milliseconds(begun.elapsed()) * 1e3);
    }
    Ok(Summary::of(&times).context("a find")?.median)
}

/// Measures finds per second over several connections.
async fn rate(db: &Database, duration: Duration) -> Result<f64> {
    let begun = Instant::now();
    let end = begun + duration;
    let client: Arc<Client> = Arc::new(db.client().clone());
    let connections: JoinSet<Result<u64>> = (0..CONNECTIONS)
        .map(|seed| find_until(client.clone(), seed as u64, end))
        .collect();
    let finds = connections
        .join_all()
        .await
        .into_iter()
        .sum::<Result<u64>>()?;
    Ok(finds as f64 / begun.elapsed().as_secs_f64())
}

async fn find_until(client: Arc<Client>, seed: u64, end: Instant) -> Result<u64> {
    let db = client.database(DATABASE);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut finds = 0;
    while Instant::now() < end {
        find(&db, random.usize(..FEW)).await?;
        finds += 1;
    }
    Ok(finds)
}

async fn find(db: &Database, id: usize) -> Result<()> {
    let id = i32::try_from(id)?;
    let found = db
        .collection::<Document>(FEW_COLLECTION)
        .find_one(doc! { "_id": id })
        .await?;
    ensure!(found.is_some(), "no document {id}");
    Ok(())
}

/// Declares a cache and measures the rate at which it loads from the upstream.
async fn load(session: &mut Session, proxied: &Database, documents: usize) -> Result<()> {
    let begun = Instant::now();
    let key = doc! { "key": { "name": "cache" }, "name": "name_cache" };
    let create = doc! { "createIndexes": COLLECTION, "indexes": [key] };
    proxied.run_command(create).await?;
    let explain = doc! { "explain": { "count": COLLECTION, "query": { "name": "x" } } };
    loop {
        let explained = proxied.run_command(explain.clone()).await?;
        let Ok(why) = explained.get_document("forebay") else {
            break;
        };
        let reason = why.get_str("reason").unwrap_or_default();
        ensure!(reason.contains("load"), "the cache is not loaded: {reason}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let rate = documents as f64 / begun.elapsed().as_secs_f64();
    let by = Measured {
        engine: "forebay in front",
        devices: HOST_DEVICES,
        expect: Some(documents as u64),
    };
    session
        .report
        .add("upstream-load", by, "documents_per_s", Summary::once(rate))
}
