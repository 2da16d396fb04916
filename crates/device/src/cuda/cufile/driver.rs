//! cuFile's driver: the library's state in this process.

use std::env;
use std::ffi::c_int;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::statistics::{CuFileCounts, Statistics};
use super::sys::{Functions, Properties, functions};
use super::{CuFileError, CuFileHandle, CuFileMemory, CuFileUnavailable};
use crate::cuda::DeviceView;
use crate::cuda::library::start_driver;

/// Variable that names the library's log.
pub(super) const LOG_VARIABLE: &str = "CUFILE_LOGFILE_PATH";

/// State of the library in this process.
#[derive(Debug)]
struct Process {
    /// Number of live [`CuFile`]s; the driver is open while it is not 0.
    opens: usize,
    /// Whether the library counts operations.
    counts: bool,
}

static PROCESS: Mutex<Process> = Mutex::new(Process {
    opens: 0,
    counts: false,
});

/// cuFile, opened: reads and writes between files and GPU memory.
///
/// The last value that is dropped closes the driver. Handles, registered memory and batches keep it open, so they are
/// always released first. A process that ends while it is open may crash in the library.
#[derive(Debug)]
pub struct CuFile {
    functions: &'static Functions,
}

impl CuFile {
    /// Loads libcufile and opens its driver. The first call takes more than half a second.
    ///
    /// The library writes its log into the file that the variable `CUFILE_LOGFILE_PATH` names. If it is unset, this
    /// function sets it to `/dev/null`, because the library would write `cufile.log` in the working directory.
    /// [`try_in_child`](super::try_in_child) finds out whether the library works on a machine.
    ///
    /// # Errors
    /// If the library is missing or too old, there is no GPU, or the driver does not open.
    pub fn open() -> Result<Arc<CuFile>, CuFileUnavailable> {
        let functions = functions()?;
        start_driver()?;
        let mut process = PROCESS.lock();
        if process.opens == 0 {
            set_log();
            // SAFETY: the library is loaded and its driver is closed.
            let opened = unsafe { (functions.driver_open)() }.check();
            opened.map_err(|code| CuFileUnavailable::Failed { code })?;
        }
        process.opens += 1;
        Ok(Arc::new(CuFile { functions }))
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Registers a file, which the handle owns. The path is for messages.
    ///
    /// # Errors
    /// [`CuFileError::File`], with the remedy, if cuFile cannot use the file.
    pub fn register(
        self: &Arc<Self>,
        file: File,
        path: &Path,
    ) -> Result<CuFileHandle, CuFileError> {
        CuFileHandle::create(Arc::clone(self), file, path)
    }

    /// Registers a range of GPU memory, so that cuFile need not copy through its own buffers. Takes milliseconds: an
    /// operator registers its memory once.
    ///
    /// # Errors
    /// If cuFile cannot register the memory; a fault of the device.
    pub fn register_memory(
        self: &Arc<Self>,
        view: DeviceView<u8>,
    ) -> Result<CuFileMemory, CuFileError> {
        CuFileMemory::register(Arc::clone(self), view)
    }

    /// Returns what the library and its kernel driver can do.
    ///
    /// # Errors
    /// If a call of the library fails.
    pub fn properties(&self) -> Result<CuFileProperties, CuFileError> {
        let mut raw = Properties::default();
        // SAFETY: the driver is open, and `raw` outlives the call and is not smaller than the library's struct.
        let code = unsafe { (self.functions.driver_properties)(&mut raw) };
        code.check()
            .map_err(CuFileError::call("cuFileDriverGetProperties"))?;
        Ok(CuFileProperties::new(version(self.functions), &raw))
    }

    /// Returns how many operations of this process took each path. The first call starts the counting and returns
    /// zeros; the path taken by some operations is the difference of two calls.
    ///
    /// # Errors
    /// [`CuFileError::NoStatistics`] if the library is older than 1.15; if a call of the library fails.
    pub fn counts(&self) -> Result<CuFileCounts, CuFileError> {
        let Some(statistics) = Statistics::of(self.functions) else {
            return Err(CuFileError::NoStatistics {
                version: version(self.functions),
            });
        };
        let mut process = PROCESS.lock();
        if !process.counts {
            statistics.start()?;
            process.counts = true;
        }
        statistics.counts()
    }
}

impl Drop for CuFile {
    fn drop(&mut self) {
        let mut process = PROCESS.lock();
        process.opens -= 1;
        if process.opens == 0 {
            process.counts = false;
            // SAFETY: the driver is open; handles, registered memory and batches hold a `CuFile`, so none is left.
            let _ = unsafe { (self.functions.driver_close)() };
        }
    }
}

/// Keeps the library from writing a log in the working directory, unless a variable names the log.
fn set_log() {
    if env::var_os(LOG_VARIABLE).is_none() {
        // SAFETY: Rust's own uses of the environment exclude each other, and the driver of CUDA, which is started, has
        // read its variables. The caller holds the lock of this module, so no cuFile driver starts at the same time.
        unsafe { env::set_var(LOG_VARIABLE, "/dev/null") };
    }
}

/// Returns the version of the library, as in `1.15`; empty if it does not say.
fn version(functions: &Functions) -> String {
    let mut number: c_int = 0;
    // SAFETY: the library is loaded, and `number` outlives the call.
    match unsafe { (functions.version)(&mut number) }.check() {
        Ok(()) => format!("{}.{}", number / 1000, number % 1000 / 10),
        Err(_) => String::new(),
    }
}

/// What the library and its kernel driver can do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CuFileProperties {
    /// Version of libcufile, as in `1.15`.
    pub version: String,
    /// Version of the kernel module nvidia-fs, as in `2.26`; `None` if it is not loaded.
    pub nvidia_fs: Option<String>,
    /// Whether the kernel can move data between NVMe drives and GPUs without nvidia-fs.
    pub peer_to_peer: bool,
    /// Whether files without a direct path are read and written through host memory (compat mode).
    pub allows_compat: bool,
    /// Whether operations on streams are supported.
    pub streams: bool,
    /// Whether batches are supported.
    pub batches: bool,
    /// Maximum operations of a batch.
    pub batch_operations_max: u32,
    /// Maximum bytes that the library asks of a drive at once.
    pub direct_io_bytes_max: u64,
}

