//! The memory of this machine.

use std::fs;

/// Returns the number of bytes of memory of this machine; 8 GiB if the system does not report them.
pub(crate) fn host_memory_bytes() -> u64 {
    const UNKNOWN_BYTES: u64 = 8 << 30;
    kib_of("MemTotal:").map_or(UNKNOWN_BYTES, |kib| kib.saturating_mul(1024))
}

/// Returns how many bytes of host memory this process can still allocate: the lesser of what the machine has
/// available and what its container leaves. Returns `u64::MAX` if the system reports neither.
pub fn available_host_bytes() -> u64 {
    let machine = kib_of("MemAvailable:").map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    container_bytes().map_or(machine, |left| left.min(machine))
}

/// Returns how many bytes the container of this process leaves; `None` if it has no memory limit.
fn container_bytes() -> Option<u64> {
    let read = |name| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    left_of(
        &read("memory.max")?,
        &read("memory.current")?,
        &read("memory.stat")?,
    )
}

/// Returns how many bytes a container leaves, from the contents of `memory.max`, `memory.current` and `memory.stat`;
/// `None` if it has no limit.
fn left_of(max: &str, current: &str, statistics: &str) -> Option<u64> {
    let (limit, used) = (number(max, "")?, number(current, "")?);
    // The kernel reclaims cached pages of files when memory is short, but not those of tmpfs and shared memory.
    let cached = number(statistics, "file ")?.saturating_sub(number(statistics, "shmem ")?);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// Returns the KiB of a line of `/proc/meminfo`; `None` if it is missing.
fn kib_of(key: &str) -> Option<u64> {
    number(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

/// Returns the number after the first key that begins a line of a text; `None` without such a line or number.
fn number(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_the_memory_is_available() {
        let available = available_host_bytes();
        assert!(
            (1..=host_memory_bytes()).contains(&available),
            "{available}"
        );
    }

    #[test]
    fn a_container_leaves_what_is_not_used_and_cached_files_but_not_tmpfs() {
        let statistics = "anon 300\nfile 500\nkernel 10\nshmem 200\nshmem_thp 7\nfile_mapped 60\n";
        assert_eq!(left_of("2000\n", "900\n", statistics), Some(1400));
        assert_eq!(left_of("500\n", "900\n", statistics), Some(0));
        assert_eq!(left_of("max\n", "900\n", statistics), None);
    }
}
