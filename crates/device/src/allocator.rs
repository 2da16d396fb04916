//! Settings of the C library's allocator: when it returns memory to the system.

/// Minimum bytes of a block for which the allocator maps separate pages. It returns these pages to the system when the
/// block is freed.
///
/// By default glibc raises this threshold to the size of the largest freed block, up to 32 MiB. Messages, documents and
/// replies are then allocated from per-thread heaps, which do not return freed memory to the system.
///
/// PERF: `cargo test -p forebay-server --test attack -- --nocapture`, 256 MiB of `--memory-bytes-max`, two busy cores,
/// November 2026, debug build. Resident memory in MiB before the attacks, then its maximum during the attacks:
/// - with this value: 140, then 373 to 417
/// - with glibc's default: 360, then 1,005 (second run: 417, then 955)
/// - with 256 KiB: 134, then 361
/// - with 4 MiB: 140, then 425
const MAPPED_BYTES_MIN: i32 = 1 << 20;

/// Returns the allocator's free pages to the system. Takes the allocator's locks one after another; runs for some
/// milliseconds.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes a number and touches only free memory, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Configures the allocator to return large blocks to the system when they are freed. Must be called before the program
/// starts other threads.
pub fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes two numbers and touches only the allocator's own state, under its lock.
    let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) };
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let is_set = MAPPED_BYTES_MIN;
    debug_assert!(
        is_set != 0,
        "the allocator refuses a mapping threshold of {MAPPED_BYTES_MIN} bytes"
    );
}
