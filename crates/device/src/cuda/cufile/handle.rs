//! Registered files and GPU memory, and the reads and writes that block.

use std::ffi::{c_long, c_void};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use super::sys::{Descriptor, DescriptorHandle, HANDLE_TYPE_FD, Synchronous};
use super::{CuFile, CuFileCause, CuFileCode, CuFileError, FileRemedy};
use crate::cuda::DeviceView;

/// A file that cuFile reads and writes.
#[derive(Debug)]
pub struct CuFileHandle {
    raw: *mut c_void,
    /// Open as long as the library uses it.
    _file: File,
    path: PathBuf,
    cufile: Arc<CuFile>,
}

// SAFETY: the library allows calls on a handle from any thread.
unsafe impl Send for CuFileHandle {}
// SAFETY: as above; concurrent calls are allowed too.
unsafe impl Sync for CuFileHandle {}

impl CuFileHandle {
    pub(super) fn create(
        cufile: Arc<CuFile>,
        file: File,
        path: &Path,
    ) -> Result<CuFileHandle, CuFileError> {
        let refused = |code| CuFileError::File {
            path: path.to_owned(),
            code,
            remedy: remedy(code, &file),
        };
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(refused(CuFileCode::INVALID_FILE_TYPE));
        }
        let mut descriptor = Descriptor {
            kind: HANDLE_TYPE_FD,
            handle: DescriptorHandle {
                pointer: ptr::null_mut(),
            },
            file_system: ptr::null(),
        };
        descriptor.handle.fd = file.as_raw_fd();
        let mut raw = ptr::null_mut();
        // SAFETY: the driver is open; both values outlive the call, and the handle owns the file.
        let code = unsafe { (cufile.functions().handle_register)(&mut raw, &mut descriptor) };
        code.check().map_err(refused)?;
        Ok(CuFileHandle {
            raw,
            _file: file,
            path: path.to_owned(),
            cufile,
        })
    }

    pub(super) fn raw(&self) -> *mut c_void {
        self.raw
    }

    pub(super) fn cufile(&self) -> &Arc<CuFile> {
        &self.cufile
    }

    /// Fills GPU memory with bytes of the file; blocks until they are there. Returns the number of bytes read, which is
    /// smaller than the memory only if the file ends before. Offset and size need not be aligned; aligned to 4 KiB they
    /// are faster. Work on streams is not waited for.
    ///
    /// # Errors
    /// [`CuFileError::Operation`]; a fault of the device.
    pub fn read(&self, offset: u64, to: &CuFileMemory) -> Result<usize, CuFileError> {
        self.run("cuFileRead", self.cufile.functions().read, offset, to)
    }

    /// Writes GPU memory to the file; blocks until the file system has the bytes. Returns the number of bytes written.
    /// Work on streams is not waited for.
    ///
    /// # Errors
    /// [`CuFileError::Operation`]; a fault of the device.
    pub fn write(&self, offset: u64, from: &CuFileMemory) -> Result<usize, CuFileError> {
        self.run("cuFileWrite", self.cufile.functions().write, offset, from)
    }

    fn run(
        &self,
        operation: &'static str,
        function: Synchronous,
        offset: u64,
        memory: &CuFileMemory,
    ) -> Result<usize, CuFileError> {
        if memory.is_empty() {
            return Ok(0);
        }
        let (_entered, place) = (memory.view.memory().context().enter()?, memory.place());
        let file_offset = file_offset(offset)
            .map_err(|cause| self.failed(operation, offset, memory.len(), cause))?;
        // SAFETY: handle and memory are live, and the memory has this size at this offset from its base.
        let result =
            unsafe { function(self.raw, place.base, place.bytes, file_offset, place.offset) };
        let errno = io::Error::last_os_error();
        CuFileCause::of(result, errno)
            .map_err(|cause| self.failed(operation, offset, memory.len(), cause))
    }

    pub(super) fn failed(
        &self,
        operation: &'static str,
        offset: u64,
        bytes: usize,
        cause: CuFileCause,
    ) -> CuFileError {
        CuFileError::Operation {
            operation,
            path: self.path.clone(),
            offset,
            bytes,
            cause,
        }
    }
}

