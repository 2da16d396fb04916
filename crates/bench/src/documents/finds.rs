//! Measures exact finds: the rate on 16 connections, and the latency of one client.
//!
//! Both are measured with two clients: the official driver, and a bare connection that only encodes and decodes
//! messages. Client and server share the processor cores, and the bare connection leaves more processor time to the
//! server. Each connection has its own task, as in a program that serves users.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use forebay_peers::wire::WireClient;
use tokio::task::JoinSet;

use super::session::{DATABASE, HOST_DEVICES, NAMES, Session};
use crate::record::Measured;
use crate::statistics::Summary;

/// Number of connections.
const CONNECTIONS: usize = 16;
/// Duration of a measurement of a rate.
const RATE_SECONDS: u64 = 5;
/// Number of measurements of a rate.
const RATE_ROUNDS: usize = 3;
/// Number of finds for the latency of one client.
const LATENCY_COUNT: usize = 5_000;
const SEED: u64 = 20;

/// A sequence of names to find.
type Names = Box<dyn Iterator<Item = String> + Send>;

/// Measures exact finds.
pub async fn exact(session: &mut Session) -> Result<()> {
    let by_wire = Measured {
        engine: "forebay",
        devices: HOST_DEVICES,
        expect: Some(1),
    };
    let latency = wire_latency(session).await?;
    session
        .report
        .add("exact-one-client", by_wire, "wire_client_us", latency)?;
    let latency = driver_latency(session).await?;
    session
        .report
        .add("exact-one-client", by_wire, "client_us", latency)?;
    let rate = wire_rate(session).await?;
    session
        .report
        .add("exact-16-connections", by_wire, "wire_finds_per_s", rate)?;
    let rate = driver_rate(session).await?;
    session
        .report
        .add("exact-16-connections", by_wire, "finds_per_s", rate)
}

fn latency_count(session: &Session) -> usize {
    if session.smoke { 100 } else { LATENCY_COUNT }
}

fn rate_duration(session: &Session) -> Duration {
    if session.smoke {
        Duration::from_millis(200)
    } else {
        Duration::from_secs(RATE_SECONDS)
    }
}

fn find_command(name: &str) -> Document {
    doc! { "find": NAMES, "filter": { "name": name }, "$db": DATABASE }
}

/// Returns an endless random sequence of names; the same seed gives the same sequence.
fn random_names(names: &Arc<[String]>, seed: u64) -> impl Iterator<Item = String> + use<> {
    let mut random = fastrand::Rng::with_seed(seed);
    let names = Arc::clone(names);
    std::iter::repeat_with(move || names[random.usize(..names.len())].clone())
}

async fn wire_latency(session: &Session) -> Result<Summary> {
    let mut client = WireClient::connect(session.server.address()).await?;
    let mut samples = Vec::new();
    for name in random_names(&session.names, SEED).take(latency_count(session)) {
        let start = Instant::now();
        let found = client.find_count(&find_command(&name)).await?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
        ensure!(
            found == 1,
            "{found} documents have the name {name}, instead of one"
        );
    }
    Summary::of(&samples).context("no find was timed")
}

async fn driver_latency(session: &Session) -> Result<Summary> {
    let collection = session.database().collection::<Document>(NAMES);
    let mut samples = Vec::new();
    for name in random_names(&session.names, SEED).take(latency_count(session)) {
        let start = Instant::now();
        let found = collection.find_one(doc! { "name": &name }).await?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
        ensure!(found.is_some(), "no document has the name {name}");
    }
    Summary::of(&samples).context("no find was timed")
}

async fn wire_rate(session: &Session) -> Result<Summary> {
    let address = session.server.address().to_owned();
    rate(session, |names, end| {
        wire_finds_until(address.clone(), names, end)
    })
    .await
}

async fn wire_finds_until(
    address: String,
    names: impl Iterator<Item = String>,
    end: Instant,
) -> Result<u64> {
    let mut client = WireClient::connect(&address).await?;
    let mut finds = 0;
    for name in names {
        if Instant::now() >= end {
            break;
        }
        ensure!(
            client.find_count(&find_command(&name)).await? == 1,
            "not exactly one document has the name {name}"
        );
        finds += 1;
    }
    Ok(finds)
}

async fn driver_rate(session: &Session) -> Result<Summary> {
    let collection = session.database().collection::<Document>(NAMES);
    rate(session, |names, end| {
        driver_finds_until(collection.clone(), names, end)
    })
    .await
}

async fn driver_finds_until(
    collection: mongodb::Collection<Document>,
    names: impl Iterator<Item = String>,
    end: Instant,
) -> Result<u64> {
    let mut finds = 0;
    for name in names {
        if Instant::now() >= end {
            break;
        }
        let found = collection.find_one(doc! { "name": &name }).await?;
        ensure!(found.is_some(), "no document has the name {name}");
        finds += 1;
    }
    Ok(finds)
}

/// Measures the finds per second of all connections together. `finds_until` uses one connection: it runs finds one
/// after the other until the given time, and returns their number.
async fn rate<F>(session: &Session, finds_until: impl Fn(Names, Instant) -> F) -> Result<Summary>
where
    F: Future<Output = Result<u64>> + Send + 'static,
{
    let mut rates = Vec::new();
    for round in 0..RATE_ROUNDS {
        let start = Instant::now();
        let end = start + rate_duration(session);
        let connections: JoinSet<Result<u64>> = (0..CONNECTIONS)
            .map(|connection| (round * CONNECTIONS + connection) as u64)
            .map(|seed| finds_until(Box::new(random_names(&session.names, seed)), end))
            .collect();
        let finds: Vec<u64> = connections
            .join_all()
            .await
            .into_iter()
            .collect::<Result<_>>()?;
        rates.push(finds.iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64());
    }
    Summary::of(&rates).context("no round was timed")
}
