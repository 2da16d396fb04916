//! State of a benchmark run: server, data, and results so far.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bson::{RawDocumentBuf, doc};
use forebay_peers::client::{self, Plan};
use forebay_peers::process::ServerProcess;
use indicatif::ProgressBar;
use mongodb::{Client, Database};

use super::DocumentsArgs;
use super::report::Report;
use crate::data;
use crate::record::Record;

/// Database of the benchmarks.
pub const DATABASE: &str = "bench";
/// Collection of all names, with `name` cached.
pub const NAMES: &str = "names";
/// Number of names in a smoke run.
const SMOKE_NAMES: usize = 20_000;
/// Devices of the host engine. There are two, because the performance targets are stated for two cores.
pub const HOST_DEVICES: &str = "host:2";

/// State that the sections of a run share.
#[derive(Debug)]
pub struct Session {
    /// Whether this is a smoke run.
    pub smoke: bool,
    /// All names, in file order.
    pub names: Arc<[String]>,
    /// A file of the names, one per line.
    pub names_file: PathBuf,
    /// The Forebay server.
    pub server: ServerProcess,
    /// Client of the Forebay server.
    pub client: Client,
    /// Results so far.
    pub report: Report,
    has_cached_names: bool,
    _folder: tempfile::TempDir,
}

impl Session {
    /// Starts a server with an empty data folder.
    ///
    /// # Errors
    /// If the data cannot be fetched, or the server does not start.
    pub async fn start(args: &DocumentsArgs) -> Result<Session> {
        let folder = tempfile::tempdir_in(forebay_peers::cache_folder()?)?;
        let (names, names_file) = names(args.smoke, folder.path())?;
        let data = folder.path().join("data");
        let data = data
            .to_str()
            .context("the path of the data folder is not UTF-8")?;
        let binary = std::env::current_exe().context("finding the path of this executable")?;
        let server = ServerProcess::serve(&binary, &["--data", data, "--devices", HOST_DEVICES])?;
        let client = client::connect(server.uri()).await?;
        Ok(Session {
            smoke: args.smoke,
            names: names.into(),
            names_file,
            server,
            client,
            report: Report::begin(args),
            has_cached_names: false,
            _folder: folder,
        })
    }

    /// Imports the names and caches them, unless an earlier section did.
    ///
    /// # Errors
    /// If the server refuses, or the number of imported names is wrong.
    pub async fn cache_names(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_cached_names, true) {
            return Ok(());
        }
        let db = self.database();
        let documents = client::name_documents(&self.names);
        client::insert_all(
            &db.collection(NAMES),
            documents,
            &self.progress(self.names.len()),
        )
        .await?;
        client::declare_cache(&db, NAMES, "name").await?;
        let count = client::count(&db, NAMES, &doc! {}, Plan::Chosen).await?;
        ensure!(
            count == self.names.len() as u64,
            "{count} names are stored instead of the {} imported",
            self.names.len()
        );
        Ok(())
    }

    /// Returns the database of the benchmarks.
    pub fn database(&self) -> Database {
        self.client.database(DATABASE)
    }

    /// Returns documents of the first `count` names.
    pub fn some_names(&self, count: usize) -> impl Iterator<Item = RawDocumentBuf> + '_ {
        client::name_documents(&self.names[..count.min(self.names.len())])
    }

    /// Returns a progress bar for `count` documents, hidden if the output is JSON or not a terminal.
    pub fn progress(&self, count: usize) -> ProgressBar {
        if self.report.is_json() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(count as u64)
        }
    }

    /// Stops the server and returns the results.
    ///
    /// # Errors
    /// If the server fails or does not stop in time.
    pub fn finish(self) -> Result<Vec<Record>> {
        self.server.stop()?;
        Ok(self.report.finish())
    }
}

fn names(smoke: bool, folder: &Path) -> Result<(Vec<String>, PathBuf)> {
    if smoke {
        let names = data::generated_names(SMOKE_NAMES);
        let file = folder.join("names.txt");
        data::write_lines(&file, names.iter().map(String::as_str))?;
        Ok((names, file))
    } else {
        Ok((data::names()?, data::names_file()?))
    }
}
