//! `forebay bench q6`: query 6 of TPC-H over columns on disk, in host memory and in device memory.
//!
//! The variants are those of Miura et al. (section 4) and more: the CPU reads and computes; the CPU reads and the GPU
//! computes; the data is in pinned host memory or in device memory. Every variant must give the exact answer, which is
//! summed up from the generator's own values while the file is made.

mod consumer;
mod cpu;
mod device;
mod disk;
mod file;
mod generate;
mod gpu;
mod kernels;
#[expect(
    unsafe_code,
    reason = "launches of kernels, and a loop for vectors that the processor may lack"
)]
mod launch;
mod new_file;
mod overlap;
mod pinned;
pub(crate) mod plot;
mod report;
mod serial;
mod table;
pub(crate) mod usage;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use forebay_device::cuda::HostRegistration;
use forebay_device::{AlignedBytes, Device, HaltingDevices};
use forebay_movement::RingOptions;
use forebay_movement::storage::{Access, DataFile, PageCache};
use forebay_peers::cache_folder;

use crate::results::ResultArgs;
use crate::size;
use file::TableFile;
use generate::{SCALE_FACTOR_MAX, SCALE_FACTOR_MIN};
use new_file::NewFile;
use report::{Case, Report, Sample};
use table::GROUP_BYTES;
use usage::Meter;

/// Buffer sizes of a run, in bytes.
const BUFFER_BYTES: [usize; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Buffer sizes of a smoke run.
const SMOKE_BUFFER_BYTES: [usize; 2] = [64 << 10, 256 << 10];
/// Bytes of all slots of a ring, if that gives it a useful number of slots.
const RING_BYTES: usize = 256 << 20;
/// Maximum size of a buffer.
const BUFFER_BYTES_MAX: usize = 1 << 30;
/// Maximum of an option that is a count.
const COUNT_MAX: u64 = 1 << 20;
/// Bytes of a row in the text format of TPC-H, a little above the average.
const TEXT_ROW_BYTES: u64 = 130;
/// Scale factor of a smoke run.
const SMOKE_SCALE_FACTOR: f64 = 0.01;

/// Options of `forebay bench q6`.
#[derive(Args, Clone, Debug)]
pub struct Q6Args {
    /// Scale factor of TPC-H, from 0.001 to 100000; the columns have 96 MB for each unit.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, value_parser = scale_factor)]
    pub scale_factor: f64,
    /// Folder of the columns, on the disk to measure. They are made once and used again. The default is a folder in the
    /// user's cache folder.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Measure only these variants.
    #[arg(long, value_name = "VARIANT", value_delimiter = ',')]
    pub only: Vec<Variant>,
    /// Runs of each measurement, at least 1.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = rounds())]
    pub rounds: usize,
    /// Run once on a table of scale factor 0.01, to check that every variant works; the measured times mean nothing.
    #[arg(long, conflicts_with_all = ["scale_factor", "rounds"])]
    pub smoke: bool,
    /// Write the table as text, in the format of TPC-H, to this file, and measure nothing.
    #[arg(long, value_name = "FILE")]
    pub export: Option<PathBuf>,
    /// Sizes of the buffers, such as 64K,8M: multiples of 64 KiB, at most 1 GiB. The default is 64 KiB to 64 MiB.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = buffer_bytes())]
    pub buffer_bytes: Vec<usize>,
    /// Blocks of the kernels of the variant zero-copy, such as 8,16,32; each is measured.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = blocks())]
    pub zero_copy_blocks: Vec<u64>,
    /// What becomes of the results.
    #[command(flatten)]
    pub results: ResultArgs,
}

/// A variant of the query, or the limit that variants are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// What `dd` reads past the page cache: the limit of the variants that read the disk.
    Dd,
    /// One thread does one step after another, as in the paper: the CPU reads, and the CPU or the GPU computes.
    Serial,
    /// The CPU reads the disk and computes on all cores; also from memory.
    Cpu,
    /// The CPU reads the disk into pinned memory, the GPU computes.
    Staged,
    /// The GPU computes; pinned host memory passes through the ring.
    Pinned,
    /// Each transfer method moves the table from host memory to the GPU, which computes then.
    Methods,
    /// The GPU computes, from device memory.
    Device,
    /// The GPU computes, and reads pinned host memory over the bus without a copy.
    ZeroCopy,
    /// The ring against a plain loop of read, copy and run, where the three take about equal time.
    Ring,
    /// cuFile reads the disk, the GPU computes: one step after another, and through the ring.
    Direct,
}

