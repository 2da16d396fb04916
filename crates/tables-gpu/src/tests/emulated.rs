//! An engine without a GPU: kernels compiled as C++, each thread a fibre.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, StringArray, StringBuilder};
use forebay_device::cuda::{DeviceType, ProgramSpec};
use forebay_movement::{Tier, part_checksum};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::engine::{Engine, FileRead, FilesRead, Image, Launch, Memory, Ran, TextSearch};
use crate::gpu::words;
use crate::program::ROWS_OF_THREAD;
use crate::reason::Reason;
use crate::search::whole_tiles;
use crate::source::headers;

/// Where the image of memory is mapped. No process has anything there.
const BASE: u64 = 0x1000_0000_0000;
/// Bytes in front of the memory, for the arguments.
const HEAD: usize = 4096;
/// Number of blocks of a launch, and threads of a block: two warps.
const BLOCKS: u64 = 3;
const THREADS: u32 = 64;

/// What undefined behaviour does: ends the program, or prints where it is first, which takes longer to compile.
const TRAPS: &str = "-fsanitize-undefined-trap-on-error";
const EXPLAINS: &str = "-fno-sanitize-recover";
/// What makes a kernel a program.
const PROGRAM: [&str; 3] = ["-include", "device.cuh", "main.o"];

/// Runs a kernel over the image of memory in a file.
fn run(program: &Path, image: &Path) -> Output {
    let run = Command::new(program)
        .arg(image)
        .args([format!("{BASE:x}"), BLOCKS.to_string(), THREADS.to_string()])
        .output();
    run.expect("the kernel runs")
}

/// Returns whether there is a compiler of C++. Without one, prints that the test is skipped, or panics if
/// `FOREBAY_REQUIRE_CXX=1`.
pub(super) fn has_compiler() -> bool {
    let found = Command::new("c++").arg("--version").output().is_ok();
    let required = std::env::var_os("FOREBAY_REQUIRE_CXX").is_some_and(|value| value == "1");
    assert!(found || !required, "no compiler of C++ (c++)");
    if !found {
        println!("skipped: no compiler of C++");
    }
    found
}

/// The engine.
#[derive(Debug)]
pub(super) struct Emulated {
    folder: TempDir,
    memory: Mutex<Vec<u8>>,
    /// What the engine tells of its free memory, for columns. There is room for everything.
    pub(super) free_bytes: AtomicU64,
    /// Whether the host has no memory for columns.
    pub(super) is_host_full: AtomicBool,
    /// The devices that are lost, and those without free memory, a bit for each.
    pub(super) lost: AtomicU64,
    pub(super) full: AtomicU64,
    /// What the next search waits for.
    pub(super) search_waits: Mutex<Option<oneshot::Receiver<()>>>,
    /// Whether the next read of column files panics.
    pub(super) panics: AtomicBool,
    /// Number of searches, and of launches.
    pub(super) searches: AtomicU64,
    pub(super) launches: AtomicU64,
    /// The kernels that were compiled, by their source.
    pub(super) kernels: Mutex<HashMap<String, Arc<Kernel>>>,
    /// Whether the header and `main` are compiled.
    common: OnceLock<()>,
}

/// A kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) spec: ProgramSpec,
    /// Its program and its source without their extensions.
    file: PathBuf,
    is_compiled: OnceLock<()>,
}

impl Emulated {
    pub(super) fn new() -> Arc<Emulated> {
        let folder = TempDir::new().expect("room");
        for (name, text) in headers() {
            let text = match name.as_str() {
                "device.cuh" => include_str!("emulated.cuh").to_owned(),
                // Only NVRTC knows `__INTADDR__`.
                _ => {
                    let lines = text.lines().filter(|it| !it.contains("__INTADDR__"));
                    lines.collect::<Vec<_>>().join("\n")
                }
            };
            fs::write(folder.path().join(name), text).expect("room");
        }
        Arc::new(Emulated {
            folder,
            memory: Mutex::default(),
            free_bytes: AtomicU64::new(u64::MAX),
            is_host_full: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            full: AtomicU64::new(0),
            search_waits: Mutex::default(),
            panics: AtomicBool::new(false),
            searches: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            kernels: Mutex::default(),
            common: OnceLock::new(),
        })
    }

    fn allocate(&self, bytes: u64, tier: Tier, device: usize) -> Memory {
        let mut memory = self.memory.lock();
        let begin = memory.len().next_multiple_of(16);
        memory.resize(begin + bytes as usize, 0);
        Memory {
            address: BASE + (HEAD + begin) as u64,
            device,
            tier,
            held: Arc::new(bytes),
        }
    }

    /// Runs the compiler, in the folder.
    fn compile(&self, undefined: &str, arguments: &[&str], from: &Path, to: &Path) {
        let compiled = Command::new("c++")
            .args(["-std=c++20", "-O0", "-w", "-fsanitize=undefined", undefined])
            .arg(from)
            .args(arguments)
            .arg("-o")
            .arg(to)
            .current_dir(self.folder.path())
            .output()
            .expect("a compiler");
        let errors = String::from_utf8_lossy(&compiled.stderr);
        let source = fs::read_to_string(from).unwrap_or_default();
        assert!(compiled.status.success(), "{source}\n{errors}");
    }

