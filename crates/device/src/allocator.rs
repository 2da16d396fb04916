//! Settings of the C library's allocator: when it returns memory to the system; memory in huge pages.

use std::mem::MaybeUninit;
use std::thread;

use crate::PAGE_BYTES;
use crate::aligned::HUGE_PAGE_BYTES;

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

/// Maximum bytes of free memory at the end of a heap, and by how much a heap grows. glibc's default is 128 KiB for
/// both: each batch of rows that a query frees would shrink its heap, and the next would grow it again, page by page.
///
/// PERF: TPC-H at scale factor 1 on two busy cores, November 2026; processor seconds of queries 1 and 13, then page
/// faults:
/// - with 64 and 16 MiB: 0.48 and 0.33; 3,008 and 3
/// - with 32 and 4 MiB: 0.51 and 0.36; 12,002 and 20,035
/// - with glibc's default: 0.56 and 0.39; 37,183 and 32,786
const KEPT_BYTES_MAX: u64 = 64 << 20;
const GROWTH_PART: u64 = 4;
/// Heaps of each core, as glibc makes them for threads.
const HEAPS_OF_CORE: u64 = 8;
/// Part of the process's memory that all heaps together may keep: an eighth.
const KEPT_PART: u64 = 8;
/// If a heap's share of that is less, heaps keep glibc's default: `malloc_trim` does not return the end of a heap, and
/// the requests of a small process need these bytes.
const KEPT_BYTES_MIN: u64 = 16 << 20;

/// Asks the system for huge pages for the whole pages of memory that was not written yet. Where it has none, nothing
/// changes.
pub(crate) fn advise_huge_pages<T>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        let bytes = size_of_val(memory);
        let begin: *mut u8 = memory.as_mut_ptr().cast();
        let lead = begin.align_offset(PAGE_BYTES).min(bytes);
        let pages = (bytes - lead) / PAGE_BYTES * PAGE_BYTES;
        if pages < HUGE_PAGE_BYTES {
            return;
        }
        // SAFETY: the pages lie within `memory`, and the advice does not change what they hold. An error is ignored.
        unsafe {
            libc::madvise(begin.add(lead).cast(), pages, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Returns a vector of `count` values, in huge pages where the system has them. `threads` threads write them; one is
/// the calling thread.
///
/// # Panics
/// If `value` panics, or the system refuses a thread.
pub fn vec_in_huge_pages<T: Send>(
    count: usize,
    threads: usize,
    value: impl Fn() -> T + Sync,
) -> Vec<T> {
    let mut values: Vec<T> = Vec::with_capacity(count);
    let memory = &mut values.spare_capacity_mut()[..count];
    advise_huge_pages(memory);
    let write = |part: &mut [MaybeUninit<T>]| {
        for place in part {
            place.write(value());
        }
    };
    let write = &write;
    let share = count.div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        let mut parts = memory.chunks_mut(share);
        let own = parts.next().unwrap_or_default();
        for part in parts {
            scope.spawn(move || write(part));
        }
        write(own);
    });
    // SAFETY: the vector has room for `count` values, and all parts, which are the values, are written: the scope has
    // waited for its threads, and panics if one did.
    unsafe { values.set_len(count) };
    values
}

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

/// Lets heaps keep some of the memory that is freed, for a process of at most `limit_bytes`. Changes nothing for a
/// small process.
pub fn keep_free_memory(limit_bytes: u64) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let kept_bytes = (limit_bytes / KEPT_PART / (HEAPS_OF_CORE * cores)).min(KEPT_BYTES_MAX);
    if kept_bytes < KEPT_BYTES_MIN {
        return;
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = kept_bytes;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, bytes) in [
        (libc::M_TRIM_THRESHOLD, kept_bytes),
        (libc::M_TOP_PAD, kept_bytes / GROWTH_PART),
    ] {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: `mallopt` takes two numbers and touches only the allocator's own state, under its lock.
        let is_set = unsafe { libc::mallopt(parameter, bytes) };
        debug_assert!(is_set != 0, "the allocator refuses {bytes} bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_write_all_values_of_a_vector() {
        for count in [0, 1, 7, 1000] {
            for threads in [0, 1, 3, 8] {
                let values = vec_in_huge_pages(count, threads, || "a value".to_owned());
                assert_eq!(values, vec!["a value"; count], "{threads} threads");
            }
        }
    }
}
