//! How the system's allocator gives memory back.

/// Blocks of at least this many bytes are mapped for themselves, and given back to the system when they are freed.
///
/// By default glibc raises this to the size of the largest block that was freed, up to 32 MiB: then messages, documents and
/// replies come from heaps of the threads, which keep what is freed.
///
/// PERF: `cargo test -p forebay-server --test attack -- --nocapture`, 256 MiB of `--memory-bytes-max`, two busy cores, November
/// 2026, unoptimised; resident memory before the
/// attacks and at most: 140 and 373 to 417 MiB with this, 360 and 1,005 MiB (417 and 955 in another run) with glibc's default; 134 and
/// 361 MiB from 256 KiB on, 140 and 425 MiB from 4 MiB on.
const MAPPED_BYTES_MIN: i32 = 1 << 20;

/// Has the allocator return the pages that are free to the system. Takes its locks one after another, for some milliseconds.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes a number and touches nothing but what is free, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the allocator give large blocks back to the system when they are freed. To be called before other threads start.
pub fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes two numbers and touches nothing but the allocator's own state, under its own lock.
    let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) };
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let is_set = MAPPED_BYTES_MIN;
    debug_assert!(is_set != 0, "the allocator refuses {MAPPED_BYTES_MIN}");
}
