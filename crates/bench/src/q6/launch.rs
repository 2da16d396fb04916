//! The calls of this crate that the compiler cannot check: launches of kernels, and of the loop for wide vectors.

use std::error::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_device::JobError;
use forebay_device::cuda::{Cuda, DevicePointer, DeviceView, Kernel, LaunchShape, Stream};
use forebay_movement::{Chunk, Consumer, Total};

use super::consumer::Query;
use super::cpu::{self, sum_inline};
use super::gpu::{Resident, duration};
use super::kernels::{Entry, Groups};
use super::table::GROUP_BYTES;

/// Queues a kernel of the query.
///
/// # Safety
/// The row groups and the total stay allocated, and nothing else writes them, until the stream has run the kernel.
unsafe fn launch(
    cuda: &Cuda,
    kernel: &Kernel,
    shape: &LaunchShape,
    groups: &Groups,
    stream: &Stream,
) -> Result<(), JobError> {
    // SAFETY: every kernel of the query takes `Groups`, reads `count` row groups at `words`, and adds to one total with
    // an atomic operation. The caller keeps both.
    unsafe { cuda.launch(kernel, shape, groups, stream) }
}

/// Runs a kernel once over row groups, on at most `blocks` blocks, and waits. Returns its time on the device.
///
/// # Errors
/// If the kernel cannot be compiled or launched, or the device fails.
pub(super) fn run(
    cuda: &mut Cuda,
    entry: Entry,
    (groups, blocks): (&Resident, Option<u64>),
    total: &Total,
    stream: &Stream,
) -> Result<Duration, JobError> {
    let kernel = entry.load(cuda)?;
    let shape = entry.shape(&kernel, groups.groups(), blocks)?;
    let arguments = Groups {
        words: groups.words(),
        count: groups.groups(),
        total: total.pointer_mut(),
    };
    let (began, ended) = (cuda.event()?, cuda.event()?);
    cuda.record(&began, stream)?;
    // SAFETY: this function borrows the row groups and the total until it has waited for the stream.
    let launched = unsafe { launch(cuda, &kernel, &shape, &arguments, stream) };
    let recorded = cuda.record(&ended, stream);
    cuda.synchronize(stream)?;
    launched.and(recorded.map_err(JobError::from))?;
    duration(&began, &ended)
}

impl Query {
    /// Runs the kernel over row groups in device memory, and waits.
    ///
    /// # Errors
    /// If the kernel cannot be launched, or the device fails.
    ///
    /// # Panics
    /// If this is a consumer for the CPU, or the bytes are not whole groups.
    pub(super) fn run(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        // SAFETY: this function borrows the row groups and the consumer until it has waited for the stream.
        let queued = unsafe { self.queue(cuda, stream, bytes) };
        cuda.synchronize(stream)?;
        queued
    }

    /// Queues the kernel over row groups in device memory.
    ///
    /// # Safety
    /// The row groups and this consumer are kept, and nothing else writes them, until the stream has run the kernel.
    unsafe fn queue(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        let total = self.total.as_ref().expect("a consumer for a GPU");
        assert!(
            bytes.len().is_multiple_of(GROUP_BYTES),
            "{} bytes",
            bytes.len()
        );
        let kernel = Entry::Query.load(cuda)?;
        let arguments = Groups {
            words: DevicePointer::new(bytes.pointer().address()),
            count: (bytes.len() / GROUP_BYTES) as u64,
            total: total.pointer_mut(),
        };
        let shape = Entry::Query.shape(&kernel, arguments.count, None)?;
        for _ in 0..self.repeats {
            // SAFETY: the caller keeps the row groups and the total.
            unsafe { launch(cuda, &kernel, &shape, &arguments, stream) }?;
        }
        Ok(())
    }
}

impl Consumer for Query {
    fn enqueue(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        _: Chunk,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        // SAFETY: the ring keeps the consumer and the chunk's memory until the stream has run what is queued here.
        unsafe { self.queue(cuda, stream, bytes) }
    }

    fn process(&self, _: Chunk, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        for _ in 0..self.repeats {
            self.sum.fetch_add(cpu::sum(bytes), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Returns the answer over whole row groups, with the widest vectors that the processor has.
pub(super) fn on_widest_vectors(groups: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the feature, as checked above.
            return unsafe { with_avx512(groups) };
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature, as checked above.
            return unsafe { with_avx2(groups) };
        }
    }
    sum_inline(groups)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn with_avx512(groups: &[u8]) -> u64 {
    sum_inline(groups)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(groups: &[u8]) -> u64 {
    sum_inline(groups)
}
