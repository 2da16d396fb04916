//! What cuFile would do on this machine.

use std::fmt;

use super::{CuFile, CuFileError, CuFileProperties, CuFileUnavailable};

/// Whether cuFile works on this machine, and the path it would take. What operations really do is in
/// [`CuFileCounts`](super::CuFileCounts).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectSupport {
    /// cuFile cannot be used.
    Unavailable {
        /// Why, with the remedy.
        why: String,
    },
    /// cuFile works through host memory only.
    Compat(CuFileProperties),
    /// cuFile may move data between drives and GPUs, if drive and file system allow it.
    Direct(CuFileProperties),
}

impl DirectSupport {
    /// Opens cuFile and asks it. The library can crash on some machines, so call this in a child process; see
    /// [`try_in_child`](super::try_in_child).
    pub fn detect() -> DirectSupport {
        match CuFile::open().map(|cufile| cufile.properties()) {
            Ok(properties) => DirectSupport::new(properties),
            Err(error) => DirectSupport::unavailable(&error),
        }
    }

    /// Returns whether cuFile may move data between drives and GPUs.
    pub fn is_direct(&self) -> bool {
        matches!(self, DirectSupport::Direct(_))
    }

    fn unavailable(error: &CuFileUnavailable) -> DirectSupport {
        DirectSupport::Unavailable {
            why: error.to_string(),
        }
    }

    fn new(properties: Result<CuFileProperties, CuFileError>) -> DirectSupport {
        match properties {
            Ok(properties) if properties.nvidia_fs.is_some() || properties.peer_to_peer => {
                DirectSupport::Direct(properties)
            }
            Ok(properties) if properties.allows_compat => DirectSupport::Compat(properties),
            Ok(properties) => DirectSupport::Unavailable {
                why: format!(
                    "libcufile {} has no kernel driver, and compat mode is off; load nvidia-fs, or set \
                     allow_compat_mode in cufile.json",
                    properties.version
                ),
            },
            Err(error) => DirectSupport::Unavailable {
                why: error.to_string(),
            },
        }
    }
}

impl fmt::Display for DirectSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectSupport::Unavailable { why } => write!(f, "not available: {why}"),
            DirectSupport::Compat(properties) => write!(
                f,
                "libcufile {} in compat mode (direct API, POSIX path): the kernel module nvidia-fs is not loaded",
                properties.version
            ),
            DirectSupport::Direct(properties) => match &properties.nvidia_fs {
                Some(module) => {
                    write!(
                        f,
                        "libcufile {} with nvidia-fs {module}",
                        properties.version
                    )
                }
                None => write!(
                    f,
                    "libcufile {} with the kernel's peer-to-peer transfers",
                    properties.version
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties() -> CuFileProperties {
        CuFileProperties {
            version: "1.15".to_owned(),
            nvidia_fs: None,
            peer_to_peer: false,
            allows_compat: true,
            streams: true,
            batches: true,
            batch_operations_max: 128,
            direct_io_bytes_max: 16 << 20,
        }
    }

    #[test]
    fn without_a_kernel_driver_the_path_is_called_posix() {
        let found = DirectSupport::new(Ok(properties()));
        assert!(
            found.to_string().contains("direct API, POSIX path"),
            "{found}"
        );
        let off = CuFileProperties {
            allows_compat: false,
            ..properties()
        };
        let found = DirectSupport::new(Ok(off));
        assert!(matches!(found, DirectSupport::Unavailable { .. }));
        assert!(found.to_string().contains("allow_compat_mode"), "{found}");
    }

    #[test]
    fn a_kernel_driver_makes_it_direct() {
        let with = CuFileProperties {
            nvidia_fs: Some("2.26".to_owned()),
            ..properties()
        };
        let found = DirectSupport::new(Ok(with));
        assert_eq!(found.to_string(), "libcufile 1.15 with nvidia-fs 2.26");
        assert!(found.is_direct());
    }

    #[test]
    fn without_a_library_the_reason_names_the_remedy() {
        let error = CuFileUnavailable::NoLibrary {
            why: "no such file".to_owned(),
        };
        let found = DirectSupport::unavailable(&error);
        assert!(!found.is_direct());
        assert!(
            found.to_string().contains("install GPUDirect Storage"),
            "{found}"
        );
    }
}
