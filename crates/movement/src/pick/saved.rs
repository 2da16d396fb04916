//! Measurements on disk, with their machine and date.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_device::cuda::Gpu;
use serde::{Deserialize, Serialize};

use super::{Measurements, Rate, Way};
use crate::storage::{FileReader, StoragePath};

/// Name of the file in the data directory.
pub const FILE_NAME: &str = "movement.json";

/// Maximum bytes of the file.
const BYTES_MAX: u64 = 1 << 20;

/// Version of the file's content.
const VERSION: u32 = 1;

/// The hardware on which rates were measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model and number of the processors.
    pub processors: String,
    /// Model of the GPU; `None` without one.
    pub gpu: Option<String>,
    /// CUDA version of the GPU's driver; `None` without a GPU.
    pub driver: Option<String>,
}

impl Machine {
    /// Returns this machine, with the GPU that is measured.
    pub fn this(gpu: Option<&Gpu>) -> Machine {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = text
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        Machine {
            processors: format!(
                "{} x {}",
                forebay_device::cores(),
                model.unwrap_or("unknown model")
            ),
            gpu: gpu.map(|gpu| gpu.model.clone()),
            driver: gpu.map(|gpu| gpu.driver_version.clone()),
        }
    }
}

/// Measurements with their machine and date.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedMeasurements {
    version: u32,
    /// Date and time of the measurements in UTC, as in `2026-11-23T23:30:00Z`.
    pub date: String,
    /// The hardware.
    pub machine: Machine,
    /// The rates.
    pub measurements: Measurements,
}

/// The measurements could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {why}", path.display())]
pub struct SaveError {
    path: PathBuf,
    why: io::Error,
}

impl SavedMeasurements {
    /// Returns measurements of a machine.
    pub fn new(date: String, machine: Machine, measurements: Measurements) -> SavedMeasurements {
        SavedMeasurements {
            version: VERSION,
            date,
            machine,
            measurements,
        }
    }

    /// Reads the measurements of a data directory, without the ways that this process may not use. Returns `None` if
    /// there are none of this hardware, or the file is damaged or of another version: then measure again.
    pub fn load(folder: &Path, machine: &Machine) -> Option<SavedMeasurements> {
        let path = folder.join(FILE_NAME);
        let found = fs::metadata(&path).ok()?;
        if !found.is_file() || found.len() > BYTES_MAX {
            return None;
        }
        let text = fs::read_to_string(path).ok()?;
        let mut saved: SavedMeasurements = serde_json::from_str(&text).ok()?;
        let rates = &mut saved.measurements.rates;
        let is_sound = |rate: &Rate| rate.bytes_per_s > 0.0 && rate.chunk_bytes > 0;
        if saved.version != VERSION || saved.machine != *machine || !rates.iter().all(is_sound) {
            return None;
        }
        if (FileReader::Uring { depth: 1 }).check().is_err() {
            rates.retain(|rate| rate.way != Way::Path(StoragePath::StagedUring));
        }
        Some(saved)
    }

    /// Writes the measurements to a data directory in one step: a reader sees the old file or the new one.
    ///
    /// # Errors
    /// [`SaveError`], if the directory cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), SaveError> {
        let path = folder.join(FILE_NAME);
        let new = folder.join(format!("{FILE_NAME}.new"));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from);
        let written = text.and_then(|text| fs::write(&new, text + "\n"));
        let renamed = written.and_then(|()| fs::rename(&new, &path));
        renamed.map_err(|why| {
            // The new file may not exist.
            let _ = fs::remove_file(&new);
            SaveError { path, why }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tier;

    #[test]
    fn measurements_are_read_back_on_the_same_hardware_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let machine = Machine::this(None);
        assert_eq!(SavedMeasurements::load(folder.path(), &machine), None);
        let measurements = Measurements {
            random_zero_copy_per_s: Some(6e7),
            rates: vec![Rate {
                source: Tier::File,
                way: Way::Path(StoragePath::Host),
                chunk_bytes: 4096,
                bytes_per_s: 1.5,
                cpu_s_per_gb: None,
            }],
        };
        let saved = SavedMeasurements::new(
            "2026-11-23T23:30:00Z".to_owned(),
            machine.clone(),
            measurements,
        );
        saved.save(folder.path()).expect("a writable folder");
        let text = fs::read_to_string(folder.path().join(FILE_NAME)).expect("it was written");
        assert_eq!(
            SavedMeasurements::load(folder.path(), &machine),
            Some(saved)
        );
        let other = Machine {
            gpu: Some("NVIDIA H100".to_owned()),
            ..machine.clone()
        };
        assert_eq!(SavedMeasurements::load(folder.path(), &other), None);
        let path = folder.path().join(FILE_NAME);
        for damaged in [
            "{",
            &text.replace("1.5", "-5.0"),
            &text.replace("host", "warp-drive"),
        ] {
            fs::write(&path, damaged).expect("a writable folder");
            assert_eq!(
                SavedMeasurements::load(folder.path(), &machine),
                None,
                "{damaged}"
            );
        }
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named() {
        let saved =
            SavedMeasurements::new(String::new(), Machine::this(None), Measurements::default());
        let error = saved
            .save(Path::new("/nowhere"))
            .expect_err("no such folder");
        assert!(
            error
                .to_string()
                .starts_with("cannot write /nowhere/movement.json: "),
            "{error}"
        );
    }
}
