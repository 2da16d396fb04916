//! Memory that the system reports.

use std::fs;

/// Resident memory of this process in bytes; 0 if the system does not report it.
pub fn resident_bytes() -> u64 {
    kib_of("/proc/self/status", "VmRSS:") << 10
}

/// Address space of this process in bytes; 0 if the system does not report it.
pub fn virtual_bytes() -> u64 {
    kib_of("/proc/self/status", "VmSize:") << 10
}

/// Memory of the machine in bytes, or of the container if that has less; 0 if the system does not report it.
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
