//! Measures the rates of this machine, in some seconds.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_cancel::Stop;
use forebay_device::cuda::cufile::CuFile;
use forebay_device::cuda::{Cuda, DeviceView, Stream};
use forebay_device::{Device, DeviceKind, JobError};
use nix::sys::resource::{UsageWho, getrusage};

use super::{Measurements, Rate, Way};
use crate::measure::{Pattern, Plan, Reading, rate_methods, read_by_device};
use crate::storage::{
    AlignedBytes, DataFile, DirectMode, DirectSource, FileError, FileReader, FileSource, PageCache,
    StoragePath,
};
use crate::{Chunk, Consumer, MoveError, RingOptions, RingReport, Source, StagingRing, Tier};

/// Sizes of the measured transfers.
const TRANSFER_BYTES: [usize; 2] = [1 << 20, 256 << 20];
/// Bytes of the measured file.
const FILE_BYTES: u64 = 256 << 20;
/// Name of that file until it is open.
const SCRATCH_NAME: &str = "movement.json.scratch";
/// The ring through which the file is read.
const RING: RingOptions = RingOptions {
    slots: 8,
    slot_bytes: 4 << 20,
};

/// The paths of cuFile.
const DIRECT_PATHS: [StoragePath; 3] = [
    StoragePath::Direct(DirectMode::Sync),
    StoragePath::Direct(DirectMode::Async),
    StoragePath::Direct(DirectMode::Batch),
];

/// What was measured, and what was not.
#[derive(Debug)]
pub struct Measured {
    /// The rates.
    pub measurements: Measurements,
    /// The ways that are missing on this machine, each with the reason.
    pub missing: Vec<(Way, String)>,
}

/// Measures transfers to a device, and reads of a file in `folder`, which must have room for 256 MiB. Blocks for some
/// seconds. On a host device only reads of the file are measured. cuFile is measured only with `may_open_cufile`: on
/// some machines it crashes the process, so try it in a child process first.
///
/// # Errors
/// [`MoveError`] if a way that the machine has fails, or `stop` ends the measurement.
pub fn measure(
    device: &Arc<Device>,
    folder: &Path,
    may_open_cufile: bool,
    stop: &Stop,
) -> Result<Measured, MoveError> {
    let mut measured = Measured {
        measurements: Measurements::default(),
        missing: Vec::new(),
    };
    let mut paths = vec![StoragePath::StagedUring, StoragePath::StagedThreads];
    if device.kind() == DeviceKind::Cuda {
        measured.transfers(device, stop)?;
        if may_open_cufile {
            paths.extend(DIRECT_PATHS);
        }
    }
    measured.reads(device, folder, &paths, stop)?;
    Ok(measured)
}

impl Measured {
    fn transfers(&mut self, device: &Arc<Device>, stop: &Stop) -> Result<(), MoveError> {
        for (index, bytes) in TRANSFER_BYTES.into_iter().enumerate() {
            stop.check()?;
            for rate in rate_methods(device, bytes)? {
                let way = Way::Method(rate.method);
                match rate.bytes_per_s {
                    Ok([bytes_per_s, _]) => self.measurements.rates.push(Rate {
                        source: rate.method.tier(),
                        way,
                        chunk_bytes: bytes as u64,
                        bytes_per_s,
                        cpu_s_per_gb: None,
                    }),
                    Err(missing) if index == 0 => self.missing.push((way, missing.to_string())),
                    Err(_) => {}
                }
            }
        }
        let readings = read_by_device(device, true, Plan::short())?;
        let readings: Vec<Reading> = readings.collect::<Result<_, _>>()?;
        let random = readings
            .iter()
            .find(|reading| reading.pattern == Pattern::Random { bytes: 8 });
        let fastest =
            random.and_then(|reading| reading.accesses_per_s().into_iter().reduce(f64::max));
        self.measurements.random_zero_copy_per_s = fastest;
        Ok(())
    }

    fn reads(
        &mut self,
        device: &Arc<Device>,
        folder: &Path,
        paths: &[StoragePath],
        stop: &Stop,
    ) -> Result<(), MoveError> {
        let file = scratch(folder, FILE_BYTES)?;
        let mut ring = StagingRing::lease(device, RING)?;
        for &path in paths {
            stop.check()?;
            let way = Way::Path(path);
            let read = source(path, &file).and_then(|source| Ok(read(&mut ring, &*source, stop)?));
            match read {
                Ok((report, cpu)) => self.measurements.rates.push(Rate {
                    source: Tier::File,
                    way,
                    chunk_bytes: RING.slot_bytes as u64,
                    bytes_per_s: FILE_BYTES as f64 / report.elapsed.as_secs_f64(),
                    cpu_s_per_gb: Some(cpu.as_secs_f64() * 1e9 / FILE_BYTES as f64),
                }),
                // A path may be refused only when it is used, such as batches in the compat mode of cuFile.
                Err(why) => self.missing.push((way, why.to_string())),
            }
        }
        stop.check()?;
        Ok(())
    }
}

