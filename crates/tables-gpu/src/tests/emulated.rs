//! An engine without a GPU: its memory is a file, which kernels as programs map.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, StringArray, StringBuilder};
use forebay_device::MemoryPool;
use forebay_device::cuda::{DeviceType, ProgramSpec};
use forebay_movement::{Tier, part_checksum};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tokio::sync::oneshot;

use crate::engine::{
    COMPILING, Engine, FileRead, FilesRead, Image, Launch, Memory, Ran, TextSearch,
};
use crate::gpu::words;
use crate::program::ROWS_OF_THREAD;
use crate::reason::Reason;
use crate::search::whole_tiles;

pub(super) use super::programs::has_compiler;
use super::programs::{BLOCKS, Program, THREADS};

/// Where kernels have the memory, and the image of a launch.
const MEMORY: u64 = 0x1000_0000_0000;
const IMAGE: u64 = 0x2000_0000_0000;
/// Bytes in front of both: for the arguments of a kernel, and so that no file is empty.
const HEAD: usize = 4096;

/// The reason if a device is lost, as that of a GPU.
pub(super) const LOST: &str = "emulated was lost";

/// The engine.
#[derive(Debug)]
pub(super) struct Emulated {
    /// The memory, which kernels map, and its end.
    memory: NamedTempFile,
    end: Mutex<u64>,
    /// What the engine tells of its free memory, for columns. There is room for everything.
    pub(super) free_bytes: AtomicU64,
    /// Whether the host has no memory for columns.
    pub(super) is_host_full: AtomicBool,
    /// The devices that are lost, and those without free memory, a bit for each.
    pub(super) lost: AtomicU64,
    pub(super) full: AtomicU64,
    /// The devices with memory of 48 KiB, by what they tell.
    pub(super) small: AtomicU64,
    /// Where memory of devices is reserved, if a test has a budget.
    pub(super) pool: Mutex<Option<Arc<MemoryPool>>>,
    /// How many allocations of memory of a device fail next.
    pub(super) failing: AtomicU64,
    /// Number of allocations of memory of devices, and the index of the first of two consecutive ones that fail.
    pub(super) allocations: AtomicU64,
    pub(super) fails_at: AtomicU64,
    /// How many kernels run before the device of the next one is lost.
    pub(super) kernels_left: AtomicU64,
    /// Whether memory that is allocated has bytes with which an index would lead out of it.
    pub(super) poisons: AtomicBool,
    /// The query is cancelled in the kernel that runs after this many, after as many looks at the flag.
    pub(super) cancels: Mutex<Option<(u64, u64)>>,
    /// What the next search waits for.
    pub(super) search_waits: Mutex<Option<oneshot::Receiver<()>>>,
    /// Whether the next read of column files panics.
    pub(super) panics: AtomicBool,
    /// Number of searches, and of launches.
    pub(super) searches: AtomicU64,
    pub(super) launches: AtomicU64,
    /// The kernels that were compiled, by their source.
    pub(super) kernels: Mutex<HashMap<String, ProgramSpec>>,
    /// Whether a launch fails that does not wait for a kernel which was not compiled before.
    pub(super) compiles_behind: AtomicBool,
    /// Why no kernel compiles.
    pub(super) compile_error: Mutex<Option<Reason>>,
}

impl Emulated {
    pub(super) fn new() -> Arc<Emulated> {
        let memory = NamedTempFile::new().expect("room");
        memory.as_file().set_len(HEAD as u64).expect("room");
        Arc::new(Emulated {
            memory,
            end: Mutex::new(HEAD as u64),
            free_bytes: AtomicU64::new(u64::MAX),
            is_host_full: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            full: AtomicU64::new(0),
            small: AtomicU64::new(0),
            pool: Mutex::default(),
            failing: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            fails_at: AtomicU64::new(u64::MAX),
            kernels_left: AtomicU64::new(u64::MAX),
            poisons: AtomicBool::new(false),
            cancels: Mutex::default(),
            search_waits: Mutex::default(),
            panics: AtomicBool::new(false),
            searches: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            kernels: Mutex::default(),
            compiles_behind: AtomicBool::new(false),
            compile_error: Mutex::default(),
        })
    }

