//! Measurements on disk, with their machine and date.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use forebay_device::cuda::Gpu;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

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

/// Why a data directory has no measurements of this machine. Measuring again is the remedy for each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no file.
    #[error("there is no {FILE_NAME}")]
    Missing,
    /// The file cannot be read.
    #[error("{FILE_NAME} cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file's content is damaged, or of another version of this program.
    #[error("{FILE_NAME} is damaged, or of another version")]
    Damaged,
    /// The measurements are of other hardware.
    #[error("{FILE_NAME} is of another machine or driver: {} with {}", .0.processors, .0.gpu.as_deref().unwrap_or("no GPU"))]
    OtherMachine(Machine),
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

    /// Reads the measurements of a data directory, without the ways that this process may not use.
    ///
    /// # Errors
    /// [`LoadError`], if there are none of this hardware.
    pub fn load(folder: &Path, machine: &Machine) -> Result<SavedMeasurements, LoadError> {
        let text = read(&folder.join(FILE_NAME))?;
        let saved: Result<SavedMeasurements, _> = serde_json::from_str(&text);
        let mut saved = saved.map_err(|_| LoadError::Damaged)?;
        let rates = &mut saved.measurements.rates;
        let is_sound = |rate: &Rate| rate.bytes_per_s > 0.0 && rate.chunk_bytes > 0;
        if saved.version != VERSION || !rates.iter().all(is_sound) {
            return Err(LoadError::Damaged);
        }
        if saved.machine != *machine {
            return Err(LoadError::OtherMachine(saved.machine));
        }
        if (FileReader::Uring { depth: 1 }).check().is_err() {
            rates.retain(|rate| rate.way != Way::Path(StoragePath::StagedUring));
        }
        Ok(saved)
    }

    /// Writes the measurements to a data directory in one step: a reader sees the old file or the new one.
    ///
    /// # Errors
    /// [`SaveError`], if the directory cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), SaveError> {
        let path = folder.join(FILE_NAME);
        let written = || {
            let mut new = NamedTempFile::new_in(folder)?;
            serde_json::to_writer_pretty(&mut new, self)?;
            new.write_all(b"\n")?;
            new.persist(&path)?;
            Ok(())
        };
        written().map_err(|why| SaveError {
            path: path.clone(),
            why,
        })
    }
}

/// Reads a small file. What is not a file, such as a pipe, is not opened.
fn read(path: &Path) -> Result<String, LoadError> {
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => LoadError::Missing,
        _ => LoadError::Unreadable(error),
    })?;
    if !found.is_file() || found.len() > BYTES_MAX {
        return Err(LoadError::Damaged);
    }
    fs::read_to_string(path).map_err(LoadError::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tier;

    #[test]
    fn measurements_are_read_back_on_the_same_hardware_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let machine = Machine::this(None);
        let load = |machine: &Machine| {
            let loaded = SavedMeasurements::load(folder.path(), machine);
            loaded.map_err(|error| error.to_string())
        };
        assert_eq!(load(&machine), Err("there is no movement.json".to_owned()));
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
        assert_eq!(load(&machine), Ok(saved));
        let other = Machine {
            gpu: Some("NVIDIA H100".to_owned()),
            ..machine.clone()
        };
        let error = load(&other).expect_err("it has another GPU");
        assert!(
            error.starts_with("movement.json is of another machine or driver: "),
            "{error}"
        );
        assert!(error.ends_with(" with no GPU"), "{error}");
        let path = folder.path().join(FILE_NAME);
        for damaged in [
            "{",
            &text.replace("1.5", "-5.0"),
            &text.replace("host", "warp-drive"),
        ] {
            fs::write(&path, damaged).expect("a writable folder");
            let error = load(&machine).expect_err(damaged);
            assert_eq!(error, "movement.json is damaged, or of another version");
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