impl Drop for CuFileHandle {
    fn drop(&mut self) {
        // SAFETY: this was the last user of the handle; operations in flight hold it by `Arc`.
        unsafe { (self.cufile.functions().handle_deregister)(self.raw) };
    }
}

/// Converts an offset to the file system's type.
pub(super) fn file_offset(offset: u64) -> Result<c_long, CuFileCause> {
    c_long::try_from(offset)
        .map_err(|_| CuFileCause::FileSystem(io::Error::from_raw_os_error(libc::EOVERFLOW)))
}

/// Returns what to do about a file that cuFile refuses.
fn remedy(code: CuFileCode, file: &File) -> FileRemedy {
    match code.0 {
        5019 | 5020 => FileRemedy::OpenFlags,
        5018 => FileRemedy::FileType,
        _ => match file.metadata() {
            Ok(found) if found.nlink() == 0 => FileRemedy::Name,
            Ok(found) if !is_in_udev(found.dev()) => FileRemedy::UdevEntry {
                major: libc::major(found.dev()),
                minor: libc::minor(found.dev()),
            },
            _ => FileRemedy::Unknown,
        },
    }
}

/// Returns whether udev's database names the file system of a block device.
fn is_in_udev(device: u64) -> bool {
    let entry = format!(
        "/run/udev/data/b{}:{}",
        libc::major(device),
        libc::minor(device)
    );
    fs::read_to_string(entry).is_ok_and(|text| text.contains("E:ID_FS_USAGE="))
}

/// A range of GPU memory that cuFile reads into and writes from.
///
/// As for all GPU memory, the caller must not use the range in other work while an operation runs.
#[derive(Debug, Clone)]
pub struct CuFileMemory {
    view: DeviceView<u8>,
    registration: Option<Arc<Registration>>,
}

/// A range registered with cuFile.
#[derive(Debug)]
struct Registration {
    view: DeviceView<u8>,
    cufile: Arc<CuFile>,
}

/// Memory as the library's functions take it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) base: *mut c_void,
    pub(super) offset: c_long,
    pub(super) bytes: usize,
}

impl CuFileMemory {
    /// Returns memory that is not registered: cuFile copies through its own buffers.
    pub fn unregistered(view: DeviceView<u8>) -> CuFileMemory {
        CuFileMemory {
            view,
            registration: None,
        }
    }

    pub(super) fn register(
        cufile: Arc<CuFile>,
        view: DeviceView<u8>,
    ) -> Result<CuFileMemory, CuFileError> {
        if view.is_empty() {
            return Ok(CuFileMemory::unregistered(view));
        }
        let _entered = view.memory().context().enter()?;
        // SAFETY: the memory is live and has this size; the registration keeps it allocated.
        let code =
            unsafe { (cufile.functions().memory_register)(pointer(view.address()), view.len(), 0) };
        code.check()
            .map_err(CuFileError::call("cuFileBufRegister"))?;
        let registration = Registration {
            view: view.clone(),
            cufile,
        };
        Ok(CuFileMemory {
            view: view.clone(),
            registration: Some(Arc::new(registration)),
        })
    }

    /// Returns a range of the memory.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn part(&self, range: Range<usize>) -> CuFileMemory {
        CuFileMemory {
            view: self.view.view(range),
            registration: self.registration.clone(),
        }
    }

    /// Returns whether this is the memory of a view.
    pub fn is_of(&self, view: &DeviceView<u8>) -> bool {
        self.view.address() == view.address() && self.view.len() == view.len()
    }

    /// Returns the memory.
    pub fn view(&self) -> &DeviceView<u8> {
        &self.view
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Returns whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    pub(super) fn place(&self) -> Place {
        let address = self.view.address();
        let base = match &self.registration {
            Some(registration) => registration.view.address(),
            None => address,
        };
        Place {
            base: pointer(base).cast_mut(),
            offset: (address - base) as c_long,
            bytes: self.view.len(),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // If the context cannot be entered, it has failed, and its memory is lost.
        if let Ok(_entered) = self.view.memory().context().enter() {
            let base = pointer(self.view.address());
            // SAFETY: the memory was registered at this address, once, and is still allocated.
            let _ = unsafe { (self.cufile.functions().memory_deregister)(base) };
        }
    }
}

/// Returns a device address as the library takes it.
fn pointer(address: u64) -> *const c_void {
    address as usize as *const c_void
}
