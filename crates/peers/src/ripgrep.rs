//! ripgrep, run on one file with one thread, as the fastest way to count matching lines.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Returns the first line of `rg --version`.
///
/// # Errors
/// If ripgrep is not installed.
pub fn version() -> Result<String> {
    let output = Command::new("rg")
        .arg("--version")
        .output()
        .context("ripgrep (rg) is not installed")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .next()
        .map(str::to_owned)
        .context("rg --version prints nothing")
}

/// Counts the matching lines of `file`, with `rg -c -j1`.
///
/// # Errors
/// If ripgrep is not installed or refuses the pattern.
pub fn count(file: &Path, pattern: &str, ignore_case: bool) -> Result<u64> {
    let mut command = Command::new("rg");
    command.args(["--no-config", "-c", "-j1"]);
    if ignore_case {
        command.arg("-i");
    }
    let output = command
        .arg("-e")
        .arg(pattern)
        .arg(file)
        .output()
        .context("ripgrep (rg) is not installed")?;
    match output.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?),
        Some(1) => Ok(0),
        _ => bail!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}