    /// Compiles the kernels of a launch, and those of later ones that come with it, as a GPU does.
    fn compile(&self, launch: &Launch) -> Result<(), Reason> {
        if let Some(reason) = &*self.compile_error.lock() {
            return Err(reason.clone());
        }
        let programs = launch.kernels.iter().map(|it| &it.program);
        let mut kernels = self.kernels.lock();
        let before = kernels.len();
        for spec in programs.chain(&launch.later).map(|it| it.spec()) {
            let source = spec.source.to_string();
            kernels.entry(source).or_insert_with(|| spec.clone());
        }
        let is_behind = !launch.waits && self.compiles_behind.load(Ordering::Relaxed);
        match is_behind && kernels.len() > before {
            true => Err(Reason::new(COMPILING)),
            false => Ok(()),
        }
    }

    fn allocate(&self, bytes: u64, tier: Tier, device: usize) -> Memory {
        let mut end = self.end.lock();
        let begin = end.next_multiple_of(16);
        *end = begin + bytes;
        self.memory.as_file().set_len(*end).expect("room");
        if self.poisons.load(Ordering::Relaxed) {
            self.write(&vec![0xA5; bytes as usize], MEMORY + begin);
        }
        Memory {
            address: MEMORY + begin,
            device,
            tier,
            held: Arc::new(bytes),
        }
    }

    fn write(&self, bytes: &[u8], address: u64) {
        let written = self.memory.as_file().write_all_at(bytes, address - MEMORY);
        written.expect("room");
    }

    /// Counts a kernel of a device, or loses the device.
    fn begin_kernel(&self, device: usize) -> Result<(), Reason> {
        let fewer = |left: u64| left.checked_sub(1);
        let left = &self.kernels_left;
        let begun = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        begun.map(drop).map_err(|_| {
            left.store(u64::MAX, Ordering::Relaxed);
            self.lost.fetch_or(1 << device, Ordering::Relaxed);
            Reason::lost("emulated")
        })
    }

    /// Returns the number of looks at the flag of the next kernel after which the query is cancelled.
    fn looks(&self) -> u64 {
        let mut cancels = self.cancels.lock();
        let Some((kernels, looks)) = *cancels else {
            return u64::MAX;
        };
        *cancels = kernels.checked_sub(1).map(|kernels| (kernels, looks));
        match kernels {
            0 => looks,
            _ => u64::MAX,
        }
    }

    fn ran(&self, launch: &Launch, device: usize) -> Result<Ran, Reason> {
        let began = Instant::now();
        self.launches.fetch_add(1, Ordering::Relaxed);
        let specs: Vec<_> = launch.kernels.iter().map(|it| it.program.spec()).collect();
        self.compile(launch)?;
        if let Some((zeroed, bytes)) = &launch.zeroed {
            self.write(&vec![0; *bytes as usize], zeroed.address);
        }
        let image = launch.image(THREADS);
        let file = NamedTempFile::new().expect("room");
        let bytes = file.as_file();
        bytes.set_len((HEAD + image.len) as u64).expect("room");
        bytes.write_all_at(&image.bytes, HEAD as u64).expect("room");
        for (index, (kernel, spec)) in launch.kernels.iter().zip(specs).enumerate() {
            self.begin_kernel(device)?;
            if let Some((zeroed, bytes)) = &kernel.zeroed {
                self.write(&vec![0; *bytes as usize], zeroed.address);
            }
            let tiles_of_block = image.tiles(index).div_ceil(BLOCKS);
            kernel.check_sums(tiles_of_block * u64::from(THREADS * ROWS_OF_THREAD))?;
            let mut arguments = Vec::new();
            let of_kernel = image.arguments_at(index, IMAGE + HEAD as u64);
            of_kernel.append(&mut arguments);
            bytes.write_all_at(&arguments, 0).expect("room");
            let (memory, mapped) = ((self.memory.path(), MEMORY), (file.path(), IMAGE));
            Program::of(spec).run(memory, mapped, self.looks());
        }
        let mut results = vec![0; image.len - image.flag];
        let begin = (HEAD + image.flag) as u64;
        bytes.read_exact_at(&mut results, begin).expect("results");
        Image::ran(results, (began.elapsed(), Duration::ZERO))
    }
}

