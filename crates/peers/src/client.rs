//! Client with the official driver: connects, imports, declares caches, counts, and reads plans.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};
use futures_util::future::try_join_all;
use indicatif::ProgressBar;
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection, Database};

/// Documents per insert.
const INSERT_BATCH_COUNT: usize = 10_000;
/// Number of inserts in flight.
const INSERTS_IN_FLIGHT: usize = 2;
/// Maximum connections of a client; the driver's default is ten.
const CONNECTIONS_MAX: u32 = 64;
/// Timeout of server selection.
const SERVER_SELECTION_SECONDS: u64 = 30;
/// Timeout of building a cache.
const CACHE_BUILD_SECONDS_MAX: u64 = 600;
/// Interval of polling the state of a build.
const BUILD_POLL_MILLISECONDS: u64 = 20;

/// Connects to `uri` with the driver's default settings, except the number of connections.
///
/// # Errors
/// If the connection string is malformed.
pub async fn connect(uri: &str) -> Result<Client> {
    let mut options = ClientOptions::parse(uri)
        .await
        .with_context(|| format!("reading {uri}"))?;
    options.max_pool_size = Some(CONNECTIONS_MAX);
    options.app_name = Some("forebay-bench".to_owned());
    options.server_selection_timeout = Some(Duration::from_secs(SERVER_SELECTION_SECONDS));
    Ok(Client::with_options(options)?)
}

/// Adds a device, such as `cuda:1`. Returns how long it took until the device had its share of the buckets.
///
/// # Errors
/// If the server refuses.
pub async fn add_device(client: &Client, device: &str) -> Result<Duration> {
    let command = doc! { "forebayDevices": 1, "add": device };
    let start = Instant::now();
    client.database("admin").run_command(command).await?;
    Ok(start.elapsed())
}

/// Removes the last device in the server's list. Returns how long it took until its buckets were on the other devices.
///
/// # Errors
/// If the server refuses.
pub async fn remove_last_device(client: &Client) -> Result<Duration> {
    let admin = client.database("admin");
    let reply = admin.run_command(doc! { "forebayDevices": 1 }).await?;
    let devices = reply
        .get_array("devices")
        .context("the reply has no list of devices")?;
    let last = devices.last().and_then(|device| device.as_document());
    let id = last.and_then(|device| device.get("id"));
    let command = doc! { "forebayDevices": 1, "remove": id.context("the last device has no id")? };
    let start = Instant::now();
    admin.run_command(command).await?;
    Ok(start.elapsed())
}

/// How the server should answer a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The server's choice: its caches, if it has any for the field.
    Chosen,
    /// A scan of the whole collection, as in a store without caches.
    Scan,
}

/// Returns the `count` command for `filter`. The command is the same for every server and for `explain`.
pub fn count_command(collection: &str, filter: &Document, plan: Plan) -> Document {
    let mut command = doc! { "count": collection, "query": filter.clone() };
    if plan == Plan::Scan {
        command.insert("hint", doc! { "$natural": 1 });
    }
    command
}

/// Counts the documents that match `filter`.
///
/// # Errors
/// If the server refuses the command or cannot be reached.
pub async fn count(db: &Database, collection: &str, filter: &Document, plan: Plan) -> Result<u64> {
    let reply = db
        .run_command(count_command(collection, filter, plan))
        .await?;
    integer(reply.get("n")).with_context(|| format!("the reply to a count has no number: {reply}"))
}

/// The parts of an `explain` reply that the demonstration shows in its table.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Explanation {
    /// Search tier of the pattern, such as `substring` or `dfa`; `scan` if no cache was used.
    pub tier: String,
    /// Names of the devices that searched; empty if only the host did.
    pub devices: Vec<String>,
    /// Number of buckets searched, and total number of buckets of the fields.
    pub buckets: Option<(u64, u64)>,
}

/// Explains a count.
///
/// # Errors
/// If the server refuses to explain.
pub async fn explain(db: &Database, collection: &str, filter: &Document) -> Result<Explanation> {
    let command = count_command(collection, filter, Plan::Chosen);
    let reply = db
        .run_command(doc! { "explain": command, "verbosity": "executionStats" })
        .await?;
    Ok(explanation(&reply))
}

/// Combines the parts of a plan. Each leaf that was searched has buckets, and a tier unless it is a condition on null.
fn explanation(reply: &Document) -> Explanation {
    let mut tiers: Vec<String> = Vec::new();
    let mut buckets: Option<(u64, u64)> = None;
    each_document(reply, &mut |part| {
        let figures = (
            integer(part.get("bucketsSearched")),
            integer(part.get("bucketsTotal")),
        );
        if let (Some(searched), Some(total)) = figures {
            tiers.push(part.get_str("tier").unwrap_or("no value").to_owned());
            let (sum_searched, sum_total) = buckets.unwrap_or((0, 0));
            buckets = Some((sum_searched + searched, sum_total + total));
        }
    });
    tiers.dedup();
    let tier = if tiers.is_empty() {
        "scan".to_owned()
    } else {
        tiers.join("+")
    };
    Explanation {
        tier,
        devices: device_names(reply),
        buckets,
    }
}

fn device_names(reply: &Document) -> Vec<String> {
    let mut names = Vec::new();
    each_document(reply, &mut |part| {
        if let Ok(devices) = part.get_array("devices") {
            let found = devices
                .iter()
                .filter_map(Bson::as_document)
                .filter_map(|device| device.get_str("name").ok());
            names.extend(found.map(str::to_owned));
        }
    });
    names.sort();
    names.dedup();
    names
}

