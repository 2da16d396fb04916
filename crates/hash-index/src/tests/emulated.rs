//! An engine without a GPU: kernels compiled as C++, each thread a fibre.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use forebay_device::cuda::{DevicePointer, DevicePointerMut, DeviceType, KernelArguments};
use tempfile::TempDir;

use super::cases::Case;
use crate::index::{Contents, check_room};
use crate::kernels::{
    Dividing, Emptying, Generating, HashIndexRef, HeavyRows, Inserting, InsertingPartition,
    JoinTotals, Outcome, PartitionRows, Probing, ProbingPartition, Rows, Run, Sifting, Slice,
    WritingRun, entry, entry_of, entry_of_interleaved, entry_of_own, kernels,
};
use crate::partitions::sieve::{filter_words, heavy_slots, kept_words, matches};
use crate::partitions::tables;
use crate::{
    HostRows, HostSieve, IndexError, InterleavedRows, RunShape, Side, Sifted, TableShape, Width,
    Workload,
};

/// Where the image of memory is mapped. No process has anything there.
const BASE: u64 = 0x1000_0000_0000;
/// Bytes in front of the memory, for the arguments.
const HEAD: usize = 4096;
/// Threads of a block: two warps.
const THREADS: u32 = 64;

/// Slots of a chunk of an interleaved table.
pub(super) const CHUNK_SLOTS: u64 = 8;

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

/// The kernels that take the same arguments: a program. A number behind the arguments selects the kernel.
struct Program {
    /// Index of the source.
    source: usize,
    kernels: &'static [&'static str],
    arguments: &'static str,
    /// The program, from its first run on.
    compiled: OnceLock<PathBuf>,
}

/// The kernels as programs, and the folder in which they are compiled.
pub(super) struct Emulated {
    folder: TempDir,
    insert: Program,
    probe: Program,
    empty: Program,
    generate: Program,
    sift: Program,
    divide: Program,
    write_run: Program,
    insert_partition: Program,
    probe_partition: Program,
}

/// The programs of the tests that run now.
static SHARED: Mutex<Weak<Emulated>> = Mutex::new(Weak::new());

impl Emulated {
    /// Returns the programs, which tests that run at the same time share.
    pub(super) fn shared() -> Arc<Emulated> {
        let mut shared = SHARED.lock().expect("no panic before");
        shared.upgrade().unwrap_or_else(|| {
            let emulated = Arc::new(Emulated::new());
            *shared = Arc::downgrade(&emulated);
            emulated
        })
    }

