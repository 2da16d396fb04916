//! How the memory and the disk of a join are used.

use std::ops::Range;
use std::path::PathBuf;

use forebay_device::PAGE_BYTES;
use forebay_hash_index::{RunShape, STAGES, Sieve, Slices, TableShape, Width};
use forebay_movement::RingOptions;

use crate::JoinError;
use crate::columns::slot_of_rows;
use crate::heavy::{HEAVY_KEYS_MAX, SAMPLES};

/// Runs that are written back to host memory at the same time.
pub(crate) const BUFFERS: usize = 4;
/// Maximum number of bits of the hash that tell the partition. With more partitions, slices of a run are a few lines.
const BITS_MAX: u32 = 10;
/// A table may take one sixteenth of the device memory. Its staging memory takes one and a half times as much.
const TABLE_FRACTION: u64 = 16;
/// Device memory for the outcomes of all steps, and for rounding.
const OTHER_BYTES: u64 = 1 << 20;
/// Minimum mean size of a read from disk, with which a drive reaches its full rate.
const READ_BYTES: u64 = 512 << 10;
/// When partitions are made smaller for the disk, the padding of a run is at most its rows divided by this.
const PADDING_FRACTION: u64 = 8;
/// Minimum number of runs of each half of the memory through which runs pass to disk. All rows of a run of either side
/// may be of one partition, and they are joined together.
const HALF_RUNS_MIN: usize = 2;

/// The processor of the first pass, which divides both sides into partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstPass {
    /// The GPU, to which all rows are copied. Runs that spill are copied back.
    Gpu,
    /// The CPU. Only runs that stay in device memory are copied. A filter is in host memory.
    Cpu,
    /// The one that divides a sample of the rows in less time. The first join that completes the sample measures both.
    /// Later joins use its times. The GPU divides sides that are too small for a sample, and those with a filter.
    Choose,
}

/// What a join may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinOptions {
    /// Bytes of device memory, with those of the ring.
    pub device_bytes: u64,
    /// Bytes of pinned host memory to which runs may spill, and through which others pass on their way to disk. The
    /// pinned slots of the ring come beside them, and unless the GPU is named for the first pass, a run for each
    /// thread. The filter of the CPU also comes beside them, and if rows are dropped, a copy of a run's other rows for
    /// each thread. These are not pinned.
    pub host_bytes: u64,
    /// Folder of a temporary file for the runs that do not fit in host memory. Without it, they are an error.
    pub spill_directory: Option<PathBuf>,
    /// The ring through which both sides are brought. A chunk becomes a run.
    pub ring: RingOptions,
    /// Whether the keys of the build side are added to a Bloom filter in device memory, which takes a byte for each
    /// row. Rows of the probe side whose key is not in it cross the bus once, and spill neither to host memory nor to
    /// disk. This pays if many rows of the probe side have no match.
    pub has_filter: bool,
    /// The processor that divides both sides.
    pub first_pass: FirstPass,
    /// Number of threads with which the CPU divides.
    pub threads: usize,
}

/// How a join divides its sides, and where their runs are: the first ones in device memory, the next in host memory,
/// the others on disk.
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
    /// Number of runs that stay in device memory.
    pub(crate) resident: usize,
    /// Number of runs in host memory.
    pub(crate) in_host: usize,
    /// Number of runs that fit in each half of the memory through which the other runs pass to disk; 0 if no run
    /// does.
    pub(crate) half: usize,
    pub(crate) spill_directory: Option<PathBuf>,
    pub(crate) has_filter: bool,
    pub(crate) first_pass: FirstPass,
    /// Number of threads with which the CPU divides, at least 1.
    pub(crate) threads: usize,
    /// Maximum numbers of rows of the build side in which heavy keys are sought: at first, and again if keys have too
    /// many rows for a table.
    pub(crate) samples: [u64; 2],
}

/// The device memory that a join with some number of partitions takes.
struct Layout {
    run: RunShape,
    table_bytes: u64,
    /// Bytes of device memory beside those of resident runs.
    fixed_bytes: u64,
}

impl Layout {
    /// Returns the layout for these numbers of runs of both sides, and for a filter of this number of rows, if any.
    fn new(
        run: RunShape,
        runs: [usize; 2],
        filter_rows: Option<u64>,
        table_bytes: u64,
        ring: RingOptions,
    ) -> Layout {
        let slices: u64 = runs.iter().map(|runs| Slices::bytes(run, *runs)).sum();
        let of_ring = (ring.slots as u64).saturating_mul(ring.slot_bytes as u64);
        let staging = STAGES as u64 * staging_bytes(run.width(), table_bytes, runs[0]);
        let buffers = BUFFERS as u64 * run_bytes(run);
        let sieve = Sieve::bytes(run, HEAVY_KEYS_MAX, filter_rows);
        let fixed = buffers + slices + table_bytes + staging + OTHER_BYTES;
        Layout {
            run,
            table_bytes,
            fixed_bytes: of_ring.saturating_add(fixed).saturating_add(sieve),
        }
    }

