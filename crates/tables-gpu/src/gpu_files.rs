//! Column files into the memory of a GPU, by the storage path that this machine is fastest with, and its memory back.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_device::cuda::cufile::CuFile;
use forebay_device::cuda::{DeviceMemory, DeviceView, Pinned, PinnedPart, TransferJob};
use forebay_movement::pick::{Measurements, Pattern, Way};
use forebay_movement::storage::{DataFile, FileReader, PageCache, StoragePath, source_by};
use forebay_movement::{Piece, RingOptions, StagingRing, Tier, scatter};

use crate::engine::{FileRead, FilesRead, Memory};
use crate::gpu::{COPY_BYTES, words};
use crate::reason::Reason;

/// Maximum bytes of one copy to pinned memory that kernels read later. Other copies from the device wait for it,
/// about half a millisecond.
const PINNED_COPY_BYTES: usize = 32 << 20;
/// Bytes of the reads for which a path is picked.
pub(crate) const PICKED_BYTES: u64 = 1 << 30;

/// How column files are read.
#[derive(Debug)]
pub(crate) struct Reader {
    path: StoragePath,
    ring: RingOptions,
    /// What the direct paths use, or why there is none.
    cufile: Result<Arc<CuFile>, String>,
}

impl Reader {
    /// Returns the reader of the path that was measured to be the fastest; without measurements, of the staged path
    /// that the machine has.
    pub(crate) fn new(measurements: Option<&Measurements>) -> Reader {
        let all = |it: &Measurements| it.pick(Tier::File, PICKED_BYTES, Pattern::Sequential);
        let picked = measurements.and_then(all).map(|choice| choice.way);
        let staged = match (FileReader::Uring { depth: 1 }).check() {
            Ok(()) => StoragePath::StagedUring,
            Err(_) => StoragePath::StagedThreads,
        };
        // A direct path was measured, and so cuFile does not end the process.
        let cufile = match picked {
            Some(Way::Path(StoragePath::Direct(_))) => CuFile::open().map_err(|it| it.to_string()),
            _ => Err("it is not picked".to_owned()),
        };
        let path = match picked {
            Some(Way::Path(path @ StoragePath::Direct(_))) if cufile.is_ok() => path,
            Some(Way::Path(path @ StoragePath::StagedThreads)) => path,
            _ => staged,
        };
        Reader {
            path,
            ring: RingOptions::default(),
            cufile,
        }
    }

    /// Reads files into memory of the device. Blocks until all are read, or `stop` ends it.
    ///
    /// # Errors
    /// If the device has no room for the ring.
    pub(crate) fn read(
        &self,
        device: &Arc<Device>,
        files: Vec<FileRead>,
        stop: &Stop,
    ) -> Result<FilesRead, Reason> {
        let began = Instant::now();
        let mut ring = StagingRing::lease(device, self.ring).map_err(Reason::of)?;
        let mut read = |file| {
            stop.check().map_err(Reason::of)?;
            self.read_one(device, &mut ring, file, stop)
        };
        Ok(FilesRead {
            sums: files.into_iter().map(&mut read).collect(),
            took: began.elapsed(),
            path: self.path.name(),
        })
    }

    /// Reads a range of a file. Returns its checksum.
    fn read_one(
        &self,
        device: &Device,
        ring: &mut StagingRing,
        file: FileRead,
        stop: &Stop,
    ) -> Result<u64, Reason> {
        let opened = Arc::new(open(&file.path)?);
        let begin = file.range.start;
        let depth = self.ring.slots - 1;
        let source = source_by(self.path, (&opened, file.range), depth, &self.cufile);
        let source = source.map_err(Reason::of)?;
        let pieces = file.pieces.into_iter().map(|(range, memory)| {
            let held = on_device(&memory)?;
            let first = (memory.address - held.address()) as usize;
            let bytes = (range.end - range.start) as usize;
            Ok(Piece {
                range: range.start - begin..range.end - begin,
                to: DeviceView::of(&held, first..first + bytes),
            })
        });
        let pieces = pieces.collect::<Result<_, _>>()?;
        let scattered = scatter(device, ring, (&*source, begin), pieces, stop);
        scattered.map(|(_, sum)| sum).map_err(Reason::of)
    }
}

fn open(path: &Path) -> Result<DataFile, Reason> {
    DataFile::open(path, PageCache::Bypass).map_err(Reason::of)
}

fn on_device(memory: &Memory) -> Result<Arc<DeviceMemory>, Reason> {
    let memory = Arc::clone(&memory.held).downcast::<DeviceMemory>();
    memory.map_err(|_| Reason::new("memory of another engine"))
}

/// Copies the first bytes of memory of the device to pinned memory. Blocks until they are there.
///
/// # Errors
/// If the device is lost.
pub(crate) fn copy_back(
    device: &Device,
    from: &Arc<DeviceMemory>,
    mut to: Pinned,
    bytes: usize,
) -> Result<Pinned, Reason> {
    for begin in (0..bytes).step_by(PINNED_COPY_BYTES) {
        let range = begin..bytes.min(begin + PINNED_COPY_BYTES);
        let (done, copied) = channel();
        let job = TransferJob::new(
            DeviceView::of(from, range.clone()),
            PinnedPart::new(to, range),
            move |_, part: PinnedPart| {
                // The receiver is gone if the caller was cancelled.
                let _ = done.send(part.into_buffer());
            },
        );
        device.submit_when_free(Box::new(job)).map_err(Reason::of)?;
        to = copied.recv().map_err(|_| Reason::lost(device.name()))?;
    }
    Ok(to)
}

/// Returns the words of the first bytes of memory of the device. Blocks until they are here.
///
/// # Errors
/// If the device is lost.
pub(crate) fn read_back(
    device: &Device,
    memory: &Arc<DeviceMemory>,
    bytes: usize,
) -> Result<Vec<u32>, Reason> {
    let lost = || Reason::lost(device.name());
    let mut all = Vec::with_capacity(bytes / 4);
    for begin in (0..bytes).step_by(COPY_BYTES) {
        let end = bytes.min(begin + COPY_BYTES);
        let pinned = device.stage(end - begin).ok_or_else(lost)?;
        let (done, copied) = channel();
        let job = TransferJob::new(
            DeviceView::of(memory, begin..end),
            PinnedPart::new(pinned, 0..end - begin),
            move |_, part: PinnedPart| {
                // The receiver is gone if the caller was cancelled.
                let _ = done.send(part.into_buffer());
            },
        );
        device.submit_when_free(Box::new(job)).map_err(Reason::of)?;
        let pinned = copied.recv().map_err(|_| lost())?;
        all.extend(words(&pinned[..end - begin]));
    }
    Ok(all)
}
