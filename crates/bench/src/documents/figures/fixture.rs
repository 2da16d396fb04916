//! Fixture of a figure: documents in a data folder, and a server on that folder with the settings for one point of the
//! figure.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bson::{RawDocumentBuf, doc};
use forebay_peers::client::{self, Plan};
use forebay_peers::process::ServerProcess;
use mongodb::{Client, Database};
use tokio::task::JoinSet;

use crate::documents::random;
use crate::documents::session::DATABASE;
use crate::statistics::{Repeat, milliseconds};
use crate::timed;

/// Collection of all documents.
pub const COLLECTION: &str = "letters";
/// Number of connections that search for exact values concurrently.
const CONNECTIONS: usize = 16;
/// Repetitions of a search by regular expression in a round.
const REPEAT: Repeat = Repeat {
    count: 9,
    budget: Duration::from_secs(2),
};

/// Memory per document. A server that keeps documents in memory and caches their values takes 195 bytes (resident
/// memory with ten million documents, two cores, November 2026). The compared programs that hold all values in memory
/// take another 34 bytes together.
const MEMORY_BYTES_PER_DOCUMENT: u64 = 230;

/// Splits a device list into single devices: `host:2,cuda:0` becomes `host:1`, `host:1`, `cuda:0`.
///
/// # Errors
/// If the list does not name each device, for instance if it is `auto` or `cuda`.
pub fn each_device(list: &str) -> Result<Vec<String>> {
    let mut devices = Vec::new();
    for part in list.split(',') {
        match part.split_once(':') {
            Some(("host", count)) => {
                let count = count
                    .parse()
                    .with_context(|| format!("`{part}` has no valid number of devices"))?;
                devices.extend(std::iter::repeat_n("host:1".to_owned(), count));
            }
            Some(("cuda", _)) => devices.push(part.to_owned()),
            _ => bail!(
                "the devices of a figure must be listed as in `host:2` or `cuda:0,cuda:1`: `{part}` does not name each device"
            ),
        }
    }
    ensure!(
        !devices.is_empty(),
        "measuring a figure takes at least one device"
    );
    Ok(devices)
}

/// A data folder whose collection grows. Each server of the fixture runs on this folder.
pub struct Fixture {
    folder: tempfile::TempDir,
    devices: Vec<String>,
    documents: usize,
    make: fn(usize, usize) -> Vec<RawDocumentBuf>,
}

impl Fixture {
    /// Creates an empty folder for documents that `make` returns.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(
        devices: &[String],
        make: fn(usize, usize) -> Vec<RawDocumentBuf>,
    ) -> Result<Fixture> {
        Ok(Fixture {
            folder: tempfile::tempdir_in(forebay_peers::cache_folder()?)?,
            devices: devices.to_vec(),
            documents: 0,
            make,
        })
    }

    /// Inserts documents until the collection has `documents` documents.
    ///
    /// # Errors
    /// If a server fails.
    pub async fn grow(&mut self, documents: usize) -> Result<()> {
        let server = self.serve(&[]).await?;
        server.insert(self.documents..documents, self.make).await?;
        self.documents = documents;
        server.stop()
    }

    /// Starts a server with the first device and waits until its caches are built.
    ///
    /// # Errors
    /// If the server does not start.
    pub async fn serve(&self, settings: &[&str]) -> Result<RunningServer> {
        let folder = self
            .folder
            .path()
            .to_str()
            .context("the path of the data folder is not UTF-8")?;
        let mut arguments = vec!["--data", folder];
        arguments.extend(settings);
        let server = RunningServer::start(&self.devices, &arguments).await?;
        if self.documents > 0 {
            client::caches_are_built(&server.db, COLLECTION).await?;
        }
        Ok(server)
    }
}

/// A running server that uses the first devices of a list.
pub struct RunningServer {
    process: ServerProcess,
    client: Client,
    /// Database of the documents.
    pub db: Database,
    devices: Vec<String>,
    joined: usize,
}

impl RunningServer {
    /// Starts an empty server with the first device; the server keeps documents only in memory.
    pub async fn in_memory(devices: &[String]) -> Result<RunningServer> {
        RunningServer::start(devices, &["--memory"]).await
    }

    async fn start(devices: &[String], arguments: &[&str]) -> Result<RunningServer> {
        let binary = std::env::current_exe().context("finding the path of this executable")?;
        let arguments = [&["--devices", &devices[0]], arguments].concat();
        let process = ServerProcess::serve(&binary, &arguments)?;
        let client = client::connect(process.uri()).await?;
        Ok(RunningServer {
            db: client.database(DATABASE),
            process,
            client,
            devices: devices.to_vec(),
            joined: 1,
        })
    }

    /// Inserts the documents of a range.
    ///
    /// # Errors
    /// If an insert fails.
    pub async fn insert(
        &self,
        range: Range<usize>,
        make: fn(usize, usize) -> Vec<RawDocumentBuf>,
    ) -> Result<()> {
        random::insert(&self.db.collection(COLLECTION), range, make).await
    }

