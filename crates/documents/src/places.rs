//! Concurrency permits (type `Place`) for work that may take long. The permits bound the number of threads that work on
//! slow commands at the same time. Commands queue for a permit, and leave the queue if they are stopped.
//!
//! Work whose cost depends on a client's filter, expression or pattern needs a permit, as does every write except a
//! small insertion. Network threads do only work that takes microseconds. Waiting for a permit is asynchronous, so it
//! blocks no thread, and it ends if the command is stopped. Work that has a permit never waits for another permit.

mod queue;

use std::cell::Cell;
use std::future::Future;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use bson::RawDocument;
use forebay_cancel::Stop;
use forebay_memory::{Account, Share};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

pub use queue::Places;

use crate::error::CommandError;
use crate::scope;

/// Permits per core. The operating system schedules the threads of all permits fairly, so slow work does not stop other
/// work. More permits tolerate more slow commands before others are delayed, but make network threads wait longer to be
/// scheduled.
const PLACES_PER_CORE: usize = 8;
/// Minimum number of read permits. The number of write permits has the same minimum.
const PLACES_MIN: usize = 16;
/// Maximum number of read permits. The number of write permits has the same maximum.
const PLACES_MAX: usize = 128;

/// Maximum number of commands that build indexes or validate collections at the same time. One client may run at most
/// three of them.
const BUILDS_MAX: usize = 4;

/// Read permits. Writes have permits of their own, so that reads and writes do not delay each other.
static READS: LazyLock<Places> = LazyLock::new(Places::of_process);
/// Write permits.
static WRITES: LazyLock<Places> = LazyLock::new(Places::of_process);
/// Permits to build indexes and to validate collections. This may take hours, so it must not hold a permit that other
/// commands need.
static BUILDS: LazyLock<Places> = LazyLock::new(|| Places::fair(BUILDS_MAX));

/// Bounds the number of patterns that are compiled at the same time for commands without a permit.
static COMPILATIONS: Semaphore = Semaphore::const_new(64);

/// The memory account of the process.
static MEMORY: OnceLock<Account> = OnceLock::new();
/// Maximum bytes of a document that is read or changed without a charge to the memory account.
const SMALL_DOCUMENT_BYTES: usize = 64 << 10;
/// Copies of one document that a read holds at a time: one in the store, and one made by a stage.
const COPIES_READ: usize = 2;
/// Copies of one document that a write holds at a time: the old version, the new version, one in the batch, one in the
/// history or the reply, and two in the store. The store makes one while it writes the journal, and one while it moves
/// values to its files.
const COPIES_WRITTEN: usize = 6;
/// Additional copies of one document that a write holds if its outcome is recorded for retries.
const COPIES_KEPT: usize = 2;
/// Interval at which work that waits for memory checks its cancellation token.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time that work waits for memory.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

thread_local! {
    /// Whether the work of this thread has a permit.
    static IN_PLACE: Cell<bool> = const { Cell::new(false) };
}

/// The kind of work, which determines the kind of permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reading.
    Read,
    /// Writing, or changing the catalogue.
    Write,
    /// Building indexes, or validating a collection.
    Build,
}

/// Marks the thread's work as having a permit, until the mark is dropped.
struct Mark {
    before: bool,
}

impl Places {
    /// Creates the process's permits for reads or for writes. All clients share the permits, because they also share
    /// the threads.
    fn of_process() -> Places {
        let count = PLACES_PER_CORE * forebay_device::cores();
        let count = count.clamp(PLACES_MIN, PLACES_MAX);
        Places::fair(count)
    }

    fn of(kind: Kind) -> &'static Places {
        match kind {
            Kind::Read => &READS,
            Kind::Write => &WRITES,
            Kind::Build => &BUILDS,
        }
    }
}

