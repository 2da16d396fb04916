//! The calls of this crate that the compiler cannot check: launches of kernels, and of the loop for wide vectors.

use forebay_device::JobError;
use forebay_device::cuda::{Cuda, Kernel, LaunchShape, Stream};

use super::cpu::sum_inline;
use super::kernels::Groups;

/// Queues a kernel of the query. The caller keeps the row groups and the total until the stream has run the kernel, and
/// does not access them before.
pub(super) fn query(
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