/// A device of the engine of a test, which keeps the engine to look at its kernels. All have the same memory, as each
/// GPU has the addresses of the others.
#[derive(Debug)]
struct Shared(Arc<Emulated>, usize);

/// Returns this many devices.
pub(super) fn devices(emulated: &Arc<Emulated>, count: usize) -> Vec<Arc<dyn Engine>> {
    let devices = (0..count).map(|device| Arc::new(Shared(Arc::clone(emulated), device)) as _);
    devices.collect()
}

/// Returns a device.
pub(super) fn device() -> Vec<Arc<dyn Engine>> {
    devices(&Emulated::new(), 1)
}

impl Shared {
    /// Returns an error if the device is lost.
    fn check(&self) -> Result<(), Reason> {
        match self.is_lost() {
            true => Err(Reason::lost("emulated")),
            false => Ok(()),
        }
    }

    /// Returns an error if memory is that of the device, and the device is lost.
    fn check_memory(&self, memory: &Memory) -> Result<(), Reason> {
        match memory.tier {
            Tier::Device => self.check(),
            _ => Ok(()),
        }
    }

    fn is_in(&self, devices: &AtomicU64) -> bool {
        devices.load(Ordering::Relaxed) >> self.1 & 1 == 1
    }
}

impl Engine for Shared {
    fn name(&self) -> String {
        "emulated".to_owned()
    }

    fn is_lost(&self) -> bool {
        self.is_in(&self.0.lost)
    }

    fn max_bytes(&self) -> u64 {
        match self.is_in(&self.0.small) {
            true => 48 << 10,
            false => 1 << 40,
        }
    }

