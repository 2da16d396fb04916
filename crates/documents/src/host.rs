//! What the operating system reports about this machine.

use std::fs;

/// The host's name, `localhost` where the system does not say.
pub fn name() -> String {
    first_line("/proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".to_owned())
}

/// The kernel's release, empty where the system does not say.
pub fn kernel_release() -> String {
    first_line("/proc/sys/kernel/osrelease").unwrap_or_default()
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}