    fn new() -> Emulated {
        let folder = TempDir::new().expect("room");
        for (name, text) in kernels().iter().flat_map(|spec| &spec.headers) {
            let emulation = include_str!("../../../tables-gpu/src/tests/emulated.cuh");
            let text = match name.as_str() {
                "device.cuh" => [emulation, include_str!("emulated.cuh")].concat(),
                // Only NVRTC knows `__INTADDR__`.
                _ => {
                    let lines = text.lines().filter(|it| !it.contains("__INTADDR__"));
                    lines.collect::<Vec<_>>().join("\n")
                }
            };
            fs::write(folder.path().join(name), text).expect("room");
        }
        let program = |source, kernels: &'static [&'static str], arguments| Program {
            source,
            kernels,
            arguments,
            compiled: OnceLock::new(),
        };
        Emulated {
            insert: program(0, &["insert"], "Inserting"),
            probe: program(0, &["probe"], "Probing"),
            empty: program(0, &["empty_slots"], "Emptying"),
            generate: program(1, &["generate"], "Generating"),
            sift: program(2, &["sift"], "Sifting"),
            divide: program(2, &DIVIDE, "Dividing"),
            write_run: program(2, &["write_run"], "WritingRun"),
            insert_partition: program(2, &["insert_partition"], "InsertingPartition"),
            probe_partition: program(2, &["probe_partition"], "ProbingPartition"),
            folder,
        }
    }

    /// Runs a kernel over an image of memory.
    fn run<A: KernelArguments>(
        &self,
        program: &Program,
        (entry, entries): (&str, &[String]),
        arguments: &A,
        (memory, blocks): (&mut Image, u32),
    ) {
        let mut head = Vec::new();
        arguments.append(&mut head);
        let selected = entries.iter().position(|known| known == entry);
        head.extend((selected.expect("a known kernel") as u64).to_le_bytes());
        memory.bytes[..head.len()].copy_from_slice(&head);
        let file = tempfile::NamedTempFile::new_in(self.folder.path()).expect("room");
        fs::write(file.path(), &memory.bytes).expect("room");
        let compiled = || compile(&self.folder, program);
        let compiled = program.compiled.get_or_init(compiled);
        let run = Command::new(compiled)
            .arg(file.path())
            .arg(format!("{BASE:x}"))
            // No flag is looked at.
            .args(["0".to_owned(), blocks.to_string(), THREADS.to_string()])
            .output()
            .expect("the kernel runs");
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{entry}: {}: {errors}", run.status);
        memory.bytes = fs::read(file.path()).expect("the memory");
    }

    /// Joins both sides of a case on one GPU, or with a table that is interleaved over `gpus` GPUs, a power of two.
    /// With [`InterleavedRows::All`], `gpus` must be 1, and this GPU works on all rows. Columns begin `offset` bytes
    /// after an address of whole vectors.
    pub(super) fn join(
        &self,
        case: &Case,
        (offset, gpus, interleaved): (usize, u32, Option<InterleavedRows>),
        blocks: u32,
    ) -> Result<JoinTotals, IndexError> {
        let of_gpu = |index: HashIndexRef, gpu| HashIndexRef {
            own_shift: CHUNK_SLOTS.ilog2(),
            own_mask: gpus - 1,
            own: gpu,
            ..index
        };
        let (shape, entries) = (case.shape, &kernels()[0].entries);
        let entry_on = |kernel: &str| match interleaved {
            None => entry(kernel, &shape),
            Some(InterleavedRows::All) => entry_of_interleaved(kernel, shape.width()),
            Some(InterleavedRows::Own) => entry_of_own(kernel, shape.width()),
        };
        let mut image = Image::new();
        let table = Memory::of(&mut image, &shape);
        if interleaved.is_some() {
            self.empty(&mut image, (&shape, table.slots), gpus, blocks);
        }
        let totals = image.reserve(size_of::<JoinTotals>(), 0);
        let build = rows(&mut image, &case.build, shape.width(), offset);
        check_room(&shape, build.count)?;
        let mut parts = Vec::new();
        for gpu in 0..gpus {
            let outcome = image.reserve(size_of::<Outcome>(), 0);
            let inserting = Inserting {
                rows: build,
                index: of_gpu(table.index_ref(&shape, &Contents::default()), gpu),
                outcome: DevicePointerMut::new(outcome),
            };
            let kernel = entry_on("insert");
            let selected = (kernel.as_str(), &entries[..]);
            self.run(&self.insert, selected, &inserting, (&mut image, blocks));
            parts.push(Contents::of(&shape, &Outcome::read(image.at(outcome)))?);
        }
        let contents = match parts[..] {
            [contents] => contents,
            _ => Contents::of_all(parts),
        };
        assert_eq!(contents.rows, build.count);
        let probe = rows(&mut image, &case.probe, shape.width(), offset);
        for gpu in 0..gpus {
            let probing = Probing {
                rows: probe,
                index: of_gpu(table.index_ref(&shape, &contents), gpu),
                totals: DevicePointerMut::new(totals),
            };
            let kernel = entry_on("probe");
            let selected = (kernel.as_str(), &entries[..]);
            self.run(&self.probe, selected, &probing, (&mut image, blocks));
        }
        Ok(JoinTotals::read(image.at(totals)))
    }

    /// Empties slots that have other bytes: each GPU those of its chunks.
    fn empty(&self, image: &mut Image, (shape, slots): (&TableShape, u64), gpus: u32, blocks: u32) {
        let begin = (slots - BASE) as usize;
        image.bytes[begin..begin + shape.slot_bytes() as usize].fill(0x5A);
        for gpu in 0..gpus {
            let emptying = Emptying {
                slots: DevicePointerMut::new(slots),
                bytes: shape.slot_bytes(),
                chunk_bytes: CHUNK_SLOTS * shape.bytes_of_slot(),
                gpus,
                gpu,
                blocks_of_chunk: 2,
                unused: 0,
            };
            let selected = ("empty_slots", &kernels()[0].entries[..]);
            self.run(&self.empty, selected, &emptying, (image, blocks));
        }
    }

    /// Joins both sides of a case in 2^`bits` partitions, in runs of `run_rows` rows, with tables of at most
    /// `table_bytes` bytes. A sieve asks all rows if there are heavy keys, given with whether there is a filter.
    /// Returns the matches and the number of rows that the filter dropped.
    pub(super) fn join_partitions(
        &self,
        case: &Case,
        (run_rows, bits): (usize, u32),
        (table_bytes, asked): (u64, Option<(&[u64], bool)>),
        blocks: u32,
    ) -> Result<(JoinTotals, u64), IndexError> {
        let width = case.shape.width();
        let shape = RunShape::new(width, run_rows as u64, bits);
        let mut image = Image::new();
        let slots = image.reserve(table_bytes as usize, 0);
        let totals = image.reserve(size_of::<JoinTotals>(), 0);
        let sieves = asked.map(|(heavy_keys, has_filter)| {
            let filter_rows = has_filter.then_some(case.build.len() as u64);
            let on_host = HostSieve::new(heavy_keys, filter_rows);
            (sieve(&mut image, shape, (heavy_keys, filter_rows)), on_host)
        });
        let [build, probe] = [(&case.build, Side::Build), (&case.probe, Side::Probe)].map(|side| {
            let sieves = sieves.as_ref();
            self.divide_side(&mut image, (side.0, side.1), sieves, (shape, blocks))
        });
        for partition in 0..shape.partitions() {
            let of_side = |side: &Divided| -> Vec<u64> {
                let counts = side.counts.iter().skip(partition);
                counts.step_by(shape.partitions()).copied().collect()
            };
            for (runs, table) in tables(&of_side(&build), width, table_bytes)? {
                let begin = (slots - BASE) as usize;
                image.bytes[begin..begin + table.slot_bytes() as usize].fill(0xFF);
                let outcome = image.reserve(size_of::<Outcome>(), 0);
                let places = (DevicePointerMut::new(slots), DevicePointerMut::new(0));
                let index = HashIndexRef::new(&table, places, &Contents::default()).after(bits);
                let rows = |side: &Divided, runs: std::ops::Range<usize>| PartitionRows {
                    runs: DevicePointer::new(side.places + (runs.start * size_of::<Run>()) as u64),
                    run_count: runs.len() as u32,
                    partition: partition as u32,
                    blocks_of_run: 2,
                };
                let inserting = InsertingPartition {
                    rows: rows(&build, runs),
                    index,
                    outcome: DevicePointerMut::new(outcome),
                };
                let entries = &kernels()[2].entries;
                let kernel = entry("insert_partition", &table);
                let selected = (kernel.as_str(), &entries[..]);
                let to = (&mut image, blocks);
                self.run(&self.insert_partition, selected, &inserting, to);
                Contents::of(&table, &Outcome::read(image.at(outcome)))?;
                let probing = ProbingPartition {
                    rows: rows(&probe, 0..probe.counts.len() / shape.partitions()),
                    index,
                    outcome: DevicePointer::new(outcome),
                    totals: DevicePointerMut::new(totals),
                };
                let kernel = entry("probe_partition", &table);
                let selected = (kernel.as_str(), &entries[..]);
                let to = (&mut image, blocks);
                self.run(&self.probe_partition, selected, &probing, to);
            }
        }
        let mut totals = JoinTotals::read(image.at(totals));
        let sifted = sieves.map_or_else(Sifted::default, |(sieve, on_host)| {
            let sifted = sifted(&image, &sieve);
            assert_eq!(sifted, on_host.finish(), "{} on the host", case.name);
            sifted
        });
        totals.add(sifted.totals);
        Ok((totals, sifted.filtered_rows))
    }

    /// Divides the rows of a side into runs, or those that a sieve keeps. Asserts that the CPU makes the same runs,
    /// with a sieve of its own.
    fn divide_side(
        &self,
        image: &mut Image,
        (rows, side): (&[(u128, u64)], Side),
        sieves: Option<&(Sifting, HostSieve)>,
        (shape, blocks): (RunShape, u32),
    ) -> Divided {
        let sieve = sieves.map(|(sieve, _)| for_side(*sieve, side));
        let divided = self.divide(image, (rows, sieve), shape, blocks);
        let sieve = sieves.map(|(_, on_host)| (on_host, side));
        assert_is_as_on_host(image, (rows, &divided), shape, sieve);
        divided
    }

    /// Divides the rows of a side into runs, or those that a sieve keeps. Then each run is copied.
    fn divide(
        &self,
        image: &mut Image,
        (side, sieve): (&[(u128, u64)], Option<Sifting>),
        shape: RunShape,
        blocks: u32,
    ) -> Divided {
        let (mut places, mut counts) = (Vec::new(), Vec::new());
        let partitions = shape.partitions();
        for run in side.chunks(shape.rows() as usize) {
            let slices = image.reserve(partitions * size_of::<Slice>(), 0);
            let mut to = image.reserve(shape.bytes() as usize, 0);
            let rows = rows(image, run, shape.width(), 0);
            let kept = sieve.map_or(0, |sieve| self.sift(image, (sieve, rows), shape, blocks));
            let dividing = Dividing {
                rows,
                kept: DevicePointer::new(kept),
                slices: DevicePointerMut::new(slices),
                next: DevicePointerMut::new(image.reserve(4 * partitions, 0)),
                to: DevicePointerMut::new(to),
                bits: shape.bits(),
            };
            for (name, blocks) in DIVIDE.iter().zip([blocks, 1, blocks]) {
                let entry = entry_of(name, shape.width());
                let selected = (entry.as_str(), &kernels()[2].entries[..]);
                self.run(&self.divide, selected, &dividing, (image, blocks));
            }
            if sieve.is_some() {
                let last = slices + ((partitions - 1) * size_of::<Slice>()) as u64;
                to = self.copy_of_run(image, (to, last), shape, blocks);
            }
            let found = image.at(slices).chunks(size_of::<Slice>());
            let found: Vec<Slice> = found.map(Slice::read).take(partitions).collect();
            assert!(found.iter().all(|slice| slice.begin.is_multiple_of(32)));
            counts.extend(found.iter().map(|slice| u64::from(slice.count)));
            places.push(Run {
                rows: DevicePointer::new(to),
                slices: DevicePointer::new(slices),
            });
        }
        let bytes = Run::bytes_of(&places);
        let address = image.reserve(bytes.len(), 0);
        let begin = (address - BASE) as usize;
        image.bytes[begin..].copy_from_slice(&bytes);
        Divided {
            places: address,
            counts,
        }
    }

    /// Asks a sieve each row of a run. Returns the address of its bits.
    fn sift(
        &self,
        image: &mut Image,
        (sieve, rows): (Sifting, Rows),
        shape: RunShape,
        blocks: u32,
    ) -> u64 {
        let entry = entry_of("sift", shape.width());
        let selected = (entry.as_str(), &kernels()[2].entries[..]);
        let sifting = Sifting { rows, ..sieve };
        self.run(&self.sift, selected, &sifting, (image, blocks));
        sieve.kept.address()
    }

    /// Copies the used bytes of a run, whose last slice is at an address. Returns the address of the copy.
    fn copy_of_run(
        &self,
        image: &mut Image,
        (from, last): (u64, u64),
        shape: RunShape,
        blocks: u32,
    ) -> u64 {
        let to = image.reserve(shape.bytes() as usize, 0);
        let writing = WritingRun {
            from: DevicePointer::new(from),
            to: DevicePointerMut::new(to),
            last: DevicePointer::new(last),
            row_bytes: shape.width().row_bytes(),
        };
        let selected = ("write_run", &kernels()[2].entries[..]);
        self.run(&self.write_run, selected, &writing, (image, blocks));
        to
    }

    /// Returns both columns of a generated side.
    pub(super) fn generate(&self, workload: &Workload, side: Side) -> (Vec<u8>, Vec<u8>) {
        let width = workload.width;
        let bytes = [width.key_bytes(), width.payload_bytes()]
            .map(|of_value| (workload.rows(side) * of_value) as usize);
        let mut image = Image::new();
        let [keys, payloads] = bytes.map(|bytes| image.reserve(bytes, 0));
        let generating = Generating {
            keys: DevicePointerMut::new(keys),
            payloads: DevicePointerMut::new(payloads),
            count: workload.rows(side),
            first: 0,
            build_rows: workload.build_rows,
            match_limit: workload.match_limit(),
            key_bits: workload.key_bits(),
            is_probe: u32::from(side == Side::Probe),
        };
        let entry = entry_of("generate", width);
        let selected = (entry.as_str(), &kernels()[1].entries[..]);
        self.run(&self.generate, selected, &generating, (&mut image, 2));
        let column = |address, bytes: usize| image.at(address)[..bytes].to_vec();
        (column(keys, bytes[0]), column(payloads, bytes[1]))
    }
}

