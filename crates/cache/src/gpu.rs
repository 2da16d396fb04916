//! What GPUs hold of a field.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_device::{Device, DeviceKind};
use forebay_text::cuda::{ScanTable, TiledRows};

use crate::bucket::Bucket;
use crate::segment::Segment;

/// The buckets of a field that one GPU holds, as the searches of one moment read them. Searches of the same moment share
/// it, and so a table on the device and a pass over its memory.
#[derive(Debug)]
pub(crate) struct OnGpu {
    pub(crate) device: Arc<Device>,
    pub(crate) table: Arc<ScanTable>,
    /// The blocks of the table, each with the position of its bucket.
    pub(crate) segments: Vec<(usize, Segment)>,
    /// Rows that the GPU leaves to the host: block and row.
    pub(crate) aside: Vec<(usize, u32)>,
    pub(crate) buckets: usize,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Who holds some buckets. A search of them costs no more than this has entries, however many buckets GPUs hold.
#[derive(Debug)]
pub(crate) struct Holders {
    pub(crate) gpus: Vec<Arc<OnGpu>>,
    /// Positions of the buckets that no GPU holds.
    pub(crate) elsewhere: Vec<usize>,
}

/// Whether a device searches a copy of its own, by kernels.
pub(crate) fn is_gpu(device: &Device) -> bool {
    device.kind() == DeviceKind::Cuda
}

/// Who holds some buckets; positions count from the first of them.
pub(crate) fn holders(buckets: &[Arc<Bucket>]) -> Holders {
    let mut held: BTreeMap<u32, (&Arc<Device>, Vec<usize>)> = BTreeMap::new();
    let mut elsewhere = Vec::new();
    for (position, bucket) in buckets.iter().enumerate() {
        match bucket.device().filter(|device| is_gpu(device)) {
            Some(device) => {
                let (_, positions) = held.entry(device.id().0).or_insert((device, Vec::new()));
                positions.push(position);
            }
            None => elsewhere.push(position),
        }
    }
    let gpus = held
        .into_values()
        .map(|(device, positions)| Arc::new(OnGpu::new(device, buckets, &positions)));
    Holders {
        gpus: gpus.collect(),
        elsewhere,
    }
}

impl OnGpu {
    fn new(device: &Arc<Device>, buckets: &[Arc<Bucket>], positions: &[usize]) -> OnGpu {
        let segments_of = |&position: &usize| {
            let segments = buckets[position].segments.iter();
            segments.map(move |segment| (position, segment.clone()))
        };
        let segments: Vec<(usize, Segment)> = positions.iter().flat_map(segments_of).collect();
        let blocks = segments.iter().map(|(_, segment)| segment.block());
        let table = ScanTable::new(segments.iter().map(on_device));
        let aside = table
            .aside()
            .flat_map(|(segment, rows)| rows.iter().map(move |&row| (segment, row)));
        OnGpu {
            device: Arc::clone(device),
            aside: aside.collect(),
            table: Arc::new(table),
            buckets: positions.len(),
            rows: blocks.clone().map(|block| block.len() as u64).sum(),
            bytes: blocks.map(|block| block.bytes_len() as u64).sum(),
            segments,
        }
    }
}

/// A segment's copy, and its dead rows as bits.
fn on_device((_, segment): &(usize, Segment)) -> (Arc<TiledRows>, Vec<u32>) {
    let rows = segment
        .tiles()
        .expect("a bucket is on a GPU with all its segments");
    (Arc::clone(rows), segment.dead_bits())
}
