//! The functions of libcufile, and the structs that they take.
//!
//! cudarc has these too, but its loader does not know the file name `libcufile.so.0`, and a missing function panics
//! there.

use std::env;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::{CuFileCode, CuFileUnavailable};

/// File names of the library, the most precise first. The wheel `nvidia-cufile` has only the first.
const NAMES: [&str; 3] = ["libcufile.so.0", "libcufile.so", "libcufile.so.1"];

/// Folders searched after those of the dynamic loader.
const FOLDERS: [&str; 3] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/targets/sbsa-linux/lib",
];

/// Kind of a handle: a file descriptor.
pub(super) const HANDLE_TYPE_FD: c_uint = 1;
/// Flags of a stream: offsets and sizes are read when the operation is queued.
pub(super) const STREAM_FIXED_ARGUMENTS: c_uint = 1 | 2 | 4;
/// The only mode of [`BatchOperation`].
pub(super) const BATCH_MODE: c_uint = 1;
/// Operations of [`BatchOperation`].
pub(super) const BATCH_READ: c_uint = 0;
pub(super) const BATCH_WRITE: c_uint = 1;
/// States of a [`BatchEvent`]: not begun, in flight, and done with its bytes moved.
pub(super) const BATCH_WAITING: c_uint = 1;
pub(super) const BATCH_PENDING: c_uint = 2;
pub(super) const BATCH_COMPLETE: c_uint = 16;

/// Result of a call (`CUfileError_t`): cuFile's code, and the driver's if cuFile's is
/// `CU_FILE_CUDA_DRIVER_ERROR`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Status {
    pub(super) code: c_uint,
    pub(super) driver: c_int,
}

impl Status {
    pub(super) fn check(self) -> Result<(), CuFileCode> {
        match self.code {
            0 => Ok(()),
            code => Err(CuFileCode(code)),
        }
    }
}

/// File descriptor or other handle (`CUfileDescr_t.handle`).
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union DescriptorHandle {
    pub(super) fd: c_int,
    pub(super) pointer: *mut c_void,
}

/// A file to register (`CUfileDescr_t`).
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) kind: c_uint,
    pub(super) handle: DescriptorHandle,
    pub(super) file_system: *const c_void,
}

/// Properties of the driver (`CUfileDrvProps_t`). Sizes are in KiB.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Properties {
    pub(super) nvidia_fs_major: c_uint,
    pub(super) nvidia_fs_minor: c_uint,
    pub(super) poll_threshold_kb: usize,
    pub(super) direct_io_max_kb: usize,
    pub(super) status_flags: c_uint,
    pub(super) control_flags: c_uint,
    pub(super) feature_flags: c_uint,
    pub(super) device_cache_max_kb: c_uint,
    pub(super) buffer_cache_kb: c_uint,
    pub(super) device_pinned_max_kb: c_uint,
    pub(super) batch_operations_max: c_uint,
    pub(super) batch_timeout_ms: c_uint,
    /// Room for properties of later versions.
    pub(super) reserved: [u64; 8],
}

/// An operation of a batch (`CUfileIOParams_t`).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct BatchOperation {
    pub(super) mode: c_uint,
    pub(super) base: *mut c_void,
    pub(super) file_offset: c_long,
    pub(super) memory_offset: c_long,
    pub(super) bytes: usize,
    pub(super) file: *mut c_void,
    pub(super) operation: c_uint,
    pub(super) cookie: *mut c_void,
}

/// State of an operation of a batch (`CUfileIOEvents_t`).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct BatchEvent {
    pub(super) cookie: *mut c_void,
    pub(super) state: c_uint,
    /// Bytes moved, or a negative error.
    pub(super) result: isize,
}

const _: () = {
    assert!(size_of::<Status>() == 8);
    assert!(size_of::<Descriptor>() == 24);
    assert!(size_of::<Properties>() == 56 + 64);
    assert!(size_of::<BatchOperation>() == 64);
    assert!(size_of::<BatchEvent>() == 24);
};

/// A read or write that blocks.
pub(super) type Synchronous =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_long, c_long) -> isize;

/// A read or write on a stream.
pub(super) type Asynchronous = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *mut usize,
    *mut c_long,
    *mut c_long,
    *mut isize,
    CUstream,
) -> Status;

macro_rules! functions {
    (
        required { $($name:ident = $symbol:literal: $type:ty,)+ }
        optional { $($optional:ident = $optional_symbol:literal: $optional_type:ty,)+ }
    ) => {
        /// The functions of the loaded library. The optional ones are in libcufile 1.15 (CUDA 13.0) and later.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: $type,)+
            $(pub(super) $optional: Option<$optional_type>,)+
        }

        impl Functions {
            /// Finds the functions in a library that is never unloaded.
            fn find(library: &'static Library) -> Result<Functions, CuFileUnavailable> {
                $(
                    // SAFETY: cuFile documents this function with this type.
                    let found = unsafe { library.get::<$type>($symbol.as_bytes()) };
                    let $name = *found.map_err(|_| CuFileUnavailable::MissingFunction {
                        function: $symbol,
                    })?;
                )+
                $(
                    // SAFETY: as above.
                    let found = unsafe { library.get::<$optional_type>($optional_symbol.as_bytes()) };
                    let $optional = found.ok().map(|found| *found);
                )+
                Ok(Functions { $($name,)+ $($optional,)+ })
            }
        }
    };
}