/// Every variant, in the order of a run. cuFile comes last, as it can crash a process.
const VARIANTS: [Variant; 10] = [
    Variant::Dd,
    Variant::Serial,
    Variant::Cpu,
    Variant::Staged,
    Variant::Pinned,
    Variant::Methods,
    Variant::Device,
    Variant::ZeroCopy,
    Variant::Ring,
    Variant::Direct,
];

/// A run: the table, the devices and the results so far.
struct Session {
    file: TableFile,
    devices: Option<HaltingDevices>,
    threads: usize,
    rounds: usize,
    buffers: Vec<usize>,
    zero_copy_blocks: Vec<u64>,
    report: Report,
}

/// Measures the variants that the options name.
///
/// # Errors
/// If the columns cannot be made or read, a variant gives a wrong answer, or a named variant needs a GPU and there is
/// none.
pub(crate) fn run(args: &Q6Args) -> Result<()> {
    let scale_factor = if args.smoke {
        SMOKE_SCALE_FACTOR
    } else {
        args.scale_factor
    };
    if let Some(path) = &args.export {
        return export(scale_factor, path);
    }
    let mut session = Session::start(args, scale_factor)?;
    for variant in VARIANTS {
        if args.only.is_empty() || args.only.contains(&variant) {
            session.measure(variant, !args.only.is_empty())?;
        }
    }
    session.compare()?;
    session.report.results.end()
}

/// Returns the parser of a number of runs.
fn rounds() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=COUNT_MAX)
}

/// Parses a scale factor.
fn scale_factor(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let range = SCALE_FACTOR_MIN..=SCALE_FACTOR_MAX;
    let number = number.filter(|number| range.contains(number));
    number.ok_or_else(|| format!("use a number from {SCALE_FACTOR_MIN} to {SCALE_FACTOR_MAX}"))
}

/// Returns the parser of the size of a buffer: whole row groups.
fn buffer_bytes() -> impl Fn(&str) -> Result<usize, String> + Clone {
    size::multiples(GROUP_BYTES, GROUP_BYTES..=BUFFER_BYTES_MAX)
}

/// Returns the parser of a number of blocks.
fn blocks() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=COUNT_MAX)
}

/// Returns the sizes of buffers that the options name.
fn buffers(args: &Q6Args) -> Vec<usize> {
    match (&args.buffer_bytes[..], args.smoke) {
        ([], false) => BUFFER_BYTES.to_vec(),
        ([], true) => SMOKE_BUFFER_BYTES.to_vec(),
        (named, _) => named.to_vec(),
    }
}

/// Writes the table in the text format of TPC-H.
fn export(scale_factor: f64, path: &Path) -> Result<()> {
    let bytes = generate::rows_expected(scale_factor) * TEXT_ROW_BYTES;
    let mut file = NewFile::create(path, bytes)?;
    let writing = file.writing();
    let mut out = BufWriter::new(&mut file);
    generate::lines(scale_factor, |line| {
        writeln!(out, "{line}").with_context(|| writing.clone())
    })?;
    out.flush().context(writing)?;
    drop(out);
    file.complete()
}

impl Session {
    /// Makes or verifies the columns, and starts the first GPU if there is one.
    fn start(args: &Q6Args, scale_factor: f64) -> Result<Session> {
        let threads = forebay_device::cores();
        let buffers = buffers(args);
        let folder = match &args.folder {
            Some(folder) => folder.clone(),
            None => cache_folder()?.join("q6"),
        };
        let file = TableFile::open_or_make(&folder, scale_factor, threads)?;
        let report = Report::begin(&args.results, (file.about.revenue, &file.about_path()))?;
        report.note(&format!(
            "{}: {} rows, revenue {}.{:04}",
            file.path.display(),
            file.about.rows,
            file.about.revenue / 10_000,
            file.about.revenue % 10_000
        ));
        if let Access::Buffered { why } = DataFile::open(&file.path, PageCache::Bypass)?.access() {
            report.note(&format!(
                "reads go through the page cache: {why}; choose a disk with --folder"
            ));
        }
        Ok(Session {
            file,
            devices: gpu::start(args.smoke)?.map(HaltingDevices::from),
            threads,
            rounds: if args.smoke { 1 } else { args.rounds },
            buffers,
            zero_copy_blocks: args.zero_copy_blocks.clone(),
            report,
        })
    }

