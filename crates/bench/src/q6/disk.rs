//! The query over columns on disk, with the page cache cold: through the ring, and what `dd` reads in the same run.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use forebay_device::cuda::cufile::CuFile;
use forebay_device::{Device, DeviceOptions, Devices};
use forebay_movement::Source;
use forebay_movement::storage::{DirectMode, DirectSource, FileReader, FileSource, StoragePath};

use super::report::{Case, Sample};
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
        .stdin(Stdio::null());
    let began = Instant::now();
    let output = command.output().context("starting dd (coreutils)")?;
    let took = began.elapsed();
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(Sample::of_time(took, None))
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
    through_ring(session, &device, ("q6-cpu", &name), source)
}

/// Measures staged reads into pinned memory: by io_uring from one thread, and by `pread` from several.
pub(super) fn staged(session: &mut Session, gpu: &Arc<Device>) -> Result<()> {
    let threads = |session: &Session, buffer_bytes| {
        let threads = reads(buffer_bytes);
        session.file_source(FileReader::Threads { threads })
    };
    through_ring(session, gpu, ("q6-disk-threads", gpu.name()), threads)?;
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
    through_ring(session, gpu, ("q6-disk-uring", gpu.name()), uring)
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
    serial::by_cufile(session, gpu, &cufile)?;
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
        through_ring(session, gpu, (&name, gpu.name()), source)?;
        if let (Some(before), Ok(after)) = (before, cufile.counts()) {
            let text = format!("{name}: {}", (after - before).path());
            session.report.note(&text);
        }
    }
    Ok(())
}

/// Returns the number of reads in flight with buffers of this size: one slot stays free for a copy.
fn reads(buffer_bytes: usize) -> usize {
    READS.min(Session::slots(buffer_bytes).slots - 1)
}

/// Measures a source through a ring for each buffer size.
fn through_ring<S: Source>(
    session: &mut Session,
    device: &Arc<Device>,
    (name, devices): (&str, &str),
    source: impl Fn(&Session, usize) -> Result<S>,
) -> Result<()> {
    for buffer_bytes in session.buffers() {
        let mut ring = Session::lease(device, buffer_bytes)?;
        let (source, reads) = (source(session, buffer_bytes)?, reads(buffer_bytes));
        let samples =
            session.repeat_cold(|_| Session::run_ring(&mut ring, device, &source, reads, 1))?;
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
