//! The methods of moving bytes between host memory and a device, and which of them a machine has.
//!
//! A method works on one [`Tier`] of host memory. [`move_bytes`] moves a [`HostBuffer`] of that tier to or from device
//! memory. [`available`] tries each method on a device and says why it is missing.

mod available;
mod chunks;
mod host_buffer;
mod job;
mod moving;
mod peer;
mod pinning;
mod staged;

use std::fmt;
use std::str::FromStr;

pub use available::{Missing, available, lacks};
pub use host_buffer::HostBuffer;
pub use job::{checksum_on, run_on_device};
pub use moving::{MoveRequest, Moved, move_bytes};
pub use peer::{PeerLink, copy_between, link};
pub use staged::StagedOptions;

use crate::Tier;

/// A way to move bytes between host memory and the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransferMethod {
    /// The driver copies pageable memory through its own pinned buffer, with one thread.
    PageableCopy,
    /// Threads copy pageable memory through small pinned buffers, which the copy engine moves.
    StagedCopy,
    /// Pageable memory is pinned chunk by chunk, moved by the copy engine, and unpinned.
    DynamicPinning,
    /// The copy engine moves memory that was pinned before.
    PinnedCopy,
    /// The driver moves the pages of unified memory ahead of the kernel that uses them.
    UnifiedPrefetch,
    /// Page faults of the kernel move the pages of unified memory.
    UnifiedMigration,
    /// A kernel accesses pinned memory over the bus by ordinary loads and stores.
    ZeroCopy,
    /// A kernel accesses pinned memory over the bus by the bulk copy engine.
    ZeroCopyBulk,
    /// A kernel accesses pageable memory over a cache-coherent link.
    Coherence,
}

/// Where the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From host memory to device memory.
    ToDevice,
    /// From device memory to host memory.
    ToHost,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::ToDevice, Direction::ToHost];

    /// Returns the name of the direction for users.
    pub fn name(self) -> &'static str {
        match self {
            Direction::ToDevice => "to-device",
            Direction::ToHost => "to-host",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TransferMethod {
    /// All methods.
    pub const ALL: [TransferMethod; 9] = [
        TransferMethod::PageableCopy,
        TransferMethod::StagedCopy,
        TransferMethod::DynamicPinning,
        TransferMethod::PinnedCopy,
        TransferMethod::UnifiedPrefetch,
        TransferMethod::UnifiedMigration,
        TransferMethod::ZeroCopy,
        TransferMethod::ZeroCopyBulk,
        TransferMethod::Coherence,
    ];

    /// Returns the name of the method for users.
    pub fn name(self) -> &'static str {
        match self {
            TransferMethod::PageableCopy => "pageable-copy",
            TransferMethod::StagedCopy => "staged-copy",
            TransferMethod::DynamicPinning => "dynamic-pinning",
            TransferMethod::PinnedCopy => "pinned-copy",
            TransferMethod::UnifiedPrefetch => "unified-prefetch",
            TransferMethod::UnifiedMigration => "unified-migration",
            TransferMethod::ZeroCopy => "zero-copy",
            TransferMethod::ZeroCopyBulk => "zero-copy-bulk",
            TransferMethod::Coherence => "coherence",
        }
    }

    /// Returns the tier of the host memory that the method works on.
    pub fn tier(self) -> Tier {
        match self {
            TransferMethod::PageableCopy
            | TransferMethod::StagedCopy
            | TransferMethod::DynamicPinning
            | TransferMethod::Coherence => Tier::Pageable,
            TransferMethod::PinnedCopy
            | TransferMethod::ZeroCopy
            | TransferMethod::ZeroCopyBulk => Tier::Pinned,
            TransferMethod::UnifiedPrefetch | TransferMethod::UnifiedMigration => Tier::Managed,
        }
    }
}

impl fmt::Display for TransferMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no transfer method has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a transfer method; use one of {}", TransferMethod::ALL.map(TransferMethod::name).join(", "))]
pub struct UnknownMethod {
    /// The name.
    pub name: String,
}

impl FromStr for TransferMethod {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<TransferMethod, UnknownMethod> {
        let mut all = TransferMethod::ALL.into_iter();
        let found = all.find(|method| method.name() == name);
        found.ok_or_else(|| UnknownMethod {
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_refused() {
        for method in TransferMethod::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        let error = "dma".parse::<TransferMethod>().expect_err("no such method");
        let text = error.to_string();
        assert!(
            text.starts_with("`dma`") && text.ends_with("zero-copy-bulk, coherence"),
            "{text}"
        );
    }
}