    fn gpu(&self) -> Option<Arc<Device>> {
        self.devices.as_ref()?.list().into_iter().next()
    }

    fn measure(&mut self, variant: Variant, is_named: bool) -> Result<()> {
        match (variant, self.gpu()) {
            (Variant::Dd, _) => disk::by_dd(self),
            (Variant::Serial, gpu) => serial::measure(self, gpu.as_ref()),
            (Variant::Cpu, _) => {
                self.cpu()?;
                disk::on_cpu(self)
            }
            (Variant::Staged, Some(gpu)) => disk::staged(self, &gpu),
            (Variant::Direct, Some(gpu)) => disk::direct(self, &gpu),
            (Variant::Pinned, Some(gpu)) => pinned::by_ring(self, &gpu),
            (Variant::Methods, Some(gpu)) => pinned::by_methods(self, &gpu),
            (Variant::Ring, Some(gpu)) => overlap::measure(self, &gpu),
            (Variant::Device, Some(gpu)) => device::in_device_memory(self, &gpu),
            (Variant::ZeroCopy, Some(gpu)) => device::in_host_memory(self, &gpu),
            (_, None) => {
                let name = variant.to_possible_value();
                let name = name.as_ref().map_or("it", |value| value.get_name());
                ensure!(!is_named, "{name} needs a GPU, and there is none");
                self.report.note(&format!("{name}: skipped, no GPU"));
                Ok(())
            }
        }
    }

    /// The CPU computes on all cores, from memory.
    fn cpu(&mut self) -> Result<()> {
        let groups = self.file.load(self.threads)?;
        let (threads, devices) = (self.threads, self.host());
        let samples = self.repeat(|| {
            let meter = Meter::start();
            let sum = cpu::sum_on(threads, &groups);
            Ok(Sample {
                usage: meter.stop(),
                phases: None,
                sum: Some(sum),
            })
        })?;
        let case = self.case("q6-cpu-memory", &devices);
        self.report.add(case, &samples)
    }

    /// Opens the columns for reads that bypass the page cache, if the file system allows it.
    fn data_file(&self) -> Result<Arc<DataFile>> {
        let file = DataFile::open(&self.file.path, PageCache::Bypass)?;
        ensure!(
            file.bytes() == self.file.about.bytes(),
            "{} has {} bytes, and had {} when this run began; let nothing write to it, and run again",
            file.path().display(),
            file.bytes(),
            self.file.about.bytes()
        );
        Ok(Arc::new(file))
    }

    /// Loads the table into pinned host memory.
    fn pinned(&self, gpu: &Device) -> Result<Arc<HostRegistration<AlignedBytes>>> {
        let groups = self.file.load(self.threads)?;
        let pinned = gpu.register(groups).map_err(|(_, error)| error)?;
        Ok(Arc::new(pinned))
    }

    /// Runs a measurement once to warm up, then as often as the options say.
    fn repeat(&self, mut once: impl FnMut() -> Result<Sample>) -> Result<Vec<Sample>> {
        once()?;
        (0..self.rounds).map(|_| once()).collect()
    }

    /// Returns a case of a run over the whole table without buffers.
    fn case<'a>(&self, name: &'a str, devices: &'a str) -> Case<'a> {
        Case {
            name,
            engine: "forebay",
            devices,
            buffer_bytes: None,
            bytes: self.file.about.bytes(),
        }
    }

    /// Returns the sizes of buffers to measure.
    fn buffers(&self) -> Vec<usize> {
        self.buffers.clone()
    }

    /// Returns the shape of a ring with slots of this size: enough reads in flight for a disk.
    fn slots(slot_bytes: usize) -> RingOptions {
        RingOptions {
            slots: (RING_BYTES / slot_bytes).clamp(4, 64),
            slot_bytes,
        }
    }

    /// Returns the name of the CPU with its number of threads.
    fn host(&self) -> String {
        format!("host:{}", self.threads)
    }

