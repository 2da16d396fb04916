//! Measures the rates of this machine, in some seconds.

use std::error::Error;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_cancel::Stop;
use forebay_device::cuda::cufile::{CuFile, DirectSupport};
use forebay_device::cuda::{Cuda, DeviceView, Stream};
use forebay_device::{Device, DeviceKind, JobError};

use super::{Measurements, Rate, Way};
use crate::measure::{Pattern, Plan, ProcessTimes, rate_methods, read_by_device};
use crate::storage::{
    Access, AlignedBytes, DataFile, DirectMode, FileCause, FileError, PageCache, StoragePath,
    source_by,
};
use crate::{Chunk, Consumer, MoveError, RingOptions, RingReport, Source, StagingRing, Tier};

/// Sizes of the measured transfers.
const TRANSFER_BYTES: [usize; 2] = [1 << 20, 256 << 20];
/// Bytes of the measured file.
const FILE_BYTES: u64 = 256 << 20;
/// Name of that file. The store knows it, because a process that is killed may leave it.
const SCRATCH_NAME: &str = "movement.json.scratch";
/// The ring through which the file is read.
const RING: RingOptions = RingOptions {
    slots: 8,
    slot_bytes: 4 << 20,
};

/// The paths from a file to a device.
const PATHS: [StoragePath; 5] = [
    StoragePath::StagedUring,
    StoragePath::StagedThreads,
    StoragePath::Direct(DirectMode::Sync),
    StoragePath::Direct(DirectMode::Async),
    StoragePath::Direct(DirectMode::Batch),
];

/// What was measured, and what was not.
#[derive(Debug, Default)]
pub struct Measured {
    /// The rates.
    pub measurements: Measurements,
    /// The ways that are missing on this machine, each with the reason.
    pub missing: Vec<(Way, String)>,
    /// Why the file was read through the page cache, so that its rates are those of memory; `None` if it was not.
    pub cached: Option<String>,
}

/// Measures transfers to a device, and reads of a file in `folder`, which must have room for 256 MiB. Blocks for some
/// seconds. On a host device only reads of the file are measured.
///
/// cuFile is opened only if `direct` says that it works. On some machines it crashes the process, so try it in a child
/// process first.
///
/// # Errors
/// [`MoveError`] if a method that the machine has fails, the folder cannot be written, another process measures in it,
/// or `stop` ends the measurement.
pub fn measure(
    device: &Arc<Device>,
    folder: &Path,
    direct: &DirectSupport,
    stop: &Stop,
) -> Result<Measured, MoveError> {
    let mut measured = Measured::default();
    stop.check()?;
    // Measurements at the same time would slow each other down.
    let _lock = lock(folder).map_err(unwritten)?;
    if device.kind() == DeviceKind::Cuda {
        measured.transfers(device, stop)?;
    }
    measured.reads(device, folder, &open_cufile(direct), stop)?;
    Ok(measured)
}

/// cuFile, or why it is not used.
type Opened = Result<Arc<CuFile>, String>;

fn open_cufile(direct: &DirectSupport) -> Opened {
    match direct {
        DirectSupport::Unavailable { why } => Err(why.clone()),
        _ => CuFile::open().map_err(|error| error.to_string()),
    }
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
        for reading in read_by_device(device, true, Plan::short())? {
            let reading = reading?;
            if reading.pattern == (Pattern::Random { bytes: 8 }) {
                let fastest = reading.accesses_per_s().into_iter().reduce(f64::max);
                self.measurements.random_zero_copy_per_s = fastest;
                break;
            }
        }
        Ok(())
    }

    fn reads(
        &mut self,
        device: &Arc<Device>,
        folder: &Path,
        cufile: &Opened,
        stop: &Stop,
    ) -> Result<(), MoveError> {
        let (file, _name) = scratch(folder, FILE_BYTES, cufile.is_ok())?;
        let mut ring = StagingRing::lease(device, RING)?;
        for path in PATHS {
            let way = Way::Path(path);
            let source = source_by(path, (&file, 0..FILE_BYTES), RING.slots, cufile);
            let read = source.and_then(|source| Ok(read(&mut ring, &*source, stop)?));
            stop.check()?;
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
            if let Some(lost) = MoveError::if_lost(device) {
                return Err(lost);
            }
        }
        self.cached = match file.access() {
            Access::Direct => None,
            Access::Buffered { why } => Some(why),
        };
        Ok(())
    }
}

