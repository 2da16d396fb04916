//! The query over columns on disk, with the page cache cold: through the ring, and what `dd` reads in the same run.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Error, Result, bail, ensure};
use forebay_device::cuda::cufile::{CuFile, CuFileError};
use forebay_device::{Device, DeviceOptions, Devices};
use forebay_movement::storage::{DirectMode, DirectSource, FileReader, FileSource, StoragePath};
use forebay_movement::{MoveError, Source};

use super::report::{Case, Report, Sample};
use super::{Session, serial};

/// Reads in flight.
const READS: usize = 16;

/// Measures `dd` with direct I/O for each block size: the limit of every variant that reads the disk.
pub(super) fn by_dd(session: &mut Session) -> Result<()> {
    for buffer_bytes in session.buffers() {
        let samples = session.repeat_cold(|session| dd(session, buffer_bytes));
        let samples = match samples {
            Ok(samples) => samples,
            Err(error) => {
                // A table that changed is no reason to go on.
                session.data_file()?;
                session
                    .report
                    .note(&format!("limit-disk: skipped, {error:#}"));
                return Ok(());
            }
        };
        let case = Case {
            engine: "dd",
            buffer_bytes: Some(buffer_bytes),
            ..session.case("limit-disk", "1 thread")
        };
        session.report.add(case, &samples)?;
    }
    Ok(())
}

fn dd(session: &Session, block_bytes: usize) -> Result<Sample> {
    let mut command = Command::new("dd");
    command
        .arg(format!("if={}", session.file.path.display()))
        .args(["of=/dev/null", "iflag=direct"])
        .arg(format!("bs={block_bytes}"))
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    let began = Instant::now();
    let output = command.output().context("starting dd (coreutils)")?;
    let took = began.elapsed();
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{}", report.trim());
    }
    let read = bytes_of_dd(&report);
    ensure!(
        read == Some(session.file.about.bytes()),
        "dd did not read the whole file: {}",
        report.trim()
    );
    Ok(Sample::of_time(took, None))
}

/// Returns the bytes that `dd` copied, from the last line of its report.
fn bytes_of_dd(report: &str) -> Option<u64> {
    let line = report.trim().lines().next_back()?;
    line.split_whitespace().next()?.parse().ok()
}

/// Measures the host path: `pread` by several threads into CPU memory, and the CPU computes on all cores.
pub(super) fn on_cpu(session: &mut Session) -> Result<()> {
    let devices = Devices::new(&"host:1".parse()?, DeviceOptions::default())?;
    let device = devices.list().remove(0);
    let name = session.host();
    let source = |session: &Session, buffer_bytes| {
        let threads = reads(buffer_bytes);
        session.file_source(FileReader::Threads { threads })
    };
    through_ring(session, &device, ("q6-cpu", &name), 0, source)
}

/// Measures staged reads into pinned memory: by io_uring from one thread, and by `pread` from several.
pub(super) fn staged(session: &mut Session, gpu: &Arc<Device>) -> Result<()> {
    let threads = |session: &Session, buffer_bytes| {
        let threads = reads(buffer_bytes);
        session.file_source(FileReader::Threads { threads })
    };
    through_ring(session, gpu, ("q6-disk-threads", gpu.name()), 0, threads)?;
    let uring = FileReader::Uring { depth: READS };
    if let Err(why) = uring.check() {
        session
            .report
            .note(&format!("q6-disk-uring: skipped, {why}"));
        return Ok(());
    }
    let uring = |session: &Session, buffer_bytes| {
        let depth = reads(buffer_bytes);
        session.file_source(FileReader::Uring { depth })
    };
    through_ring(session, gpu, ("q6-disk-uring", gpu.name()), 0, uring)
}

/// Measures reads by cuFile: one after another, and into the ring's device memory in each mode. Says which path they
/// took.
pub(super) fn direct(session: &mut Session, gpu: &Arc<Device>) -> Result<()> {
    let cufile = match CuFile::open() {
        Ok(cufile) => cufile,
        Err(why) => {
            session.report.note(&format!("q6-direct: skipped, {why}"));
            return Ok(());
        }
    };
    let serial = serial::by_cufile(session, gpu, &cufile);
    note_refusal(&session.report, "serial-direct", serial)?;
    for mode in [DirectMode::Sync, DirectMode::Async, DirectMode::Batch] {
        let before = cufile.counts().ok();
        let path = StoragePath::Direct(mode);
        let name = format!("q6-{path}");
        let source = |session: &Session, buffer_bytes| {
            let file = session.data_file()?;
            let range = 0..session.file.about.bytes();
            let parallel = (mode, reads(buffer_bytes));
            Ok(DirectSource::range(&cufile, file, range, parallel)?)
        };
        // The first run registers the ring's memory and its stream.
        let measured = through_ring(session, gpu, (&name, gpu.name()), 1, source);
        note_refusal(&session.report, &name, measured)?;
        if let (Some(before), Ok(after)) = (before, cufile.counts()) {
            let text = format!("{name}: {}", (after - before).path());
            session.report.note(&text);
        }
    }
    Ok(())
}

