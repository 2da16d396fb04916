//! Errors of cuFile, each with the remedy if there is one.

use std::fmt;
use std::path::PathBuf;

use crate::DeviceFault;
use crate::cuda::{CudaUnavailable, DriverError};

/// Why this process cannot use cuFile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CuFileUnavailable {
    /// The library cannot be loaded.
    #[error(
        "libcufile.so.0 cannot be loaded ({why}); install GPUDirect Storage (package libcufile of CUDA's repository, or \
         `pip install nvidia-cufile` and its folder in LD_LIBRARY_PATH)"
    )]
    NoLibrary {
        /// The dynamic loader's reason.
        why: String,
    },
    /// The library is too old.
    #[error("libcufile has no function {function}; install libcufile 1.7 (CUDA 12.2) or later")]
    MissingFunction {
        /// The missing function.
        function: &'static str,
    },
    /// This process can use no GPU.
    #[error(transparent)]
    Cuda(#[from] CudaUnavailable),
    /// cuFile's driver does not open.
    #[error(
        "cuFileDriverOpen failed: {code}; set the variable CUFILE_LOGFILE_PATH to the name of a file, in which cuFile \
         logs why"
    )]
    Failed {
        /// cuFile's code.
        code: CuFileCode,
    },
}

/// Why an operation of cuFile failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CuFileError {
    /// cuFile refused a file.
    #[error("cuFile cannot use {}: {code}{remedy}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// cuFile's code.
        code: CuFileCode,
        /// What to do.
        remedy: FileRemedy,
    },
    /// A read or write failed.
    #[error("{operation} of {bytes} bytes at offset {offset} of {} failed: {cause}", path.display())]
    Operation {
        /// `cuFileRead` or another function.
        operation: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Offset in the file.
        offset: u64,
        /// Bytes asked for.
        bytes: usize,
        /// Why it failed.
        #[source]
        cause: CuFileCause,
    },
    /// Another call failed.
    #[error("{operation} failed: {code}")]
    Call {
        /// The function of cuFile.
        operation: &'static str,
        /// cuFile's code.
        code: CuFileCode,
    },
    /// The library has no statistics.
    #[error("libcufile {version} has no statistics; install libcufile 1.15 (CUDA 13.0) or later")]
    NoStatistics {
        /// Version of the library.
        version: String,
    },
    /// The device failed.
    #[error(transparent)]
    Fault(#[from] DeviceFault),
}

impl CuFileError {
    pub(super) fn call(operation: &'static str) -> impl FnOnce(CuFileCode) -> CuFileError {
        move |code| CuFileError::Call { operation, code }
    }
}

impl From<DriverError> for CuFileError {
    fn from(error: DriverError) -> CuFileError {
        CuFileError::Fault(error.into())
    }
}

/// Why a read or write failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CuFileCause {
    /// The file system's error.
    #[error("{0}")]
    FileSystem(#[from] std::io::Error),
    /// cuFile's error.
    #[error("{0}")]
    Code(CuFileCode),
}

impl CuFileCause {
    /// Returns the cause of a negative result, or the bytes of another. `errno` is that of the calling thread after the
    /// call: it says more about -1.
    pub(super) fn of(result: isize, errno: std::io::Error) -> Result<usize, CuFileCause> {
        match result {
            0.. => Ok(result.unsigned_abs()),
            -1 => Err(CuFileCause::FileSystem(errno)),
            _ => {
                let number = u32::try_from(result.unsigned_abs()).unwrap_or(u32::MAX);
                Err(CuFileCause::from_number(number))
            }
        }
    }

    /// Returns the meaning of a number: cuFile's codes start at 5001, and smaller ones are the system's.
    fn from_number(number: u32) -> CuFileCause {
        match number {
            ..5000 => CuFileCause::FileSystem(std::io::Error::from_raw_os_error(number as i32)),
            code => CuFileCause::Code(CuFileCode(code)),
        }
    }
}

/// What to do about a file that cuFile refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileRemedy {
    /// The device has no entry in udev's database.
    UdevEntry {
        /// Major number of the file's block device.
        major: u32,
        /// Minor number of the file's block device.
        minor: u32,
    },
    /// The file was opened with wrong flags.
    OpenFlags,
    /// The file is not a regular file.
    FileType,
    /// The file has no name.
    Name,
    /// No remedy is known.
    Unknown,
}

impl fmt::Display for FileRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileRemedy::UdevEntry { major, minor } => write!(
                f,
                "; udev's database does not name the file system of the block device: start udev (`udevadm trigger`), or as \
                 root write the lines `E:ID_FS_TYPE=<type>` and `E:ID_FS_USAGE=filesystem` to \
                 /run/udev/data/b{major}:{minor}"
            ),
            FileRemedy::OpenFlags => {
                f.write_str("; open it for reading or for writing with O_DIRECT")
            }
            FileRemedy::FileType => f.write_str("; it must be a regular file"),
            FileRemedy::Name => f.write_str(
                "; the file was removed, and cuFile opens it again by its name: remove it after its use",
            ),
            FileRemedy::Unknown => f.write_str("; read it through host memory"),
        }
    }
}

/// A code of cuFile (`CUfileOpError`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CuFileCode(pub u32);

impl CuFileCode {
    /// The file is not a regular file.
    pub const INVALID_FILE_TYPE: CuFileCode = CuFileCode(5018);
    /// The file's handle could not be registered.
    pub const HANDLE_NOT_REGISTERED: CuFileCode = CuFileCode(5027);
    /// A read or write failed.
    pub const IO_ERROR: CuFileCode = CuFileCode(5044);