/// The kernels that divide a run, in their order.
const DIVIDE: [&str; 3] = ["count_rows", "place_slices", "copy_rows"];

/// Returns a sieve of the build side in zeroed memory, for these heavy keys and a filter of this number of rows.
fn sieve(
    image: &mut Image,
    run: RunShape,
    (heavy_keys, filter_rows): (&[u64], Option<u64>),
) -> Sifting {
    let slots = heavy_slots(heavy_keys);
    let bytes = u64::bytes_of(&slots);
    let keys = image.reserve(bytes.len(), 0);
    let begin = (keys - BASE) as usize;
    image.bytes[begin..].copy_from_slice(&bytes);
    let words = filter_words(filter_rows);
    let none = DevicePointer::new(0);
    Sifting {
        rows: Rows {
            keys: none,
            payloads: none,
            count: 0,
        },
        heavy_keys: DevicePointer::new(keys),
        heavy_rows: DevicePointerMut::new(
            image.reserve(2 * slots.len() * size_of::<HeavyRows>(), 0),
        ),
        filter: DevicePointerMut::new(image.reserve(8 * words as usize, 0)),
        filter_words: words,
        kept: DevicePointerMut::new(image.reserve(4 * kept_words(run) as usize, 0)),
        filtered: DevicePointerMut::new(image.reserve(8, 0)),
        heavy_mask: slots.len() as u32 - 1,
        is_probe: 0,
    }
}