/// Makes a refusal by cuFile a note, so that other cases are measured; other errors stay errors. Some modes, and files
/// without an entry of udev, are refused only at run time.
fn note_refusal(report: &Report, name: &str, measured: Result<()>) -> Result<()> {
    match measured {
        Err(error) if is_refusal(&error) => {
            report.note(&format!("{name}: skipped, {error:#}"));
            Ok(())
        }
        other => other,
    }
}

/// Returns whether cuFile refused an operation, and the device works.
fn is_refusal(error: &Error) -> bool {
    let cufile = match error.downcast_ref::<MoveError>() {
        Some(MoveError::Source { why, .. }) => why.downcast_ref(),
        _ => error.downcast_ref(),
    };
    cufile.is_some_and(|error| !matches!(error, CuFileError::Fault(_)))
}

/// Returns the number of reads in flight with buffers of this size: one slot stays free for a copy.
fn reads(buffer_bytes: usize) -> usize {
    READS.min(Session::slots(buffer_bytes).slots - 1)
}

/// Measures a source through a ring for each buffer size, after `warm_ups` runs that are not counted.
fn through_ring<S: Source>(
    session: &mut Session,
    device: &Arc<Device>,
    (name, devices): (&str, &str),
    warm_ups: usize,
    source: impl Fn(&Session, usize) -> Result<S>,
) -> Result<()> {
    for buffer_bytes in session.buffers() {
        let mut ring = Session::lease(device, buffer_bytes)?;
        let (source, reads) = (source(session, buffer_bytes)?, reads(buffer_bytes));
        let mut once = || Session::run_ring(&mut ring, device, &source, reads, 1);
        for _ in 0..warm_ups {
            once()?;
        }
        let samples = session.repeat_cold(|_| once())?;
        let case = Case {
            buffer_bytes: Some(buffer_bytes),
            ..session.case(name, devices)
        };
        session.report.add(case, &samples)?;
    }
    Ok(())
}

impl Session {
    fn file_source(&self, reader: FileReader) -> Result<FileSource> {
        Ok(FileSource::new(self.data_file()?, reader))
    }

    /// Runs a measurement as often as the options say, each time with none of the file in the page cache.
    pub(super) fn repeat_cold(
        &self,
        mut once: impl FnMut(&Session) -> Result<Sample>,
    ) -> Result<Vec<Sample>> {
        let cold = |_| {
            self.data_file()?.evict()?;
            once(self)
        };
        (0..self.rounds).map(cold).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_device::cuda::cufile::CuFileCode;

    use super::*;
    use crate::results::ResultArgs;

    fn refusal() -> CuFileError {
        CuFileError::Call {
            operation: "cuFileHandleRegister",
            code: CuFileCode::HANDLE_NOT_REGISTERED,
        }
    }

    #[test]
    fn a_refusal_by_cufile_is_a_note_and_other_errors_are_errors() {
        let report =
            Report::begin(&ResultArgs::default(), (0, Path::new("about.json"))).expect("no file");
        let of_ring = |why: Box<dyn std::error::Error + Send + Sync>| MoveError::Source {
            source_name: "table".to_owned(),
            offset: 0,
            why,
        };
        let noted = |error: Error| note_refusal(&report, "q6-direct-batch", Err(error)).is_ok();
        assert!(noted(refusal().into()));
        assert!(noted(of_ring(refusal().into()).into()));
        assert!(!noted(of_ring("the file ends".into()).into()));
        assert!(!noted(anyhow::anyhow!("the answer is wrong")));
    }

    #[test]
    fn the_report_of_dd_says_how_much_it_read() {
        let report = "0+1 records in\n0+1 records out\n5 bytes copied, 0.0001 s, 50 kB/s\n";
        assert_eq!(bytes_of_dd(report), Some(5));
        assert_eq!(bytes_of_dd(""), None);
    }
}
