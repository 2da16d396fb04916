//! `forebay bench io`: reads and writes of files by every storage path.
//!
//! Figures 2, 3 and 4 of Miura et al. (section 3): rates and latencies by the size of the buffer and by the number of
//! operations in flight, and the CPU use of each path; also the asynchronous and batched modes of cuFile, which the
//! paper could not measure. At the end each path reads the whole file once more, and every byte is checked.

mod cell;
mod content;
mod direct;
mod fio;
mod gpu;
mod host;
mod measure;
pub(crate) mod plots;
pub(crate) mod probe;
mod report;
mod staged;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use forebay_movement::storage::{FileReader, StoragePath};
use forebay_peers::cache_folder;

use crate::results::ResultArgs;
use crate::size;
use cell::{Cache, Cell, Operation, Pattern, Sweep};
use content::Files;
use gpu::Gpu;
use measure::{Extent, Found, Task};
use report::Report;

/// Sizes of buffers of a run.
const BUFFER_BYTES: [usize; 9] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
];
/// Sizes of buffers of a smoke run.
const SMOKE_BUFFER_BYTES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Numbers of operations in flight of a run, and of a smoke run.
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
const SMOKE_THREADS: [usize; 2] = [1, 3];
/// Buffer of the operations in flight: sequential and random.
const SEQUENTIAL_BYTES: usize = 1 << 20;
const RANDOM_BYTES: usize = 4 << 10;
/// Bytes of each file of a smoke run, and seconds of its measurements.
const SMOKE_FILE_BYTES: u64 = 16 << 20;
const SMOKE_SECONDS: f64 = 0.01;
/// Unit of the sizes of buffers, which O_DIRECT needs, and their maximum.
const PAGE_BYTES: usize = 4096;
const BUFFER_BYTES_MAX: usize = 4 << 30;
/// Bytes of a buffer and operations in flight when the whole file is checked.
const CHECK_BUFFERS: (usize, usize) = (1 << 20, 8);
/// Maximum number of operations in flight.
const IN_FLIGHT_MAX: u64 = 64;
/// Maximum seconds of each measurement: an hour.
const SECONDS_MAX: f64 = 3600.0;

/// Options of `forebay bench io`.
#[derive(Args, Clone, Debug)]
pub struct IoArgs {
    /// Folder on the disk to measure; files named forebay-io-* are made there once and used again. The default is a
    /// folder in the user's cache folder.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Size of each of the two files, such as 512M or 4G.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    pub file_size: usize,
    /// Measure only what this figure of the paper shows: 2 varies the size of the buffer; 3 and 4 vary the operations
    /// in flight.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..=4))]
    pub figure: Option<u32>,
    /// Measure only these paths: host, staged-uring, staged-threads, direct-sync, direct-async, direct-batch. Staged
    /// paths end in the memory of the GPU; without a GPU, in host memory.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub only: Vec<StoragePath>,
    /// Sizes of buffers of figure 2, such as 4K,1M; multiples of 4K.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = buffer())]
    pub buffers: Vec<usize>,
    /// Numbers of operations in flight of figures 3 and 4.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = in_flight())]
    pub threads: Vec<usize>,
    /// Seconds of each measurement.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
    /// Run quickly on files of 16 MiB, to check that every path works; the measured rates mean nothing.
    #[arg(long, conflicts_with_all = ["file_size", "seconds"])]
    pub smoke: bool,
    /// What becomes of the results.
    #[command(flatten)]
    pub results: ResultArgs,
}

/// A run: the files, the GPU and the results so far.
struct Session {
    files: Files,
    /// The GPU, or why there is none.
    gpu: Result<Gpu, String>,
    /// Version of `fio`, if it is to be measured.
    fio: Option<String>,
    is_smoke: bool,
    seconds: f64,
    /// Paths named by the user, whose failures end the run.
    named: Vec<StoragePath>,
    /// Paths that are not measured.
    missing: Vec<StoragePath>,
    report: Report,
}