    /// Declares a cache of a field, unless the field has one. Waits until all values of the field are on devices and
    /// the server is idle.
    ///
    /// # Errors
    /// If the server refuses, or the wait times out.
    pub async fn cache(&self, field: &str) -> Result<()> {
        client::declare_cache(&self.db, COLLECTION, field).await?;
        random::all_on_devices(&self.db, COLLECTION, field).await?;
        self.process.wait_until_idle().await;
        Ok(())
    }

    /// Lets devices join or leave until the first `count` devices of the list have joined.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn set_devices(&mut self, count: usize) -> Result<()> {
        while self.joined < count {
            self.join().await?;
        }
        while self.joined > count {
            self.leave().await?;
        }
        self.process.wait_until_idle().await;
        Ok(())
    }

    /// Lets the next device join. Returns the time in milliseconds until the device had its buckets.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn join(&mut self) -> Result<f64> {
        let time = client::add_device(&self.client, &self.devices[self.joined]).await?;
        self.joined += 1;
        Ok(milliseconds(time))
    }

    /// Lets the last device leave. Returns the time in milliseconds until its buckets had moved to other devices.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn leave(&mut self) -> Result<f64> {
        let time = client::remove_last_device(&self.client).await?;
        self.joined -= 1;
        Ok(milliseconds(time))
    }

    /// Returns the devices that have joined, as in `host:2` or `cuda:0,cuda:1`.
    pub fn devices(&self) -> String {
        let joined = &self.devices[..self.joined];
        let hosts = joined.iter().filter(|device| *device == "host:1").count();
        let mut names: Vec<String> = joined
            .iter()
            .filter(|device| *device != "host:1")
            .cloned()
            .collect();
        if hosts > 0 {
            names.push(format!("host:{hosts}"));
        }
        names.join(",")
    }

    /// Measures exact searches per second over several connections, and checks each count against `known`.
    ///
    /// # Errors
    /// If a count is wrong.
    pub async fn exact_rate(&self, known: &[(String, u64)], duration: Duration) -> Result<f64> {
        let known: Arc<[(String, u64)]> = known.into();
        let start = Instant::now();
        let end = start + duration;
        let connections: JoinSet<Result<u64>> = (0..CONNECTIONS)
            .map(|first| exact_until(self.db.clone(), Arc::clone(&known), first, end))
            .collect();
        let searches = connections
            .join_all()
            .await
            .into_iter()
            .sum::<Result<u64>>()?;
        Ok(searches as f64 / start.elapsed().as_secs_f64())
    }

    /// Counts the values that match `pattern`, repeatedly. Returns the median latency in milliseconds.
    ///
    /// # Errors
    /// If the count is not `expect`.
    pub async fn regex_time(&self, pattern: &str, expect: u64) -> Result<f64> {
        let filter = doc! { "v": { "$regex": pattern } };
        let (count, time) =
            timed::count(&self.db, COLLECTION, &filter, Plan::Chosen, REPEAT).await?;
        ensure!(
            count == expect,
            "/{pattern}/ matches {count} documents instead of {expect}"
        );
        Ok(time.median)
    }

    /// Stops the server.
    ///
    /// # Errors
    /// If the server fails or does not stop in time.
    pub fn stop(self) -> Result<()> {
        self.process.stop()
    }
}

/// Returns `None` if this machine has enough available memory for `documents` more documents. Otherwise returns a note
/// that states the needed and the available memory.
pub fn cannot_hold(documents: usize) -> Option<String> {
    let needed = documents as u64 * MEMORY_BYTES_PER_DOCUMENT;
    let available = forebay_device::available_host_bytes();
    (needed > available).then(|| {
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        format!(
            "skipped: {documents} more documents take about {:.1} GB of memory, but only {:.1} GB are available",
            gigabytes(needed),
            gigabytes(available)
        )
    })
}

/// Searches for the values in rotation until `end`. Returns the number of searches.
async fn exact_until(
    db: Database,
    known: Arc<[(String, u64)]>,
    first: usize,
    end: Instant,
) -> Result<u64> {
    let mut searches = 0;
    while Instant::now() < end {
        let (value, expect) = &known[(first + searches as usize) % known.len()];
        let count = client::count(&db, COLLECTION, &doc! { "v": value }, Plan::Chosen).await?;
        ensure!(
            count == *expect,
            "{count} documents have the value {value}, instead of {expect}"
        );
        searches += 1;
    }
    Ok(searches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_split_into_devices() {
        let devices = each_device("host:2,cuda:1").expect("a list");
        assert_eq!(devices, ["host:1", "host:1", "cuda:1"]);
        assert!(each_device("auto").is_err());
        assert!(each_device("host:0").is_err());
    }
}
