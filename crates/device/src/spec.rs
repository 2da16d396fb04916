//! Parsing of device specifications such as `cuda:0,host:2`.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use crate::DeviceError;
use crate::cuda::{self, CudaUnavailable, Gpu};

/// Maximum host devices in a specification.
const DEVICES_MAX: usize = 1024;

/// A parsed list of devices: `auto`, `cuda`, `cuda:0`, `host:3`, `cuda:0,cuda:1,host:1`.
///
/// `cuda` means all GPUs, `cuda:N` the GPU with this number, `host:N` N host devices. `auto` means all GPUs, or one
/// host device for each core if there is no GPU. GPUs are looked up when the devices start.
///
/// # Examples
/// ```
/// use forebay_device::DeviceSpec;
/// let spec: DeviceSpec = "cuda:0, host:2".parse().unwrap();
/// assert_eq!(spec.to_string(), "cuda:0,host:2");
/// assert_eq!("gpu".parse::<DeviceSpec>().unwrap_err().to_string(),
///     "`gpu` is not a device; use `auto`, `cuda`, `cuda:<number>` or `host:<count>`");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Auto,
    Gpus,
    Gpu(u32),
    Host(usize),
}

/// Why a device specification does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The list is empty.
    #[error("no device is named; use `auto`, `cuda`, `cuda:<number>` or `host:<count>`")]
    Empty,
    /// An entry has none of the known forms.
    #[error("`{entry}` is not a device; use `auto`, `cuda`, `cuda:<number>` or `host:<count>`")]
    Unknown {
        /// The entry that is not understood.
        entry: String,
    },
    /// The count of host devices is not a number from 1 to `max`.
    #[error("`{entry}`: the count of host devices must be a number from 1 to {max}")]
    Count {
        /// The entry with the count.
        entry: String,
        /// Maximum host devices in a specification.
        max: usize,
    },
    /// The ordinal of a GPU is not a number.
    #[error("`{entry}`: GPUs are numbered from 0, as in `cuda:0`; `cuda` means all GPUs")]
    Ordinal {
        /// The entry with the ordinal.
        entry: String,
    },
}

/// One device to start.
#[derive(Debug)]
pub(crate) enum Wanted {
    Host,
    Gpu(Box<Gpu>),
}

impl Wanted {
    /// Returns the name that the device will have if it is a GPU.
    pub(crate) fn gpu_name(&self) -> Option<String> {
        match self {
            Wanted::Host => None,
            Wanted::Gpu(gpu) => Some(format!("cuda:{}", gpu.ordinal)),
        }
    }
}

impl DeviceSpec {
    /// Returns a specification of all GPUs, or of one host device for each core if there is no GPU.
    pub fn auto() -> DeviceSpec {
        DeviceSpec {
            entries: vec![Entry::Auto],
        }
    }

    /// Returns a specification of `count` host devices, at most 1,024.
    pub fn host(count: NonZeroUsize) -> DeviceSpec {
        DeviceSpec {
            entries: vec![Entry::Host(count.get().min(DEVICES_MAX))],
        }
    }

    /// Looks up the devices on this machine. Loads the CUDA driver and NVRTC unless all are host devices.
    pub(crate) fn resolve(&self) -> Result<Vec<Wanted>, DeviceError> {
        let mut wanted = Vec::new();
        for entry in &self.entries {
            wanted.extend(entry.resolve()?);
        }
        Ok(wanted)
    }

    /// Returns the number of host devices in the specification.
    fn host_devices(&self) -> usize {
        let count = |entry: &Entry| match entry {
            Entry::Host(count) => *count,
            _ => 0,
        };
        self.entries.iter().map(count).sum()
    }
}

impl Entry {
    fn resolve(self) -> Result<Vec<Wanted>, DeviceError> {
        Ok(match self {
            Entry::Auto => auto(),
            Entry::Gpus => usable_gpus()?.into_iter().map(gpu).collect(),
            Entry::Gpu(ordinal) => vec![gpu(find(ordinal)?)],
            Entry::Host(count) => hosts(count),
        })
    }
}

/// Returns all GPUs, or one host device for each core if no GPU can be used. Logs why no GPU can be used, unless there
/// is no driver.
fn auto() -> Vec<Wanted> {
    match usable_gpus() {
        Ok(gpus) if !gpus.is_empty() => return gpus.into_iter().map(gpu).collect(),
        Ok(_) | Err(DeviceError::CudaUnavailable(CudaUnavailable::NoDriver)) => {}
        Err(error) => tracing::warn!(%error, "no GPU is used"),
    }
    hosts(crate::cores().min(DEVICES_MAX))
}

