//! Files as sources of the staging ring, and the ways of reading and writing them.

mod direct;
mod error;
mod file;
mod path;
mod queue;
mod source;
mod temporary;
#[expect(
    unsafe_code,
    reason = "the kernel reads and writes memory after a call has returned"
)]
mod uring;

pub use direct::DirectSource;
pub use error::{FileCause, FileError};
pub use file::{Access, DataFile, PageCache};
pub use forebay_device::AlignedBytes;
pub use path::{DirectMode, StoragePath, UnknownPath};
pub use queue::{Done, IoQueue};
pub use source::{FileReader, FileSource, source_by};
pub use uring::StableBytes;
