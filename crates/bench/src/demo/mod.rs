//! `forebay demo`: searches of all kinds and SQL queries on real data, in one table.

mod load;
#[cfg(feature = "tables")]
mod questions;
mod searches;
#[cfg(feature = "tables")]
mod sql;
#[cfg(not(feature = "tables"))]
#[path = "sql_left_out.rs"]
mod sql;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use bson::Document;
use clap::Args;
use forebay_peers::client::{self, Explanation, Plan};
use forebay_peers::process::ServerProcess;
use forebay_terminal::print_line;
use mongodb::Client;
use serde::Serialize;

use crate::statistics::Repeat;
use crate::timed;
use load::Source;
use searches::Search;
use sql::Folder;

/// The database of the demonstration.
const DATABASE: &str = "demo";
/// Repetitions of a search. The table shows the median latency.
const SEARCH_REPEAT: Repeat = Repeat {
    count: 21,
    budget: Duration::from_secs(3),
};
/// Repetitions of a scan, which reads millions of documents.
const SCAN_REPEAT: Repeat = Repeat {
    count: 1,
    budget: Duration::ZERO,
};

/// Import real data, run each kind of search and some SQL on it, print one table, and serve until Ctrl-C.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Exit after the table instead of serving until Ctrl-C.
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object per search or query instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Keep the documents in this folder, for later runs.
    #[arg(long, value_name = "DIR", conflicts_with = "memory")]
    pub data: Option<PathBuf>,
    /// Keep the documents in memory only.
    #[arg(long)]
    pub memory: bool,
    /// Address and port for MongoDB clients; port 0 picks a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub mongodb_listen: String,
    /// Address and port for SQL clients; port 0 picks a free one.
    #[cfg(feature = "tables")]
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:0",
        conflicts_with = "uri"
    )]
    pub postgres_listen: String,
    /// Devices that hold the caches, as in `host:2`.
    #[arg(long, value_name = "LIST", default_value = "auto")]
    pub devices: String,
    /// Use the server at this connection string instead of starting one. The documents go into its database `demo`. No
    /// SQL runs.
    #[arg(long, value_name = "URI", conflicts_with_all = ["data", "memory", "mongodb_listen", "devices"])]
    pub uri: Option<String>,
    /// Search this number of generated names instead of the real ones; needs no network.
    #[arg(long, value_name = "COUNT")]
    pub generated: Option<usize>,
}

/// Result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The filter of the search, as text for a shell.
    pub search: String,
    /// Kind of search: exact, prefix, suffix, substring, regex, ...
    pub kind: &'static str,
    /// Number of matching documents.
    pub matches: u64,
    /// Tiers that the caches of the searched fields used, as in `dfa+prefix`; `scan` if no cache was searched.
    pub tier: String,
    /// Devices that searched.
    pub devices: Vec<String>,
    /// Number of buckets searched, and total number of buckets.
    pub buckets: Option<(u64, u64)>,
    /// Median latency measured by the client, in milliseconds.
    pub median_ms: f64,
    /// Latency of the same search without caches, as a scan of all documents, in milliseconds.
    pub scan_ms: f64,
}

pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    let source = Source::find(args.generated);
    let folder = tables_folder(&args, &source)?;
    let server = start_server(&args, folder.as_ref())?;
    let status_page = server.as_ref().and_then(ServerProcess::status_page);
    let sql_uri = server.as_ref().and_then(ServerProcess::sql_uri);
    let uri = args
        .uri
        .clone()
        .or_else(|| server.as_ref().map(|server| server.uri().to_owned()));
    let uri = uri.context("there is neither a connection string nor a started server")?;
    let client = client::connect(&uri).await?;
    let database = client.database(DATABASE);
    load::load(&database, &source, args.uri.is_none(), args.json).await?;
    for outcome in search_all(&client, &source, &args).await? {
        if args.json {
            print_line(serde_json::to_string(&outcome)?)?;
        }
    }
    if let (Some(uri), Some(folder)) = (&sql_uri, &folder) {
        sql::ask_all(uri, folder, args.json).await?;
    }
    if !args.once {
        table::print_invitation(&uri, DATABASE, sql_uri.as_deref(), status_page.as_deref())?;
        tokio::signal::ctrl_c().await?;
    }
    server.map_or(Ok(()), ServerProcess::stop)
}

/// Starts this program as a server, unless the user gave a connection string.
fn start_server(args: &DemoArgs, tables: Option<&Folder>) -> Result<Option<ServerProcess>> {
    if args.uri.is_some() {
        return Ok(None);
    }
    let binary = std::env::current_exe().context("finding the path of this executable")?;
    let mut arguments = vec![
        "--mongodb-listen",
        &args.mongodb_listen,
        "--devices",
        &args.devices,
    ];
    arguments.extend(["--status-listen", "127.0.0.1:0"]);
    let folder = data_folder(args)?;
    match &folder {
        Some(folder) => arguments.extend(["--data", folder.as_str()]),
        None => arguments.push("--memory"),
    }
    #[cfg(feature = "tables")]
    arguments.extend(["--postgres-listen", &args.postgres_listen]);
    if let Some(tables) = tables {
        arguments.extend(["--tables", tables.argument()?]);
    }
    ServerProcess::serve(&binary, &arguments).map(Some)
}

/// Prepares the tables, unless the user gave the connection string of a server.
fn tables_folder(args: &DemoArgs, source: &Source) -> Result<Option<Folder>> {
    if args.uri.is_some() {
        return Ok(None);
    }
    Folder::prepare(source.has_movies())
}

fn data_folder(args: &DemoArgs) -> Result<Option<String>> {
    if args.memory {
        return Ok(None);
    }
    let folder = match &args.data {
        Some(folder) => folder.clone(),
        None => forebay_peers::cache_folder()?.join("demo"),
    };
    let folder = folder.into_os_string().into_string();
    folder
        .map(Some)
        .map_err(|name| anyhow::anyhow!("{} is not UTF-8", name.display()))
}

async fn search_all(client: &Client, source: &Source, args: &DemoArgs) -> Result<Vec<Outcome>> {
    let searches = searches::of(source);
    let mut table = (!args.json)
        .then(|| table::Table::begin(&searches))
        .transpose()?;
    let mut outcomes = Vec::new();
    for search in &searches {
        let outcome = search_one(client, search).await?;
        if let Some(table) = &mut table {
            table.row(&outcome)?;
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Measures a search with the caches and as a scan, and compares the counts.
async fn search_one(client: &Client, search: &Search) -> Result<Outcome> {
    let db = client.database(DATABASE);
    let filter: &Document = &search.filter;
    let (matches, cached) =
        timed::count(&db, search.collection, filter, Plan::Chosen, SEARCH_REPEAT).await?;
    let (scanned, scan) =
        timed::count(&db, search.collection, filter, Plan::Scan, SCAN_REPEAT).await?;
    anyhow::ensure!(
        matches == scanned,
        "{}: the cache counts {matches} matching documents, but a scan counts {scanned}",
        search.text
    );
    let Explanation {
        tier,
        devices,
        buckets,
    } = client::explain(&db, search.collection, filter).await?;
    let (median_ms, scan_ms) = (cached.median, scan.median);
    Ok(Outcome {
        search: search.text.clone(),
        kind: search.kind,
        matches,
        tier,
        devices,
        buckets,
        median_ms,
        scan_ms,
    })
}
