//! Joins of sides that lie in the memory of several GPUs, each of which has some rows of both.
//!
//! In partitions: each GPU divides its rows, then joins some of the partitions, whose rows it reads from all GPUs.
//! With one table in memory that is interleaved over the GPUs: each inserts and probes its rows (Lutz et al., SIGMOD
//! 2020, section 6.3), or all GPUs read all rows, and each takes those whose search begins in its own memory. With a
//! replicated table: each GPU has a table of all build rows and probes it with its own rows, also without peer
//! access.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, InterleavedMemory, Priority, Transfer};
use forebay_device::{Device, JobError};
use forebay_hash_index::{
    Column, DevicePartitions, DeviceRows, HashIndex, IndexBuilder, IndexError, InterleavedRows,
    JoinTotals, PartitionJoin, RunShape, Slices, TableMemory, TableMethod, TableShape, Totals,
    Width,
};

use crate::crew::{Crew, ended};
use crate::{JoinError, JoinReport, on_gpu};

/// Number of tables of a GPU at once: while the last rows of one are inserted or probed, the others use the GPU.
const LANES: usize = 4;
/// Bytes of a table that stays in the L2 cache of a GPU beside others.
const TABLE_BYTES: u64 = 16 << 20;
/// Maximum number of rows that a GPU divides at once.
const RUN_ROWS: u64 = 1 << 30;
/// Number of values of which a vector of 16 bytes has at most.
const VECTOR_ROWS: u64 = 4;
/// Maximum number of bits of the hash that tell the partition.
const BITS_MAX: u32 = 10;
/// Maximum number of steps of a lane in flight.
const STEPS_QUEUED: usize = 4;
/// Number of rounds of all lanes after which a join looks whether it is stopped.
const ROUNDS_OF_JOB: usize = 32;
/// Maximum number of rows that a GPU without peer access copies from another at once.
pub(crate) const COPIED_ROWS: u64 = 1 << 20;

/// The rows of both sides that each GPU has in its memory.
#[derive(Debug, Clone)]
pub struct GpuSides {
    /// Those of the side from which tables are built.
    pub build: Vec<DeviceRows>,
    /// Those of the side that probes.
    pub probe: Vec<DeviceRows>,
}

/// Runs work on the threads of all GPUs at once, each with its index and its input. Blocks until all have ended.
fn on_gpus<I: Send + 'static, T: Send + 'static>(
    devices: &[Arc<Device>],
    inputs: Vec<I>,
    stop: &Stop,
    work: impl Fn(&mut Cuda, usize, I) -> Result<T, IndexError> + Clone + Send + Sync + 'static,
) -> Result<Vec<T>, JoinError> {
    at_once(inputs, stop, |_, gpu, input| {
        let work = work.clone();
        on_gpu(&devices[gpu], move |cuda| work(cuda, gpu, input))
    })
}