/// Returns the number of slots of a sieve's heavy keys.
fn slots_of(sieve: &Sifting) -> usize {
    sieve.heavy_mask as usize + 1
}

/// Returns the rows of the heavy key in each slot of a sieve of the build side, then those of the probe side.
fn heavy_rows(image: &Image, sieve: &Sifting) -> Vec<HeavyRows> {
    let rows = image.at(sieve.heavy_rows.address());
    let rows = rows.chunks(size_of::<HeavyRows>()).map(HeavyRows::read);
    rows.take(2 * slots_of(sieve)).collect()
}

/// Returns the results of a sieve of the build side.
fn sifted(image: &Image, sieve: &Sifting) -> Sifted {
    Sifted {
        totals: matches(&heavy_rows(image, sieve)),
        filtered_rows: u64::read(image.at(sieve.filtered.address())),
    }
}

/// Returns the sieve for a side; it is that of the build side.
fn for_side(sieve: Sifting, side: Side) -> Sifting {
    let of_build = (slots_of(&sieve) * size_of::<HeavyRows>()) as u64;
    match side {
        Side::Build => sieve,
        Side::Probe => Sifting {
            heavy_rows: DevicePointerMut::new(sieve.heavy_rows.address() + of_build),
            is_probe: 1,
            ..sieve
        },
    }
}

