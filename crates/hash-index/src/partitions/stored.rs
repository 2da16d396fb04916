//! Runs that kernels cannot read where they are.

use std::ops::Range;

use forebay_device::JobError;
use forebay_device::cuda::{Cuda, Stream};

use super::{
    DevicePartitions, DividedRun, RunShape, RunSlices, Slices, assert_is_aligned, bytes_of,
};
use crate::column::Column;

/// Runs of a side that are stored where kernels cannot read them, such as in a file. Joins of some of their partitions
/// read copies.
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

    /// Returns the bytes of a run that have the rows of some partitions; empty if it has none of these.
    ///
    /// # Panics
    /// If there is no such run, or there are fewer partitions.
    pub fn bytes(&self, run: usize, partitions: Range<usize>) -> Range<u64> {
        bytes_of(&self.runs[run].known[partitions], self.shape.width)
    }

    /// Returns the side that copies make, for a join of partitions whose rows these copies have.
    ///
    /// # Panics
    /// If there is no such run, or memory does not begin at a multiple of 16.
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
