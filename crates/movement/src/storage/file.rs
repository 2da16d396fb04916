//! A file that is read and written past the page cache where the file system allows it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, OFlag, PosixFadviseAdvice, fcntl, posix_fadvise};

use super::temporary::unnamed;
use super::{FileCause, FileError};
use crate::ring::PAGE_BYTES;

/// Whether reads and writes go through the kernel's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCache {
    /// They bypass it (O_DIRECT): for data that is read once.
    Bypass,
    /// They go through it.
    Use,
}

/// How a file is really accessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered {
        /// Why the cache is not bypassed.
        why: String,
    },
}

/// A regular file. Any range of it can be read and written: whole aligned pages go past the page cache, and the rest
/// goes through it.
#[derive(Debug)]
pub struct DataFile {
    path: PathBuf,
    /// The file, through the page cache.
    buffered: File,
    /// The file, past the page cache, or why it cannot be used in this way.
    direct: Result<File, String>,
    /// Whether the file system refused an aligned operation past the cache.
    direct_refused: AtomicBool,
    /// Bytes when the file was opened.
    bytes: u64,
    /// Bytes for which the disk has room, if a test injected a full disk.
    room_bytes: Option<u64>,
}

impl DataFile {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// If there is no such file, it is not a regular file, or it may not be read.
    pub fn open(path: &Path, cache: PageCache) -> Result<DataFile, FileError> {
        DataFile::open_with(path, cache, OpenOptions::new().read(true), 0)
    }

