//! A simulated disk that loses power: synced data survives, and any part of the unsynced data may be lost.
//!
//! The files are real, and so are all system calls except `fsync` and `fdatasync`. This executable defines these two,
//! and its definitions take precedence over the C library's. A sync copies the content of the file or folder, and the
//! copy represents the synced state. A power failure builds an image of the disk in another folder:
//!
//! - In a file, each page of 4 KiB that differs from its synced state is the old page, the new page, or a mix of their
//!   sectors of 512 bytes. The length is the old or the new one.
//! - In a folder, each name that was created, removed or moved to another file since the last sync has its old or its
//!   new state, independently of the other names. File systems that keep the order of such changes lose less.
//!
//! A test can make syncs fail, either those of journals only or those of any file or folder. As on Linux, the pages
//! that a failed sync did not write are marked clean: a later sync writes them only if they have changed again. If
//! other descriptors were open on the file during the failed sync, the next sync of each of them fails, too. A folder
//! whose sync failed is written by its next sync.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use nix::errno::Errno;
use parking_lot::Mutex;
use rustix::fs::{SeekFrom, seek};

const PAGE_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;

/// The simulated disks in use, with their folders.
static DISKS: Mutex<Vec<(PathBuf, Arc<Mutex<Disk>>)>> = Mutex::new(Vec::new());

/// Identifies a file or folder independently of its name. Inode numbers are reused, but not with the same creation
/// time.
type Id = (u64, Option<SystemTime>);
/// The names in a folder. The flag is true for subfolders.
type Names = BTreeMap<OsString, (Id, bool)>;

/// Content of a file: the bytes up to the last non-zero byte, and the length of the file.
#[derive(Clone, Default, PartialEq)]
struct Content {
    bytes: Vec<u8>,
    length: u64,
}

/// Pages that a failed sync did not write, but that the kernel counts as clean.
struct Stale {
    pages: HashMap<usize, [u8; PAGE_BYTES]>,
    /// The modification time that the failed sync gave to the file. Any later write changes this time.
    changed: Option<SystemTime>,
    /// Whether the file is a journal. Journals are only appended to. A write to any other file is taken to replace its
    /// whole content, so all of its pages are dirty afterwards.
    is_journal: bool,
    /// Descriptors that still have to report the failed sync.
    unreported: Vec<OsString>,
}

impl Stale {
    /// Keeps only the pages that still count as clean.
    fn retain(&mut self, now: &Content, changed: Option<SystemTime>) {
        let is_new = changed != self.changed && !self.is_journal;
        self.pages
            .retain(|page, bytes| !is_new && now.page(*page) == *bytes);
    }
}

#[derive(Default)]
struct Disk {
    root: PathBuf,
    files: HashMap<Id, Content>,
    folders: HashMap<Id, Names>,
    /// Files whose last sync failed.
    stale: HashMap<Id, Stale>,
    random: Rng,
    /// Number of syncs that succeed before one fails; `None` if none is to fail.
    until_failure: Option<u32>,
    /// Number of consecutive syncs that fail, once `until_failure` syncs have succeeded.
    failures: u32,
    /// Whether only syncs of journals fail.
    fails_journals_alone: bool,
    has_failed: bool,
    /// Number of syncs that succeed before power is cut; `None` if it is not to be cut.
    until_cut: Option<u32>,
    /// Value that `until_cut` gets when a sync fails.
    until_cut_after_failure: Option<u32>,
    image: Option<PathBuf>,
}

/// How much of the unsynced state survives a power failure.
#[derive(Clone, Copy)]
enum Survival {
    Nothing,
    Everything,
    Some,
}

/// Control of the disk under a folder. Dropping it ends the simulation.
pub struct Power {
    root: PathBuf,
    disk: Arc<Mutex<Disk>>,
}

impl Power {
    /// Creates a disk on which everything in the folder is already synced.
    pub fn on(root: &Path, seed: u64) -> Self {
        let mut disk = Disk {
            root: root.to_owned(),
            random: Rng::with_seed(seed),
            ..Disk::default()
        };
        disk.keep_all(root);
        let disk = Arc::new(Mutex::new(disk));
        DISKS.lock().push((root.to_owned(), Arc::clone(&disk)));
        Self {
            root: root.to_owned(),
            disk,
        }
    }

