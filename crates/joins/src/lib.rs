//! Joins of sides that are larger than device memory, or lie in the memory of several GPUs.
//!
//! [`PartitionedJoin`] brings both sides, which lie in pinned host memory, through the staging ring to a GPU. The GPU
//! divides each chunk into partitions by the hash of the keys. Most of the runs that this makes do not fit in device
//! memory: the copy engine writes them back to pinned host memory, while the next chunks arrive. Runs that do not fit
//! there pass through it to a file. Then each partition is joined by a table in device memory; kernels read its rows
//! where they are, and rows of the file from pinned copies. So each row crosses the bus three times at most, in both
//! directions at once during the first pass. Rows of heavy keys, of which the build side has many rows, and rows that
//! a Bloom filter drops, cross it once. The CPU may divide both sides instead of the GPU ([`FirstPass`]): each row then
//! crosses the bus once at most. The method is that of Triton (Lutz et al., SIGMOD 2022), whose partitions lie in host
//! memory that a GPU reaches through NVLink.
//!
//! [`join_in_partitions`], [`join_replicated`] and [`InterleavedJoin`] join sides of which each of several GPUs has
//! some rows.
//!
//! [`CoProcessing`] joins sides in pinned host memory by the CPU and GPUs together.
//!
//! [`predict`] tells the rates of joins on a machine from the few rates that [`measure`] measures there.
#![forbid(unsafe_code)]

mod co_processing;
mod columns;
mod crew;
mod divide;
mod error;
mod gpus;
mod heavy;
mod join;
mod loads;
pub mod measure;
mod plan;
pub mod predict;
mod run_file;
#[cfg(test)]
mod tests;
pub mod timed;

pub use co_processing::{
    CoProcessing, CoProcessingOptions, CoProcessingReport, GpuRates, Rates, Strategy, choose,
    join_on_cpu,
};
pub use columns::PinnedColumns;
pub use error::JoinError;
pub use gpus::{GpuSides, InterleavedJoin, TableReport, join_in_partitions, join_replicated};
pub use join::{JoinReport, PartitionedJoin, SampleTimes, on_gpu};
pub use plan::{FirstPass, JoinOptions, JoinPlan};
