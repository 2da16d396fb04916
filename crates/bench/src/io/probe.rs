//! A trial of cuFile on a file, in a child process.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use forebay_device::cuda::DeviceView;
use forebay_device::cuda::cufile::{self, CuFile, DirectSupport};
use forebay_device::{DeviceOptions, Devices, HaltingDevices};

/// Name of the hidden subcommand of `forebay bench` that the child runs.
pub(crate) const COMMAND: &str = "cufile-probe";

/// Runs this program as a child process that reads a page of a file by cuFile.
///
/// # Errors
/// The reason, if cuFile does not work.
pub(super) fn try_in_child(file: &Path) -> Result<()> {
    let arguments = ["bench".as_ref(), COMMAND.as_ref(), file.as_os_str()];
    cufile::try_in_child(arguments)?;
    Ok(())
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