    /// Returns cuFile's name of the code, as in `CU_FILE_INVALID_VALUE`; `None` if the code is newer than this program.
    pub fn name(self) -> Option<&'static str> {
        let index = NAMES.binary_search_by_key(&self.0, |(code, _)| *code);
        index.ok().map(|index| NAMES[index].1)
    }
}

impl fmt::Display for CuFileCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "cuFile error {}", self.0),
        }
    }
}

/// Names of all codes of libcufile 1.15, sorted.
const NAMES: [(u32, &str); 48] = [
    (5001, "CU_FILE_DRIVER_NOT_INITIALIZED"),
    (5002, "CU_FILE_DRIVER_INVALID_PROPS"),
    (5003, "CU_FILE_DRIVER_UNSUPPORTED_LIMIT"),
    (5004, "CU_FILE_DRIVER_VERSION_MISMATCH"),
    (5005, "CU_FILE_DRIVER_VERSION_READ_ERROR"),
    (5006, "CU_FILE_DRIVER_CLOSING"),
    (5007, "CU_FILE_PLATFORM_NOT_SUPPORTED"),
    (5008, "CU_FILE_IO_NOT_SUPPORTED"),
    (5009, "CU_FILE_DEVICE_NOT_SUPPORTED"),
    (5010, "CU_FILE_NVFS_DRIVER_ERROR"),
    (5011, "CU_FILE_CUDA_DRIVER_ERROR"),
    (5012, "CU_FILE_CUDA_POINTER_INVALID"),
    (5013, "CU_FILE_CUDA_MEMORY_TYPE_INVALID"),
    (5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR"),
    (5015, "CU_FILE_CUDA_CONTEXT_MISMATCH"),
    (5016, "CU_FILE_INVALID_MAPPING_SIZE"),
    (5017, "CU_FILE_INVALID_MAPPING_RANGE"),
    (5018, "CU_FILE_INVALID_FILE_TYPE"),
    (5019, "CU_FILE_INVALID_FILE_OPEN_FLAG"),
    (5020, "CU_FILE_DIO_NOT_SET"),
    (5022, "CU_FILE_INVALID_VALUE"),
    (5023, "CU_FILE_MEMORY_ALREADY_REGISTERED"),
    (5024, "CU_FILE_MEMORY_NOT_REGISTERED"),
    (5025, "CU_FILE_PERMISSION_DENIED"),
    (5026, "CU_FILE_DRIVER_ALREADY_OPEN"),
    (5027, "CU_FILE_HANDLE_NOT_REGISTERED"),
    (5028, "CU_FILE_HANDLE_ALREADY_REGISTERED"),
    (5029, "CU_FILE_DEVICE_NOT_FOUND"),
    (5030, "CU_FILE_INTERNAL_ERROR"),
    (5031, "CU_FILE_GETNEWFD_FAILED"),
    (5033, "CU_FILE_NVFS_SETUP_ERROR"),
    (5034, "CU_FILE_IO_DISABLED"),
    (5035, "CU_FILE_BATCH_SUBMIT_FAILED"),
    (5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED"),
    (5037, "CU_FILE_BATCH_FULL"),
    (5038, "CU_FILE_ASYNC_NOT_SUPPORTED"),
    (5039, "CU_FILE_INTERNAL_BATCH_SETUP_ERROR"),
    (5040, "CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR"),
    (5041, "CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR"),
    (5042, "CU_FILE_INTERNAL_BATCH_CANCEL_ERROR"),
    (5043, "CU_FILE_NOMEM_ERROR"),
    (5044, "CU_FILE_IO_ERROR"),
    (5045, "CU_FILE_INTERNAL_BUF_REGISTER_ERROR"),
    (5046, "CU_FILE_HASH_OPR_ERROR"),
    (5047, "CU_FILE_INVALID_CONTEXT_ERROR"),
    (5048, "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR"),
    (5049, "CU_FILE_BATCH_NOCOMPAT_ERROR"),
    (5050, "CU_FILE_IO_MAX_ERROR"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> std::io::Error {
        std::io::Error::from_raw_os_error(libc::ENOSPC)
    }

    #[test]
    fn codes_have_cufiles_names() {
        assert!(NAMES.is_sorted());
        assert_eq!(
            CuFileCode::HANDLE_NOT_REGISTERED.to_string(),
            "CU_FILE_HANDLE_NOT_REGISTERED (5027)"
        );
        assert_eq!(CuFileCode(5999).to_string(), "cuFile error 5999");
    }

    #[test]
    fn negative_results_are_errors_of_cufile_or_of_the_file_system() {
        assert_eq!(CuFileCause::of(7, errno()).expect("bytes"), 7);
        let text = |result| {
            let cause = CuFileCause::of(result, errno());
            cause.expect_err("a negative result").to_string()
        };
        assert_eq!(text(-1), errno().to_string());
        assert_eq!(text(-5022), "CU_FILE_INVALID_VALUE (5022)");
        assert_eq!(
            text(-5),
            std::io::Error::from_raw_os_error(libc::EIO).to_string()
        );
    }

    #[test]
    fn a_refused_file_names_the_entry_of_its_device() {
        let error = CuFileError::File {
            path: PathBuf::from("/data/table"),
            code: CuFileCode::HANDLE_NOT_REGISTERED,
            remedy: FileRemedy::UdevEntry {
                major: 254,
                minor: 0,
            },
        };
        let text = error.to_string();
        assert!(
            text.starts_with("cuFile cannot use /data/table: CU_FILE_HANDLE_NOT_REGISTERED"),
            "{text}"
        );
        assert!(text.ends_with("/run/udev/data/b254:0"), "{text}");
    }
}