impl CuFileProperties {
    fn new(version: String, raw: &Properties) -> CuFileProperties {
        let has = |flags: u32, bit: u32| flags & (1 << bit) != 0;
        let (major, minor) = (raw.nvidia_fs_major, raw.nvidia_fs_minor);
        CuFileProperties {
            version,
            nvidia_fs: (major > 0 || minor > 0).then(|| format!("{major}.{minor}")),
            peer_to_peer: has(raw.feature_flags, 4),
            allows_compat: has(raw.control_flags, 1),
            streams: has(raw.feature_flags, 2),
            batches: has(raw.feature_flags, 1),
            batch_operations_max: raw.batch_operations_max,
            direct_io_bytes_max: (raw.direct_io_max_kb as u64) << 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read_from_the_flags() {
        let raw = Properties {
            direct_io_max_kb: 16 << 10,
            control_flags: 2,
            feature_flags: 0b0110,
            batch_operations_max: 128,
            ..Properties::default()
        };
        let properties = CuFileProperties::new("1.15".to_owned(), &raw);
        let flags =
            |of: &CuFileProperties| [of.peer_to_peer, of.allows_compat, of.streams, of.batches];
        assert_eq!(flags(&properties), [false, true, true, true]);
        assert_eq!(properties.nvidia_fs, None);
        assert_eq!(properties.direct_io_bytes_max, 16 << 20);
        let raw = Properties {
            nvidia_fs_major: 2,
            nvidia_fs_minor: 26,
            feature_flags: 1 << 4,
            ..raw
        };
        let properties = CuFileProperties::new(String::new(), &raw);
        assert_eq!(properties.nvidia_fs.as_deref(), Some("2.26"));
        assert_eq!(flags(&properties), [true, true, false, false]);
    }
}
