//! Which devices to start, as users write it.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::thread;

/// Most devices one specification may name.
const DEVICES_MAX: usize = 1024;

/// A parsed list of devices: `auto`, `host:3`, `host:1,host:2`.
///
/// # Examples
/// ```
/// use forebay_device::DeviceSpec;
/// let spec: DeviceSpec = "host:1,host:2".parse().unwrap();
/// assert_eq!(spec.host_devices(), 3);
/// assert_eq!("cuda:0".parse::<DeviceSpec>().unwrap_err().to_string(),
///     "`cuda:0`: this build has no CUDA engine; use `auto` or `host:<count>`");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSpec {
    host_devices: usize,
}

/// A list of devices that cannot be understood or had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Nothing was named.
    #[error("no device is named; use `auto` or `host:<count>`")]
    Empty,
    /// An entry that is none of the known forms.
    #[error("`{entry}` names no device; use `auto` or `host:<count>`")]
    Unknown {
        /// The entry.
        entry: String,
    },
    /// A count that is no number from 1 to the limit.
    #[error("`{entry}`: the count of host devices is a number from 1 to {max}")]
    Count {
        /// The entry.
        entry: String,
        /// Most devices a list may name.
        max: usize,
    },
    /// A CUDA device, which this build cannot drive.
    #[error("`{entry}`: this build has no CUDA engine; use `auto` or `host:<count>`")]
    NoCudaEngine {
        /// The entry.
        entry: String,
    },
}

impl DeviceSpec {
    /// One host device for each core of this machine.
    pub fn auto() -> DeviceSpec {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        DeviceSpec {
            host_devices: cores.min(DEVICES_MAX),
        }
    }

    /// This many host devices; more than the limit of 1,024 become the limit.
    pub fn host(count: NonZeroUsize) -> DeviceSpec {
        DeviceSpec {
            host_devices: count.get().min(DEVICES_MAX),
        }
    }

    /// Host devices that are named.
    pub fn host_devices(&self) -> usize {
        self.host_devices
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host:{}", self.host_devices)
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<DeviceSpec, SpecError> {
        if text.trim().is_empty() {
            return Err(SpecError::Empty);
        }
        let mut host_devices = 0;
        for entry in text.split(',') {
            host_devices += entry_devices(entry.trim())?;
            if host_devices > DEVICES_MAX {
                return Err(bad_count(entry));
            }
        }
        Ok(DeviceSpec { host_devices })
    }
}

/// Host devices that one entry of the list asks for.
fn entry_devices(entry: &str) -> Result<usize, SpecError> {
    match entry.split_once(':').unwrap_or((entry, "1")) {
        ("auto", _) if entry == "auto" => Ok(DeviceSpec::auto().host_devices),
        ("host", count) => parse_count(count).ok_or_else(|| bad_count(entry)),
        ("cuda", _) => Err(SpecError::NoCudaEngine {
            entry: entry.to_owned(),
        }),
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
        entry: entry.trim().to_owned(),
        max: DEVICES_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_are_understood() {
        for (text, count) in [
            ("host:1", 1),
            ("host", 1),
            ("host:3", 3),
            (" host:1, host:2 ", 3),
            ("host:1024", 1024),
        ] {
            assert_eq!(
                text.parse::<DeviceSpec>().map(|spec| spec.host_devices()),
                Ok(count),
                "{text}"
            );
        }
        assert_eq!("auto".parse(), Ok(DeviceSpec::auto()));
    }

    #[test]
    fn forms_that_are_refused_say_why() {
        let count = |entry: &str| SpecError::Count {
            entry: entry.to_owned(),
            max: DEVICES_MAX,
        };
        let unknown = |entry: &str| SpecError::Unknown {
            entry: entry.to_owned(),
        };
        let cuda = |entry: &str| SpecError::NoCudaEngine {
            entry: entry.to_owned(),
        };
        let cases = [
            ("", SpecError::Empty),
            ("  ", SpecError::Empty),
            ("host:0", count("host:0")),
            ("host:", count("host:")),
            ("host:-1", count("host:-1")),
            ("host:1025", count("host:1025")),
            ("host:1000,host:1000", count("host:1000")),
            (
                "host:99999999999999999999999",
                count("host:99999999999999999999999"),
            ),
            ("gpu", unknown("gpu")),
            ("auto:2", unknown("auto:2")),
            ("host:1,", unknown("")),
            ("cuda:0", cuda("cuda:0")),
            ("host:1,cuda", cuda("cuda")),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<DeviceSpec>(), Err(error), "{text}");
        }
    }
}
