//! Moves a source to many places in the memory of a GPU.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceView, Stream, Transfer};
use forebay_device::{Device, DeviceFault, JobError};
use parking_lot::Mutex;

use crate::kernels::launch::PartSum;
use crate::method::run_on_device;
use crate::{Chunk, Consumer, MoveError, RingReport, Source, StagingRing, Total};

/// A range of a source, in bytes, and the device memory of the same length that it goes to.
#[derive(Debug)]
pub struct Piece {
    /// The range.
    pub range: Range<u64>,
    /// The memory.
    pub to: DeviceView<u8>,
}

/// Moves a source through a ring to the memory of its GPU. Bytes in no piece are read, and go nowhere. Returns what the
/// ring did, and the [checksum](crate::part_checksum) of the source as a part at `offset`, which the device computes.
/// Blocks.
///
/// # Errors
/// As for [`StagingRing::run`]. Some pieces may have their bytes by then.
///
/// # Panics
/// If the pieces are not in the order of their ranges, or the source has a [lead](Source::lead_bytes).
pub fn scatter(
    device: &Device,
    ring: &mut StagingRing,
    (source, offset): (&dyn Source, u64),
    pieces: Vec<Piece>,
    stop: &Stop,
) -> Result<(RingReport, u64), MoveError> {
    assert!(pieces.is_sorted_by(|one, next| one.range.end <= next.range.start));
    assert_eq!(source.lead_bytes(), 0, "a source that begins within a page");
    let sum = run_on_device(device, |cuda| {
        let stream = cuda.uploads().clone();
        Total::zero(cuda, &stream)
    })?;
    let scatter = Arc::new(Scatter {
        offset,
        pieces,
        sum: Arc::new(sum),
        begun: Mutex::default(),
    });
    let report = ring.run(source, &scatter, stop)?;
    let sum = Arc::clone(&scatter.sum);
    let sum = run_on_device(device, move |cuda| {
        let stream = cuda.downloads().clone();
        sum.read(cuda, &stream)
    })?;
    Ok((report, sum))
}

/// The consumer of the ring.
struct Scatter {
    offset: u64,
    pieces: Vec<Piece>,
    sum: Arc<Total>,
    /// What was queued and may still run.
    begun: Mutex<Vec<Begun>>,
}

/// Work on a chunk.
enum Begun {
    Copy(Transfer<DeviceView<u8>, DeviceView<u8>>),
    Sum(PartSum),
}

impl Begun {
    fn is_done(&self) -> Result<bool, DeviceFault> {
        match self {
            Begun::Copy(copy) => copy.event().is_done(),
            Begun::Sum(sum) => sum.is_done(),
        }
    }
}

impl Scatter {
    /// Returns the pieces that a chunk has bytes of.
    fn pieces_of(&self, chunk: &Chunk) -> impl Iterator<Item = &Piece> {
        let end = chunk.offset + chunk.bytes as u64;
        let first = self
            .pieces
            .partition_point(|it| it.range.end <= chunk.offset);
        let pieces = self.pieces[first..].iter();
        pieces.take_while(move |it| it.range.start < end)
    }
}

impl Consumer for Scatter {
    fn enqueue(
        &self,
        cuda: &mut Cuda,
        stream: &Stream,
        chunk: Chunk,
        bytes: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        let end = chunk.offset + chunk.bytes as u64;
        let mut begun = Vec::new();
        for piece in self.pieces_of(&chunk) {
            let (first, last) = (
                piece.range.start.max(chunk.offset),
                piece.range.end.min(end),
            );
            let of = |base: u64| (first - base) as usize..(last - base) as usize;
            let (from, to) = (
                bytes.view(of(chunk.offset)),
                piece.to.view(of(piece.range.start)),
            );
            begun.push(Begun::Copy(Transfer::begin(cuda, from, to, stream)?));
        }
        let part = (bytes.view(0..chunk.bytes), self.offset + chunk.offset);
        begun.push(Begun::Sum(PartSum::begin(cuda, part, &self.sum, stream)?));
        let mut all = self.begun.lock();
        for earlier in std::mem::take(&mut *all) {
            if !earlier.is_done()? {
                begun.push(earlier);
            }
        }
        *all = begun;
        Ok(())
    }

    fn process(&self, _: Chunk, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("only GPUs have memory of their own".into())
    }
}