/// Calls a function for all GPUs at once, each on its own thread, with the index and the input of the GPU. Blocks
/// until all have ended.
///
/// # Errors
/// The first error or panic. The other calls end early if they check the crew.
fn at_once<I: Send, T: Send>(
    inputs: Vec<I>,
    stop: &Stop,
    call: impl Fn(&Crew<'_>, usize, I) -> Result<T, JoinError> + Sync,
) -> Result<Vec<T>, JoinError> {
    let crew = Crew::new(stop);
    let (crew_of_all, call) = (&crew, &call);
    let results = thread::scope(|scope| {
        let all = inputs.into_iter().enumerate();
        let running = all.filter_map(|(gpu, input)| {
            crew_of_all.spawn(scope, move || call(crew_of_all, gpu, input))
        });
        let running: Vec<_> = running.collect();
        running.into_iter().filter_map(ended).collect()
    });
    crew.end()?;
    Ok(results)
}

/// Joins sides, whose rows are of this width, in partitions. Blocks; must not be called on an async worker thread or on
/// a device's thread.
///
/// Unlike [`PartitionedJoin`](crate::PartitionedJoin), it keeps no heavy keys apart and has no filter. Beside the
/// sides, each GPU needs memory for its rows once more, and for four tables.
///
/// # Errors
/// [`JoinError::NoPeers`] if a GPU does not reach the others; if device memory is too small, keys have too many rows
/// ([`IndexError::ChainTooLong`]), the join is stopped, or a device is lost.
///
/// # Panics
/// If there is no GPU, or a side has not one part for each GPU.
pub fn join_in_partitions(
    devices: &[Arc<Device>],
    width: Width,
    sides: &GpuSides,
    stop: &Stop,
) -> Result<JoinReport, JoinError> {
    assert_eq!([sides.build.len(), sides.probe.len()], [devices.len(); 2]);
    check_reach(devices)?;
    let began = Instant::now();
    stop.check()?;
    let bits = bits(width, rows_of(&sides.build, width), devices.len());
    let inputs = sides.build.iter().cloned().zip(sides.probe.iter().cloned());
    let divided = on_gpus(
        devices,
        inputs.collect(),
        stop,
        move |cuda, _, (build, probe)| {
            let build = divided(cuda, (width, bits), &build)?;
            Ok((build, divided(cuda, (width, bits), &probe)?))
        },
    )?;
    let mut parts = divided.into_iter();
    let (mut build, mut probe) = parts.next().expect("at least one GPU");
    for (other_build, other_probe) in parts {
        build.append(&other_build);
        probe.append(&other_probe);
    }
    let ended = Instant::now();
    let sides = vec![(build, probe); devices.len()];
    let joined = at_once(sides, stop, |crew, gpu, sides| {
        let of_gpu = share(0..1 << bits, gpu, devices.len());
        join_some(crew, &devices[gpu], width, sides, of_gpu)
    })?;
    let (mut totals, mut tables) = (JoinTotals::default(), 0);
    for (found, built) in joined {
        totals.add(found);
        tables += built;
    }
    Ok(JoinReport {
        totals,
        divide: ended - began,
        join: ended.elapsed(),
        tables,
        heavy_keys: 0,
        filtered_rows: 0,
        is_by_cpu: false,
        sample: None,
    })
}

/// Checks that each GPU reaches all others.
///
/// # Errors
/// [`JoinError::NoPeers`] if one does not.
///
/// # Panics
/// If there is no GPU.
fn check_reach(devices: &[Arc<Device>]) -> Result<(), JoinError> {
    assert!(!devices.is_empty(), "no GPU");
    match first_pair(devices, |one, other| !one.reaches(other)) {
        None => Ok(()),
        Some([device, other]) => Err(JoinError::NoPeers { device, other }),
    }
}

/// Returns the names of the first pair of GPUs for which a condition holds.
fn first_pair(
    devices: &[Arc<Device>],
    holds: impl Fn(&Device, &Device) -> bool,
) -> Option<[String; 2]> {
    let mut ones = devices.iter();
    ones.find_map(|one| {
        let mut others = devices.iter().filter(|it| it.id() != one.id());
        let other = others.find(|other| holds(one, other))?;
        Some([one, other].map(|it| it.name().to_owned()))
    })
}

/// Returns the number of rows of all parts of a side.
fn rows_of(side: &[DeviceRows], width: Width) -> u64 {
    side.iter().map(|rows| rows.count(width)).sum()
}

/// Returns the bits of the partitions of a join: the fewest for which tables are small enough and all lanes of all GPUs
/// have one, if there are as many.
fn bits(width: Width, build_rows: u64, gpus: usize) -> u32 {
    let table_bytes = |bits: &u32| {
        let mean = build_rows >> bits;
        // The rows of a partition are random: nearly all have at most six standard deviations more.
        let rows = mean + 6 * mean.isqrt();
        TableShape::linear_probing(width, rows).slot_bytes()
    };
    let least = (gpus * LANES).next_power_of_two().ilog2().min(BITS_MAX);
    let mut small = (least..BITS_MAX).filter(|bits| table_bytes(bits) <= TABLE_BYTES);
    small.next().unwrap_or(BITS_MAX)
}

/// Returns one of `count` equal parts of a range.
fn share(range: Range<usize>, index: usize, count: usize) -> Range<usize> {
    let at = |index| range.start + range.len() * index / count;
    at(index)..at(index + 1)
}

/// Copies rows of a side into partitions, in memory of this device. Blocks.
fn divided(
    cuda: &mut Cuda,
    (width, bits): (Width, u32),
    rows: &DeviceRows,
) -> Result<DevicePartitions, IndexError> {
    let count = rows.count(width);
    // All runs have as many rows, and begin where vectors do.
    let runs = count.div_ceil(RUN_ROWS).max(1);
    let of_run = count.div_ceil(runs).max(1).next_multiple_of(VECTOR_ROWS);
    let shape = RunShape::new(width, of_run, bits);
    let stream = cuda.downloads().clone();
    let mut slices = Slices::new(cuda, shape, count.div_ceil(of_run) as usize, &stream)?;
    let mut runs = Vec::new();
    for (run, first) in (0..count).step_by(of_run as usize).enumerate() {
        let rows = rows.part(width, first..count.min(first + of_run));
        let to = cuda.buffer::<u8>(shape.bytes() as usize)?.all();
        slices
            .divide_async(cuda, &rows, run, &to, &stream)?
            .leave(cuda);
        runs.push(Column::Device(to));
    }
    Ok(DevicePartitions::new(cuda, slices, runs, &stream)?)
}

/// Joins some partitions on a GPU. Returns the matches and the number of tables; zeros if the crew must end. The
/// error is then that of the crew.
fn join_some(
    crew: &Crew<'_>,
    device: &Device,
    width: Width,
    (build, probe): (DevicePartitions, DevicePartitions),
    partitions: Range<usize>,
) -> Result<(JoinTotals, usize), JoinError> {
    let slot_bytes = TableShape::linear_probing(width, build.largest()).slot_bytes() as usize;
    let mut lanes = on_gpu(device, move |cuda| {
        let lane = |lane| {
            let streams = [
                cuda.stream(Priority::Normal)?,
                cuda.stream(Priority::Normal)?,
            ];
            // All rows are in device memory: nothing is staged.
            let none = cuda.buffer::<u8>(1)?.all().view(0..0);
            let table = TableMemory {
                slots: cuda.buffer::<u8>(slot_bytes)?.all(),
                staging: std::array::from_fn(|_| none.clone()),
            };
            let (sides, of_lane) = (
                (build.clone(), probe.clone()),
                share(partitions.clone(), lane, LANES),
            );
            let join = PartitionJoin::new(cuda, sides, of_lane, table, streams)?;
            Ok((join, VecDeque::new()))
        };
        (0..LANES).map(lane).collect::<Result<Vec<_>, IndexError>>()
    })?;
    let mut is_done = false;
    while !is_done {
        if !crew.may_continue() {
            return Ok((JoinTotals::default(), 0));
        }
        (lanes, is_done) = on_gpu(device, move |cuda| {
            for _ in 0..ROUNDS_OF_JOB {
                is_done = true;
                for (join, queued) in &mut lanes {
                    let Some(step) = join.next_async(cuda)? else {
                        continue;
                    };
                    is_done = false;
                    if queued.len() == STEPS_QUEUED {
                        // Waits for the oldest one.
                        queued.pop_front();
                    }
                    queued.push_back(step);
                }
            }
            Ok((lanes, is_done))
        })?;
    }
    on_gpu(device, move |cuda| {
        let (mut totals, mut tables) = (JoinTotals::default(), 0);
        for (join, queued) in lanes {
            drop(queued);
            totals.add(join.finish(cuda)?);
            tables += join.steps();
        }
        Ok((totals, tables))
    })
}

/// Joins sides, whose rows are of this width, with a table of all build rows on each GPU. Blocks; must not be called
/// on an async worker thread or on a device's thread.
///
/// Each GPU builds its table with linear probing, and probes it with its own rows. Its kernels read the build rows of
/// the other GPUs where they are. Without peer access, it copies them through the host, at most 2^20 rows at a time.
/// Beside the sides, each GPU needs memory for the table, and without peer access for two of these copies.
///
/// # Errors
/// If device memory is too small, keys have too many rows ([`IndexError::ChainTooLong`]), the join is stopped, or a
/// device is lost.
///
/// # Panics
/// If there is no GPU, or a side has not one part for each GPU.
pub fn join_replicated(
    devices: &[Arc<Device>],
    width: Width,
    sides: &GpuSides,
    stop: &Stop,
) -> Result<TableReport, JoinError> {
    assert!(!devices.is_empty(), "no GPU");
    assert_eq!([sides.build.len(), sides.probe.len()], [devices.len(); 2]);
    let began = Instant::now();
    stop.check()?;
    let shape = TableShape::linear_probing(width, rows_of(&sides.build, width));
    let tables = at_once(vec![(); devices.len()], stop, |crew, gpu, ()| {
        table_of_all(crew, (devices, gpu), shape, &sides.build)
    })?;
    let built = Instant::now();
    stop.check()?;
    let probe = sides.probe.iter().map(|rows| vec![rows.clone()]);
    let totals = probed(devices, tables.into_iter().zip(probe).collect(), stop)?;
    Ok(TableReport {
        totals,
        build: built - began,
        probe: built.elapsed(),
    })
}

/// Builds a table of the rows of all GPUs on the GPU with this index, whose own rows come first.
///
/// # Errors
/// As for [`join_replicated`], and if another GPU's work has failed.
fn table_of_all(
    crew: &Crew<'_>,
    (devices, gpu): (&[Arc<Device>], usize),
    shape: TableShape,
    side: &[DeviceRows],
) -> Result<HashIndex, JoinError> {
    let (device, width) = (&devices[gpu], shape.width());
    let mut builder = on_gpu(device, move |cuda| {
        let stream = cuda.downloads().clone();
        IndexBuilder::new(cuda, shape, &stream)
    })?;
    for owner in (0..devices.len()).map(|it| (gpu + it) % devices.len()) {
        let is_reached = owner == gpu || device.reaches(&devices[owner]);
        let count = side[owner].count(width);
        let most = match is_reached {
            true => count.max(1),
            false => COPIED_ROWS,
        };
        for first in (0..count).step_by(most as usize) {
            crew.check()?;
            let rows = side[owner].part(width, first..count.min(first + most));
            builder = on_gpu(device, move |cuda| {
                let rows = match is_reached {
                    true => rows,
                    false => copied(cuda, &rows)?,
                };
                builder.insert_async(cuda, &rows)?;
                Ok(builder)
            })?;
        }
    }
    on_gpu(device, move |cuda| builder.finish(cuda))
}

/// Copies rows of another GPU to memory of this device. Blocks. The copy is on the stream of the inserts: when it is
/// done, the earlier insert is too, so that at most two copies exist.
fn copied(cuda: &Cuda, rows: &DeviceRows) -> Result<DeviceRows, JobError> {
    let column = |column: &Column| -> Result<Column, JobError> {
        let Column::Device(from) = column else {
            return Ok(column.clone());
        };
        let to = cuda.buffer::<u8>(from.len())?.all();
        Transfer::begin(cuda, from.clone(), to.clone(), cuda.downloads())?.finish()?;
        Ok(Column::Device(to))
    };
    Ok(DeviceRows {
        keys: column(&rows.keys)?,
        payloads: column(&rows.payloads)?,
    })
}

/// Probes each table with rows that its GPU reaches. Returns the matches of all. Blocks.
///
/// # Errors
/// If the join is stopped, or a device is lost.
fn probed(
    devices: &[Arc<Device>],
    inputs: Vec<(HashIndex, Vec<DeviceRows>)>,
    stop: &Stop,
) -> Result<JoinTotals, JoinError> {
    let found = on_gpus(
        devices,
        inputs,
        stop,
        |cuda, _, (table, rows): (HashIndex, Vec<DeviceRows>)| {
            let stream = cuda.downloads().clone();
            let totals = Totals::zero(cuda, &stream)?;
            let mut probing = Vec::new();
            for rows in rows {
                probing.push(table.probe_async(cuda, &rows, &totals, &stream)?);
            }
            Ok(totals.read(cuda, &stream)?)
        },
    )?;
    let mut totals = JoinTotals::default();
    found.into_iter().for_each(|it| totals.add(it));
    Ok(totals)
}

/// Joins with one table of linear probing, whose memory is interleaved over several GPUs. It holds the memory of the
/// table, for several joins.
#[derive(Debug)]
pub struct InterleavedJoin {
    devices: Vec<Arc<Device>>,
    shape: TableShape,
    memory: InterleavedMemory,
    rows: InterleavedRows,
}

/// What a join with an interleaved table, or with a table on each GPU, did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableReport {
    /// The matches.
    pub totals: JoinTotals,
    /// The time until the table was complete, on all GPUs.
    pub build: Duration,
    /// The time after that.
    pub probe: Duration,
}