/// Measures every path that works on this machine.
///
/// # Errors
/// If the files cannot be made, an operation fails or moves wrong bytes, or a named path does not work.
pub(crate) fn run(args: &IoArgs) -> Result<()> {
    let cells = cells(args);
    let mut session = Session::start(args)?;
    session.note_missing(&cells)?;
    for (index, (cell, sweeps)) in cells.iter().enumerate() {
        session.measure(cell, sweeps, index as u64 + 1)?;
    }
    session.check_paths(&cells)?;
    session.report.results.end()
}

/// Returns the parser of the size of a buffer.
fn buffer() -> impl Fn(&str) -> Result<usize, String> + Clone {
    size::multiples(PAGE_BYTES, PAGE_BYTES..=BUFFER_BYTES_MAX)
}

/// Returns the parser of a number of operations in flight.
fn in_flight() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=IN_FLIGHT_MAX)
}

/// Parses the seconds of a measurement.
fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| *number > 0.0 && *number <= SECONDS_MAX);
    number.ok_or_else(|| format!("use a number above 0 and at most {SECONDS_MAX}"))
}

/// Returns what is measured, in order.
fn cells(args: &IoArgs) -> Vec<(Cell, Vec<Sweep>)> {
    let buffers: Vec<usize> = match (args.buffers.is_empty(), args.smoke) {
        (false, _) => args.buffers.clone(),
        (true, true) => SMOKE_BUFFER_BYTES.to_vec(),
        (true, false) => BUFFER_BYTES.to_vec(),
    };
    let threads: Vec<usize> = match (args.threads.is_empty(), args.smoke) {
        (false, _) => args.threads.clone(),
        (true, true) => SMOKE_THREADS.to_vec(),
        (true, false) => THREADS.to_vec(),
    };
    let paths = match args.only.is_empty() {
        true => StoragePath::ALL.to_vec(),
        false => args.only.clone(),
    };
    let mut cells = Cells::default();
    for operation in [Operation::Read, Operation::Write] {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            for &path in &paths {
                for &cache in caches(path, operation) {
                    let cell = |bytes, parallel| Cell {
                        path,
                        cache,
                        pattern,
                        operation,
                        bytes,
                        parallel,
                    };
                    if args.figure.is_none_or(|figure| figure == 2) {
                        cells.add(Sweep::Buffers, buffers.iter().map(|&bytes| cell(bytes, 1)));
                    }
                    if args.figure.is_none_or(|figure| figure >= 3) {
                        let bytes = match pattern {
                            Pattern::Sequential => SEQUENTIAL_BYTES,
                            Pattern::Random => RANDOM_BYTES,
                        };
                        let in_flight = threads.iter().map(|&count| cell(bytes, count));
                        cells.add(Sweep::Threads, in_flight);
                    }
                }
            }
        }
    }
    cells.0
}

/// What is measured, each with the series that it is of.
#[derive(Default)]
struct Cells(Vec<(Cell, Vec<Sweep>)>);

impl Cells {
    /// Adds the cells of a series. A cell that another series has too is measured once.
    fn add(&mut self, sweep: Sweep, cells: impl Iterator<Item = Cell>) {
        for cell in cells {
            match self.0.iter_mut().find(|(known, _)| *known == cell) {
                Some((_, sweeps)) if sweeps.contains(&sweep) => {}
                Some((_, sweeps)) => sweeps.push(sweep),
                None => self.0.push((cell, vec![sweep])),
            }
        }
    }
}

/// Returns the uses of the page cache that are measured.
fn caches(path: StoragePath, operation: Operation) -> &'static [Cache] {
    match (path, operation) {
        (StoragePath::Host, Operation::Read) => &[Cache::Bypass, Cache::Cold, Cache::Hot],
        _ => &[Cache::Bypass],
    }
}

impl Session {
    /// Makes the files, and starts the first GPU if there is one.
    fn start(args: &IoArgs) -> Result<Session> {
        let folder = match &args.folder {
            Some(folder) => folder.clone(),
            None => cache_folder()?.join("io"),
        };
        let report = Report::begin(&args.results)?;
        let bytes = if args.smoke {
            SMOKE_FILE_BYTES
        } else {
            args.file_size as u64
        };
        let files = Files::make(&folder, bytes)?;
        if let Some(why) = files.refusal()? {
            let folder = folder.display();
            report.note(&format!("{folder}: reads go through the page cache: {why}"));
        }
        let fio = fio::version();
        match &fio {
            Some(version) => report.note(&format!("{version} is measured beside the host path")),
            None => {
                report.note("fio is not installed: there is no yardstick (Debian: apt install fio)")
            }
        }
        Ok(Session {
            gpu: Gpu::start(&files.read),
            files,
            fio,
            is_smoke: args.smoke,
            seconds: if args.smoke {
                SMOKE_SECONDS
            } else {
                args.seconds
            },
            named: args.only.clone(),
            missing: Vec::new(),
            report,
        })
    }

