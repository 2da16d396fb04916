//! Errors of files, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// A file that cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}, at byte {offset}: {cause}", path.display())]
pub struct FileError {
    /// Path of the file.
    pub path: PathBuf,
    /// Offset of the first byte that was not read or written.
    pub offset: u64,
    /// The cause.
    #[source]
    pub cause: FileCause,
}

impl FileError {
    pub(crate) fn new(path: &Path, offset: u64, cause: FileCause) -> FileError {
        FileError {
            path: path.to_owned(),
            offset,
            cause,
        }
    }
}

/// Why a file cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileCause {
    /// The path names nothing.
    #[error("there is no such file; check the path")]
    Missing,
    /// The path names a folder.
    #[error("it is a folder; name a file in it")]
    Folder,
    /// The path names a device, a pipe or a socket.
    #[error("it is not a regular file; copy its content to one")]
    NotRegular,
    /// The path names a symbolic link, or a chain of too many.
    #[error("it is a symbolic link; name the file itself, or remove the link")]
    Link,
    /// The file may not be opened.
    #[error(
        "permission denied; give the user of this process the right to read it, or to write it and its folder"
    )]
    Denied,
    /// The file system is mounted read-only.
    #[error(
        "its file system is read-only; choose a folder of another file system, or mount it writable"
    )]
    ReadOnly,
    /// Another process has locked the file or the folder.
    #[error("another process uses it; wait until that has ended")]
    InUse,
    /// The process or the machine has no descriptor left.
    #[error("too many files are open ({0}); raise the limit of open files (`ulimit -n`)")]
    TooManyOpen(io::Error),
    /// The file system or the user's limit allows no file of this size.
    #[error(
        "the file cannot grow ({0}); raise the limit of file sizes (`ulimit -f`), or choose another file system"
    )]
    TooLarge(io::Error),
    /// The file ended before its bytes were read.
    #[error(
        "the file ends at byte {end}, and had {bytes} bytes when it was opened; let its writer finish, then read it again"
    )]
    Shrunk {
        /// Offset at which it ended.
        end: u64,
        /// Bytes when it was opened.
        bytes: u64,
    },
    /// Bytes were not read, although the file has them.
    #[error(
        "{missing} bytes were not read, although the file has them; read it again, by another path if it stays so"
    )]
    Short {
        /// Number of bytes that were not read.
        missing: usize,
    },
    /// The file system has no room, or the user's quota is reached.
    #[error("no space is left for it ({0}); free some, or choose a folder of another file system")]
    Full(io::Error),
    /// The drive or the file system failed.
    #[error("the drive failed ({0}); look for its messages in `dmesg`")]
    Drive(io::Error),
    /// io_uring cannot be used.
    #[error(
        "io_uring cannot be used ({0}); allow it (sysctl kernel.io_uring_disabled, seccomp, `ulimit -l`), or read with threads"
    )]
    NoUring(io::Error),
    /// Another error of the system.
    #[error("{0}")]
    Other(io::Error),
}

impl FileCause {
    /// Returns the meaning of an error of the system.
    pub(crate) fn of(error: io::Error) -> FileCause {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => FileCause::Missing,
            Some(libc::EISDIR) => FileCause::Folder,
            Some(libc::ELOOP) => FileCause::Link,
            Some(libc::EACCES | libc::EPERM) => FileCause::Denied,
            Some(libc::EROFS) => FileCause::ReadOnly,
            Some(libc::EMFILE | libc::ENFILE) => FileCause::TooManyOpen(error),
            Some(libc::EFBIG) => FileCause::TooLarge(error),
            Some(libc::ENOSPC | libc::EDQUOT) => FileCause::Full(error),
            Some(libc::EIO | libc::ENXIO | libc::ENODEV) => FileCause::Drive(error),
            _ => FileCause::Other(error),
        }
    }

    /// Returns the meaning of an error of the system when it was asked for io_uring.
    pub(super) fn of_uring(error: io::Error) -> FileCause {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => FileCause::TooManyOpen(error),
            _ => FileCause::NoUring(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_have_a_remedy() {
        let text = |code| FileCause::of(io::Error::from_raw_os_error(code)).to_string();
        assert!(text(libc::ENOENT).contains("check the path"));
        assert!(text(libc::EISDIR).contains("name a file"));
        assert!(text(libc::EACCES).contains("right to read it"));
        assert!(text(libc::ENOSPC).contains("free some"));
        assert!(text(libc::EIO).contains("dmesg"));
        assert!(text(libc::EMFILE).contains("ulimit -n"));
        assert!(text(libc::EFBIG).contains("ulimit -f"));
        assert!(text(libc::EROFS).contains("mount it writable"));
        let uring = |code| FileCause::of_uring(io::Error::from_raw_os_error(code)).to_string();
        assert!(uring(libc::EMFILE).contains("ulimit -n"));
        assert!(uring(libc::EPERM).contains("seccomp"));
        assert!(uring(libc::ENOMEM).contains("ulimit -l"));
    }

    #[test]
    fn an_error_names_the_file_and_the_offset() {
        let cause = FileCause::Shrunk { end: 5, bytes: 9 };
        let text = FileError::new(Path::new("/data/table"), 5, cause).to_string();
        assert!(text.starts_with("/data/table, at byte 5: the file ends at byte 5"));
    }
}