    /// Returns the number of runs for which the device has room.
    fn resident(&self, device_bytes: u64) -> usize {
        (device_bytes.saturating_sub(self.fixed_bytes) / run_bytes(self.run)) as usize
    }

    /// Returns whether it fits in the device memory, and the padding of runs is at most its maximum.
    fn is_economic(&self, device_bytes: u64) -> bool {
        let of_rows = self.run.rows() * self.run.width().row_bytes();
        let padding = self.run.bytes() - of_rows;
        self.fixed_bytes <= device_bytes && padding <= of_rows / PADDING_FRACTION
    }
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
        let (device_bytes, mut ring) = (options.device_bytes, options.ring.rounded());
        ring.slot_bytes = slot_of_rows(width, ring.slot_bytes);
        let of_table = device_bytes / TABLE_FRACTION;
        let run_rows = ring.slot_bytes as u64 / width.row_bytes();
        let runs = rows.map(|rows| rows.div_ceil(run_rows) as usize);
        let slot_bytes = |rows| TableShape::linear_probing(width, rows).slot_bytes();
        // The rows of a partition are within six standard deviations, unless keys have many rows.
        let of_partition = |bits: u32| {
            let mean = rows[0].div_ceil(1 << bits);
            slot_bytes(mean + 6 * mean.isqrt())
        };
        let layout = |bits| {
            // All rows of a run may be of one partition.
            let table_bytes = of_partition(bits).min(of_table).max(slot_bytes(run_rows));
            let run = RunShape::new(width, run_rows, bits);
            let filter_rows = options.has_filter.then_some(rows[0]);
            Layout::new(run, runs, filter_rows, table_bytes, ring)
        };
        let has_room = |bits: &u32| of_partition(*bits) <= of_table;
        let bits = (1..=BITS_MAX).find(has_room).unwrap_or(BITS_MAX);
        let mut chosen = layout(bits);
        if chosen.fixed_bytes > device_bytes {
            return Err(JoinError::TooLittleMemory {
                needed: chosen.fixed_bytes,
                given: device_bytes,
            });
        }
        let all: usize = runs.iter().sum();
        let spilled = |layout: &Layout| all - layout.resident(device_bytes).min(all);
        if spilled(&chosen) as u64 * run_bytes(chosen.run) > options.host_bytes {
            // What goes to disk comes back by partitions, and a quarter of the host memory should have room for two.
            let room = options.host_bytes / 4 / width.row_bytes();
            let is_large = |bits: u32| rows[0].saturating_add(rows[1]) >> (bits - 1) > room;
            let more = (bits + 1..=BITS_MAX).take_while(|bits| is_large(bits - 1));
            let more = more.map(layout);
            let usable = more.take_while(|next| next.is_economic(device_bytes));
            chosen = usable.last().unwrap_or(chosen);
        }
        let (run, table_bytes) = (chosen.run, chosen.table_bytes);
        let resident = all - spilled(&chosen);
        let (in_host, half) = host_runs(all - resident, run, &options)?;
        Ok(JoinPlan {
            run,
            ring,
            table_bytes,
            rows,
            runs,
            resident,
            in_host,
            half,
            spill_directory: options.spill_directory,
            has_filter: options.has_filter,
            first_pass: options.first_pass,
            threads: options.threads.max(1),
            samples: SAMPLES,
        })
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> usize {
        self.run.partitions()
    }

    /// Returns the bytes of the room of the runs that spill, in host memory or on disk: for all their rows, also
    /// those that a filter will drop.
    pub fn spill_bytes(&self) -> u64 {
        (self.runs.iter().sum::<usize>() - self.resident) as u64 * self.run_bytes()
    }

    /// Returns the bytes of the room of the runs on disk, which are not all written if rows are dropped.
    pub fn disk_bytes(&self) -> u64 {
        self.on_disk().iter().sum::<usize>() as u64 * self.run_bytes()
    }

    /// Returns the bytes of pinned host memory that the join takes for runs that spill.
    pub fn host_bytes(&self) -> u64 {
        (self.in_host + 2 * self.half) as u64 * self.run_bytes()
    }

    /// Returns the bytes of device memory of runs that do not spill.
    pub fn resident_bytes(&self) -> u64 {
        self.resident as u64 * self.run_bytes()
    }

