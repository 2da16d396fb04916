//! The memory of this machine.

use std::fs;

/// Returns the number of bytes of memory of this machine; 8 GiB if the system does not report them.
pub(crate) fn host_memory_bytes() -> u64 {
    const UNKNOWN_BYTES: u64 = 8 << 30;
    kib_of("MemTotal:").map_or(UNKNOWN_BYTES, |kib| kib.saturating_mul(1024))
}

/// Returns how many bytes of host memory this process can still take: those that the machine has available, or those
/// that its container leaves if they are fewer. Returns `u64::MAX` if the system does not report them.
pub fn available_host_bytes() -> u64 {
    let machine = kib_of("MemAvailable:").map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    container_bytes().map_or(machine, |left| left.min(machine))
}

/// Returns how many bytes the container of this process leaves; `None` if it has no limit.
fn container_bytes() -> Option<u64> {
    let limit = number("/sys/fs/cgroup/memory.max", "")?;
    let used = number("/sys/fs/cgroup/memory.current", "")?;
    // The system gives up cached pages of files when memory is needed.
    let cached = number("/sys/fs/cgroup/memory.stat", "file ")?;
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

fn kib_of(key: &str) -> Option<u64> {
    number("/proc/meminfo", key)
}

/// Returns the number after the first key that begins a line of a file; `None` without such a line or number.
fn number(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
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
}
