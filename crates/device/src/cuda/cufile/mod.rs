//! cuFile (GPUDirect Storage): reads and writes between files and GPU memory.
//!
//! The library is loaded at run time. It moves bytes directly between an NVMe drive and a GPU only with the kernel
//! module nvidia-fs or the kernel's peer-to-peer transfers. Without them it reads and writes through host memory
//! (compat mode), without saying so: [`CuFile::counts`] tells which path operations took.

mod batch;
mod driver;
mod error;
mod handle;
mod statistics;
mod stream;
mod support;
mod sys;
mod trial;

pub use batch::{CuFileBatch, CuFileDirection, CuFileOperation};
pub use driver::{CuFile, CuFileProperties};
pub use error::{CuFileCause, CuFileCode, CuFileError, CuFileUnavailable, FileRemedy};
pub use handle::{CuFileHandle, CuFileMemory};
pub use statistics::{CuFileCounts, PathCounts, PathTaken};
pub use stream::{CuFileStream, CuFileTransfer};
pub use support::DirectSupport;
pub use trial::{CuFileTrialError, try_in_child};
