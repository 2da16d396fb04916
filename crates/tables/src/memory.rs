//! The memory of queries. It has a limit of its own, and is taken from the process's account.

use std::fmt;
use std::time::Duration;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, TrackConsumersPool,
};
use forebay_memory::{Account, Share};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// Number of consumers that an error names.
const NAMED_CONSUMERS: std::num::NonZeroUsize = std::num::NonZeroUsize::new(3).expect("not zero");

/// Maximum time that a query waits for room in the account of the process.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes bytes from the account of a share. Waits for room, as what a query released can be taken again after the next
/// measurement.
///
/// # Errors
/// If there is no room.
pub(crate) fn grow(share: &Share, bytes: usize) -> Result<()> {
    if share.grow_if_room(bytes) {
        return Ok(());
    }
    let wait = share.grow_within(bytes, ROOM_TIMEOUT);
    let grown = block_in_place(|| Handle::current().block_on(wait));
    grown.map_err(|full| DataFusionError::ResourcesExhausted(full.to_string()))
}

/// DataFusion's pool of memory. Consumers that can spill to disk share what the others leave.
#[derive(Debug)]
pub(crate) struct AccountPool {
    pool: TrackConsumersPool<FairSpillPool>,
    share: Share,
}

impl AccountPool {
    /// Returns a pool of at most `limit_bytes`, which come from `account`.
    pub(crate) fn new(account: &Account, limit_bytes: usize) -> AccountPool {
        AccountPool {
            pool: TrackConsumersPool::new(FairSpillPool::new(limit_bytes), NAMED_CONSUMERS),
            share: account.share(),
        }
    }
}

impl fmt::Display for AccountPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

impl MemoryPool for AccountPool {
    fn name(&self) -> &str {
        "account"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
        self.share.grow_anyway(additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
        self.share.shrink(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.pool.try_grow(reservation, additional)?;
        grow(&self.share, additional).inspect_err(|_| self.pool.shrink(reservation, additional))
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}
