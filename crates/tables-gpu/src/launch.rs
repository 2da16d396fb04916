//! The call of this crate that the compiler cannot check: the launch of a kernel.

use forebay_device::JobError;
use forebay_device::cuda::{Cuda, Kernel, LaunchShape, Stream};

use crate::arguments::Fragment;
use crate::gpu::FragmentJob;

impl FragmentJob {
    /// Queues a kernel. `arguments` are those of the job's launch and memory.
    ///
    /// # Errors
    /// If the kernel cannot be launched, or the device fails.
    pub(crate) fn queue(
        &self,
        cuda: &Cuda,
        (kernel, shape): (&Kernel, &LaunchShape),
        arguments: &Fragment,
        stream: &Stream,
    ) -> Result<(), JobError> {
        // SAFETY: every kernel of a fragment takes `Fragment`. It reads columns, which the job's launch holds, and what is
        // in the job's memory: chunks, parts, tables, and the words that kernels before it on the stream stored. It
        // writes its words and totals there. The job is dropped only when the stream has run the kernel, and nothing
        // else uses its memory.
        unsafe { cuda.launch(kernel, shape, arguments, stream) }
    }
}
