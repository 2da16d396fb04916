//! Memory sizes that the operating system reports.

use std::fs;

/// Returns the resident memory of this process in bytes, or 0 if the operating system does not report it.
pub fn resident_bytes() -> u64 {
    kib_of("/proc/self/status", "VmRSS:") << 10
}

/// Returns the address space of this process in bytes, or 0 if the operating system does not report it.
pub fn virtual_bytes() -> u64 {
    kib_of("/proc/self/status", "VmSize:") << 10
}

/// Returns the memory of the machine, or of the container if that has less, in bytes. Returns 0 if the operating system
/// does not report it.
pub fn machine_bytes() -> u64 {
    let machine = kib_of("/proc/meminfo", "MemTotal:") << 10;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = limit.and_then(|limit| limit.trim().parse().ok());
    container.map_or(machine, |container: u64| container.min(machine))
}

fn kib_of(path: &str, key: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
