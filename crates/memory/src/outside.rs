//! Memory that the process holds outside the shares of an account.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Duration of a window. The largest reading of the current and the previous window counts. A single reading may be too
/// low, because bytes are added to a share before they become resident.
const WINDOW: Duration = Duration::from_secs(2);

/// Bytes of the process that are in no share: code, caches, buffers of the store, and memory that the allocator
/// retains.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// Minimum number of bytes that count as held outside the shares.
    least_bytes: AtomicU64,
    bytes: AtomicU64,
    looks: Mutex<Looks>,
}

/// The largest readings of the current window and of the previous one.
#[derive(Debug, Default)]
struct Looks {
    began: Option<Instant>,
    largest: u64,
    largest_before: u64,
}

impl Outside {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).max(self.least_bytes())
    }

    pub(crate) fn least_bytes(&self) -> u64 {
        self.least_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_least(&self, bytes: u64) {
        self.least_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Discards the readings so far.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        *self.looks.lock() = Looks::default();
    }

    /// Records a reading. The largest reading of the current and the previous window counts.
    pub(crate) fn look(&self, bytes: u64, now: Instant) {
        let mut looks = self.looks.lock();
        let age = looks.began.map(|began| now.duration_since(began));
        if age.is_none_or(|age| age >= WINDOW) {
            looks.largest_before = match age {
                Some(age) if age < WINDOW * 2 => looks.largest,
                _ => 0,
            };
            looks.largest = 0;
            looks.began = Some(now);
        }
        looks.largest = looks.largest.max(bytes);
        let bytes = looks.largest.max(looks.largest_before);
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}