impl InterleavedJoin {
    /// Takes memory for a table, which is not of the devices' budgets. Blocks.
    ///
    /// # Errors
    /// [`JoinError::NoPeers`] if a GPU does not reach the others, [`JoinError::NoAtomics`] if it cannot change their
    /// memory by atomic operations; if a card has too little memory, or a device fails.
    ///
    /// # Panics
    /// If there is no GPU, the table is not one of linear probing, or its keys are not single numbers of the width of
    /// the payloads; for [`InterleavedRows::Own`], if the number of GPUs is no power of two.
    pub fn new(
        devices: &[Arc<Device>],
        shape: TableShape,
        rows: InterleavedRows,
    ) -> Result<InterleavedJoin, JoinError> {
        shape.width().assert_is_uniform("interleaved tables");
        check_reach(devices)?;
        assert_eq!(shape.method(), TableMethod::LinearProbing);
        assert!(rows == InterleavedRows::All || devices.len().is_power_of_two());
        if let Some([device, other]) = first_pair(devices, |one, other| !one.has_atomics_on(other))
        {
            return Err(JoinError::NoAtomics { device, other });
        }
        let memory = InterleavedMemory::new(devices, shape.slot_bytes());
        Ok(InterleavedJoin {
            devices: devices.to_vec(),
            shape,
            memory: memory.map_err(|error| JoinError::Index(error.into()))?,
            rows,
        })
    }

