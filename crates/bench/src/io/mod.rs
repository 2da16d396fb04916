//! `forebay bench io`: reads and writes of files by every storage path.
//!
//! Figures 2, 3 and 4 of Miura et al. (section 3): rates and latencies by the size of the buffer and by the number of
//! operations in flight, and the CPU use of each path; also the asynchronous and batched modes of cuFile, which the
//! paper could not measure. Every measurement checks bytes that it moved.

mod cell;
mod content;
mod direct;
mod fio;
mod gpu;
mod host;
mod measure;
mod plots;
pub(crate) mod probe;
mod report;
mod staged;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use forebay_movement::storage::{FileReader, StoragePath};
use forebay_peers::cache_folder;

use cell::{Cache, Cell, Operation, Pattern, Sweep};
use content::Files;
use gpu::Gpu;
use measure::Found;
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
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub file_size: Size,
    /// Measure only what this figure of the paper shows: 2 varies the size of the buffer; 3 and 4 vary the operations
    /// in flight.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..=4))]
    pub figure: Option<u32>,
    /// Measure only these paths: host, staged-uring, staged-threads, direct-sync, direct-async, direct-batch. Staged
    /// paths end in the memory of the GPU; without a GPU, in host memory.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub only: Vec<StoragePath>,
    /// Sizes of buffers of figure 2, such as 4K,1M; multiples of 4K.
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub buffers: Vec<Size>,
    /// Numbers of operations in flight of figures 3 and 4.
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Seconds of each measurement.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    pub seconds: f64,
    /// Run quickly on small files, to check that every path works; the measured rates mean nothing.
    #[arg(long)]
    pub smoke: bool,
    /// Print JSON lines.
    #[arg(long)]
    pub json: bool,
    /// Append the results to this file of JSON lines.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Draw the figures as SVG files into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub plot: Option<PathBuf>,
}

/// A number of bytes, as in `64K`, `1M` or `4G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "B" => Some(0),
            "K" | "KB" | "KIB" => Some(10),
            "M" | "MB" | "MIB" => Some(20),
            "G" | "GB" | "GIB" => Some(30),
            _ => None,
        };
        let bytes = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
        let size = bytes.filter(|&bytes| bytes > 0).map(Size);
        size.ok_or_else(|| format!("`{text}` is not a size such as 64K, 1M or 4G"))
    }
}

/// A run: the files, the GPU and the results so far.
struct Session {
    files: Files,
    /// The GPU, or why there is none.
    gpu: Result<Gpu, String>,
    fio: Option<String>,
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
    let is_time = args.seconds > 0.0 && args.seconds <= SECONDS_MAX;
    ensure!(
        is_time,
        "--seconds must be above 0 and at most {SECONDS_MAX}"
    );
    let cells = cells(args)?;
    let mut session = Session::start(args)?;
    session.note_missing(&cells)?;
    for (index, cell) in cells.iter().enumerate() {
        session.measure(cell, index as u64 + 1)?;
    }
    match &args.plot {
        Some(folder) => session.report.draw(folder),
        None => Ok(()),
    }
}

