//! The part of a field that GPUs hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_device::{Device, DeviceKind};
use forebay_text_gpu::{ScanTable, TiledRows};

use crate::bucket::Bucket;
use crate::segment::Segment;

/// The buckets of a field that one GPU holds, in one snapshot. Searches of the same snapshot share this value, so that
/// they also share a table on the device and a pass over the device's memory.
#[derive(Debug)]
pub(crate) struct GpuPartition {
    pub(crate) device: Arc<Device>,
    pub(crate) table: Arc<ScanTable>,
    /// The blocks of the scan table, each with the position of its bucket.
    pub(crate) segments: Vec<(usize, Segment)>,
    /// Rows whose values are too long for the GPU, so that the host searches them. An entry is an index into
    /// `segments`, and a row of that segment.
    pub(crate) oversize_rows: Vec<(usize, u32)>,
    pub(crate) buckets: usize,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Buckets grouped by the device that searches them. The time to start a search depends on the number of groups, not on
/// the number of buckets that GPUs hold.
#[derive(Debug)]
pub(crate) struct DevicePartitions {
    /// A GPU has several entries if it holds more rows than one scan table can have.
    pub(crate) gpus: Vec<Arc<GpuPartition>>,
    /// Positions of the buckets that no GPU searches.
    pub(crate) host_buckets: Vec<usize>,
}

/// Returns whether the device is a GPU, which searches its own copy of the values with kernels.
pub(crate) fn is_gpu(device: &Device) -> bool {
    device.kind() == DeviceKind::Cuda
}

/// Groups buckets by device. Positions in the result are indexes into `buckets`.
pub(crate) fn device_partitions(buckets: &[Arc<Bucket>]) -> DevicePartitions {
    let mut held: BTreeMap<u32, (&Arc<Device>, Vec<usize>)> = BTreeMap::new();
    let mut host_buckets = Vec::new();
    for (position, bucket) in buckets.iter().enumerate() {
        match bucket.device().filter(|device| is_gpu(device)) {
            Some(device) => {
                let (_, positions) = held.entry(device.id().0).or_insert((device, Vec::new()));
                positions.push(position);
            }
            None => host_buckets.push(position),
        }
    }
    let mut gpus = Vec::new();
    for (device, positions) in held.into_values() {
        let rows = |&position: &usize| (position, row_count(&buckets[position]));
        let (tables, too_large) = in_tables(positions.iter().map(rows), ScanTable::ROWS_MAX);
        let on_gpu =
            |positions: &Vec<usize>| Arc::new(GpuPartition::new(device, buckets, positions));
        gpus.extend(tables.iter().map(on_gpu));
        host_buckets.extend(too_large);
    }
    host_buckets.sort_unstable();
    DevicePartitions { gpus, host_buckets }
}

fn row_count(bucket: &Bucket) -> u64 {
    let rows = |segment: &Segment| segment.block().len() as u64;
    bucket.segments.iter().map(rows).sum()
}

/// Divides buckets, passed with their row counts, among scan tables of at most `rows_max` rows. Returns the buckets of
/// each table, and the buckets that the host must search because they are too large for any table.
fn in_tables(
    buckets: impl Iterator<Item = (usize, u64)>,
    rows_max: u64,
) -> (Vec<Vec<usize>>, Vec<usize>) {
    let (mut tables, mut too_large) = (vec![Vec::new()], Vec::new());
    let mut rows_left = rows_max;
    for (bucket, rows) in buckets {
        if rows > rows_max {
            too_large.push(bucket);
            continue;
        }
        if rows > rows_left {
            tables.push(Vec::new());
            rows_left = rows_max;
        }
        rows_left -= rows;
        tables.last_mut().expect("at least one").push(bucket);
    }
    tables.retain(|table| !table.is_empty());
    (tables, too_large)
}

impl GpuPartition {
    fn new(device: &Arc<Device>, buckets: &[Arc<Bucket>], positions: &[usize]) -> GpuPartition {
        let segments_of = |&position: &usize| {
            let segments = buckets[position].segments.iter();
            segments.map(move |segment| (position, segment.clone()))
        };
        let segments: Vec<(usize, Segment)> = positions.iter().flat_map(segments_of).collect();
        let blocks = segments.iter().map(|(_, segment)| segment.block());
        let table = ScanTable::new(segments.iter().map(on_device));
        let oversize_rows = table
            .oversize_rows()
            .flat_map(|(segment, rows)| rows.iter().map(move |&row| (segment, row)));
        GpuPartition {
            device: Arc::clone(device),
            oversize_rows: oversize_rows.collect(),
            table: Arc::new(table),
            buckets: positions.len(),
            rows: blocks.clone().map(|block| block.len() as u64).sum(),
            bytes: blocks.map(|block| block.bytes_len() as u64).sum(),
            segments,
        }
    }
}

/// Returns a segment's copy on the device, and its deleted rows as a bitmap.
fn on_device((_, segment): &(usize, Segment)) -> (Arc<TiledRows>, Vec<u32>) {
    let rows = segment
        .tiles()
        .expect("a bucket is on a GPU only with all its segments");
    (Arc::clone(rows), segment.deleted_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_beyond_a_table_go_to_another_and_a_larger_bucket_to_the_host() {
        let max = ScanTable::ROWS_MAX;
        let split = |rows: &[u64]| in_tables(rows.iter().copied().enumerate(), max);
        assert_eq!(split(&[]), (vec![], vec![]));
        assert_eq!(split(&[max - 1, 1]), (vec![vec![0, 1]], vec![]));
        assert_eq!(split(&[max - 1, 2, 3]), (vec![vec![0], vec![1, 2]], vec![]));
        assert_eq!(split(&[1, max + 1, 2]), (vec![vec![0, 2]], vec![1]));
        assert_eq!(split(&[max, max]), (vec![vec![0], vec![1]], vec![]));
        assert_eq!(split(&[max + 1]), (vec![], vec![0]));
    }
}