    /// Joins sides. Blocks; must not be called on an async worker thread or on a device's thread.
    ///
    /// # Errors
    /// If the table is too small, keys have too many rows ([`IndexError::ChainTooLong`]), the join is stopped, or a
    /// device is lost.
    ///
    /// # Panics
    /// If the sides have not as many parts as there are GPUs, or are not of the table's width.
    pub fn run(&mut self, sides: &GpuSides, stop: &Stop) -> Result<TableReport, JoinError> {
        let began = Instant::now();
        stop.check()?;
        let (shape, rows) = (self.shape, self.rows);
        let (build_rows, slots) = (rows_of(&sides.build, shape.width()), shape.slots());
        if build_rows > slots {
            let rows = build_rows;
            return Err(JoinError::Index(IndexError::TooManyRows { rows, slots }));
        }
        let memory = vec![self.memory.clone(); self.devices.len()];
        let builders = on_gpus(&self.devices, memory, stop, move |cuda, gpu, memory| {
            let stream = cuda.downloads().clone();
            IndexBuilder::interleaved(cuda, shape, (&memory, gpu), rows, &stream)
        })?;
        stop.check()?;
        let inputs = builders.into_iter().zip(self.read_by_each(&sides.build));
        let mut tables = on_gpus(
            &self.devices,
            inputs.collect(),
            stop,
            |cuda, _, (mut builder, rows): (IndexBuilder, Vec<DeviceRows>)| {
                for rows in rows {
                    builder.insert_async(cuda, &rows)?;
                }
                builder.finish(cuda)
            },
        )?;
        HashIndex::complete(&mut tables);
        let built = Instant::now();
        stop.check()?;
        let inputs = tables.into_iter().zip(self.read_by_each(&sides.probe));
        let totals = probed(&self.devices, inputs.collect(), stop)?;
        Ok(TableReport {
            totals,
            build: built - began,
            probe: built.elapsed(),
        })
    }

    /// Returns the rows that each GPU reads: its own first.
    fn read_by_each(&self, side: &[DeviceRows]) -> Vec<Vec<DeviceRows>> {
        let count = self.devices.len();
        assert_eq!(side.len(), count);
        let of_gpu = |gpu: usize| match self.rows {
            InterleavedRows::All => vec![side[gpu].clone()],
            InterleavedRows::Own => (0..count)
                .map(|it| side[(gpu + it) % count].clone())
                .collect(),
        };
        (0..count).map(of_gpu).collect()
    }
}