/// Reads the file past the page cache; returns the processor time of the process too.
fn read(
    ring: &mut StagingRing,
    source: &dyn Source,
    stop: &Stop,
) -> Result<(RingReport, Duration), MoveError> {
    let before = processor_time();
    let report = ring.run(source, &Arc::new(Discard), stop)?;
    Ok((report, processor_time().saturating_sub(before)))
}

fn processor_time() -> Duration {
    getrusage(UsageWho::RUSAGE_SELF).map_or(Duration::ZERO, |usage| {
        let of = |time: nix::sys::time::TimeVal| {
            Duration::from_secs(time.tv_sec().unsigned_abs())
                + Duration::from_micros(time.tv_usec().unsigned_abs())
        };
        of(usage.user_time()) + of(usage.system_time())
    })
}

/// Returns a source that reads the file by a path, or why this machine lacks the path.
fn source(
    path: StoragePath,
    file: &Arc<DataFile>,
) -> Result<Box<dyn Source>, Box<dyn Error + Send + Sync>> {
    let depth = RING.slots;
    let reader = match path {
        StoragePath::StagedUring => FileReader::Uring { depth },
        StoragePath::Host | StoragePath::StagedThreads => FileReader::Threads { threads: depth },
        StoragePath::Direct(mode) => return direct(mode, file),
    };
    reader.check()?;
    Ok(Box::new(FileSource::range(
        Arc::clone(file),
        0..FILE_BYTES,
        reader,
    )))
}

fn direct(
    mode: DirectMode,
    file: &Arc<DataFile>,
) -> Result<Box<dyn Source>, Box<dyn Error + Send + Sync>> {
    let cufile = CuFile::open()?;
    let source = DirectSource::range(&cufile, Arc::clone(file), 0..FILE_BYTES, (mode, RING.slots))?;
    Ok(Box::new(source))
}

/// A consumer that does nothing.
struct Discard;

impl Consumer for Discard {
    fn enqueue(
        &self,
        _: &mut Cuda,
        _: &Stream,
        _: Chunk,
        _: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        Ok(())
    }

    fn process(&self, _: Chunk, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

/// Returns a file of bytes that do not compress. It has no name, so it ends with this process at the latest.
fn scratch(folder: &Path, bytes: u64) -> Result<Arc<DataFile>, MoveError> {
    let path = folder.join(SCRATCH_NAME);
    let file = DataFile::create(&path, PageCache::Bypass).map_err(unwritten)?;
    fs::remove_file(&path).map_err(|error| MoveError::Source {
        source_name: path.display().to_string(),
        offset: 0,
        why: error.into(),
    })?;
    let mut block = AlignedBytes::zeroed(RING.slot_bytes);
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for offset in (0..bytes).step_by(block.len()) {
        for word in block.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        file.write_all_at(offset, &block).map_err(unwritten)?;
    }
    file.sync().map_err(unwritten)?;
    Ok(Arc::new(file))
}

fn unwritten(error: FileError) -> MoveError {
    MoveError::Source {
        source_name: error.path.display().to_string(),
        offset: error.offset,
        why: error.cause.into(),
    }
}

#[cfg(test)]
mod tests {
    use forebay_device::{DeviceOptions, Devices};

    use super::*;

    #[test]
    fn a_machine_without_a_gpu_measures_its_disk_and_leaves_no_file() {
        let spec = "host:1".parse().expect("a valid specification");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a host device");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let measured = measure(&devices.list()[0], folder.path(), true, &Stop::never());
        let measured = measured.expect("the disk has room");
        let ways: Vec<&str> = measured
            .measurements
            .rates
            .iter()
            .map(|rate| rate.way.name())
            .collect();
        assert!(ways.contains(&"staged-threads"), "{ways:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
        let picked =
            measured
                .measurements
                .pick(Tier::File, FILE_BYTES, super::super::Pattern::Sequential);
        assert!(picked.is_some_and(|choice| choice.bytes_per_s > 0.0));
    }
}
