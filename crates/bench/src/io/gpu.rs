//! The GPU of a run, and the memory of a measurement.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use forebay_device::cuda::cufile::CuFile;
use forebay_device::cuda::{DeviceView, Pinned, Transfer, gpus};
use forebay_device::{Device, DeviceOptions, Devices, HaltingDevices};
use forebay_movement::method::{checksum_on, run_on_device};
use forebay_movement::storage::StoragePath;

use super::cell::{Cell, Operation};
use super::content;
use super::measure::{Found, Task};
use super::{direct, host, probe, staged};

/// A GPU, and cuFile if it works.
pub(super) struct Gpu {
    /// Dropped before the device: closing the library's driver needs the device's context.
    pub(super) cufile: Result<Arc<CuFile>, String>,
    pub(super) device: Arc<Device>,
    /// Dropped last.
    _devices: HaltingDevices,
}

impl Gpu {
    /// Starts the first GPU. Opens cuFile if it works in a child process, on a file.
    ///
    /// # Errors
    /// The reason, if there is no GPU or it does not start.
    pub(super) fn start(file: &Path) -> Result<Gpu, String> {
        Gpu::start_after(|| probe::try_in_child(file))
    }

    /// Starts the first GPU. Opens cuFile if a trial succeeds.
    fn start_after(tried: impl Fn() -> Result<()>) -> Result<Gpu, String> {
        gpus().map_err(|error| error.to_string())?;
        let text = |error: &dyn std::error::Error| error.to_string();
        let spec = "cuda:0".parse().map_err(|error| text(&error))?;
        let devices =
            Devices::new(&spec, DeviceOptions::default()).map_err(|error| text(&error))?;
        let cufile = tried()
            .map_err(|error| format!("{error:#}"))
            .and_then(|()| CuFile::open().map_err(|error| text(&error)));
        Ok(Gpu {
            cufile,
            device: devices.list().remove(0),
            _devices: devices.into(),
        })
    }

    /// Returns why a path cannot be measured.
    pub(super) fn lacks(&self, path: StoragePath) -> Option<&str> {
        match path {
            StoragePath::Direct(_) => self.cufile.as_ref().err().map(String::as_str),
            _ => None,
        }
    }

    /// Measures a cell between the file and the memory of the GPU.
    ///
    /// # Errors
    /// If an operation fails, or moves wrong bytes.
    pub(super) fn measure(&self, task: &Task<'_>) -> Result<Found> {
        match (task.cell.path, &self.cufile) {
            (StoragePath::Direct(mode), Ok(cufile)) => direct::measure(self, cufile, mode, task),
            _ => staged::measure(self, task),
        }
    }

    /// Returns views of `count` buffers in one allocation; for writes they hold the content of the task's seed.
    ///
    /// # Errors
    /// If the GPU's memory is too small.
    pub(super) fn buffers(
        &self,
        task: &Task<'_>,
        count: usize,
    ) -> Result<(DeviceView<u8>, Vec<DeviceView<u8>>)> {
        let bytes = task.cell.bytes;
        let memory = Arc::new(self.device.allocate((count * bytes) as u64)?);
        let all = DeviceView::of(&memory, 0..count * bytes);
        let views: Vec<_> = (0..count)
            .map(|index| all.view(index * bytes..(index + 1) * bytes))
            .collect();
        if task.cell.operation == Operation::Write {
            let mut pinned = self.device.pinned(bytes)?;
            content::fill(&mut pinned, task.seed, 0);
            let (pinned, to) = (Arc::new(pinned), views.clone());
            run_on_device(&self.device, move |cuda| {
                for view in to {
                    Transfer::begin(cuda, Arc::clone(&pinned), view, cuda.uploads())?.finish()?;
                }
                Ok(())
            })?;
        }
        Ok((all, views))
    }

    /// Returns pinned memory of a buffer.
    ///
    /// # Errors
    /// If the host cannot pin more.
    pub(super) fn pinned(&self, bytes: usize) -> Result<Pinned> {
        let pinned = self.device.pinned(bytes);
        pinned.with_context(|| format!("{bytes} bytes of pinned memory"))
    }

    /// Checks the bytes that were read into the memory of the GPU from an offset.
    ///
    /// # Errors
    /// If they are not those of the file.
    pub(super) fn check(&self, cell: &Cell, view: DeviceView<u8>, offset: u64) -> Result<()> {
        host::check_sum(cell, offset, || Ok(checksum_on(&self.device, view)?))
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::time::Duration;

    use super::super::cell::{Cache, Pattern};
    use super::super::content::Files;
    use super::super::measure::Extent;
    use super::*;

    /// Returns whether an environment variable asks for what is missing.
    fn is_required(name: &str) -> bool {
        env::var_os(name).is_some_and(|value| value == "1")
    }

    fn cells(path: StoragePath) -> Vec<Cell> {
        let mut cells = Vec::new();
        for operation in [Operation::Read, Operation::Write] {
            for pattern in [Pattern::Sequential, Pattern::Random] {
                for parallel in [1, 4] {
                    cells.push(Cell {
                        path,
                        cache: Cache::Bypass,
                        pattern,
                        operation,
                        bytes: 65_536,
                        parallel,
                    });
                }
            }
        }
        cells
    }

    #[test]
    fn every_path_moves_the_right_bytes_to_and_from_the_gpu() {
        let gpu = match Gpu::start_after(|| Ok(())) {
            Ok(gpu) => gpu,
            Err(why) => {
                assert!(!is_required("FOREBAY_REQUIRE_GPU"), "{why}");
                println!("skipped: {why}");
                return;
            }
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::make(folder.path(), 4 << 20).expect("room");
        let paths = StoragePath::ALL
            .into_iter()
            .filter(|path| *path != StoragePath::Host);
        let mut seed = 0;
        for cell in paths.flat_map(cells) {
            if let Some(why) = gpu.lacks(cell.path) {
                assert!(!is_required("FOREBAY_REQUIRE_CUFILE"), "{why}");
                println!("skipped: {why}");
                continue;
            }
            for extent in [Extent::Time(Duration::from_millis(20)), Extent::Checked] {
                seed += 1;
                let task = Task {
                    cell: &cell,
                    files: &files,
                    seed,
                    extent,
                };
                let least = if extent == Extent::Checked { 64 } else { 1 };
                match gpu.measure(&task) {
                    Ok(found) => assert!(found.operations() >= least, "{cell}"),
                    Err(error) => {
                        // Without an entry in udev's database, cuFile refuses every file.
                        let is_refused = error.to_string().contains("cuFile cannot use");
                        let may_skip = is_refused && !is_required("FOREBAY_REQUIRE_CUFILE");
                        assert!(may_skip, "{cell}: {error:#}");
                        println!("skipped: {error}");
                    }
                }
            }
        }
        assert_eq!(gpu.device.memory_used_bytes(), 0, "all memory is free");
    }
}
