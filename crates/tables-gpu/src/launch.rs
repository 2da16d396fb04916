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
        // SAFETY: every kernel of a fragment takes `Fragment`. It reads columns and writes or reads tables of joins,
        // divided rows, and totals or lists that are sorted, which the job's launch holds, and reads chunks and
        // tables and writes totals in the job's memory. The job is dropped only when the stream has run the kernel.
        // Nothing else writes this memory, except a job that sets the flag, a word that kernels read as volatile.
        // Tables of joins are read only by kernels that run behind those that fill them. A kernel that finds the flag
        // set leaves tables with fewer rows, and lists whose row numbers are not those of rows: kernels that run
        // behind it find the flag set before they use one as an index.
        unsafe { cuda.launch(kernel, shape, arguments, stream) }
    }
}