/// A side in runs.
struct Divided {
    /// The address of the runs' places.
    places: u64,
    /// Rows of all partitions of the first run, then of the next one.
    counts: Vec<u64>,
}

/// Asserts that the CPU divides the rows of a side into the same runs as kernels. A slice has its rows in any order.
fn assert_is_as_on_host(
    image: &Image,
    (rows, divided): (&[(u128, u64)], &Divided),
    shape: RunShape,
    sieve: Option<(&HostSieve, Side)>,
) {
    let width = shape.width();
    let runs = image.at(divided.places).chunks(size_of::<Run>());
    for (rows, run) in rows.chunks(shape.rows() as usize).zip(runs.map(Run::read)) {
        let (keys, payloads) = super::cases::columns(rows, width);
        let rows = HostRows {
            keys: &keys,
            payloads: &payloads,
        };
        let mut on_host = vec![0; shape.bytes() as usize];
        let slices = shape.divide(rows, sieve, &mut on_host).0;
        let found = image.at(run.slices.address()).chunks(size_of::<Slice>());
        let found: Vec<Slice> = found.map(Slice::read).take(slices.len()).collect();
        assert_eq!(format!("{slices:?}"), format!("{found:?}"));
        for slice in slices {
            let by_kernels = slice.sorted_rows(image.at(run.rows.address()), width);
            let by_host = slice.sorted_rows(&on_host, width);
            assert!(by_kernels == by_host, "{slice:?} of {shape:?}");
        }
    }
}