    /// Notes which paths are not measured, and why.
    ///
    /// # Errors
    /// If such a path was named.
    fn note_missing(&mut self, cells: &[(Cell, Vec<Sweep>)]) -> Result<()> {
        for path in StoragePath::ALL {
            if !cells.iter().any(|(cell, _)| cell.path == path) {
                continue;
            }
            if let Some(why) = self.lacks(path) {
                self.give_up(path, &why)?;
            } else if let (Err(why), StoragePath::StagedUring | StoragePath::StagedThreads) =
                (&self.gpu, path)
            {
                self.report
                    .note(&format!("{path} ends in host memory: {why}"));
            }
        }
        Ok(())
    }

    /// Returns why a path does not work here.
    fn lacks(&self, path: StoragePath) -> Option<String> {
        if path == StoragePath::StagedUring {
            let refused = FileReader::Uring { depth: 1 }.check();
            return refused.err().map(|cause| cause.to_string());
        }
        match (path, &self.gpu) {
            (StoragePath::Direct(_), Err(why)) => Some(why.clone()),
            (_, Ok(gpu)) => gpu.lacks(path).map(str::to_owned),
            _ => None,
        }
    }

    /// Measures a path no more.
    ///
    /// # Errors
    /// If it was named.
    fn give_up(&mut self, path: StoragePath, why: &str) -> Result<()> {
        ensure!(
            !self.named.contains(&path),
            "{path} cannot be measured: {why}"
        );
        self.report.note(&format!("{path} is skipped: {why}"));
        self.missing.push(path);
        Ok(())
    }

    /// Measures a cell, and the same with `fio` if it is one of the host path.
    fn measure(&mut self, cell: &Cell, sweeps: &[Sweep], seed: u64) -> Result<()> {
        if self.missing.contains(&cell.path) {
            return Ok(());
        }
        if !cell.fits(self.files.bytes) {
            let text = format!("{cell}: skipped, the file is too small");
            self.report.note(&text);
            return Ok(());
        }
        let time = Duration::from_secs_f64(self.seconds);
        let Some((found, devices)) = self.found(cell, seed, Extent::Time(time))? else {
            return Ok(());
        };
        let of = (cell, sweeps);
        self.report.add(of, &found, &devices)?;
        match &self.fio {
            Some(version) if cell.path == StoragePath::Host && cell.cache == Cache::Bypass => {
                let found = fio::measure(cell, &self.files, self.seconds)?;
                self.report.add_fio(of, &found, version)?;
            }
            _ => return Ok(()),
        }
        if self.is_smoke {
            // Each start of `fio` takes longer than all cells of a smoke run.
            self.fio = None;
        }
        Ok(())
    }

