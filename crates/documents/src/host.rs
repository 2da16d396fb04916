//! What the operating system says about this machine and this process.

use std::fs;

/// The host's name, `localhost` where the system does not say.
pub fn name() -> String {
    first_line("/proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".to_owned())
}

/// The kernel's release, empty where the system does not say.
pub fn kernel_release() -> String {
    first_line("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// Memory of the machine, or of the container if that has less, in bytes; 0 where the system does not say.
pub fn memory_bytes() -> u64 {
    let machine = kib_of("/proc/meminfo", "MemTotal:") << 10;
    let container = first_line("/sys/fs/cgroup/memory.max").and_then(|line| line.parse().ok());
    container.map_or(machine, |container: u64| container.min(machine))
}

/// Memory that this process occupies, in bytes; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    kib_of("/proc/self/status", "VmRSS:") << 10
}

/// Address space of this process, in bytes; 0 where the system does not say.
pub fn virtual_bytes() -> u64 {
    kib_of("/proc/self/status", "VmSize:") << 10
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}

fn kib_of(path: &str, key: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
