//! Why a table could not be built or probed.

use forebay_device::JobError;
use forebay_device::cuda::DriverError;
use forebay_device::{DeviceFault, OutOfMemory};

/// Why a table could not be built or probed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// There are more rows than slots. The caller makes a larger table.
    #[error("a table of {slots} slots has no room for {rows} rows")]
    TooManyRows {
        /// Number of rows.
        rows: u64,
        /// Number of slots.
        slots: u64,
    },
    /// A row finds no free slot near that of its hash. The caller makes a larger table or, if keys have many rows,
    /// builds it from the other side. A single key with many rows has room for about `steps` rows. If all keys have
    /// many, each has room for about a hundred at half load, because their clusters merge.
    #[error(
        "no slot is free among the {steps} that a row may take: the table is too full, or keys have too many rows and \
         should be on the probe side"
    )]
    ChainTooLong {
        /// Number of slots in which a row may be.
        steps: u64,
    },
    /// A table by key has no slot for a key. The caller uses linear probing.
    #[error("a key is not in the range of the table, {first}..{end}")]
    KeyOutOfRange {
        /// First key of the table.
        first: u64,
        /// Key after the last one.
        end: u64,
    },
    /// A key occurs again in a table by key. The caller uses linear probing.
    #[error("{rows} rows have a key that occurs before, and the table has one row for each key")]
    DuplicateKeys {
        /// Number of rows.
        rows: u64,
    },
    /// The kernel or the device failed.
    #[error(transparent)]
    Device(#[from] JobError),
}

macro_rules! device_errors {
    ($($error:ty),+) => { $(
        impl From<$error> for IndexError {
            fn from(error: $error) -> IndexError {
                IndexError::Device(error.into())
            }
        }
    )+ };
}

device_errors!(DeviceFault, DriverError, OutOfMemory);
