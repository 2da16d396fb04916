//! A trial of cuFile in a child process: on some machines the library crashes, and the crash must not end this process.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_device::cuda::DeviceView;
use forebay_device::cuda::cufile::{CuFile, DirectSupport};
use forebay_device::{DeviceOptions, Devices, HaltingDevices};

/// Name of the hidden subcommand of `forebay bench` that the child runs.
pub(crate) const COMMAND: &str = "cufile-probe";

/// How long the child may take; opening the driver takes about half a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs this program as a child process that reads a page of a file by cuFile.
///
/// # Errors
/// The reason, if cuFile does not work: the child's error, its crash, or its silence.
pub(super) fn try_in_child(file: &Path) -> Result<()> {
    let program = std::env::current_exe().context("this program has no path")?;
    let log = tempfile::NamedTempFile::new().context("a file for cuFile's log")?;
    let mut child = Command::new(program)
        .args(["bench", COMMAND])
        .arg(file)
        .env("CUFILE_LOGFILE_PATH", log.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting a child process that tries cuFile")?;
    let Some(status) = wait(&mut child)? else {
        child.kill().ok();
        child.wait().ok();
        bail!("cuFile did not answer within {PATIENCE:?} in a child process");
    };
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    if let Some(mut errors) = child.stderr.take() {
        std::io::Read::read_to_string(&mut errors, &mut text).ok();
    }
    match reason(&text) {
        Some(why) if status.code().is_some() => bail!("{why}"),
        _ => bail!(
            "cuFile crashed a child process ({status}); {}",
            last_line(log.path())
        ),
    }
}

/// Returns this program's error in the text of the child, in which the library may have written too.
fn reason(text: &str) -> Option<&str> {
    let mut lines = text.lines().rev();
    lines.find_map(|line| line.strip_prefix("forebay: "))
}

/// Waits for the child; `None` if it takes too long.
fn wait(child: &mut Child) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(None)
}

/// Returns the last line of cuFile's log.
fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("the last line of its log: {}", line.trim()),
        None => "its log is empty".to_owned(),
    }
}

/// Reads a page of a file by cuFile, and prints what cuFile can do. The child process runs this.
///
/// # Errors
/// If cuFile does not work.
pub(crate) fn run(path: &Path) -> Result<()> {
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(16 << 20),
        pinned_pool_bytes: 4 << 20,
        ..DeviceOptions::default()
    };
    let devices = HaltingDevices::from(Devices::new(&"cuda:0".parse()?, options)?);
    let device = devices.list().remove(0);
    let cufile = CuFile::open()?;
    let file = File::options().read(true).write(true).open(path);
    let file = file.with_context(|| format!("opening {}", path.display()))?;
    let handle = cufile.register(file, path)?;
    let memory = Arc::new(device.allocate(4096)?);
    let memory = cufile.register_memory(DeviceView::of(&memory, 0..4096))?;
    let read = handle.read(0, &memory)?;
    println!("{read} bytes by {}", DirectSupport::detect());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_childs_error_is_found_among_the_librarys_messages() {
        let text = "dlopen error libcuda.so.1\nforebay: cuFileDriverOpen failed\n";
        assert_eq!(reason(text), Some("cuFileDriverOpen failed"));
        assert_eq!(reason("Segmentation fault\n"), None);
    }

    #[test]
    fn the_last_line_of_the_log_is_quoted() {
        let log = tempfile::NamedTempFile::new().expect("a temporary file");
        assert_eq!(last_line(log.path()), "its log is empty");
        std::fs::write(log.path(), "first\nERROR no such entry\n\n").expect("room");
        assert!(last_line(log.path()).ends_with(": ERROR no such entry"));
    }
}