    /// Opens a file for reading and writing; creates it if it does not exist. A symbolic link is not followed, so that
    /// no file elsewhere is overwritten.
    ///
    /// # Errors
    /// If it is not a regular file, or it may not be written.
    pub fn create(path: &Path, cache: PageCache) -> Result<DataFile, FileError> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        DataFile::open_with(path, cache, options, libc::O_NOFOLLOW)
    }

    /// Creates an unnamed file in a folder, for reading and writing. Its disk space is freed when the value is
    /// dropped or the process ends, even by `kill -9`. Its path is that of the folder. Where the file system has no
    /// unnamed files, the file has a name until it is unlinked, before it has data.
    ///
    /// # Errors
    /// If the folder does not exist or is not writable.
    pub fn temporary(folder: &Path, cache: PageCache) -> Result<DataFile, FileError> {
        let made = unnamed(folder);
        let buffered = made.map_err(|error| FileError::new(folder, 0, FileCause::of(error)))?;
        let options = &mut OpenOptions::new();
        DataFile::of(folder, buffered, cache, options.read(true).write(true))
    }

    fn open_with(
        path: &Path,
        cache: PageCache,
        options: &mut OpenOptions,
        flags: i32,
    ) -> Result<DataFile, FileError> {
        // Opening a pipe would block until there is a writer.
        let options = options.custom_flags(flags | libc::O_NONBLOCK);
        let opened = options.open(path);
        let buffered = opened.map_err(|error| FileError::new(path, 0, FileCause::of(error)))?;
        DataFile::of(path, buffered, cache, options)
    }

    /// Wraps an open file. With [`PageCache::Bypass`], opens it again past the page cache with these options.
    fn of(
        path: &Path,
        buffered: File,
        cache: PageCache,
        options: &mut OpenOptions,
    ) -> Result<DataFile, FileError> {
        let failed = |error| FileError::new(path, 0, FileCause::of(error));
        let found = buffered.metadata().map_err(failed)?;
        if !found.is_file() {
            let cause = match found.is_dir() {
                true => FileCause::Folder,
                false => FileCause::NotRegular,
            };
            return Err(FileError::new(path, 0, cause));
        }
        let direct = match cache {
            PageCache::Use => Err("asked for".to_owned()),
            PageCache::Bypass => match reopen(&buffered, options, libc::O_DIRECT) {
                Ok(file) => Ok(file),
                Err(error) => match FileCause::of(error) {
                    cause @ FileCause::TooManyOpen(_) => {
                        return Err(FileError::new(path, 0, cause));
                    }
                    cause => Err(format!("the file system refuses O_DIRECT: {cause}")),
                },
            },
        };
        // Some kernels would refuse io_uring's reads through the page cache.
        let flags = fcntl(&buffered, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        let blocking =
            FcntlArg::F_SETFL(flags.map_err(|error| failed(error.into()))? - OFlag::O_NONBLOCK);
        fcntl(&buffered, blocking).map_err(|error| failed(error.into()))?;
        Ok(DataFile {
            path: path.to_owned(),
            buffered,
            direct,
            direct_refused: AtomicBool::new(false),
            bytes: found.len(),
            room_bytes: None,
        })
    }

    /// Injects a full disk, for tests: [`DataFile::write_all_at`] fails if it would end after these bytes.
    pub fn inject_full_disk(&mut self, room_bytes: u64) {
        self.room_bytes = Some(room_bytes);
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of bytes when the file was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how whole aligned pages are read and written.
    pub fn access(&self) -> Access {
        let why = match &self.direct {
            Ok(_) if self.direct_file().is_some() => return Access::Direct,
            Ok(_) => "the file system refused an aligned operation".to_owned(),
            Err(why) => why.clone(),
        };
        Access::Buffered { why }
    }

    pub(super) fn direct_file(&self) -> Option<&File> {
        let refused = self.direct_refused.load(Ordering::Relaxed);
        self.direct.as_ref().ok().filter(|_| !refused)
    }

    pub(super) fn buffered_file(&self) -> &File {
        &self.buffered
    }

    /// Returns a new descriptor of the file, as cuFile wants it: past the page cache if that is possible.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn descriptor(&self) -> Result<File, FileError> {
        let file = self.direct_file().unwrap_or(&self.buffered);
        file.try_clone().map_err(|error| self.failed(0, error))
    }

    /// Drops the file's pages from the page cache, after writing them to the drive.
    ///
    /// # Errors
    /// If the drive fails.
    pub fn evict(&self) -> Result<(), FileError> {
        self.sync()?;
        let advised = posix_fadvise(
            &self.buffered,
            0,
            0,
            PosixFadviseAdvice::POSIX_FADV_DONTNEED,
        );
        advised.map_err(|error| self.failed(0, error.into()))
    }

    /// Waits until written bytes are on the drive.
    ///
    /// # Errors
    /// If the drive fails or is full.
    pub fn sync(&self) -> Result<(), FileError> {
        let synced = self.buffered.sync_data();
        synced.map_err(|error| self.failed(0, error))
    }

    /// Fills a buffer from an offset on. Returns the number of bytes read, fewer only at the end of the file.
    ///
    /// # Errors
    /// If the drive fails.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let rest = &mut into[done..];
            let (file, bytes) = self.file_for(at, rest.as_ptr().addr(), rest.len());
            match file.read_at(&mut rest[..bytes], at) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) => self.give_way(file, at, error)?,
            }
        }
        Ok(done)
    }

    /// Fills a buffer from an offset on.
    ///
    /// # Errors
    /// [`FileCause::Shrunk`] if the file ends before; if the drive fails.
    pub fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> Result<(), FileError> {
        let read = self.read_at(offset, into)?;
        self.check_whole(offset, read, into.len())
    }

    /// Returns an error if fewer bytes than `wanted` could be read at an offset.
    pub(super) fn check_whole(
        &self,
        offset: u64,
        read: usize,
        wanted: usize,
    ) -> Result<(), FileError> {
        if read >= wanted {
            return Ok(());
        }
        let unread = offset + read as u64;
        let cause = self.ends_before(unread + 1);
        let cause = cause.unwrap_or_else(|| FileCause::Short {
            missing: wanted - read,
        });
        Err(FileError::new(&self.path, unread, cause))
    }

    /// Returns the cause of a read that failed because the file now ends before `end`; `None` if it does not.
    pub(super) fn ends_before(&self, end: u64) -> Option<FileCause> {
        let now = self.buffered.metadata().ok()?.len();
        (now < end).then_some(FileCause::Shrunk {
            end: now,
            bytes: self.bytes,
        })
    }

    /// Writes a buffer at an offset.
    ///
    /// # Errors
    /// [`FileCause::Full`] if there is no room; if the drive fails.
    pub fn write_all_at(&self, offset: u64, from: &[u8]) -> Result<(), FileError> {
        let end = offset + from.len() as u64;
        if self.room_bytes.is_some_and(|room| end > room) {
            let full = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(self.failed(offset, full));
        }
        let mut done = 0;
        while done < from.len() {
            let at = offset + done as u64;
            let rest = &from[done..];
            let (file, bytes) = self.file_for(at, rest.as_ptr().addr(), rest.len());
            match file.write_at(&rest[..bytes], at) {
                Ok(0) => return Err(self.failed(at, io::ErrorKind::WriteZero.into())),
                Ok(written) => done += written,
                Err(error) => self.give_way(file, at, error)?,
            }
        }
        Ok(())
    }

    /// Returns the file to use for the first bytes of an operation, and the number of those bytes.
    fn file_for(&self, offset: u64, address: usize, bytes: usize) -> (&File, usize) {
        let page = PAGE_BYTES as u64;
        let Some(direct) = self.direct_file() else {
            return (&self.buffered, bytes);
        };
        let past_page = (offset % page) as usize;
        if address % PAGE_BYTES != past_page {
            // No part of the memory is aligned where the file is.
            return (&self.buffered, bytes);
        }
        if past_page != 0 {
            return (&self.buffered, bytes.min(PAGE_BYTES - past_page));
        }
        match bytes - bytes % PAGE_BYTES {
            0 => (&self.buffered, bytes),
            whole => (direct, whole),
        }
    }

    /// Decides whether an operation is tried again after an error: if it was interrupted, or if the file system refuses
    /// to bypass the page cache.
    fn give_way(&self, file: &File, offset: u64, error: io::Error) -> Result<(), FileError> {
        let direct = self.direct.as_ref();
        let was_direct = direct.is_ok_and(|direct| std::ptr::eq(direct, file));
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            Some(libc::EINVAL) if was_direct => {
                self.refuse_direct();
                Ok(())
            }
            _ => Err(self.failed(offset, error)),
        }
    }

    /// Uses the page cache from now on.
    pub(super) fn refuse_direct(&self) {
        self.direct_refused.store(true, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, offset: u64, error: io::Error) -> FileError {
        FileError::new(&self.path, offset, FileCause::of(error))
    }
}