/// Returns the GPUs of this machine; fails if the kernel compiler is missing.
fn usable_gpus() -> Result<Vec<Gpu>, DeviceError> {
    let gpus = cuda::gpus()?;
    cuda::nvrtc_version()?;
    Ok(gpus)
}

fn find(ordinal: u32) -> Result<Gpu, DeviceError> {
    let gpus = usable_gpus()?;
    let count = gpus.len();
    let found = gpus.into_iter().find(|gpu| gpu.ordinal == ordinal);
    found.ok_or(DeviceError::NoSuchGpu { ordinal, count })
}

fn gpu(gpu: Gpu) -> Wanted {
    Wanted::Gpu(Box::new(gpu))
}

fn hosts(count: usize) -> Vec<Wanted> {
    (0..count).map(|_| Wanted::Host).collect()
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in self.entries.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{entry}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Auto => f.write_str("auto"),
            Entry::Gpus => f.write_str("cuda"),
            Entry::Gpu(ordinal) => write!(f, "cuda:{ordinal}"),
            Entry::Host(count) => write!(f, "host:{count}"),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<DeviceSpec, SpecError> {
        if text.trim().is_empty() {
            return Err(SpecError::Empty);
        }
        let mut spec = DeviceSpec {
            entries: Vec::new(),
        };
        for entry in text.split(',').map(str::trim) {
            spec.entries.push(parse_entry(entry)?);
            if spec.host_devices() > DEVICES_MAX {
                return Err(bad_count(entry));
            }
        }
        Ok(spec)
    }
}

fn parse_entry(entry: &str) -> Result<Entry, SpecError> {
    match entry.split_once(':') {
        None if entry == "auto" => Ok(Entry::Auto),
        None if entry == "cuda" => Ok(Entry::Gpus),
        None if entry == "host" => Ok(Entry::Host(1)),
        Some(("cuda", ordinal)) => ordinal
            .parse()
            .map(Entry::Gpu)
            .map_err(|_| bad_ordinal(entry)),
        Some(("host", count)) => parse_count(count)
            .map(Entry::Host)
            .ok_or_else(|| bad_count(entry)),
        _ => Err(SpecError::Unknown {
            entry: entry.to_owned(),
        }),
    }
}

fn parse_count(count: &str) -> Option<usize> {
    count
        .parse()
        .ok()
        .filter(|count| (1..=DEVICES_MAX).contains(count))
}

fn bad_count(entry: &str) -> SpecError {
    SpecError::Count {
        entry: entry.to_owned(),
        max: DEVICES_MAX,
    }
}

fn bad_ordinal(entry: &str) -> SpecError {
    SpecError::Ordinal {
        entry: entry.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_are_understood() {
        for (text, entries) in [
            ("auto", vec![Entry::Auto]),
            ("host:1", vec![Entry::Host(1)]),
            ("host", vec![Entry::Host(1)]),
            (" host:1, host:2 ", vec![Entry::Host(1), Entry::Host(2)]),
            ("host:1024", vec![Entry::Host(1024)]),
            ("cuda", vec![Entry::Gpus]),
            (
                "cuda:0,cuda:1,host:1",
                vec![Entry::Gpu(0), Entry::Gpu(1), Entry::Host(1)],
            ),
        ] {
            let spec: DeviceSpec = text.parse().expect(text);
            assert_eq!(spec.entries, entries, "{text}");
            assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
        }
    }

    #[test]
    fn forms_that_are_refused_say_why() {
        let unknown = |entry: &str| SpecError::Unknown {
            entry: entry.to_owned(),
        };
        let cases = [
            ("", SpecError::Empty),
            ("  ", SpecError::Empty),
            ("host:0", bad_count("host:0")),
            ("host:", bad_count("host:")),
            ("host:-1", bad_count("host:-1")),
            ("host:1025", bad_count("host:1025")),
            ("host:1000,host:1000", bad_count("host:1000")),
            (
                "host:99999999999999999999999",
                bad_count("host:99999999999999999999999"),
            ),
            ("gpu", unknown("gpu")),
            ("auto:2", unknown("auto:2")),
            ("host:1,", unknown("")),
            ("cuda:", bad_ordinal("cuda:")),
            ("cuda:-1", bad_ordinal("cuda:-1")),
            ("host:1,cuda:one", bad_ordinal("cuda:one")),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<DeviceSpec>(), Err(error), "{text}");
        }
    }

    #[test]
    fn host_devices_need_no_driver() {
        let spec: DeviceSpec = "host:2,host:1".parse().expect("valid");
        let wanted = spec.resolve().expect("no GPU is named");
        assert!(wanted.iter().all(|one| one.gpu_name().is_none()));
        assert_eq!(wanted.len(), 3);
    }
}
