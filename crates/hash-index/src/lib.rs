//! Hash tables in the memory of devices: a join builds one from the rows of its smaller side, and probes it with those
//! of the other.
//!
//! Keys and payloads are columns of unsigned numbers of 4 or 8 bytes; a composite key is two numbers of 8 bytes. A
//! [`TableShape`] names one of three layouts: an array by key for dense keys that occur once, linear probing, and
//! buckets of 64 bytes. Composite keys need linear probing. [`IndexBuilder`] and [`HashIndex`] are tables on a GPU,
//! [`HostIndex`] is the same table in host memory, built and probed by all cores. [`HostPartitions`] divides both
//! sides into partitions whose tables fit in the caches of a core. A probe adds up the matches: their number, and the
//! sums of the payloads of both sides.
//!
//! [`Workload`] generates the sides of a join, on a device or on the host, and computes the answer by its formulas.
#![deny(unsafe_code)]

mod column;
mod error;
mod host;
mod index;
mod kernels;
#[expect(unsafe_code, reason = "launches kernels")]
mod launch;
mod partitions;
mod shape;
#[cfg(test)]
mod tests;
mod workload;
mod zipf;

pub use column::{Column, DeviceRows, HostRows};
pub use error::IndexError;
pub use host::{
    CopyInFlight, HostBuilder, HostCopy, HostIndex, HostPartitions, HostSieve, HostSlices,
};
pub use index::{HashIndex, IndexBuilder, InterleavedRows, Totals};
pub use kernels::{JoinTotals, kernels};
pub use launch::InFlight;
pub use partitions::{
    DevicePartitions, LoadedRows, PartitionJoin, RunCopy, RunShape, STAGES, Sieve, Sifted, Slices,
    StepInFlight, StoredRuns, TableMemory,
};
pub use shape::{TableMethod, TableShape, Width};
pub use workload::{ProbeKeys, Side, Workload};