/// Calls `visit` with `document` and every document within it.
pub fn each_document(document: &Document, visit: &mut impl FnMut(&Document)) {
    visit(document);
    for (_, value) in document {
        each_value(value, visit);
    }
}

fn each_value(value: &Bson, visit: &mut impl FnMut(&Document)) {
    match value {
        Bson::Document(document) => each_document(document, visit),
        Bson::Array(values) => values.iter().for_each(|value| each_value(value, visit)),
        _ => {}
    }
}

/// Converts a count, which servers send as any of BSON's number types.
pub fn integer(value: Option<&Bson>) -> Option<u64> {
    match value? {
        Bson::Int32(number) => u64::try_from(*number).ok(),
        Bson::Int64(number) => u64::try_from(*number).ok(),
        Bson::Double(number) if *number >= 0.0 => Some(*number as u64),
        _ => None,
    }
}

/// Declares a cache of `field` and waits until it is built.
///
/// # Errors
/// If the server refuses, or the build fails or times out.
pub async fn declare_cache(db: &Database, collection: &str, field: &str) -> Result<()> {
    let index = doc! { "key": { field: "cache" }, "name": format!("{field}_cache") };
    db.run_command(doc! { "createIndexes": collection, "indexes": [index] })
        .await?;
    caches_are_built(db, collection).await
}

/// Waits until every cache of a collection is built.
///
/// # Errors
/// If a build fails or times out.
pub async fn caches_are_built(db: &Database, collection: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(CACHE_BUILD_SECONDS_MAX);
    while build_in_progress(db, collection).await? {
        if Instant::now() > deadline {
            bail!("a cache of {collection} is still being built after {CACHE_BUILD_SECONDS_MAX} s");
        }
        tokio::time::sleep(Duration::from_millis(BUILD_POLL_MILLISECONDS)).await;
    }
    Ok(())
}

/// Returns whether any cache of the collection is still being built.
async fn build_in_progress(db: &Database, collection: &str) -> Result<bool> {
    let stats = index_stats(db, collection).await?;
    let mut states = Vec::new();
    each_document(&stats, &mut |part| {
        states.extend(part.get_str("state").map(str::to_owned))
    });
    if states.iter().any(|state| state == "failed") {
        bail!("a cache of {collection} could not be built: {stats}");
    }
    Ok(states.iter().any(|state| state == "building"))
}

/// Returns the complete reply of `$indexStats`.
///
/// # Errors
/// If the server refuses.
pub async fn index_stats(db: &Database, collection: &str) -> Result<Document> {
    let pipeline =
        doc! { "aggregate": collection, "pipeline": [{ "$indexStats": {} }], "cursor": {} };
    Ok(db.run_command(pipeline).await?)
}

/// Inserts `documents` in large unordered batches, several of them concurrently.
///
/// # Errors
/// If an insert fails.
pub async fn insert_all(
    collection: &Collection<RawDocumentBuf>,
    documents: impl Iterator<Item = RawDocumentBuf>,
    progress: &ProgressBar,
) -> Result<()> {
    let mut documents = documents.peekable();
    while documents.peek().is_some() {
        let round: Vec<Vec<RawDocumentBuf>> = (0..INSERTS_IN_FLIGHT)
            .map(|_| {
                documents
                    .by_ref()
                    .take(INSERT_BATCH_COUNT)
                    .collect::<Vec<_>>()
            })
            .filter(|batch: &Vec<_>| !batch.is_empty())
            .collect();
        try_join_all(
            round
                .iter()
                .map(|batch| insert_batch(collection, batch, progress)),
        )
        .await?;
    }
    Ok(())
}

async fn insert_batch(
    collection: &Collection<RawDocumentBuf>,
    batch: &[RawDocumentBuf],
    progress: &ProgressBar,
) -> Result<()> {
    collection.insert_many(batch).ordered(false).await?;
    progress.inc(batch.len() as u64);
    Ok(())
}

/// Returns the documents `{_id: n, name: …}` of the names, in order.
pub fn name_documents(names: &[String]) -> impl Iterator<Item = RawDocumentBuf> + '_ {
    names
        .iter()
        .zip(0_i32..)
        .map(|(name, id)| rawdoc! { "_id": id, "name": name.as_str() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_sums_its_leaves_and_names_each_device_once() {
        let reply = doc! {
            "stage": "CACHE",
            "leaves": [
                { "field": "name", "tier": "dfa", "bucketsSearched": 3, "bucketsTotal": 4_i64 },
                { "field": "title", "tier": "prefix", "bucketsSearched": 1, "bucketsTotal": 4 },
            ],
            "devices": [{ "name": "host:1" }, { "name": "host:0" }, { "name": "host:1" }],
        };
        let expected = Explanation {
            tier: "dfa+prefix".to_owned(),
            devices: vec!["host:0".to_owned(), "host:1".to_owned()],
            buckets: Some((4, 8)),
        };
        assert_eq!(explanation(&reply), expected);
    }

    #[test]
    fn a_plan_without_leaves_is_a_scan() {
        assert_eq!(explanation(&doc! { "stage": "COLLSCAN" }).tier, "scan");
    }

    #[test]
    fn a_scan_is_asked_for_by_a_natural_hint() {
        let command = count_command("names", &doc! { "name": "a" }, Plan::Scan);
        assert_eq!(
            command,
            doc! { "count": "names", "query": { "name": "a" }, "hint": { "$natural": 1 } }
        );
    }
}