    /// Returns the program of a kernel.
    fn compiled(&self, spec: &ProgramSpec) -> Arc<Kernel> {
        let kernel = {
            let mut kernels = self.kernels.lock();
            let file = format!("kernel{}", kernels.len());
            let kernel = kernels.entry(spec.source.to_string()).or_insert_with(|| {
                Arc::new(Kernel {
                    spec: spec.clone(),
                    file: self.folder.path().join(file),
                    is_compiled: OnceLock::new(),
                })
            });
            Arc::clone(kernel)
        };
        // Most of the time of the compiler is that of its library, and of what is the same for all kernels.
        self.common.get_or_init(|| {
            let folder = self.folder.path();
            let header = folder.join("device.cuh");
            fs::write(folder.join("header.hpp"), "#include \"device.cuh\"\n").expect("room");
            self.compile(
                TRAPS,
                &["-c"],
                &folder.join("header.hpp"),
                &header.with_extension("cuh.gch"),
            );
            let (main, object) = (folder.join("main.cpp"), folder.join("main.o"));
            fs::write(&main, include_str!("emulated_main.cuh")).expect("room");
            self.compile(TRAPS, &["-include", "device.cuh", "-c"], &main, &object);
        });
        kernel.is_compiled.get_or_init(|| {
            let end = include_str!("emulated_kernel.cuh");
            let source = kernel.file.with_extension("cpp");
            let threads = format!("kThreads = {}", crate::program::THREADS);
            let text = spec
                .source
                .replace(&threads, &format!("kThreads = {THREADS}"));
            fs::write(&source, format!("{text}{end}")).expect("room");
            self.compile(TRAPS, &PROGRAM, &source, &kernel.file);
        });
        kernel
    }

    /// Runs a kernel that failed again, with a message. Returns it and the kernel.
    fn explained(&self, kernel: &Kernel, image: &Path) -> String {
        let program = kernel.file.with_extension("explained");
        self.compile(
            EXPLAINS,
            &PROGRAM,
            &kernel.file.with_extension("cpp"),
            &program,
        );
        let ran = run(&program, image);
        let errors = String::from_utf8_lossy(&ran.stderr);
        format!("{}: {errors}\n{}", ran.status, kernel.spec.source)
    }

    fn ran(&self, launch: &Launch) -> Result<Ran, Reason> {
        let began = Instant::now();
        self.launches.fetch_add(1, Ordering::Relaxed);
        let kernels = launch.kernels.iter();
        let programs: Vec<_> = kernels.map(|it| self.compiled(it.program.spec())).collect();
        let mut memory = vec![0; HEAD];
        // Held until the kernels have run, so that nothing else changes the memory meanwhile.
        let mut all = self.memory.lock();
        memory.extend_from_slice(&all);
        memory.resize(memory.len().next_multiple_of(256), 0);
        let begin = memory.len();
        let image = launch.image(THREADS);
        memory.extend_from_slice(&image.bytes);
        memory.resize(begin + image.len, 0);
        if let Some((zeroed, bytes)) = &launch.zeroed {
            let first = (zeroed.address - BASE) as usize;
            memory[first..first + *bytes as usize].fill(0);
        }
        let file = tempfile::NamedTempFile::new_in(self.folder.path()).expect("room");
        for (index, kernel) in launch.kernels.iter().enumerate() {
            let tiles_of_block = image.tiles(index).div_ceil(BLOCKS);
            kernel.check_sums(tiles_of_block * u64::from(THREADS * ROWS_OF_THREAD))?;
            let mut arguments = Vec::new();
            let of_kernel = image.arguments_at(index, BASE + begin as u64);
            of_kernel.append(&mut arguments);
            memory[..arguments.len()].copy_from_slice(&arguments);
            fs::write(file.path(), &memory).expect("room");
            if !run(&programs[index].file, file.path()).status.success() {
                fs::write(file.path(), &memory).expect("room");
                panic!("{}", self.explained(&programs[index], file.path()));
            }
            memory = fs::read(file.path()).expect("the memory");
        }
        let kept = all.len();
        all.copy_from_slice(&memory[HEAD..HEAD + kept]);
        let times = (began.elapsed(), Duration::ZERO);
        Image::ran(memory.split_off(begin + image.results), times)
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
        1 << 40
    }

    fn allocate(&self, bytes: u64) -> Result<Memory, Reason> {
        assert!(!self.is_lost(), "memory of a lost device");
        if self.is_in(&self.0.full) {
            return Err(Reason::new("full"));
        }
        Ok(self.0.allocate(bytes, Tier::Device, self.1))
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

    fn read(&self, memory: &Memory, bytes: u64) -> BoxFuture<'static, Result<Vec<u32>, Reason>> {
        let begin = (memory.address - BASE) as usize - HEAD;
        let words = words(&self.0.memory.lock()[begin..begin + bytes as usize]);
        std::future::ready(Ok(words)).boxed()
    }

    fn read_files(&self, files: Vec<FileRead>) -> BoxFuture<'static, Result<FilesRead, Reason>> {
        assert!(!self.0.panics.swap(false, Ordering::Relaxed), "wanted");
        let sums = files.into_iter().map(|file| {
            let bytes = fs::read(file.path).map_err(Reason::of)?;
            for (range, memory) in file.pieces {
                assert_eq!(memory.device, self.1);
                assert!(file.range.contains(&range.start) && range.end <= file.range.end);
                let begin = (memory.address - BASE) as usize - HEAD;
                let piece = &bytes[range.start as usize..range.end as usize];
                self.0.memory.lock()[begin..begin + piece.len()].copy_from_slice(piece);
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
        let begin = (to.address - BASE) as usize - HEAD;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.memory.lock()[begin..begin + bytes.len()].copy_from_slice(&bytes);
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
        assert!(!self.is_lost(), "kernels on a lost device");
        std::future::ready(self.0.ran(&launch)).boxed()
    }
}
