//! Reads of memory that the processor begins ahead of their use.

/// Asks the processor to load the cache line in which a value begins. Does nothing on processors other than x86-64.
///
/// A loop that reads scattered memory asks for the lines of later rounds, so that more reads are in flight than the
/// processor finds by itself.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing and does not fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
