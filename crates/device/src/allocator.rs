//! Settings of the C library's allocator: when it returns memory to the system.

/// Minimum bytes of a block for which the allocator maps separate pages. It returns these pages to the system when the
/// block is freed.
///
/// By default glibc raises this threshold to the size of the largest freed block, up to 32 MiB. Messages, documents and
/// replies are then allocated from per-thread heaps, which do not return freed memory to the system.
///
/// PERF: `cargo test -p forebay-server --test attack -- --nocapture`, 256 MiB of `--memory-bytes-max`, two busy cores,
/// November 2026, unoptimised. Resident memory before the attacks, and the maximum during the attacks: 140 and 373 to
/// 417 MiB with this value; 360 and 1,005 MiB (second run: 417 and 955) with glibc's default; 134 and 361 MiB with 256
/// KiB; 140 and 425 MiB with 4 MiB.
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