    /// Returns the bytes of the memory of a run, and of its place on disk.
    pub(crate) fn run_bytes(&self) -> u64 {
        run_bytes(self.run)
    }

    /// Returns the bytes of pinned host memory in which the CPU divides runs that stay in device memory: a run for each
    /// thread.
    pub(crate) fn cpu_staging_bytes(&self) -> u64 {
        match self.first_pass {
            FirstPass::Gpu => 0,
            FirstPass::Cpu | FirstPass::Choose => {
                self.threads.min(self.resident) as u64 * self.run_bytes()
            }
        }
    }

    /// Returns the bytes of each half of the memory through which runs pass to disk.
    pub(crate) fn half_bytes(&self) -> u64 {
        self.half as u64 * self.run_bytes()
    }

    /// Returns the numbers of runs of the build side and of the probe side in device or host memory: the first ones.
    pub(crate) fn in_memory(&self) -> [usize; 2] {
        let room = self.resident + self.in_host;
        let build = self.runs[0].min(room);
        [build, self.runs[1].min(room - build)]
    }

    /// Returns the numbers of runs of the build side and of the probe side on disk.
    pub(crate) fn on_disk(&self) -> [usize; 2] {
        let in_memory = self.in_memory();
        [0, 1].map(|side| self.runs[side] - in_memory[side])
    }

    /// Returns the runs on disk of a side, in ranges that a half of the memory has room for.
    pub(crate) fn rounds(&self, side: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (runs, half) = (self.on_disk()[side], self.half.max(1));
        let firsts = (0..runs).step_by(half);
        firsts.map(move |first| first..runs.min(first + half))
    }

    /// Returns the number of rows whose keys a filter has; `None` if there is no filter.
    pub(crate) fn filter_rows(&self) -> Option<u64> {
        self.has_filter.then_some(self.rows[0])
    }

    /// Returns the bytes of each staging memory of tables.
    pub(crate) fn staging_bytes(&self) -> u64 {
        staging_bytes(self.run.width(), self.table_bytes, self.runs[0])
    }
}

/// Returns the bytes of memory of a run: whole pages, as reads and writes past the page cache need them.
fn run_bytes(run: RunShape) -> u64 {
    run.bytes().next_multiple_of(PAGE_BYTES as u64)
}

/// Returns how many of the runs that spill stay in host memory, and how many fit in each half of the memory through
/// which the others pass to disk.
///
/// # Errors
/// [`JoinError::TooLittleHostMemory`] if `host_bytes` are too few.
fn host_runs(
    spilled: usize,
    run: RunShape,
    options: &JoinOptions,
) -> Result<(usize, usize), JoinError> {
    let bytes = run_bytes(run);
    let room = (options.host_bytes / bytes) as usize;
    if spilled <= room {
        return Ok((spilled, 0));
    }
    let least = match options.spill_directory {
        Some(_) => spilled.min(2 * HALF_RUNS_MIN),
        None => spilled,
    };
    if room < least {
        return Err(JoinError::TooLittleHostMemory {
            needed: least as u64 * bytes,
            given: options.host_bytes,
            has_folder: options.spill_directory.is_some(),
        });
    }
    // Slices of a partition differ in size: there is room for twice the mean.
    let of_read = READ_BYTES.max(2 * bytes / run.partitions() as u64);
    let of_reads = (spilled as u64 * of_read).div_ceil(bytes) as usize;
    let half = of_reads.min(room / 4).max(HALF_RUNS_MIN);
    Ok((room - 2 * half, half))
}

