//! When the C library's allocator returns memory to the system.

/// Minimum bytes of a block that has its own mapping, which is returned to the system when the block is freed.
///
/// By default glibc raises this to the size of the largest freed block, up to 32 MiB: then messages, documents and
/// replies come from the heaps of threads, which keep freed memory.
///
/// PERF: `cargo test -p forebay-server --test attack -- --nocapture`, 256 MiB of `--memory-bytes-max`, two busy cores,
/// November 2026, unoptimised. Resident memory before the attacks, and at most: 140 and 373 to 417 MiB with this value;
/// 360 and 1,005 MiB (417 and 955 in another run) with glibc's default; 134 and 361 MiB with 256 KiB; 140 and 425 MiB
/// with 4 MiB.
const MAPPED_BYTES_MIN: i32 = 1 << 20;

/// Returns free pages of the allocator to the system. Takes the allocator's locks one after another, for some
/// milliseconds.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes a number and touches free memory alone, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Sets the allocator to return large blocks to the system when they are freed. The program must call it before it
/// starts other threads.
pub fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes two numbers and touches the allocator's own state alone, under its lock.
    let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) };
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let is_set = MAPPED_BYTES_MIN;
    debug_assert!(is_set != 0, "the allocator refuses {MAPPED_BYTES_MIN}");
}
