//! The GPU of a run, and the memory of a measurement.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use forebay_device::cuda::cufile::CuFile;
use forebay_device::cuda::{DeviceView, Pinned, Transfer, gpus};
use forebay_device::{Device, DeviceOptions, Devices};
use forebay_movement::method::{ask, checksum_on};
use forebay_movement::storage::StoragePath;

use super::cell::{Cell, Operation};
use super::content::{self, Files};
use super::measure::Found;
use super::{direct, probe, staged};

/// A GPU, and cuFile if it works.
pub(super) struct Gpu {
    /// Dropped before the device: closing the library's driver needs the device's context.
    pub(super) cufile: Result<Arc<CuFile>, String>,
    pub(super) device: Arc<Device>,
    _devices: Devices,
}

impl Gpu {
    /// Starts the first GPU. Opens cuFile if it works in a child process, on a file.
    ///
    /// # Errors
    /// The reason, if there is no GPU or it does not start.
    pub(super) fn start(file: &Path) -> Result<Gpu, String> {
        gpus().map_err(|error| error.to_string())?;
        let text = |error: &dyn std::error::Error| error.to_string();
        let spec = "cuda:0".parse().map_err(|error| text(&error))?;
        let devices =
            Devices::new(&spec, DeviceOptions::default()).map_err(|error| text(&error))?;
        let cufile = probe::try_in_child(file)
            .map_err(|error| format!("{error:#}"))
            .and_then(|()| CuFile::open().map_err(|error| text(&error)));
        Ok(Gpu {
            cufile,
            device: devices.list().remove(0),
            _devices: devices,
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
    pub(super) fn measure(
        &self,
        cell: &Cell,
        files: &Files,
        budget: Duration,
        seed: u64,
    ) -> Result<Found> {
        match (cell.path, &self.cufile) {
            (StoragePath::Direct(mode), Ok(cufile)) => {
                direct::measure(self, cufile, mode, (cell, seed), files, budget)
            }
            _ => staged::measure(self, (cell, seed), files, budget),
        }
    }

    /// Returns views of `count` buffers in one allocation; for writes they hold content of a seed.
    ///
    /// # Errors
    /// If the GPU's memory is too small.
    pub(super) fn buffers(
        &self,
        (cell, seed): (&Cell, u64),
        count: usize,
    ) -> Result<(DeviceView<u8>, Vec<DeviceView<u8>>)> {
        let bytes = cell.bytes;
        let memory = Arc::new(self.device.allocate((count * bytes) as u64)?);
        let all = DeviceView::of(&memory, 0..count * bytes);
        let views: Vec<_> = (0..count)
            .map(|index| all.view(index * bytes..(index + 1) * bytes))
            .collect();
        if cell.operation == Operation::Write {
            let mut pinned = self.device.pinned(bytes)?;
            content::fill(&mut pinned, seed, 0);
            let (pinned, to) = (Arc::new(pinned), views.clone());
            ask(&self.device, move |cuda| {
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
        if cell.operation == Operation::Read {
            let right = content::expected_of_file(cell.bytes, offset);
            ensure!(
                checksum_on(&self.device, view)? == right,
                "{}: wrong bytes at offset {offset}",
                cell.case()
            );
        }
        Ok(())
    }
}