/// Returns what is measured, in order.
fn cells(args: &IoArgs) -> Result<Vec<Cell>> {
    let buffers: Vec<usize> = match (args.buffers.is_empty(), args.smoke) {
        (false, _) => args.buffers.iter().map(|size| size.0 as usize).collect(),
        (true, true) => SMOKE_BUFFER_BYTES.to_vec(),
        (true, false) => BUFFER_BYTES.to_vec(),
    };
    let threads: Vec<usize> = match (args.threads.is_empty(), args.smoke) {
        (false, _) => args.threads.clone(),
        (true, true) => SMOKE_THREADS.to_vec(),
        (true, false) => THREADS.to_vec(),
    };
    ensure!(
        buffers.iter().all(|bytes| bytes.is_multiple_of(4096)),
        "--buffers must be multiples of 4K"
    );
    ensure!(
        threads.iter().all(|count| (1..=64).contains(count)),
        "--threads must be from 1 to 64"
    );
    let paths = match args.only.is_empty() {
        true => StoragePath::ALL.to_vec(),
        false => args.only.clone(),
    };
    let mut cells = Vec::new();
    for operation in [Operation::Read, Operation::Write] {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            for &path in &paths {
                for cache in caches(path, operation) {
                    let cell = |sweep, bytes, parallel| Cell {
                        sweep,
                        path,
                        cache: *cache,
                        pattern,
                        operation,
                        bytes,
                        parallel,
                    };
                    if args.figure.is_none_or(|figure| figure == 2) {
                        cells.extend(buffers.iter().map(|&bytes| cell(Sweep::Buffers, bytes, 1)));
                    }
                    if args.figure.is_none_or(|figure| figure >= 3) {
                        let bytes = match pattern {
                            Pattern::Sequential => SEQUENTIAL_BYTES,
                            Pattern::Random => RANDOM_BYTES,
                        };
                        cells.extend(
                            threads
                                .iter()
                                .map(|&count| cell(Sweep::Threads, bytes, count)),
                        );
                    }
                }
            }
        }
    }
    Ok(cells)
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
        let report = Report::begin(args.json, args.record.clone());
        let bytes = if args.smoke {
            SMOKE_FILE_BYTES
        } else {
            args.file_size.0
        };
        let files = Files::make(&folder, bytes)?;
        if let Some(why) = files.refusal()? {
            let folder = folder.display();
            report.note(&format!("{folder}: reads go through the page cache: {why}"));
        }
        let fio = if args.smoke { None } else { fio::version() };
        match &fio {
            Some(version) => report.note(&format!("{version} is measured beside the host path")),
            None if args.smoke => {}
            None => {
                report.note("fio is not installed: there is no yardstick (Debian: apt install fio)")
            }
        }
        Ok(Session {
            gpu: Gpu::start(&files.read),
            files,
            fio,
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
    fn note_missing(&mut self, cells: &[Cell]) -> Result<()> {
        for path in StoragePath::ALL {
            if !cells.iter().any(|cell| cell.path == path) {
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
    fn measure(&mut self, cell: &Cell, seed: u64) -> Result<()> {
        if self.missing.contains(&cell.path) {
            return Ok(());
        }
        if !cell.fits(self.files.bytes) {
            self.report.note(&format!(
                "{} is skipped: the file is too small",
                cell.case()
            ));
            return Ok(());
        }
        let (found, devices) = match self.found(cell, seed) {
            Ok(found) => found,
            Err(error) if matches!(cell.path, StoragePath::Direct(_)) => {
                return self.give_up(cell.path, &format!("{error:#}"));
            }
            Err(error) => return Err(error),
        };
        self.report.add(cell, &found, &devices)?;
        match &self.fio {
            Some(version) if cell.path == StoragePath::Host && cell.cache == Cache::Bypass => {
                let found = fio::measure(cell, &self.files, self.seconds)?;
                self.report.add_fio(cell, &found, version)
            }
            _ => Ok(()),
        }
    }

    /// Returns what was found, and the devices used.
    fn found(&self, cell: &Cell, seed: u64) -> Result<(Found, String)> {
        let budget = Duration::from_secs_f64(self.seconds);
        match &self.gpu {
            Ok(gpu) if cell.path != StoragePath::Host => {
                let found = gpu.measure(cell, &self.files, budget, seed)?;
                Ok((found, gpu.device.name().to_owned()))
            }
            _ => {
                let found = host::measure(cell, &self.files, budget, seed)?;
                Ok((found, format!("host:{}", forebay_device::cores())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(folder: PathBuf) -> IoArgs {
        IoArgs {
            folder: Some(folder),
            file_size: Size(1 << 30),
            figure: None,
            only: Vec::new(),
            buffers: Vec::new(),
            threads: Vec::new(),
            seconds: 1.0,
            smoke: true,
            json: true,
            record: None,
            plot: None,
        }
    }

    #[test]
    fn sizes_are_read() {
        let size = |text: &str| text.parse::<Size>();
        assert_eq!(size("4096"), Ok(Size(4096)));
        assert_eq!(size("64k"), Ok(Size(65_536)));
        assert_eq!(size("1MiB"), Ok(Size(1 << 20)));
        assert_eq!(size("4G"), Ok(Size(4 << 30)));
        for wrong in ["", "K", "1X", "0", "-1", "99999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_smoke_run_measures_the_host_and_the_staged_paths() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let record = folder.path().join("io.jsonl");
        let args = IoArgs {
            record: Some(record.clone()),
            plot: Some(folder.path().join("plots")),
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
                .join("plots/figure-3-random-read-mb_per_s.svg")
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
        let cells = cells(&args).expect("valid options");
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
    fn sizes_and_counts_have_limits() {
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let wrong = IoArgs {
                seconds,
                smoke: false,
                ..args(folder.path().to_owned())
            };
            let error = run(&wrong).expect_err("no time");
            assert!(error.to_string().contains("--seconds"), "{error:#}");
        }
        let wrong_size = IoArgs {
            buffers: vec![Size(5000)],
            ..args(PathBuf::new())
        };
        assert!(cells(&wrong_size).is_err());
        let wrong_count = IoArgs {
            threads: vec![0],
            ..args(PathBuf::new())
        };
        assert!(cells(&wrong_count).is_err());
    }
}
