//! How the device memory of a join is used.

use forebay_hash_index::{RunShape, STAGES, Slices, TableShape, Width};
use forebay_movement::RingOptions;

use crate::JoinError;

/// Runs that are written back to host memory at the same time.
pub(crate) const BUFFERS: usize = 4;
/// Maximum number of bits of the hash that tell the partition. With more partitions, slices of a run are a few lines.
const BITS_MAX: u32 = 10;
/// A table may take one sixteenth of the device memory. Its staging memory takes one and a half times as much.
const TABLE_FRACTION: u64 = 16;
/// Device memory for the outcomes of all steps, and for rounding.
const OTHER_BYTES: u64 = 1 << 20;

/// What a join may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinOptions {
    /// Bytes of device memory, with those of the ring.
    pub device_bytes: u64,
    /// Bytes of pinned host memory to which runs may spill.
    pub host_bytes: u64,
    /// The ring through which both sides are brought. A chunk becomes a run.
    pub ring: RingOptions,
}

/// How a join divides its sides and uses device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinPlan {
    pub(crate) run: RunShape,
    pub(crate) ring: RingOptions,
    /// Bytes of the slots of all tables, which are built one after another.
    pub(crate) table_bytes: u64,
    /// Numbers of rows of the build side and of the probe side.
    pub(crate) rows: [u64; 2],
    /// Their numbers of runs.
    pub(crate) runs: [usize; 2],
    /// Number of runs that stay in device memory: the first ones.
    pub(crate) resident: usize,
}

impl JoinPlan {
    /// Plans a join of a build side and a probe side of these numbers of rows.
    ///
    /// # Errors
    /// [`JoinError::TooLittleMemory`], [`JoinError::TooLittleHostMemory`].
    ///
    /// # Panics
    /// If a slot of the ring has more than 2^30 rows, or a table would have more than 2^62 slots.
    pub fn new(width: Width, rows: [u64; 2], options: JoinOptions) -> Result<JoinPlan, JoinError> {
        let (device_bytes, ring) = (options.device_bytes, options.ring.rounded());
        let of_table = device_bytes / TABLE_FRACTION;
        let run_rows = ring.slot_bytes as u64 / 2 / width.bytes();
        let runs = rows.map(|rows| rows.div_ceil(run_rows) as usize);
        let slot_bytes = |rows| TableShape::linear_probing(width, rows).slot_bytes();
        // The rows of a partition are within six standard deviations, unless keys have many rows.
        let of_partition = |bits: u32| {
            let mean = rows[0].div_ceil(1 << bits);
            slot_bytes(mean + 6 * mean.isqrt())
        };
        let has_room = |bits: &u32| of_partition(*bits) <= of_table;
        let bits = (1..=BITS_MAX).find(has_room).unwrap_or(BITS_MAX);
        let run = RunShape::new(width, run_rows, bits);
        // All rows of a run may be of one partition.
        let table_bytes = of_partition(bits).min(of_table).max(slot_bytes(run_rows));
        let slices: u64 = runs.iter().map(|runs| Slices::bytes(run, *runs)).sum();
        let of_ring = (ring.slots as u64).saturating_mul(ring.slot_bytes as u64);
        let staging = STAGES as u64 * staging_bytes(table_bytes, runs[0]);
        let buffers = BUFFERS as u64 * run.bytes();
        let fixed = buffers + slices + table_bytes + staging + OTHER_BYTES;
        let needed = of_ring.saturating_add(fixed);
        if needed > device_bytes {
            return Err(JoinError::TooLittleMemory {
                needed,
                given: device_bytes,
            });
        }
        let room = (device_bytes - needed) / run.bytes();
        let plan = JoinPlan {
            run,
            ring,
            table_bytes,
            rows,
            runs,
            resident: (room as usize).min(runs.iter().sum()),
        };
        let (needed, given) = (plan.spill_bytes(), options.host_bytes);
        match needed <= given {
            true => Ok(plan),
            false => Err(JoinError::TooLittleHostMemory { needed, given }),
        }
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        self.run.partitions()
    }

    /// Returns the bytes of pinned host memory to which runs spill.
    pub fn spill_bytes(&self) -> u64 {
        self.spilled() as u64 * self.run.bytes()
    }

    /// Returns the bytes of device memory of runs that do not spill.
    pub fn resident_bytes(&self) -> u64 {
        self.resident as u64 * self.run.bytes()
    }

    /// Returns the bytes of each staging memory of tables.
    pub(crate) fn staging_bytes(&self) -> u64 {
        staging_bytes(self.table_bytes, self.runs[0])
    }

    pub(crate) fn spilled(&self) -> usize {
        self.runs.iter().sum::<usize>() - self.resident
    }
}

/// Returns the bytes of the staging memory of tables, as [`TableMemory`](forebay_hash_index::TableMemory) wants them.
fn staging_bytes(table_bytes: u64, build_runs: usize) -> u64 {
    table_bytes / 2 + 512 * build_runs as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rows: [u64; 2], device_bytes: u64) -> Result<JoinPlan, JoinError> {
        let ring = RingOptions {
            slots: 8,
            slot_bytes: 16 << 20,
        };
        let options = JoinOptions {
            device_bytes,
            host_bytes: 64 << 30,
            ring,
        };
        JoinPlan::new(Width::Eight, rows, options)
    }

    #[test]
    fn a_table_has_a_sixteenth_of_the_memory_and_runs_what_is_left() {
        let of = |rows, bytes| plan(rows, bytes).expect("enough memory");
        let large = of([1_024_000_000; 2], 8 << 30);
        assert_eq!((large.partitions(), large.table_bytes), (64, 512 << 20));
        assert_eq!(large.runs, [977, 977]);
        assert_eq!(large.resident, 418);
        let spilled = (1954 - large.resident) as u64;
        assert_eq!(large.spill_bytes(), spilled * large.run.bytes());
        let small = of([1000, 50_000_000], 8 << 30);
        assert_eq!((small.partitions(), small.spill_bytes()), (2, 0));
        assert_eq!(of([0, 0], 1 << 30).runs, [0, 0]);
        let error = plan([1 << 33, 1], 1 << 30).expect_err("too much spills");
        let is_host =
            matches!(error, JoinError::TooLittleHostMemory { given, .. } if given == 64 << 30);
        assert!(is_host, "{error}");
        let most = of([1 << 31, 1], 1 << 30);
        assert_eq!((most.partitions(), most.table_bytes), (1024, 64 << 20));
        let error = plan([1 << 20; 2], 256 << 20).expect_err("too little");
        let JoinError::TooLittleMemory { needed, given } = error else {
            panic!("{error}");
        };
        assert_eq!(given, 256 << 20);
        // So much is enough.
        assert_eq!(plan([1 << 20; 2], needed).expect("enough").resident, 0);
        assert!(plan([1 << 20; 2], needed - 1).is_err());
    }
}
