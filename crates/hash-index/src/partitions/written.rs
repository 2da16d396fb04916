//! Copies of the used bytes of runs to pinned host memory.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::cuda::{Cuda, DeviceView, Event, HostRegistration, Part, Stream};
use forebay_device::{AlignedBytes, DeviceFault, JobError};

use super::{Slices, bytes_of};
use crate::index::read_all;
use crate::kernels::Slice;
use crate::launch::{self, InFlight};

/// A part of pinned host memory that kernels write.
pub(crate) type HostPart = Part<HostRegistration<AlignedBytes>>;

/// What a kernel that writes a run uses: the run, its last slice, and the memory to which the kernel writes.
pub(crate) type UsedToWrite = (DeviceView<u8>, DeviceView<Slice>, HostPart);

/// A copy of the used bytes of a run to pinned host memory, in flight. Dropping it waits for the copy.
#[derive(Debug)]
pub struct RunCopy(InFlight);

impl RunCopy {
    /// Returns the event that completes when the copy is done.
    pub fn event(&self) -> &Arc<Event> {
        self.0.event()
    }

    /// Blocks until the copy is done, and returns the memory to which it went.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn finish(self) -> Result<HostPart, DeviceFault> {
        let used: Box<UsedToWrite> = self.0.finish()?;
        let (_, _, to) = *used;
        Ok(to)
    }
}

impl Slices {
    /// Queues a kernel that copies the used bytes of a run from device memory to pinned host memory, and returns at
    /// once. The host need not know how many bytes are used. The stream must wait for the kernels that divide the
    /// run.
    ///
    /// # Errors
    /// If the kernel does not compile, or the device fails.
    ///
    /// # Panics
    /// If there is no such run, or a memory is too small, not aligned to 16 bytes, or that of another device.
    pub fn copy_async(
        &self,
        cuda: &mut Cuda,
        (run, from): (usize, &DeviceView<u8>),
        to: HostPart,
        stream: &Stream,
    ) -> Result<RunCopy, JobError> {
        let from = from.view(0..self.shape.bytes() as usize);
        let end = self.of_run(run).end;
        let last = self.slices.view(end - 1..end);
        let writing = launch::write_run(cuda, (&from, &last), (to, self.shape.width), stream)?;
        Ok(RunCopy(writing))
    }

    /// Returns the bytes that are used of the memory of each of these runs, from the first one on. Blocks until the
    /// earlier work of the stream is done.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there are no such runs.
    pub fn used_bytes(
        &self,
        cuda: &Cuda,
        runs: Range<usize>,
        stream: &Stream,
    ) -> Result<Vec<u64>, JobError> {
        let partitions = self.shape.partitions();
        let of_runs = runs.start * partitions..runs.end * partitions;
        let slices = read_all(cuda, self.slices.view(of_runs), stream)?;
        let of_run = |slices: &[Slice]| bytes_of(slices, self.shape.width).end;
        Ok(slices.chunks(partitions).map(of_run).collect())
    }
}