/// Returns the bytes of the staging memory of tables, as [`TableMemory`](forebay_hash_index::TableMemory) wants them.
fn staging_bytes(width: Width, table_bytes: u64, build_runs: usize) -> u64 {
    table_bytes / 2 + 32 * width.row_bytes() * build_runs as u64
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
            spill_directory: None,
            ring,
            has_filter: false,
            first_pass: FirstPass::Gpu,
            threads: 2,
        };
        JoinPlan::new(Width::Eight, rows, options)
    }

    /// Returns the plan of a join of two sides of 1,024 million rows in 8 GiB, which spills 1,536 runs of 16 MiB.
    fn to_disk(host_bytes: u64) -> Result<JoinPlan, JoinError> {
        let options = JoinOptions {
            device_bytes: 8 << 30,
            host_bytes,
            spill_directory: Some(PathBuf::from("/spill")),
            ring: RingOptions {
                slots: 8,
                slot_bytes: 16 << 20,
            },
            has_filter: false,
            first_pass: FirstPass::Gpu,
            threads: 2,
        };
        JoinPlan::new(Width::Eight, [1_024_000_000; 2], options)
    }

    #[test]
    fn runs_that_do_not_fit_in_host_memory_go_to_disk() {
        let run = to_disk(64 << 30).expect("enough memory").run_bytes();
        for runs in [1536, 1535, 1000, 200, 8, 5] {
            let plan = to_disk(runs * run + 1).expect("enough memory");
            let (on_disk, in_memory) = (plan.on_disk(), plan.in_memory());
            assert_eq!(in_memory[0] + on_disk[0], 977);
            assert_eq!(in_memory[1] + on_disk[1], 977);
            // The build side is in memory first.
            assert!(on_disk[0] == 0 || in_memory[1] == 0);
            assert_eq!(
                plan.spill_bytes(),
                plan.disk_bytes() + plan.in_host as u64 * plan.run_bytes()
            );
            assert!(plan.host_bytes() <= runs * run, "{plan:?}");
            assert_eq!(plan.half == 0, plan.disk_bytes() == 0);
            if plan.half > 0 {
                // All of the memory is used, and half of it at least by runs that stay.
                assert!(runs * run + 1 - plan.host_bytes() < plan.run_bytes());
                assert!(plan.in_host >= 2 * plan.half || plan.half == HALF_RUNS_MIN);
            }
            for side in [0, 1] {
                let rounds: Vec<Range<usize>> = plan.rounds(side).collect();
                assert_eq!(rounds.iter().map(Range::len).sum::<usize>(), on_disk[side]);
                assert!(rounds.iter().all(|it| it.len() <= plan.half));
                assert!(rounds.windows(2).all(|it| it[0].end == it[1].start));
            }
        }
        // Slices of 256 KiB are read in pairs: half a megabyte of each of 1,536 runs of 16 MiB.
        assert_eq!(to_disk(1000 * run).expect("enough").half, 48);
        // A half has room for a partition: there are more of them.
        let small = to_disk(100 * run).expect("enough");
        assert_eq!((small.partitions(), small.half), (256, 24));
        let error = to_disk(3 * run).expect_err("two runs in each half");
        assert!(!error.to_string().contains("folder"), "{error}");
        let JoinError::TooLittleHostMemory { needed, given, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(given, 3 * run);
        assert_eq!(to_disk(needed).expect("enough").in_host, 0);
    }

    #[test]
    fn there_are_no_more_partitions_for_the_disk_than_padding_and_device_memory_allow() {
        let plan = |rows, slot_bytes, device_bytes, host_bytes| {
            let options = JoinOptions {
                device_bytes,
                host_bytes,
                spill_directory: Some(PathBuf::from("/spill")),
                ring: RingOptions {
                    slots: 8,
                    slot_bytes,
                },
                has_filter: false,
                first_pass: FirstPass::Gpu,
                threads: 2,
            };
            JoinPlan::new(Width::Eight, rows, options).expect("enough memory")
        };
        // With 512 partitions, two would fit in 2 MiB, but a run of 64 KiB would have 256 KiB of padding.
        let small = plan([1 << 16, 1 << 24], 64 << 10, 64 << 20, 8 << 20);
        assert_eq!((small.partitions(), small.run_bytes()), (16, 72 << 10));
        assert!(small.disk_bytes() > 0);
        // The slices of 10,001 runs with 1,024 partitions would need more than the device memory.
        let large = plan([1000, 10_000 << 20], 16 << 20, 320 << 20, 1 << 30);
        assert!((4..1024).contains(&large.partitions()), "{large:?}");
        assert!(large.disk_bytes() > 0);
    }

    #[test]
    fn a_filter_takes_a_byte_of_device_memory_for_each_row_of_the_build_side() {
        let plan = |has_filter, device_bytes| {
            let options = JoinOptions {
                device_bytes,
                host_bytes: 64 << 30,
                spill_directory: None,
                ring: RingOptions {
                    slots: 8,
                    slot_bytes: 16 << 20,
                },
                has_filter,
                first_pass: FirstPass::Gpu,
                threads: 2,
            };
            JoinPlan::new(Width::Eight, [1_024_000_000; 2], options)
        };
        let without = plan(false, 8 << 30).expect("enough memory");
        let with = plan(true, 8 << 30).expect("enough memory");
        let bytes = without.resident_bytes() - with.resident_bytes();
        assert!(bytes.abs_diff(1_024_000_000) < with.run_bytes(), "{bytes}");
        plan(false, 1 << 30).expect("enough memory");
        let error = plan(true, 1 << 30).expect_err("no room for the filter");
        assert!(
            matches!(error, JoinError::TooLittleMemory { .. }),
            "{error}"
        );
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
        assert!(is_host && error.to_string().contains("folder"), "{error}");
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