/// Compiles kernels that take the same arguments.
fn compile(folder: &TempDir, program: &Program) -> PathBuf {
    let spec = kernels().swap_remove(program.source);
    let (wanted, arguments) = (program.kernels, program.arguments);
    let cases = spec.entries.iter().enumerate();
    let is_one = |entry: &str| wanted.iter().any(|kernel| entry.starts_with(kernel));
    let cases = cases.filter(|(_, entry)| is_one(entry));
    let cases: String = cases
        .map(|(index, entry)| format!("    if (f.kernel == {index}) {entry}(f.arguments);\n"))
        .collect();
    let text = format!(
        "{}\nstruct Fragment {{ {arguments} arguments; u64 kernel; }};\n\
         inline void fragment(const Fragment& f) {{\n{cases}}}\n{}{}",
        spec.source.replace(
            "extern __shared__ __align__(16) u8 tile[];",
            "alignas(16) static u8 tile[1 << 16];"
        ),
        include_str!("../../../tables-gpu/src/tests/emulated_kernel.cuh"),
        include_str!("../../../tables-gpu/src/tests/emulated_main.cuh")
    );
    let source = folder.path().join(format!("{arguments}.cpp"));
    fs::write(&source, text).expect("room");
    let program = source.with_extension("");
    let compiled = Command::new("c++")
        .args(["-std=c++20", "-O0", "-w", "-fsanitize=undefined"])
        .arg("-fno-sanitize-recover")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .current_dir(folder.path())
        .output()
        .expect("a compiler");
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{errors}");
    program
}

/// An image of device memory.
struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn new() -> Image {
        Image {
            bytes: vec![0; HEAD],
        }
    }

    /// Returns the address of zeroed memory, which begins `offset` bytes after a multiple of 256.
    fn reserve(&mut self, bytes: usize, offset: usize) -> u64 {
        let begin = self.bytes.len().next_multiple_of(256) + offset;
        self.bytes.resize(begin + bytes, 0);
        BASE + begin as u64
    }

    fn at(&self, address: u64) -> &[u8] {
        &self.bytes[(address - BASE) as usize..]
    }
}

/// The addresses of a table.
struct Memory {
    slots: u64,
    taken: u64,
}

impl Memory {
    /// Returns the memory of an empty table.
    fn of(image: &mut Image, shape: &TableShape) -> Memory {
        let bytes = shape.slot_bytes() as usize;
        let slots = image.reserve(bytes, 0);
        if shape.method().is_by_hash() {
            let begin = (slots - BASE) as usize;
            image.bytes[begin..begin + bytes].fill(0xFF);
        }
        let taken = image.reserve(shape.taken_words() as usize * 4, 0);
        Memory { slots, taken }
    }

    fn index_ref(&self, shape: &TableShape, contents: &Contents) -> HashIndexRef {
        let memory = (
            DevicePointerMut::new(self.slots),
            DevicePointerMut::new(self.taken),
        );
        HashIndexRef::new(shape, memory, contents)
    }
}

/// Writes columns to memory.
fn rows(image: &mut Image, side: &[(u128, u64)], width: Width, offset: usize) -> Rows {
    let (keys, payloads) = super::cases::columns(side, width);
    let mut column = |bytes: &[u8]| {
        let address = image.reserve(bytes.len(), offset);
        let begin = (address - BASE) as usize;
        image.bytes[begin..].copy_from_slice(bytes);
        DevicePointer::new(address)
    };
    Rows {
        keys: column(&keys),
        payloads: column(&payloads),
        count: side.len() as u64,
    }
}