functions! {
    required {
        version = "cuFileGetVersion": unsafe extern "C" fn(*mut c_int) -> Status,
        driver_open = "cuFileDriverOpen": unsafe extern "C" fn() -> Status,
        driver_close = "cuFileDriverClose_v2": unsafe extern "C" fn() -> Status,
        driver_properties = "cuFileDriverGetProperties": unsafe extern "C" fn(*mut Properties) -> Status,
        handle_register = "cuFileHandleRegister":
            unsafe extern "C" fn(*mut *mut c_void, *mut Descriptor) -> Status,
        handle_deregister = "cuFileHandleDeregister": unsafe extern "C" fn(*mut c_void),
        memory_register = "cuFileBufRegister": unsafe extern "C" fn(*const c_void, usize, c_int) -> Status,
        memory_deregister = "cuFileBufDeregister": unsafe extern "C" fn(*const c_void) -> Status,
        read = "cuFileRead": Synchronous,
        write = "cuFileWrite": Synchronous,
        read_async = "cuFileReadAsync": Asynchronous,
        write_async = "cuFileWriteAsync": Asynchronous,
        stream_register = "cuFileStreamRegister": unsafe extern "C" fn(CUstream, c_uint) -> Status,
        stream_deregister = "cuFileStreamDeregister": unsafe extern "C" fn(CUstream) -> Status,
        batch_create = "cuFileBatchIOSetUp": unsafe extern "C" fn(*mut *mut c_void, c_uint) -> Status,
        batch_submit = "cuFileBatchIOSubmit":
            unsafe extern "C" fn(*mut c_void, c_uint, *mut BatchOperation, c_uint) -> Status,
        batch_status = "cuFileBatchIOGetStatus": unsafe extern "C" fn(
            *mut c_void,
            c_uint,
            *mut c_uint,
            *mut BatchEvent,
            *mut libc::timespec,
        ) -> Status,
        batch_cancel = "cuFileBatchIOCancel": unsafe extern "C" fn(*mut c_void) -> Status,
        batch_destroy = "cuFileBatchIODestroy": unsafe extern "C" fn(*mut c_void),
    }
    optional {
        set_statistics_level = "cuFileSetStatsLevel": unsafe extern "C" fn(c_int) -> Status,
        start_statistics = "cuFileStatsStart": unsafe extern "C" fn() -> Status,
        statistics = "cuFileGetStatsL3": unsafe extern "C" fn(*mut u64) -> Status,
        // Not called: where it exists, the statistics also count vectored operations.
        read_vectored = "cuFileReadv": unsafe extern "C" fn(),
    }
}

/// Returns the functions of libcufile, which is loaded once and never unloaded.
pub(super) fn functions() -> Result<&'static Functions, CuFileUnavailable> {
    static FUNCTIONS: OnceLock<Result<Functions, CuFileUnavailable>> = OnceLock::new();
    let found = FUNCTIONS.get_or_init(|| Functions::find(Box::leak(Box::new(library()?))));
    found.as_ref().map_err(Clone::clone)
}

fn library() -> Result<Library, CuFileUnavailable> {
    let mut why = String::new();
    for candidate in candidates() {
        // SAFETY: loading the library only runs its own initialisers.
        match unsafe { Library::new(&candidate) } {
            Ok(library) => return Ok(library),
            // The first error is that of the dynamic loader's search, which names what is wrong with a file it found.
            Err(error) if why.is_empty() => why = error.to_string(),
            Err(_) => {}
        }
    }
    Err(CuFileUnavailable::NoLibrary { why })
}

/// Returns the names and paths to try, in order.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let home = env::var_os("CUDA_HOME").or_else(|| env::var_os("CUDA_PATH"));
    let home = home.map(|home| PathBuf::from(home).join("lib64"));
    let folders = home.into_iter().chain(FOLDERS.map(PathBuf::from));
    let in_folders = folders.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    NAMES.map(PathBuf::from).into_iter().chain(in_folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_wheel_is_tried_first() {
        let all: Vec<PathBuf> = candidates().collect();
        assert_eq!(all[0], PathBuf::from("libcufile.so.0"));
        let cuda = PathBuf::from("/usr/local/cuda/lib64/libcufile.so.0");
        assert!(all[3..].contains(&cuda), "{all:?}");
    }

    #[test]
    fn a_status_names_cufiles_code() {
        let status = |code| Status { code, driver: 0 };
        assert_eq!(status(0).check(), Ok(()));
        assert_eq!(status(5027).check(), Err(CuFileCode(5027)));
    }
}