    /// Lets `after` syncs of journals succeed, then makes one fail.
    pub fn fail_journal(&self, after: u32) {
        self.fail(after, 1, true);
    }

    /// Lets `after` syncs of any file or folder succeed, then makes `count` consecutive syncs fail.
    pub fn fail_any(&self, after: u32, count: u32) {
        self.fail(after, count, false);
    }

    fn fail(&self, after: u32, count: u32, journals_alone: bool) {
        let mut disk = self.disk.lock();
        disk.until_failure = Some(after);
        disk.failures = count;
        disk.fails_journals_alone = journals_alone;
    }

    /// Lets `after` syncs succeed, then cuts power at the next sync. No sync succeeds from then on.
    pub fn cut_at_sync(&self, after: u32) {
        self.disk.lock().until_cut = Some(after);
    }

    /// Cuts power a little after the first failed sync: `after` more syncs follow, and the next sync cuts power.
    pub fn cut_after_failure(&self, after: u32) {
        self.disk.lock().until_cut_after_failure = Some(after);
    }

    /// Returns whether a sync has failed since the last call. Once power is cut, all syncs fail.
    pub fn has_failed(&self) -> bool {
        let mut disk = self.disk.lock();
        disk.image.is_some() || std::mem::take(&mut disk.has_failed)
    }

    /// Cuts power, unless it is cut already. Returns the folder with the image of the disk.
    pub fn cut(&self) -> PathBuf {
        self.disk.lock().cut()
    }
}

impl Drop for Power {
    fn drop(&mut self) {
        DISKS.lock().retain(|(root, _)| *root != self.root);
    }
}

/// Replaces `fsync`: syncs a file or folder.
#[expect(unsafe_code, reason = "the function replaces the C library's")]
#[unsafe(no_mangle)]
pub extern "C" fn fsync(descriptor: i32) -> i32 {
    sync(descriptor)
}

/// Replaces `fdatasync`: syncs the content of a file.
#[expect(unsafe_code, reason = "the function replaces the C library's")]
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(descriptor: i32) -> i32 {
    sync(descriptor)
}

fn sync(descriptor: i32) -> i32 {
    let link = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    let Ok(path) = fs::read_link(&link) else {
        return 0;
    };
    let disk = DISKS
        .lock()
        .iter()
        .find(|(root, _)| path.starts_with(root))
        .map(|(_, disk)| Arc::clone(disk));
    let is_synced = disk.is_none_or(|disk| disk.lock().sync(&link));
    if !is_synced {
        Errno::EIO.set();
        return -1;
    }
    0
}

fn id_of(metadata: &Metadata) -> Id {
    (metadata.ino(), metadata.created().ok())
}

fn is_journal(link: &Path) -> bool {
    let path = fs::read_link(link).unwrap_or_default();
    path.extension()
        .is_some_and(|extension| extension == "jnl" || extension == "jnl (deleted)")
}

/// Sets a file's modification time to a value that no write sets. Returns this value.
fn age(link: &Path) -> Option<SystemTime> {
    let file = File::open(link).expect("an open file can be opened");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    file.set_modified(time).expect("the file is ours");
    file.metadata().ok()?.modified().ok()
}

/// Returns the names of the file descriptors in `/proc/self/fd` that are open on a file, except the name of `link`.
fn descriptors_of(id: Id, link: &Path) -> Vec<OsString> {
    let folder = link.parent().expect("links lie in a folder");
    let others = names_in(folder).into_keys().filter(|name| {
        let other = folder.join(name);
        other != link && fs::metadata(other).is_ok_and(|metadata| id_of(&metadata) == id)
    });
    others.collect()
}

fn names_in(folder: &Path) -> Names {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some((entry.file_name(), (id_of(&metadata), metadata.is_dir())))
    });
    named.collect()
}

