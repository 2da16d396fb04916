//! What the operating system reports about this machine.

use std::fs;

/// Returns the host's name, or `localhost` if the operating system does not report it.
pub fn name() -> String {
    first_line("/proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".to_owned())
}

/// Returns the kernel's release, or an empty string if the operating system does not report it.
pub fn kernel_release() -> String {
    first_line("/proc/sys/kernel/osrelease").unwrap_or_default()
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}