/// Opens an open file again with other flags. The path could name another file by now.
fn reopen(file: &File, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    let options = options.custom_flags(flags);
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::AlignedBytes;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|index| (index * 31 % 253) as u8).collect()
    }

    /// Returns a device file as if it were a regular one.
    fn device(path: &str) -> DataFile {
        let file = OpenOptions::new().read(true).write(true).open(path);
        DataFile {
            path: path.into(),
            buffered: file.expect("Linux has it"),
            direct: Err(String::new()),
            direct_refused: AtomicBool::new(false),
            bytes: 0,
            room_bytes: None,
        }
    }

    #[test]
    fn any_range_is_read_into_any_memory() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        let data = bytes(20_000);
        fs::write(&path, &data).expect("room");
        for cache in [PageCache::Bypass, PageCache::Use] {
            let file = DataFile::open(&path, cache).expect("just written");
            let mut memory = AlignedBytes::zeroed(24_576);
            for (offset, begin, count) in [
                (0, 0, 20_000),
                (0, 0, 8192),
                (4096, 4096, 8192),
                (5000, 904, 12_000),
                (5000, 13, 12_000),
                (19_999, 0, 1),
                (4095, 4095, 2),
            ] {
                let into = &mut memory[begin..begin + count];
                into.fill(0);
                let read = file.read_exact_at(offset as u64, into);
                read.unwrap_or_else(|error| panic!("{error}"));
                assert!(
                    *into == data[offset..offset + count],
                    "{count} at {offset}, {cache:?}"
                );
            }
            assert_eq!(file.read_at(19_000, &mut memory).expect("readable"), 1000);
            assert_eq!(file.read_at(20_000, &mut memory).expect("readable"), 0);
        }
    }

    #[test]
    fn any_range_is_written_from_any_memory() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        let mut expected = vec![0; 24_576];
        let file = DataFile::create(&path, PageCache::Bypass).expect("a new file");
        let mut memory = AlignedBytes::zeroed(24_576);
        memory.copy_from_slice(&bytes(24_576));
        file.write_all_at(0, &vec![0; 24_576]).expect("room");
        for (offset, begin, count) in [
            (0, 0, 8192),
            (9000, 808, 9000),
            (20_000, 1, 3),
            (4095, 4095, 2),
        ] {
            let from = &memory[begin..begin + count];
            file.write_all_at(offset as u64, from).expect("room");
            expected[offset..offset + count].copy_from_slice(from);
        }
        file.sync().expect("a drive");
        assert!(fs::read(&path).expect("just written") == expected);
        file.evict().expect("a drive");
        let mut back = AlignedBytes::zeroed(24_576);
        file.read_exact_at(0, &mut back).expect("readable");
        assert!(*back == *expected);
    }

    #[test]
    fn a_temporary_file_has_no_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for cache in [PageCache::Bypass, PageCache::Use] {
            let file = DataFile::temporary(folder.path(), cache).expect("room");
            let mut memory = AlignedBytes::zeroed(8192);
            memory.copy_from_slice(&bytes(8192));
            file.write_all_at(4096, &memory).expect("room");
            let mut back = AlignedBytes::zeroed(8192);
            file.read_exact_at(4096, &mut back).expect("just written");
            assert!(*back == *memory, "{cache:?}");
            assert_eq!(fs::read_dir(folder.path()).expect("it exists").count(), 0);
        }
        let missing = folder.path().join("missing");
        let error = DataFile::temporary(&missing, PageCache::Bypass).expect_err("no folder");
        assert!(matches!(error.cause, FileCause::Missing), "{error}");
        assert_eq!(error.path, missing);
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_at_its_new_end() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        fs::write(&path, bytes(20_000)).expect("room");
        let file = DataFile::open(&path, PageCache::Bypass).expect("just written");
        let writer = OpenOptions::new().write(true).open(&path);
        writer
            .and_then(|writer| writer.set_len(5000))
            .expect("writable");
        let error = file.read_exact_at(0, &mut AlignedBytes::zeroed(20_480));
        let error = error.expect_err("it is shorter");
        let is_right = matches!(error.cause, FileCause::Shrunk { end: 5000, .. });
        assert!(is_right && error.offset == 5000, "{error}");
    }

    #[test]
    fn a_short_read_of_a_file_that_goes_on_is_not_its_end() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        fs::write(&path, bytes(100)).expect("room");
        let file = DataFile::open(&path, PageCache::Use).expect("just written");
        let error = file
            .check_whole(10, 5, 20)
            .expect_err("15 bytes are missing");
        assert!(
            matches!(error.cause, FileCause::Short { missing: 15 }),
            "{error}"
        );
        assert_eq!(error.offset, 15);
    }

    #[test]
    fn a_file_that_is_replaced_while_it_is_opened_stays_one_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        fs::write(&path, "first").expect("room");
        let first = File::open(&path).expect("just written");
        fs::write(folder.path().join("other"), "second").expect("room");
        fs::rename(folder.path().join("other"), &path).expect("one file system");
        let again = reopen(&first, OpenOptions::new().read(true), 0).expect("it is open");
        let inode = |file: &File| file.metadata().expect("it is open").ino();
        assert_eq!(inode(&first), inode(&again));
    }

    #[test]
    fn an_open_file_blocks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = DataFile::create(&folder.path().join("table"), PageCache::Bypass);
        let file = file.expect("a new file");
        let flags = fcntl(&file.buffered, FcntlArg::F_GETFL).expect("it is open");
        assert!(!OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let refused = |path: &Path| {
            let error = DataFile::open(path, PageCache::Bypass).expect_err("no file");
            assert_eq!(error.path, path);
            error.cause
        };
        assert!(matches!(refused(folder.path()), FileCause::Folder));
        assert!(matches!(
            refused(Path::new("/dev/null")),
            FileCause::NotRegular
        ));
        let missing = folder.path().join("missing");
        assert!(matches!(refused(&missing), FileCause::Missing));
        let created = |path: &Path| DataFile::create(path, PageCache::Use);
        let cause = created(folder.path()).expect_err("a folder").cause;
        assert!(matches!(cause, FileCause::Folder), "{cause}");
        fs::write(&missing, "precious").expect("room");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&missing, &link).expect("a writable folder");
        DataFile::open(&link, PageCache::Use).expect("links are read");
        let cause = created(&link).expect_err("a link").cause;
        assert!(matches!(cause, FileCause::Link), "{cause}");
    }

    #[test]
    fn a_full_disk_and_a_failing_drive_are_told_apart() {
        let full = device("/dev/full").write_all_at(7, b"bytes");
        let error = full.expect_err("it is always full");
        assert!(matches!(error.cause, FileCause::Full(_)), "{error}");
        assert_eq!(error.offset, 7);
        let file = DataFile::temporary(&std::env::temp_dir(), PageCache::Bypass);
        let mut file = file.expect("a folder");
        file.inject_full_disk(8192);
        file.write_all_at(0, &[1; 8192]).expect("it has room");
        let error = file.write_all_at(8000, &[1; 193]).expect_err("a byte more");
        assert!(matches!(error.cause, FileCause::Full(_)), "{error}");
        // Address 0 of this process is not mapped, and reading it fails as a drive does.
        let failing = device("/proc/self/mem").read_at(0, &mut [0; 8]);
        let error = failing.expect_err("nothing is there");
        assert!(matches!(error.cause, FileCause::Drive(_)), "{error}");
    }

    #[test]
    fn a_file_says_how_it_is_accessed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("table");
        fs::write(&path, bytes(8192)).expect("room");
        let file = DataFile::open(&path, PageCache::Use).expect("just written");
        assert_ne!(file.access(), Access::Direct);
        let file = DataFile::open(&path, PageCache::Bypass).expect("just written");
        file.refuse_direct();
        let Access::Buffered { why } = file.access() else {
            panic!("the page cache is used");
        };
        assert!(why.contains("refuse"), "{why}");
        file.read_exact_at(0, &mut AlignedBytes::zeroed(8192))
            .expect("readable");
    }
}