impl Content {
    /// Reads a file. `bytes` leaves out the zeros at the end of the file, such as the preallocated part of a journal.
    fn read(path: &Path) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let mut end = 0;
        while let Ok(data) = seek(&file, SeekFrom::Data(end)) {
            end = seek(&file, SeekFrom::Hole(data)).expect("data ends somewhere");
        }
        seek(&file, SeekFrom::Start(0)).expect("files have a beginning");
        let mut bytes = Vec::new();
        file.by_ref().take(end).read_to_end(&mut bytes).ok()?;
        let last = bytes.iter().rposition(|byte| *byte != 0);
        bytes.truncate(last.map_or(0, |last| last + 1));
        Some(Self { bytes, length })
    }

    fn pages(&self) -> usize {
        self.bytes.len().div_ceil(PAGE_BYTES)
    }

    /// Returns a page of the file. Bytes of the page beyond the end of `bytes` are zero.
    fn page(&self, page: usize) -> [u8; PAGE_BYTES] {
        let start = self.bytes.len().min(page * PAGE_BYTES);
        let end = self.bytes.len().min((page + 1) * PAGE_BYTES);
        let mut bytes = [0; PAGE_BYTES];
        bytes[..end - start].copy_from_slice(&self.bytes[start..end]);
        bytes
    }

    fn set_page(&mut self, page: usize, bytes: &[u8]) {
        let end = (page + 1) * PAGE_BYTES;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[page * PAGE_BYTES..end].copy_from_slice(bytes);
    }

    fn write(&self, path: &Path) {
        let file = File::create(path).expect("the image can be written");
        let kept = self.bytes.len().min(self.length as usize);
        file.write_all_at(&self.bytes[..kept], 0)
            .and_then(|()| file.set_len(self.length))
            .expect("the image can be written");
    }
}

impl Disk {
    fn keep_all(&mut self, folder: &Path) {
        self.keep_folder(folder);
        for (name, (id, is_folder)) in names_in(folder) {
            let path = folder.join(name);
            if is_folder {
                self.keep_all(&path);
            } else {
                let content = Content::read(&path).expect("is there");
                self.files.insert(id, content);
            }
        }
    }

    fn keep_folder(&mut self, folder: &Path) {
        let id = id_of(&fs::metadata(folder).expect("the folder is there"));
        self.folders.insert(id, names_in(folder));
    }

    /// Syncs a file or folder, which may have been removed. Returns whether the sync succeeds.
    fn sync(&mut self, link: &Path) -> bool {
        if self.image.is_some() {
            return false;
        }
        let is_last = burns_down(&mut self.until_cut);
        if is_last && self.random.bool() {
            self.cut();
            return false;
        }
        let is_synced = match fs::metadata(link) {
            Ok(metadata) if metadata.is_dir() => self.sync_folder(&metadata, link),
            Ok(metadata) => self.sync_file(&metadata, link),
            Err(_) => true,
        };
        if is_last {
            self.cut();
        }
        is_synced && !is_last
    }

    fn sync_folder(&mut self, metadata: &Metadata, link: &Path) -> bool {
        if self.fails(link) {
            return false;
        }
        self.folders.insert(id_of(metadata), names_in(link));
        true
    }

    /// Counts a sync. Returns whether the sync must fail.
    fn fails(&mut self, link: &Path) -> bool {
        if self.fails_journals_alone && !is_journal(link) {
            return false;
        }
        let fails = match self.until_failure {
            None => false,
            Some(0) => {
                self.failures -= 1;
                self.until_failure = (self.failures > 0).then_some(0);
                true
            }
            Some(more) => {
                self.until_failure = Some(more - 1);
                false
            }
        };
        if fails {
            self.has_failed = true;
            self.until_cut = self.until_cut.or(self.until_cut_after_failure.take());
        }
        fails
    }

