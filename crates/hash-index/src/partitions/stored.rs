//! Runs that are stored where kernels cannot read them.

use std::ops::Range;

use forebay_device::JobError;
use forebay_device::cuda::{Cuda, Stream};

use super::{
    DevicePartitions, DividedRun, RunShape, RunSlices, Slices, assert_is_aligned, bytes_of,
};
use crate::column::Column;

/// Runs of a side that are stored where kernels cannot read them, such as in a file. A join of some partitions reads
/// copies.
#[derive(Debug)]
pub struct StoredRuns {
    shape: RunShape,
    runs: Vec<RunSlices>,
}

/// A copy of some bytes of a stored run.
#[derive(Debug)]
pub struct LoadedRows {
    /// Index of the run.
    pub run: usize,
    /// Offset in the run of the first byte, a multiple of 16.
    pub first: u64,
    /// The bytes.
    pub rows: Column,
}

impl StoredRuns {
    /// Returns the runs that were divided into these slices. Blocks until the earlier work of the stream is done.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(cuda: &Cuda, slices: &Slices, stream: &Stream) -> Result<StoredRuns, JobError> {
        Ok(StoredRuns {
            shape: slices.shape,
            runs: slices.read(cuda, stream)?,
        })
    }

    /// Returns the byte range of a run that contains the rows of these partitions; empty if it has none.
    ///
    /// # Panics
    /// If the run or a partition does not exist.
    pub fn bytes(&self, run: usize, partitions: Range<usize>) -> Range<u64> {
        bytes_of(&self.runs[run].known[partitions], self.shape.width)
    }

    /// Returns a side made of copies, for a join of partitions whose rows are all in these copies.
    ///
    /// # Panics
    /// If a run does not exist, or a copy or its offset in the run is not aligned to 16 bytes.
    pub fn loaded(&self, copies: impl IntoIterator<Item = LoadedRows>) -> DevicePartitions {
        let run = |copy: LoadedRows| {
            assert_is_aligned(copy.rows.pointer());
            assert!(copy.first.is_multiple_of(16), "a copy from {}", copy.first);
            DividedRun {
                rows: copy.rows,
                first: copy.first,
                slices: self.runs[copy.run].clone(),
            }
        };
        DevicePartitions {
            shape: self.shape,
            runs: copies.into_iter().map(run).collect(),
        }
    }
}