/// Reads the file past the page cache; returns the processor time of the process too.
fn read(
    ring: &mut StagingRing,
    source: &dyn Source,
    stop: &Stop,
) -> Result<(RingReport, Duration), MoveError> {
    let before = ProcessTimes::now();
    let report = ring.run(source, &Arc::new(Discard), stop)?;
    Ok((report, ProcessTimes::now().since(before).total()))
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

/// Locks a folder against other measurements, until the result is dropped.
fn lock(folder: &Path) -> Result<File, FileError> {
    let failed = |cause| FileError::new(folder, 0, cause);
    let opened = File::open(folder).map_err(|error| failed(FileCause::of(error)))?;
    match opened.try_lock() {
        Ok(()) => Ok(opened),
        Err(TryLockError::WouldBlock) => Err(failed(FileCause::InUse)),
        Err(TryLockError::Error(error)) => Err(failed(FileCause::of(error))),
    }
}

/// Removes a file's name when it is dropped.
struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        // What cannot be removed stays, and the next measurement uses it again.
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns a file of bytes that do not compress. cuFile opens a file again by its name, so the file keeps its name if
/// `is_named`, until the second value is dropped. Without a name it ends with this process at the latest.
fn scratch(
    folder: &Path,
    bytes: u64,
    is_named: bool,
) -> Result<(Arc<DataFile>, Option<Name>), MoveError> {
    let path = folder.join(SCRATCH_NAME);
    // What a killed process has left, or a second name of another file, is not written over.
    let _ = fs::remove_file(&path);
    let file = DataFile::create(&path, PageCache::Bypass).map_err(unwritten)?;
    let name = Some(Name(path)).filter(|_| is_named);
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
    Ok((Arc::new(file), name))
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
        let direct = DirectSupport::Unavailable {
            why: "it needs a GPU".to_owned(),
        };
        let measured = measure(&devices.list()[0], folder.path(), &direct, &Stop::never());
        let measured = measured.expect("the disk has room");
        let rates = measured.measurements.rates.iter();
        let rated: Vec<Way> = rates.map(|rate| rate.way).collect();
        assert!(rated.contains(&Way::Path(StoragePath::StagedThreads)));
        for path in PATHS.map(Way::Path) {
            let is_missing = measured.missing.iter().any(|(way, _)| *way == path);
            assert!(rated.contains(&path) != is_missing, "{path}");
        }
        let (_, why) = measured.missing.last().expect("cuFile needs a GPU");
        assert_eq!(why, "it needs a GPU");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
        let picked =
            measured
                .measurements
                .pick(Tier::File, FILE_BYTES, super::super::Pattern::Sequential);
        assert!(picked.is_some_and(|choice| choice.bytes_per_s > 0.0));
    }

    #[test]
    fn a_file_for_cufile_keeps_its_name_until_it_is_dropped() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let other = folder.path().join("other");
        fs::write(&other, "the user's").expect("room");
        fs::hard_link(&other, folder.path().join(SCRATCH_NAME)).expect("one file system");
        let (file, name) = scratch(folder.path(), 4 << 20, true).expect("room");
        let found = fs::metadata(file.path()).expect("it has a name");
        assert_eq!(found.len(), 4 << 20);
        drop((name, file));
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1);
        assert_eq!(fs::read(&other).expect("it is there"), b"the user's");
    }

    #[test]
    fn a_second_measurement_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = lock(folder.path()).expect("it is free");
        let text = lock(folder.path()).expect_err("it is locked").to_string();
        assert!(text.ends_with("wait until that has ended"), "{text}");
        drop(first);
        lock(folder.path()).expect("it is free again");
    }
}