    /// Returns what was found, and the devices used; `None` if cuFile refuses the path, which is given up then.
    fn found(&mut self, cell: &Cell, seed: u64, extent: Extent) -> Result<Option<(Found, String)>> {
        let task = Task {
            cell,
            files: &self.files,
            seed,
            extent,
        };
        let found = match &self.gpu {
            Ok(gpu) if cell.path != StoragePath::Host => gpu
                .measure(&task)
                .map(|found| (found, gpu.device.name().to_owned())),
            _ => host::measure(&task)
                .map(|found| (found, format!("host:{}", forebay_device::cores()))),
        };
        match found {
            Err(error) if matches!(cell.path, StoragePath::Direct(_)) => {
                self.give_up(cell.path, &format!("{error:#}"))?;
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// Reads the whole file by each path that was measured, in the same way, and checks every byte.
    ///
    /// # Errors
    /// If a path reads other bytes than those of the file.
    fn check_paths(&mut self, cells: &[(Cell, Vec<Sweep>)]) -> Result<()> {
        let mut checked: Vec<Cell> = Vec::new();
        for (cell, _) in cells {
            let (bytes, parallel) = CHECK_BUFFERS;
            let whole = Cell {
                pattern: Pattern::Sequential,
                bytes,
                parallel,
                ..*cell
            };
            let is_read = cell.operation == Operation::Read && whole.fits(self.files.bytes);
            if !is_read || checked.contains(&whole) || self.missing.contains(&cell.path) {
                continue;
            }
            checked.push(whole);
            if let Some((found, _)) = self.found(&whole, 0, Extent::Checked)? {
                let bytes = size::text(found.operations() * bytes);
                let line = whole.line();
                self.report
                    .note(&format!("{line}: all {bytes} that it reads are right"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn args(folder: PathBuf) -> IoArgs {
        IoArgs {
            folder: Some(folder),
            file_size: 1 << 30,
            figure: None,
            only: Vec::new(),
            buffers: Vec::new(),
            threads: Vec::new(),
            seconds: 1.0,
            smoke: true,
            results: ResultArgs::default(),
        }
    }

    #[test]
    fn a_smoke_run_measures_the_host_and_the_staged_paths() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let record = folder.path().join("io.jsonl");
        let args = IoArgs {
            results: ResultArgs {
                json: true,
                record: Some(record.clone()),
                plot: Some(folder.path().join("plots")),
            },
            only: vec![StoragePath::Host, StoragePath::StagedThreads],
            ..args(folder.path().to_owned())
        };
        run(&args).unwrap_or_else(|error| panic!("{error:#}"));
        let text = std::fs::read_to_string(record).expect("it is written");
        for case in [
            "io-buffer-sequential-read: host/4096",
            "io-buffer-random-write: staged-threads/1048576",
            "io-threads-random-read: host, cold cache/3",
            "io-threads-sequential-write: host/1",
        ] {
            assert!(text.contains(case), "{case}");
        }
        assert!(
            folder
                .path()
                .join("plots/io-random-read-by-threads-rate.svg")
                .exists()
        );
    }

    #[test]
    fn a_named_path_that_does_not_work_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut session = Session::start(&args(folder.path().to_owned())).expect("room");
        session.gpu = Err("no GPU can be used".to_owned());
        let args = IoArgs {
            figure: Some(2),
            ..args(folder.path().to_owned())
        };
        let cells = cells(&args);
        session.note_missing(&cells).expect("no path was named");
        assert_eq!(session.missing.len(), 3);
        session.named = vec![StoragePath::ALL[3]];
        let error = session
            .note_missing(&cells)
            .expect_err("direct-sync was named");
        assert!(
            error
                .to_string()
                .contains("direct-sync cannot be measured: no GPU"),
            "{error}"
        );
    }

    #[test]
    fn options_that_cannot_be_measured_are_refused() {
        #[derive(Debug, Parser)]
        struct Command {
            #[command(flatten)]
            args: IoArgs,
        }
        let parsed = |arguments: &[&str]| {
            let all = ["bench"].iter().chain(arguments);
            Command::try_parse_from(all).map(|command| command.args)
        };
        let refused = |arguments: &[&str]| parsed(arguments).expect_err("refused").to_string();
        for seconds in ["0", "-1", "NaN", "inf", "1e300"] {
            let text = refused(&[&format!("--seconds={seconds}")]);
            assert!(text.contains("above 0 and at most 3600"), "{text}");
        }
        let text = refused(&["--buffers", "5000"]);
        assert!(text.contains("use a multiple of 4 KiB"), "{text}");
        let text = refused(&["--threads", "0"]);
        assert!(text.contains("0 is not in 1..=64"), "{text}");
        for more in [["--file-size", "1G"], ["--seconds", "1"]] {
            let text = refused(&["--smoke", more[0], more[1]]);
            assert!(text.contains("cannot be used with"), "{text}");
        }
        let args = parsed(&["--file-size", "2G", "--buffers", "4K,1MiB"]).expect("right options");
        assert_eq!(args.file_size, 2 << 30);
        assert_eq!(args.buffers, [4096, 1 << 20]);
    }
}
