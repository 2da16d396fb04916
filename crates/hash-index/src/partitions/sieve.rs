//! Drops rows of heavy keys, and rows without a match, before runs are divided.

use forebay_device::JobError;
use forebay_device::cuda::{Cuda, DeviceView, Stream};

use super::{RunShape, Slices, uploaded};
use crate::column::DeviceRows;
use crate::index::{fill, read_all};
use crate::kernels::{HeavyRows, JoinTotals, Sifting};
use crate::launch;
use crate::shape::{Width, hash_of};
use crate::workload::Side;

/// Rows of the build side for each word of a filter, of 64 bits. A key has four bits in one word: 3.3 % of other keys
/// are false positives.
const ROWS_OF_WORD: u64 = 8;
/// The key of an empty slot; no heavy key.
pub(crate) const EMPTY: u64 = u64::MAX;

/// Drops rows of both sides before they are divided. It counts and sums up rows of heavy keys, of which the build
/// side has many. If it has a Bloom filter, it adds the keys of the other rows of the build side, and drops rows of
/// the probe side whose key is not in the filter: they have no match.
///
/// Clones share one sieve. It is for one join, whose runs are divided one after another: all runs of the build side
/// before the first run of the probe side.
#[derive(Debug, Clone)]
pub struct Sieve {
    run: RunShape,
    has_heavy_keys: bool,
    /// Heavy keys: a table with linear probing.
    heavy_keys: DeviceView<u64>,
    /// The rows of the heavy key in each slot: those of the build side, then those of the probe side.
    heavy_rows: DeviceView<HeavyRows>,
    /// A blocked Bloom filter; empty if there is none.
    filter: DeviceView<u64>,
    /// A bit for each row of the run that is being divided: 1 if the row is divided.
    kept: DeviceView<u32>,
    /// Number of rows that the filter dropped.
    filtered: DeviceView<u64>,
}

/// The results of a sieve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sifted {
    /// The matches of heavy keys.
    pub totals: JoinTotals,
    /// Number of rows of the probe side that the filter dropped.
    pub filtered_rows: u64,
}

impl Sieve {
    /// Returns a sieve for these heavy keys, and for a filter of the keys of `filter_rows` rows; `None` for no
    /// filter. Blocks until its memory is written.
    ///
    /// # Errors
    /// If device memory is too small, or the device fails.
    ///
    /// # Panics
    /// If 2^64 - 1 is among the heavy keys, or there are some and keys are composite.
    pub fn new(
        cuda: &Cuda,
        run: RunShape,
        (heavy_keys, filter_rows): (&[u64], Option<u64>),
        stream: &Stream,
    ) -> Result<Sieve, JobError> {
        let are_single = heavy_keys.is_empty() || run.width().is_single();
        assert!(are_single, "heavy keys that are composite");
        let slots = heavy_slots(heavy_keys);
        let words = filter_words(filter_rows) as usize;
        let sieve = Sieve {
            run,
            has_heavy_keys: !heavy_keys.is_empty(),
            heavy_keys: uploaded(cuda, &slots, stream)?,
            heavy_rows: cuda.buffer::<HeavyRows>(2 * slots.len())?.all(),
            filter: cuda.buffer::<u64>(words.max(1))?.all().view(0..words),
            kept: cuda.buffer::<u32>(kept_words(run) as usize)?.all(),
            filtered: cuda.buffer::<u64>(1)?.all(),
        };
        drop(fill(cuda, 0, sieve.heavy_rows.clone(), stream)?);
        drop(fill(cuda, 0, sieve.filter.clone(), stream)?);
        drop(fill(cuda, 0, sieve.filtered.clone(), stream)?);
        Ok(sieve)
    }

    /// Returns the bytes of device memory of a sieve for this number of heavy keys.
    pub fn bytes(run: RunShape, heavy_keys: usize, filter_rows: Option<u64>) -> u64 {
        let of_slot = size_of::<u64>() + 2 * size_of::<HeavyRows>();
        let of_slots = (slot_count(heavy_keys) * of_slot) as u64;
        let of_filter = filter_words(filter_rows).max(1).saturating_mul(8);
        of_slots
            .saturating_add(of_filter)
            .saturating_add(4 * kept_words(run) + 8)
    }

    /// Returns whether rows of a side may be dropped.
    fn may_drop(&self, side: Side) -> bool {
        self.has_heavy_keys || side == Side::Probe
    }

