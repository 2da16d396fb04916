//! Divides the memory of the process (`--memory-bytes-max`), and measures resident memory in a
//! separate thread.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_documents::Documents;
use forebay_memory::Account;

use crate::settings::Settings;

/// Minimum of `--memory-bytes-max`: enough to receive, decompress and process a message of maximum length.
const LIMIT_BYTES_MIN: u64 = 256 << 20;
/// Memory for a message of maximum length that does not compress well: the message, its content, a copy of its
/// documents, and the first batch in which the store writes them.
const GREATEST_MESSAGE_BYTES: u64 = 3 * 48_000_000 + (8 << 20) + (16 << 20);
/// Default fraction of the machine's memory for the process: three quarters.
const MACHINE_PART: (u64, u64) = (3, 4);
/// Default fraction of the limit for cached values on each host device: 1/2. `--device-memory-bytes` overrides it.
const HOST_CACHE_PART: u64 = 2;
/// Default fraction of the limit for cached blocks of the store's files: 1/16. `--documents-store-cache-bytes`
/// overrides it.
const STORE_CACHE_PART: u64 = 16;
const STORE_CACHE_BYTES_MAX: u64 = 256 << 20;
/// Fraction of the limit for the store's write buffers: 1/8.
const WRITE_BUFFERS_PART: u64 = 8;
const WRITE_BUFFERS_BYTES_MAX: u64 = 512 << 20;
/// Interval between measurements of resident memory.
const INTERVAL: Duration = Duration::from_millis(20);
/// Fraction of the limit above which memory is freed, at most once per `FREE_INTERVAL`. Memory is also freed if a
/// request waited or was refused since the last measurement, because what the store and the allocator retain takes room
/// from requests.
const FREE_PART: (u64, u64) = (3, 4);
const FREE_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum interval between log warnings that too little memory is left for requests.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// How the memory of the process is divided, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// Maximum memory of the process.
    pub limit_bytes: u64,
    /// Maximum memory for cached values on each host device.
    pub host_cache_bytes: u64,
    /// Maximum memory for cached blocks of the store's files.
    pub store_cache_bytes: u64,
    /// Maximum memory for the store's write buffers.
    pub write_buffers_bytes: u64,
}

/// The settings about memory, in bytes; 0 if not set.
#[derive(Debug, Clone, Copy, Default)]
struct Set {
    limit_bytes: u64,
    host_cache_bytes: u64,
    store_cache_bytes: u64,
}

impl Division {
    /// Divides the memory according to the settings.
    ///
    /// # Errors
    /// If `--memory-bytes-max` is too small.
    pub fn new(settings: &Settings) -> Result<Division> {
        let set = Set {
            limit_bytes: settings.memory_bytes_max,
            host_cache_bytes: settings.device_memory_bytes,
            store_cache_bytes: settings.documents_store_cache_bytes,
        };
        Division::of(set, forebay_memory::machine_bytes())
    }

    fn of(set: Set, machine_bytes: u64) -> Result<Division> {
        let limit_bytes = match set.limit_bytes {
            0 => (machine_bytes / MACHINE_PART.1 * MACHINE_PART.0).max(LIMIT_BYTES_MIN),
            bytes if bytes < LIMIT_BYTES_MIN => bail!(
                "--memory-bytes-max must be at least {}MiB, to hold a message of maximum length, or 0 for three quarters of this machine's memory",
                LIMIT_BYTES_MIN >> 20
            ),
            bytes => bytes,
        };
        let or = |set: u64, default: u64| if set == 0 { default } else { set };
        let store_cache_bytes = (limit_bytes / STORE_CACHE_PART).min(STORE_CACHE_BYTES_MAX);
        Ok(Division {
            limit_bytes,
            host_cache_bytes: or(set.host_cache_bytes, limit_bytes / HOST_CACHE_PART),
            store_cache_bytes: or(set.store_cache_bytes, store_cache_bytes),
            write_buffers_bytes: (limit_bytes / WRITE_BUFFERS_PART).min(WRITE_BUFFERS_BYTES_MAX),
        })
    }

    /// Returns the memory account of the process. If the store has files, reserves memory for the store's cache and
    /// write buffers.
    ///
    /// # Errors
    /// If the program and the store leave too little of the limit for a message of maximum length.
    pub fn account(&self, has_files: bool) -> Result<Account> {
        let of_store = match has_files {
            true => self.store_cache_bytes + self.write_buffers_bytes,
            false => 0,
        };
        let apart = forebay_memory::resident_bytes() + of_store;
        if apart + GREATEST_MESSAGE_BYTES > self.limit_bytes {
            bail!(
                "--memory-bytes-max of {}MiB is too small: the program and its store take {}MiB of it, and a message of maximum length needs {}MiB; raise --memory-bytes-max, or lower --documents-store-cache-bytes",
                self.limit_bytes >> 20,
                apart >> 20,
                GREATEST_MESSAGE_BYTES >> 20
            );
        }
        let account = Account::new(self.limit_bytes);
        account.set_least_outside(apart);
        Ok(account)
    }
}