    fn allocate(&self, bytes: u64) -> Result<Memory, Reason> {
        let fail = |left: u64| left.checked_sub(1);
        let failing = &self.0.failing;
        let fails = failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fail);
        let number = self.0.allocations.fetch_add(1, Ordering::Relaxed);
        let at = self.0.fails_at.load(Ordering::Relaxed);
        let fails_now = (at..=at.saturating_add(1)).contains(&number);
        if fails.is_ok() || fails_now || self.is_in(&self.0.full) {
            return Err(Reason::new("full"));
        }
        let pool = self.0.pool.lock().clone();
        let reserved = pool.map(|pool| pool.reserve_or_claim(bytes));
        let reserved = reserved.transpose().map_err(Reason::of)?;
        let memory = self.0.allocate(bytes, Tier::Device, self.1);
        Ok(Memory {
            held: Arc::new((memory.held, reserved)),
            ..memory
        })
    }

    fn free_bytes(&self) -> u64 {
        if self.is_in(&self.0.full) {
            return 0;
        }
        self.0.free_bytes.load(Ordering::Relaxed)
    }

    fn write_host(&self, words: Vec<u32>) -> BoxFuture<'static, Result<Memory, Reason>> {
        if self.0.is_host_full.load(Ordering::Relaxed) {
            return std::future::ready(Err(Reason::new("full"))).boxed();
        }
        let memory = self
            .0
            .allocate(words.len() as u64 * 4, Tier::Pinned, self.1);
        let written = self.write(words, &memory);
        async move { written.await.map(|()| memory) }.boxed()
    }

    fn copy_to_host(
        &self,
        from: &Memory,
        bytes: u64,
    ) -> BoxFuture<'static, Result<Memory, Reason>> {
        let (engine, from) = (Shared(Arc::clone(&self.0), self.1), from.clone());
        // A GPU copies while kernels run. Here, what kernels write there before the future is awaited is copied, too.
        async move {
            let words = engine.read(&from, bytes).await?;
            engine.write_host(words).await
        }
        .boxed()
    }

    fn read(&self, memory: &Memory, bytes: u64) -> BoxFuture<'static, Result<Vec<u32>, Reason>> {
        if let Err(lost) = self.check_memory(memory) {
            return std::future::ready(Err(lost)).boxed();
        }
        let mut read = vec![0; bytes as usize];
        let file = self.0.memory.as_file();
        let begin = memory.address - MEMORY;
        file.read_exact_at(&mut read, begin).expect("memory");
        std::future::ready(Ok(words(&read))).boxed()
    }

    fn read_files(&self, files: Vec<FileRead>) -> BoxFuture<'static, Result<FilesRead, Reason>> {
        assert!(!self.0.panics.swap(false, Ordering::Relaxed), "wanted");
        let sums = files.into_iter().map(|file| {
            let bytes = fs::read(file.path).map_err(Reason::of)?;
            for (range, memory) in file.pieces {
                assert_eq!(memory.device, self.1);
                assert!(file.range.contains(&range.start) && range.end <= file.range.end);
                let piece = &bytes[range.start as usize..range.end as usize];
                self.0.write(piece, memory.address);
            }
            let range = file.range.start as usize..file.range.end as usize;
            Ok(part_checksum(&bytes[range], file.range.start))
        });
        let read = FilesRead {
            sums: sums.collect(),
            took: Duration::ZERO,
            path: "emulated",
        };
        std::future::ready(Ok(read)).boxed()
    }

    fn write(&self, words: Vec<u32>, to: &Memory) -> BoxFuture<'static, Result<(), Reason>> {
        assert_eq!(to.device, self.1);
        if let Err(lost) = self.check_memory(to) {
            return std::future::ready(Err(lost)).boxed();
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.write(&bytes, to.address);
        std::future::ready(Ok(())).boxed()
    }

    fn write_texts(&self, texts: StringArray) -> BoxFuture<'static, Result<(Memory, u64), Reason>> {
        let bytes = texts.value_data().len() as u64;
        let memory = Memory {
            address: 0,
            device: self.1,
            tier: Tier::Device,
            held: Arc::new(texts),
        };
        std::future::ready(Ok((memory, bytes))).boxed()
    }

    fn list_texts(&self, chunks: &[Memory]) -> Result<Memory, Reason> {
        let mut list = StringBuilder::new();
        for chunk in chunks {
            assert_eq!(chunk.device, self.1);
            let texts = chunk.held.downcast_ref::<StringArray>().expect("texts");
            texts.iter().for_each(|text| list.append_option(text));
            let padding = whole_tiles(texts.len()) - texts.len();
            list.append_nulls(padding);
        }
        Ok(Memory {
            address: 0,
            device: self.1,
            tier: Tier::Device,
            held: Arc::new(list.finish()),
        })
    }

    fn search(&self, search: TextSearch) -> BoxFuture<'static, Result<Duration, Reason>> {
        let texts = search
            .texts
            .held
            .downcast_ref::<StringArray>()
            .expect("texts");
        let mut marks = vec![0u32; texts.len() / 8];
        for (row, text) in texts.iter().enumerate() {
            let matches = search.program.is_match(text.unwrap_or_default().as_bytes());
            marks[row / 256 * 32 + row % 32] |= u32::from(matches) << (row / 32 % 8 * 4);
        }
        self.0.searches.fetch_add(1, Ordering::Relaxed);
        let written = self.write(marks, &search.marks);
        let waits = self.0.search_waits.lock().take();
        async move {
            if let Some(waits) = waits {
                waits.await.expect("a sender");
            }
            written.await.map(|()| Duration::ZERO)
        }
        .boxed()
    }

    fn selects_from(&self) -> usize {
        // Small tables have few groups.
        1 << 10
    }

    fn run(&self, launch: Launch) -> BoxFuture<'static, Result<Ran, Reason>> {
        let ran = self.check().and_then(|()| self.0.ran(&launch, self.1));
        std::future::ready(ran).boxed()
    }
}