    /// Compares the variants with the limits of the same run.
    fn compare(&mut self) -> Result<()> {
        for name in ["q6-disk-uring", "q6-disk-threads"] {
            self.report.compare(name, "limit-disk", 95.0)?;
            self.report.compare_cpu(name, "q6-cpu")?;
        }
        self.report.compare("q6-pinned", "limit-pinned", 95.0)?;
        self.report.compare("q6-device", "limit-device", 85.0)?;
        self.report.compare("ring", "ring-plain-loop", 180.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use clap::Parser;
    use forebay_device::cuda::gpus;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Q6Args,
    }

    fn parsed(folder: &Path, more: &[&str]) -> Result<Line, clap::Error> {
        let folder = folder.to_str().expect("UTF-8");
        let line = ["q6", "--folder", folder]
            .into_iter()
            .chain(more.iter().copied());
        Line::try_parse_from(line)
    }

    fn args(folder: &Path, more: &[&str]) -> Q6Args {
        parsed(folder, more).expect("right flags").args
    }

    #[test]
    fn every_variant_gives_the_answer() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("q6.jsonl");
        let mut args = args(folder.path(), &["--smoke", "--json"]);
        args.results.record = Some(path.clone());
        run(&args).expect("every answer is right");
        let text = std::fs::read_to_string(path).expect("a record");
        let records = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("a record"));
        let records: Vec<Record> = records.collect();
        let has = |case: &str| records.iter().any(|record| record.case == case);
        assert!(has("q6-cpu-memory") && has("serial-cpu/65536") && has("q6-cpu/262144"));
        let on_gpu = [
            "q6-device",
            "q6-pinned/65536",
            "q6-disk-threads/65536",
            "q6-zero-copy",
            "ring",
        ];
        let found = gpus();
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(found.is_ok() || !required, "{found:?}");
        for case in on_gpu {
            assert_eq!(has(case), found.is_ok(), "{case}");
        }
        let all: Vec<u64> = records.iter().filter_map(|record| record.expect).collect();
        assert!(
            all.len() > 3 && all.iter().all(|sum| *sum == all[0]),
            "{all:?}"
        );
    }

    #[test]
    fn options_that_cannot_be_measured_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let refused = |more: &[&str]| {
            let error = parsed(folder.path(), more).expect_err("it is refused");
            error.to_string()
        };
        for number in ["0", "-1", "0.00099", "100001", "1e15", "NaN", "inf", "x"] {
            let text = refused(&[&format!("--scale-factor={number}")]);
            assert!(text.contains("from 0.001 to 100000"), "{text}");
        }
        for bytes in ["65537", "1073807360", "9223372036854710272", "0", "x"] {
            let text = refused(&["--smoke", "--buffer-bytes", bytes]);
            let is_size = !["0", "x"].contains(&bytes);
            let why = if is_size {
                "use a multiple of 64 KiB"
            } else {
                "is not a size"
            };
            assert!(text.contains(why), "{text}");
        }
        assert!(refused(&["--zero-copy-blocks", "0"]).contains("0 is not in 1..="));
        assert!(refused(&["--rounds", "0"]).contains("0 is not in 1..="));
        for more in [["--rounds", "2"], ["--scale-factor", "1"]] {
            let text = refused(&["--smoke", more[0], more[1]]);
            assert!(text.contains("cannot be used with"), "{text}");
        }
        if gpus().is_err() {
            let error = run(&args(folder.path(), &["--smoke", "--only", "device"]));
            let error = error.expect_err("there is none");
            assert!(error.to_string().contains("needs a GPU"), "{error}");
        }
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_of_every_variant_that_reads_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut session = Session::start(&args(folder.path(), &["--smoke"]), 0.001).expect("room");
        let file = std::fs::File::options()
            .write(true)
            .open(&session.file.path);
        let file = file.expect("it is there");
        file.set_len(session.file.about.bytes() - 1000)
            .expect("room");
        for measured in [
            disk::by_dd(&mut session),
            disk::on_cpu(&mut session),
            serial::measure(&mut session, None),
        ] {
            let text = measured.expect_err("the file is too short").to_string();
            assert!(text.contains("bytes, and had 131072"), "{text}");
        }
        session.cpu().expect_err("the file is too short");
    }

    #[test]
    fn the_table_is_exported_as_text() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lineitem.tbl");
        let mut args = args(folder.path(), &["--scale-factor", "0.001"]);
        std::fs::write(&path, "an older export").expect("room");
        args.export = Some(path.clone());
        run(&args).expect("room");
        let text = std::fs::read_to_string(path).expect("just written");
        assert!(text.starts_with("1|") && text.ends_with("|\n"));
        assert_eq!(text.lines().count(), 6005);
    }
}
