//! Places for work that may take long: a bound on the threads that do it, and a queue that can be left.
//!
//! What a client's filter, expression or pattern decides, and every write but small insertions, runs here. Threads that
//! serve the network are left to what takes microseconds; waiting for a place is asynchronous, so that it holds up nothing,
//! and ends with the command. Work that has a place never waits for another one.

use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use forebay_cancel::Stop;
use forebay_documents_query::Code;
use forebay_documents_store::largest_document_bytes;
use forebay_memory::{Account, Share};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::CommandError;

/// Places a core: the system shares the cores out fairly, so that others go on beside slow work. The more there are, the more
/// slow commands it takes to keep others waiting, and the later a thread that serves the network gets its turn.
const PLACES_PER_CORE: usize = 8;
/// The fewest and the most places of a kind.
const PLACES_MIN: usize = 16;
const PLACES_MAX: usize = 128;
/// Commands that may wait for a place of a kind.
const WAITING_MAX: usize = 4_096;
/// How often a command that waits looks at its stop sign, and how many commands do it as often.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const LOOKS_TOGETHER_MAX: usize = 256;

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

/// A number of places, and the queue of commands that wait for one.
#[derive(Debug)]
pub struct Places {
    free: Semaphore,
    waiting: AtomicUsize,
}

/// One command that waits.
struct Waiting<'a>(&'a AtomicUsize);

/// The mark of a thread whose work has a place.
struct Mark {
    before: bool,
}

impl Places {
    /// `count` places, all free.
    pub fn new(count: usize) -> Places {
        Places {
            free: Semaphore::new(count),
            waiting: AtomicUsize::new(0),
        }
    }

    /// The places of a kind: they are the process's, as its threads are.
    fn of_process() -> Places {
        let count = PLACES_PER_CORE * forebay_device::cores();
        Places::new(count.clamp(PLACES_MIN, PLACES_MAX))
    }

    fn of(kind: Kind) -> &'static Places {
        match kind {
            Kind::Read => &READS,
            Kind::Write => &WRITES,
        }
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// That the command has to end before there is one; `ExceededTimeLimit`, which drivers take as a reason to try again,
    /// if too many wait.
    pub async fn enter(&self, stop: &Stop) -> Result<SemaphorePermit<'_>, CommandError> {
        if let Ok(free) = self.free.try_acquire() {
            return Ok(free);
        }
        let _waiting = self.wait_in_line()?;
        let mut turn = std::pin::pin!(self.free.acquire());
        loop {
            stop.check()?;
            if let Ok(free) = tokio::time::timeout(self.look_interval(), &mut turn).await {
                return Ok(free.expect("it is never closed"));
            }
        }
    }

    /// The more wait, the less often each of them looks at its stop sign.
    fn look_interval(&self) -> Duration {
        let waiting = self.waiting.load(Ordering::Relaxed) / LOOKS_TOGETHER_MAX;
        LOOK_INTERVAL * (1 + u32::try_from(waiting).unwrap_or(u32::MAX - 1))
    }

    /// Takes a place in the queue.
    fn wait_in_line(&self) -> Result<Waiting<'_>, CommandError> {
        let waiting = Waiting(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX {
            return Ok(waiting);
        }
        Err(CommandError::refused(
            Code::ExceededTimeLimit,
            format!("{WAITING_MAX} commands wait for others that take long; try again"),
        ))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
/// That there is none in time.
pub async fn make_room_to_write(share: &Share, keeps_outcome: bool) -> Result<(), CommandError> {
    let kept = if keeps_outcome { COPIES_KEPT } else { 0 };
    make_room(share, COPIES_WRITTEN + kept).await
}

/// Room for the document that a read looks at.
async fn room_to_read() -> Result<Option<Share>, CommandError> {
    let Some(account) = MEMORY.get() else {
        return Ok(None);
    };
    let share = account.share();
    make_room(&share, COPIES_READ).await?;
    Ok(Some(share))
}

/// Takes room for copies of a document as large as any that was seen.
async fn make_room(share: &Share, copies: usize) -> Result<(), CommandError> {
    let bytes = largest_document_bytes();
    if bytes > SMALL_DOCUMENT_BYTES {
        share.grow_within(bytes * copies, MEMORY_WAIT).await?;
    }
    Ok(())
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
    let _room = room_to_read().await?;
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
        Kind::Read => room_to_read().await?,
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
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use forebay_cancel::StopReason;
    use tokio::runtime::Builder;

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(work)
    }

    #[test]
    fn a_place_is_waited_for_and_the_queue_can_be_left() {
        run(async {
            let places = Places::new(1);
            let taken = places.enter(&Stop::never()).await.expect("it is free");
            let stop = Stop {
                cancelled: Arc::new(AtomicBool::new(false)),
                ..Stop::default()
            };
            let (left, ()) = tokio::join!(places.enter(&stop), async {
                assert_eq!(places.waiting.load(Ordering::Relaxed), 1);
                stop.cancelled.store(true, Ordering::Relaxed);
            });
            let left = left.map(drop).expect_err("cancelled");
            assert!(matches!(left, CommandError::Stopped(StopReason::Cancelled)));
            assert_eq!(places.waiting.load(Ordering::Relaxed), 0);
            let never = Stop::never();
            let (next, ()) = tokio::join!(places.enter(&never), async { drop(taken) });
            next.map(drop).expect("it is free again");
        });
    }

    #[test]
    fn a_queue_that_is_too_long_is_refused() {
        run(async {
            let places = Places::new(0);
            places.waiting.store(WAITING_MAX, Ordering::Relaxed);
            let refused = places.enter(&Stop::never()).await.map(drop);
            assert_eq!(
                refused.expect_err("refused").code(),
                Code::ExceededTimeLimit
            );
            assert_eq!(places.waiting.load(Ordering::Relaxed), WAITING_MAX);
        });
    }

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