    /// Queues a kernel that tells which rows of a run of a side are divided. Returns the bits that it writes: 1 for a
    /// row that is divided.
    pub(super) fn sift_async(
        &self,
        cuda: &mut Cuda,
        (rows, side): (&DeviceRows, Side),
        stream: &Stream,
    ) -> Result<DeviceView<u32>, JobError> {
        launch::sift(cuda, (self, side), rows, stream)?.leave(cuda);
        Ok(self.kept.clone())
    }

    /// Returns the arguments of the kernel for a run of a side.
    ///
    /// # Panics
    /// If the memory is that of another device, or there are more rows than a run has.
    pub(crate) fn arguments(&self, cuda: &Cuda, rows: &DeviceRows, side: Side) -> Sifting {
        // The rest was allocated beside it.
        cuda.assert_owns(&self.kept);
        let rows = rows.rows(self.run.width());
        let room = 32 * self.kept.len() as u64;
        assert!(rows.count <= room, "{} rows of {room}", rows.count);
        let slots = self.heavy_keys.len();
        let of_side = match side {
            Side::Build => 0..slots,
            Side::Probe => slots..2 * slots,
        };
        Sifting {
            rows,
            heavy_keys: self.heavy_keys.pointer(),
            heavy_rows: self.heavy_rows.view(of_side).pointer_mut(),
            filter: self.filter.pointer_mut(),
            filter_words: self.filter.len() as u64,
            kept: self.kept.pointer_mut(),
            filtered: self.filtered.pointer_mut(),
            heavy_mask: slots as u32 - 1,
            is_probe: u32::from(side == Side::Probe),
        }
    }

    /// Returns the bytes of a key, and of a payload.
    pub(crate) fn width(&self) -> Width {
        self.run.width()
    }

    /// Returns the results for the rows of both sides. Blocks until the earlier work of the stream is done.
    ///
    /// # Errors
    /// If the device fails.
    pub fn finish(&self, cuda: &Cuda, stream: &Stream) -> Result<Sifted, JobError> {
        let rows = read_all(cuda, self.heavy_rows.clone(), stream)?;
        let filtered = read_all(cuda, self.filtered.clone(), stream)?;
        Ok(Sifted {
            totals: matches(&rows),
            filtered_rows: filtered.into_iter().sum(),
        })
    }
}

impl Slices {
    /// Returns the same slices, for the rows of a side that a sieve keeps.
    ///
    /// # Panics
    /// If the sieve is for runs of another shape.
    pub fn sifted_by(self, sieve: &Sieve, side: Side) -> Slices {
        assert_eq!(self.shape, sieve.run, "the runs of a sieve");
        Slices {
            sieve: Some((sieve.clone(), side)),
            ..self
        }
    }

    /// Returns whether a sieve may drop rows.
    pub fn may_drop(&self) -> bool {
        let sieve = self.sieve.as_ref();
        sieve.is_some_and(|(sieve, side)| sieve.may_drop(*side))
    }
}

/// Returns the number of slots for this many heavy keys, a power of two: at least half of them stay empty.
fn slot_count(heavy_keys: usize) -> usize {
    (2 * heavy_keys).next_power_of_two().max(2)
}

/// Returns the slots of heavy keys, as `heavy_rows` in `sieve.cuh` and `host/runs.rs` search them.
///
/// # Panics
/// If 2^64 - 1 is among the keys.
pub(crate) fn heavy_slots(keys: &[u64]) -> Vec<u64> {
    let mut slots = vec![EMPTY; slot_count(keys.len())];
    let mask = slots.len() - 1;
    for key in keys {
        assert_ne!(*key, EMPTY, "a heavy key");
        let mut slot = (hash_of(*key) >> 32) as usize & mask;
        while slots[slot] != EMPTY {
            slot = (slot + 1) & mask;
        }
        slots[slot] = *key;
    }
    slots
}

/// Returns the number of words of a filter; 0 for `None`.
pub(crate) fn filter_words(rows: Option<u64>) -> u64 {
    rows.map_or(0, |rows| rows.div_ceil(ROWS_OF_WORD).max(1))
}

/// Returns the number of words of a bit for each row of a run.
pub(crate) fn kept_words(run: RunShape) -> u64 {
    run.rows().div_ceil(32).max(1)
}

/// Returns the matches of heavy keys: of each slot, the rows of the build side, then those of the probe side.
pub(crate) fn matches(rows: &[HeavyRows]) -> JoinTotals {
    let (build, probe) = rows.split_at(rows.len() / 2);
    let mut totals = JoinTotals::default();
    for (build, probe) in build.iter().zip(probe) {
        totals.add(JoinTotals {
            count: build.count.wrapping_mul(probe.count),
            build_sum: build.sum.wrapping_mul(probe.count),
            probe_sum: probe.sum.wrapping_mul(build.count),
        });
    }
    totals
}