impl Mark {
    fn set() -> Mark {
        Mark {
            before: IN_PLACE.replace(true),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        IN_PLACE.set(self.before);
    }
}

/// Sets the process's memory account. Work with a permit charges its memory to this account. Only the first call has an
/// effect.
pub fn reserve_from(account: &Account) {
    MEMORY.get_or_init(|| account.clone());
}

/// Reserves memory for the documents that a write changes. The caller releases the memory when the reply has been sent.
///
/// # Errors
/// An error if the memory does not become available in time, or the command is stopped while waiting.
pub async fn make_room_to_write(
    share: &Share,
    keeps_outcome: bool,
    stop: &Stop,
) -> Result<(), CommandError> {
    let copies = copies_written(keeps_outcome);
    make_room(share, scope::document_bytes(), copies, stop).await
}

fn copies_written(keeps_outcome: bool) -> usize {
    COPIES_WRITTEN + if keeps_outcome { COPIES_KEPT } else { 0 }
}

/// Reserves memory for the copies of a new version that is larger than all documents for which [`make_room_to_write`]
/// reserved memory. Does not wait, because the caller may hold a write lock.
///
/// # Errors
/// An error if the memory account has no room.
pub fn room_for_growth(
    new: &RawDocument,
    keeps_outcome: bool,
    account: &Account,
) -> Result<Option<Share>, CommandError> {
    let bytes = new.as_bytes().len();
    if bytes <= SMALL_DOCUMENT_BYTES {
        return Ok(None);
    }
    let share = account.share();
    share
        .try_grow(bytes.saturating_sub(scope::document_bytes()) * copies_written(keeps_outcome))?;
    Ok(Some(share))
}

/// Reserves memory for the documents that an insertion writes in one batch. The caller releases the memory when the
/// reply has been sent.
///
/// # Errors
/// See [`make_room_to_write`].
pub async fn make_room_to_insert(
    share: &Share,
    bytes: usize,
    stop: &Stop,
) -> Result<(), CommandError> {
    make_room(share, bytes, 1, stop).await
}

/// Reserves memory for the document that a read processes.
async fn room_to_read(stop: &Stop) -> Result<Option<Share>, CommandError> {
    let Some(account) = MEMORY.get() else {
        return Ok(None);
    };
    let share = account.share();
    make_room(&share, scope::document_bytes(), COPIES_READ, stop).await?;
    Ok(Some(share))
}

/// Reserves memory for the copies of a document of `bytes` bytes. Reserves nothing for a small document.
async fn make_room(
    share: &Share,
    bytes: usize,
    copies: usize,
    stop: &Stop,
) -> Result<(), CommandError> {
    if bytes <= SMALL_DOCUMENT_BYTES {
        return Ok(());
    }
    let mut grown = std::pin::pin!(share.grow_within(bytes * copies, MEMORY_WAIT));
    loop {
        stop.check()?;
        if let Ok(grown) = tokio::time::timeout(CHECK_INTERVAL, &mut grown).await {
            return Ok(grown?);
        }
    }
}

/// Runs work that may take long, for a command. Takes a read permit, unless the command already has a permit, and runs
/// the work off the network threads.
///
/// # Errors
/// See [`Places::enter`].
pub async fn aside<T>(stop: &Stop, work: impl FnOnce() -> T) -> Result<T, CommandError> {
    if IN_PLACE.get() {
        return Ok(work());
    }
    let _place = Places::of(Kind::Read).enter(stop).await?;
    let _room = room_to_read(stop).await?;
    Ok(blocking(|| {
        let _mark = Mark::set();
        work()
    }))
}

/// Runs all work of a command under one permit, which is held even while the command waits.
///
/// # Errors
/// The errors of [`aside`], or the error of the work.
pub async fn all_aside<T>(
    kind: Kind,
    stop: &Stop,
    work: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    if IN_PLACE.get() {
        return work.await;
    }
    let _place = Places::of(kind).enter(stop).await?;
    let _room = match kind {
        Kind::Read => room_to_read(stop).await?,
        Kind::Write | Kind::Build => None,
    };
    if !has_spare_threads() {
        return work.await;
    }
    tokio::task::block_in_place(|| {
        let _mark = Mark::set();
        Handle::current().block_on(work)
    })
}

/// Runs the compilation of a pattern. A compilation takes milliseconds, or at worst a second. Returns false, without
/// compiling, if too many other patterns are being compiled.
pub fn compile(work: &mut dyn FnMut()) -> bool {
    if IN_PLACE.get() {
        work();
        return true;
    }
    let free = COMPILATIONS.try_acquire();
    free.map(|_free| blocking(work)).is_ok()
}

/// Runs work that takes longer than microseconds, but not longer than a known limit. The runtime first moves the
/// thread's other tasks to other threads.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match has_spare_threads() {
        true => tokio::task::block_in_place(work),
        false => work(),
    }
}

fn has_spare_threads() -> bool {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    matches!(flavor, Ok(RuntimeFlavor::MultiThread))
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn work_in_a_place_needs_no_other() {
        let runtime = Builder::new_multi_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let stop = Stop::never();
            let outer = async {
                assert!(IN_PLACE.get());
                let inner = aside(&stop, || IN_PLACE.get()).await?;
                all_aside(Kind::Read, &stop, async { Ok(inner) }).await
            };
            assert!(
                all_aside(Kind::Write, &stop, outer)
                    .await
                    .expect("the work runs")
            );
            assert!(!IN_PLACE.get());
        });
    }
}
