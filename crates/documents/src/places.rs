//! Places for work that may take long: a bound on the threads that do it, and a queue that can be left.
//!
//! What a client's filter, expression or pattern decides, and every write but small insertions, runs here. Threads that
//! serve the network are left to what takes microseconds; waiting for a place is asynchronous, so that it holds up
//! nothing, and ends with the command. Work that has a place never waits for another one.

mod queue;

use std::cell::Cell;
use std::future::Future;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use forebay_cancel::Stop;
use forebay_memory::{Account, Share};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

pub use queue::Places;

use crate::error::CommandError;
use crate::scope;

/// Places a core: the system shares the cores out fairly, so that others go on beside slow work. The more there are,
/// the more slow commands it takes to keep others waiting, and the later a thread that serves the network gets its
/// turn.
const PLACES_PER_CORE: usize = 8;
/// The fewest and the most places of a kind.
const PLACES_MIN: usize = 16;
const PLACES_MAX: usize = 128;
/// Part of the places of a kind that one client may have, so that others find one at any time.
const CLIENT_PART: (usize, usize) = (3, 4);

/// Places for reads, so that reads never keep writes waiting, nor the other way round.
static READS: LazyLock<Places> = LazyLock::new(Places::of_process);
/// Places for writes.
static WRITES: LazyLock<Places> = LazyLock::new(Places::of_process);

/// Patterns that may be compiled at the same time by commands without a place.
static COMPILATIONS: Semaphore = Semaphore::const_new(64);

/// The account of the process.
static MEMORY: OnceLock<Account> = OnceLock::new();
/// Documents up to this size need no share while they are read or changed.
const SMALL_DOCUMENT_BYTES: usize = 64 << 10;
/// Copies of one document that a read has at a time: as the store reads it, and as a stage makes it.
const COPIES_READ: usize = 2;
/// Copies that a write has: as it was and becomes, in the batch and in the history or the reply.
const COPIES_WRITTEN: usize = 4;
/// Further copies of one whose outcome is kept.
const COPIES_KEPT: usize = 2;
/// Interval at which work that waits for memory checks its cancellation token.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long work waits for memory.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

thread_local! {
    /// Whether what this thread does has a place.
    static IN_PLACE: Cell<bool> = const { Cell::new(false) };
}

/// What work does, as far as places are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It reads.
    Read,
    /// It writes, or defines.
    Write,
}

/// The mark of a thread whose work has a place.
struct Mark {
    before: bool,
}

impl Places {
    /// The places of a kind: they are the process's, as its threads are.
    fn of_process() -> Places {
        let count = PLACES_PER_CORE * forebay_device::cores();
        let count = count.clamp(PLACES_MIN, PLACES_MAX);
        Places::shared(count, count / CLIENT_PART.1 * CLIENT_PART.0)
    }

    fn of(kind: Kind) -> &'static Places {
        match kind {
            Kind::Read => &READS,
            Kind::Write => &WRITES,
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

/// Has work in a place take memory from this account, that of the process: the first that is given counts.
pub fn reserve_from(account: &Account) {
    MEMORY.get_or_init(|| account.clone());
}

/// Room for the documents that a write changes. To be given back when its reply is sent.
///
/// # Errors
/// If there is none in time, or the command is stopped before.
pub async fn make_room_to_write(
    share: &Share,
    keeps_outcome: bool,
    stop: &Stop,
) -> Result<(), CommandError> {
    let kept = if keeps_outcome { COPIES_KEPT } else { 0 };
    let bytes = scope::document_bytes();
    make_room(share, bytes, COPIES_WRITTEN + kept, stop).await
}

/// Room for the documents that an insertion writes in one batch. To be given back when its reply is sent.
///
/// # Errors
/// As [`make_room_to_write`].
pub async fn make_room_to_insert(
    share: &Share,
    bytes: usize,
    stop: &Stop,
) -> Result<(), CommandError> {
    make_room(share, bytes, 1, stop).await
}

/// Room for the document that a read looks at.
async fn room_to_read(stop: &Stop) -> Result<Option<Share>, CommandError> {
    let Some(account) = MEMORY.get() else {
        return Ok(None);
    };
    let share = account.share();
    make_room(&share, scope::document_bytes(), COPIES_READ, stop).await?;
    Ok(Some(share))
}

/// Takes room for copies of a document of `bytes` bytes, if it is large.
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

/// Does work of a command that may take long: in a place, away from the threads that serve the network.
///
/// # Errors
/// As [`Places::enter`].
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

/// Does all work of a command in one place, what it waits for in between included.
///
/// # Errors
/// As [`aside`], and those of the work.
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
        Kind::Write => None,
    };
    if !has_spare_threads() {
        return work.await;
    }
    tokio::task::block_in_place(|| {
        let _mark = Mark::set();
        Handle::current().block_on(work)
    })
}

/// Compiles a pattern, which takes some milliseconds, or a second at worst; false if too many are being compiled.
pub fn compile(work: &mut dyn FnMut()) -> bool {
    if IN_PLACE.get() {
        work();
        return true;
    }
    let free = COMPILATIONS.try_acquire();
    free.map(|_free| blocking(work)).is_ok()
}

/// Runs something whose length is bounded, but not in microseconds, without holding up the thread's other tasks.
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
            assert!(all_aside(Kind::Write, &stop, outer).await.expect("it runs"));
            assert!(!IN_PLACE.get());
        });
    }
}
