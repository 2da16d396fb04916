//! Measurements on disk, with the machine and the date they are of.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_device::cuda::Gpu;
use serde::{Deserialize, Serialize};

use super::Measurements;

/// Name of the file in the data directory.
pub const FILE_NAME: &str = "movement.json";

/// Version of the file's content.
const VERSION: u32 = 1;

/// The hardware that rates are of.
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

/// Measurements with their origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
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

impl Kept {
    /// Returns measurements of a machine.
    pub fn new(date: String, machine: Machine, measurements: Measurements) -> Kept {
        Kept {
            version: VERSION,
            date,
            machine,
            measurements,
        }
    }

    /// Reads the measurements of a data directory. Returns `None` if there are none of this hardware, or the file is
    /// damaged or of another version; they are then measured again.
    pub fn load(folder: &Path, machine: &Machine) -> Option<Kept> {
        let text = fs::read_to_string(folder.join(FILE_NAME)).ok()?;
        let kept: Kept = serde_json::from_str(&text).ok()?;
        (kept.version == VERSION && kept.machine == *machine).then_some(kept)
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
        renamed.map_err(|why| SaveError { path, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_read_back_on_the_same_hardware_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let machine = Machine::this(None);
        assert_eq!(Kept::load(folder.path(), &machine), None);
        let measurements = Measurements {
            random_zero_copy_per_s: Some(6e7),
            ..Measurements::default()
        };
        let kept = Kept::new(
            "2026-11-23T23:30:00Z".to_owned(),
            machine.clone(),
            measurements,
        );
        kept.save(folder.path()).expect("a writable folder");
        assert_eq!(Kept::load(folder.path(), &machine), Some(kept));
        let other = Machine {
            gpu: Some("NVIDIA H100".to_owned()),
            ..machine.clone()
        };
        assert_eq!(Kept::load(folder.path(), &other), None);
        fs::write(folder.path().join(FILE_NAME), "{").expect("a writable folder");
        assert_eq!(Kept::load(folder.path(), &machine), None, "a damaged file");
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named() {
        let kept = Kept::new(String::new(), Machine::this(None), Measurements::default());
        let error = kept
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