/// Starts the thread that measures resident memory until the process ends, and the thread that frees memory of the
/// store.
///
/// # Errors
/// If the system cannot start a thread.
pub fn watch(account: Account, documents: Weak<Documents>) -> Result<()> {
    let (free, asked) = sync_channel(1);
    spawn("free-memory", move || free_when_asked(&asked, &documents))?;
    spawn("memory", move || {
        let mut watch = Watch::new(account, free);
        loop {
            watch.measure();
            thread::sleep(INTERVAL);
        }
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned
        .map(drop)
        .with_context(|| format!("starting the thread {name}"))
}

/// Frees memory of the store each time it is asked to. It has its own thread, because the store's sync may take longer
/// than [`INTERVAL`].
fn free_when_asked(asked: &Receiver<()>, documents: &Weak<Documents>) {
    for () in asked {
        let freed = documents.upgrade().map(|documents| documents.free_memory());
        if let Some(Err(error)) = freed {
            tracing::debug!(%error, "the store frees no memory");
        }
    }
}

struct Watch {
    account: Account,
    /// Asks the other thread to free memory of the store.
    free: SyncSender<()>,
    /// Number of requests that were refused before the last measurement.
    refused: u64,
    freed: Option<Instant>,
    warned: Option<Instant>,
}

impl Watch {
    fn new(account: Account, free: SyncSender<()>) -> Watch {
        Watch {
            account,
            free,
            refused: 0,
            freed: None,
            warned: None,
        }
    }

    fn measure(&mut self) {
        let resident = forebay_memory::resident_bytes();
        self.account.look(resident);
        let figures = self.account.figures();
        let is_short = figures.waiting > 0 || figures.refused > self.refused;
        self.refused = figures.refused;
        let is_large = resident > figures.limit_bytes / FREE_PART.1 * FREE_PART.0;
        if (is_large || is_short) && is_due(&mut self.freed, FREE_INTERVAL) {
            forebay_device::return_free_memory();
            if is_short {
                // If the channel is full, the other thread is at it already.
                let _ = self.free.try_send(());
            }
        }
        let room = figures.limit_bytes.saturating_sub(figures.outside_bytes);
        if room < GREATEST_MESSAGE_BYTES && is_due(&mut self.warned, WARNING_INTERVAL) {
            tracing::warn!(
                held_mib = figures.outside_bytes >> 20,
                limit_mib = figures.limit_bytes >> 20,
                "caches and the store leave too little memory for large requests: raise --memory-bytes-max, or lower --device-memory-bytes"
            );
        }
    }
}

/// Returns whether a task last done at `last` is due again. If so, sets `last` to now.
fn is_due(last: &mut Option<Instant>, interval: Duration) -> bool {
    let is_due = last.is_none_or(|last| last.elapsed() >= interval);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn division(limit_bytes: u64, machine_bytes: u64) -> Division {
        let set = Set {
            limit_bytes,
            ..Set::default()
        };
        Division::of(set, machine_bytes).expect("enough")
    }

    #[test]
    fn every_machine_has_room_for_caches_and_requests() {
        for machine_bytes in [512 << 20, 2 << 30, 16 << 30, 1 << 40] {
            let division = division(0, machine_bytes);
            let parts = division.host_cache_bytes
                + division.store_cache_bytes
                + division.write_buffers_bytes;
            assert!(
                division.limit_bytes <= machine_bytes * 3 / 4,
                "{division:?}"
            );
            assert!(
                division.limit_bytes - parts >= division.limit_bytes / 4,
                "{division:?}"
            );
        }
    }

    #[test]
    fn what_is_set_is_taken() {
        let set = Set {
            limit_bytes: 1 << 30,
            host_cache_bytes: 1 << 20,
            store_cache_bytes: 2 << 20,
        };
        let division = Division::of(set, 1 << 40).expect("enough");
        assert_eq!(division.limit_bytes, 1 << 30);
        assert_eq!(
            (division.host_cache_bytes, division.store_cache_bytes),
            (1 << 20, 2 << 20)
        );
    }

    #[test]
    fn a_limit_that_the_store_fills_is_refused() {
        let set = Set {
            limit_bytes: 256 << 20,
            store_cache_bytes: 200 << 20,
            ..Set::default()
        };
        let division = Division::of(set, 1 << 40).expect("enough");
        let refused = division.account(true).expect_err("too small").to_string();
        assert!(
            refused.contains("--documents-store-cache-bytes"),
            "{refused}"
        );
        division
            .account(false)
            .expect("a store in memory has no files");
    }
}
