//! Slices of runs that the CPU has divided.

use forebay_device::JobError;
use forebay_device::cuda::{Cuda, Stream};

use super::{Slices, upload};
use crate::host::HostSlices;
use crate::kernels::Slice;

impl Slices {
    /// Copies the slices of runs that the CPU has divided to device memory: those of the run `first`, then those of the
    /// runs after it. Blocks until they are there.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there are no such runs, one was divided before, or they have another number of partitions.
    pub fn write(
        &mut self,
        cuda: &Cuda,
        first: usize,
        runs: &[HostSlices],
        stream: &Stream,
    ) -> Result<(), JobError> {
        let of_runs = first..first + runs.len();
        for was_divided in &mut self.divided[of_runs.clone()] {
            assert!(!*was_divided, "a run is divided a second time");
            *was_divided = true;
        }
        let slices: Vec<Slice> = runs.iter().flat_map(|run| &run.0).copied().collect();
        let partitions = self.shape.partitions();
        let of_runs = of_runs.start * partitions..of_runs.end * partitions;
        upload(cuda, &slices, self.slices.view(of_runs), stream)
    }
}
