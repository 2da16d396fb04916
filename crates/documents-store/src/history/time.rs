//! Cluster times, which order the changes.

use bson::{DateTime, Timestamp, Uuid};

use crate::error::{Result, StoreError};

/// The time of a change: seconds since 1970 in the upper half, a counter within the second in the lower half. Each
/// change of a store has its own time. Times rise even if the clock is set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterTime(u64);

impl ClusterTime {
    /// Builds a time from its 64 bits.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the 64 bits, which sort in the order of the times.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the earliest time that may be assigned to a change at `now`, if the change before it has the time
    /// `self`.
    pub(crate) fn next(self, now: DateTime) -> Self {
        let seconds = u64::try_from(now.timestamp_millis() / 1000).unwrap_or(0);
        Self((seconds << 32) + 1).max(self.plus(1))
    }

    /// Returns the lowest time that a history opened at `now` may assign, if its last change has the time `self`.
    ///
    /// An earlier process may have assigned times within the same second and lost their changes, in a power failure or
    /// because the store was in memory. A random offset is added to make a reuse of those times unlikely.
    pub(crate) fn after_opening(self, now: DateTime) -> Self {
        let [a, b, c, d, ..] = Uuid::new().bytes();
        let steps = u32::from_be_bytes([a, b, c, d]) / 2;
        self.next(now).plus(u64::from(steps))
    }

    /// Returns the time `steps` later.
    pub fn plus(self, steps: u64) -> Self {
        Self(self.0.saturating_add(steps))
    }

    /// Returns the time one step earlier.
    pub fn minus_one(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    pub(crate) fn key(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    pub(crate) fn from_key(key: &[u8]) -> Result<Self> {
        let bytes = key.try_into().map_err(|_| StoreError::InvalidDocument {
            why: format!("a key of the history has {} bytes instead of 8", key.len()),
        })?;
        Ok(Self(u64::from_be_bytes(bytes)))
    }
}

impl From<ClusterTime> for Timestamp {
    fn from(at: ClusterTime) -> Self {
        Timestamp {
            time: (at.0 >> 32) as u32,
            increment: at.0 as u32,
        }
    }
}

impl From<Timestamp> for ClusterTime {
    fn from(at: Timestamp) -> Self {
        Self(u64::from(at.time) << 32 | u64::from(at.increment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_only_rise() {
        let now = DateTime::from_millis(5_999);
        let first = ClusterTime::new(0).next(now);
        assert_eq!(
            Timestamp::from(first),
            Timestamp {
                time: 5,
                increment: 1
            }
        );
        assert_eq!(first.next(now), first.plus(1));
        assert_eq!(first.next(DateTime::from_millis(0)), first.plus(1));
        let later = first.plus(7).next(DateTime::from_millis(6_000));
        assert_eq!(
            Timestamp::from(later),
            Timestamp {
                time: 6,
                increment: 1
            }
        );
        assert_eq!(ClusterTime::from(Timestamp::from(later)), later);
    }
}