    fn sync_file(&mut self, metadata: &Metadata, link: &Path) -> bool {
        let (id, changed) = (id_of(metadata), metadata.modified().ok());
        let now = Content::read(link).expect("an open file can be read");
        if let Some(stale) = self.stale.get_mut(&id) {
            stale.retain(&now, changed);
            let name = link.file_name().expect("descriptors have numbers");
            if let Some(reported) = stale
                .unreported
                .iter()
                .position(|descriptor| descriptor == name)
            {
                stale.unreported.swap_remove(reported);
                self.has_failed = true;
                return false;
            }
        }
        let fails = self.fails(link);
        let synced = self.files.entry(id).or_default();
        if fails {
            let differ = |page: &usize| now.page(*page) != synced.page(*page);
            let pages = (0..now.pages()).filter(differ);
            let stale = Stale {
                pages: pages.map(|page| (page, now.page(page))).collect(),
                changed: age(link),
                is_journal: is_journal(link),
                unreported: descriptors_of(id, link),
            };
            self.stale.insert(id, stale);
            return false;
        }
        let before = std::mem::replace(synced, now);
        for page in self
            .stale
            .get(&id)
            .iter()
            .flat_map(|stale| stale.pages.keys())
        {
            synced.set_page(*page, &before.page(*page));
        }
        true
    }

    fn cut(&mut self) -> PathBuf {
        if let Some(image) = &self.image {
            return image.clone();
        }
        let image = self.root.with_extension("image");
        let survival = match self.random.u8(..4) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            _ => Survival::Some,
        };
        let root = self.root.clone();
        let id = id_of(&fs::metadata(&root).expect("the folder is there"));
        self.make_folder(id, Some(&root), &image, survival);
        self.image = Some(image.clone());
        image
    }

    /// Builds the image of a folder. `live` is the folder's current path, if it still exists.
    fn make_folder(&mut self, id: Id, live: Option<&Path>, image: &Path, survival: Survival) {
        fs::create_dir(image).expect("the image can be made");
        let synced = self.folders.get(&id).cloned().unwrap_or_default();
        let now = live.map_or_else(|| synced.clone(), names_in);
        let all: BTreeSet<&OsString> = synced.keys().chain(now.keys()).collect();
        for name in all {
            let kept = if self.is_new(survival) {
                now.get(name)
            } else {
                synced.get(name)
            };
            let Some((id, is_folder)) = kept else {
                continue;
            };
            let is_live = now.get(name).is_some_and(|(now, _)| now == id);
            let live = live.filter(|_| is_live).map(|live| live.join(name));
            let image = image.join(name);
            if *is_folder {
                self.make_folder(*id, live.as_deref(), &image, survival)
            } else {
                self.torn(*id, live.as_deref(), survival).write(&image)
            }
        }
    }

    fn is_new(&mut self, survival: Survival) -> bool {
        match survival {
            Survival::Nothing => false,
            Survival::Everything => true,
            Survival::Some => self.random.bool(),
        }
    }

    /// Returns the content of a file after a power failure.
    fn torn(&mut self, id: Id, live: Option<&Path>, survival: Survival) -> Content {
        let synced = self.files.get(&id).cloned().unwrap_or_default();
        let Some(now) = live.and_then(Content::read) else {
            return synced;
        };
        let mut torn = synced.clone();
        torn.length = if self.is_new(survival) {
            now.length
        } else {
            synced.length
        };
        for page in 0..synced.pages().max(now.pages()) {
            let (old, new) = (synced.page(page), now.page(page));
            if old != new {
                let bytes = self.torn_page(old, new, survival);
                torn.set_page(page, &bytes);
            }
        }
        torn
    }

    fn torn_page(
        &mut self,
        old: [u8; PAGE_BYTES],
        new: [u8; PAGE_BYTES],
        survival: Survival,
    ) -> [u8; PAGE_BYTES] {
        if !matches!(survival, Survival::Some) || self.random.u8(..4) > 0 {
            return if self.is_new(survival) { new } else { old };
        }
        let mut torn = old;
        let sectors = torn.chunks_mut(SECTOR_BYTES).zip(new.chunks(SECTOR_BYTES));
        for (torn, new) in sectors {
            if self.random.bool() {
                torn.copy_from_slice(new);
            }
        }
        torn
    }
}

/// Lowers a counter by one. Returns true if the counter was already zero.
fn burns_down(left: &mut Option<u32>) -> bool {
    match left {
        Some(0) => {
            *left = None;
            true
        }
        Some(more) => {
            *more -= 1;
            false
        }
        None => false,
    }
}
