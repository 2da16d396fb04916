//! Co-processing: CPU and GPUs join the same sides, which lie in pinned host memory.
//!
//! Every processor takes rows of the probe side from one queue, an atomic cursor: a thread of the CPU takes a small
//! morsel, a GPU a batch that fills a buffer of its ring. Each probes a table in its own memory, because random reads
//! over PCIe are slow. The slots of a table with linear probing have one layout on the host and on a device, so the
//! CPU may probe a copy of a GPU's table. The DMA engine writes it to pinned host memory while the GPU probes. A
//! table is not copied the other way: it has at least twice as many bytes as the rows from which the GPU builds its
//! own.
//!
//! # Sources
//! Lutz et al., SIGMOD 2020, section 6: morsels, and the strategy GPU + Het.

mod choose;
mod cpu;
mod gpu;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_device::cuda::Part;
use forebay_hash_index::{HostRows, JoinTotals, TableMethod, TableShape};
use forebay_movement::RingOptions;

use crate::crew::{Crew, Morsels, ended};
use crate::join::{Spill, pinned};
use crate::{JoinError, PinnedColumns};
use cpu::{Cpu, CpuPart, CpuTable};
use gpu::{CopyTo, Lane};

pub use choose::{GpuRates, Rates, choose};

/// Which processors join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// The CPU builds and probes, on all threads.
    Cpu,
    /// The GPUs build a table each, and probe.
    Gpu,
    /// The CPU and each GPU build their own tables at the same time, from the same rows. Each probes as soon as its
    /// table is complete, or leaves it incomplete if no probe rows are left.
    GpuAndCpu,
    /// The GPUs build a table each, and probe. Meanwhile the table of the first GPU is copied to host memory, where
    /// the CPU probes it.
    GpuBuilds,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Strategy; 4] = [
        Strategy::Cpu,
        Strategy::Gpu,
        Strategy::GpuAndCpu,
        Strategy::GpuBuilds,
    ];

    /// Returns whether GPUs join.
    pub fn has_gpu(self) -> bool {
        self != Strategy::Cpu
    }

    /// Returns whether the CPU joins.
    pub fn has_cpu(self) -> bool {
        self != Strategy::Gpu
    }
}

/// Resources that joins may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoProcessingOptions {
    /// The table of each processor: one with linear probing.
    pub shape: TableShape,
    /// The ring of each GPU, in device memory. A slot is a batch of rows: its keys in one half, its payloads in the
    /// other.
    pub ring: RingOptions,
    /// Number of threads of a join. One thread for each GPU that joins feeds it and keeps a core busy. The others, at
    /// least one, insert and probe on the CPU.
    pub threads: usize,
}

/// What a join did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoProcessingReport {
    /// The matches.
    pub totals: JoinTotals,
    /// The time in which host memory for the CPU's table was allocated or pinned: before the join, or during it with
    /// [`Strategy::GpuAndCpu`].
    pub allocate: Duration,
    /// The time from the beginning of the join until the first table was complete.
    pub build: Duration,
    /// The time after that, in which slower processors may still build their tables.
    pub probe: Duration,
    /// Number of rows of the probe side that the CPU took.
    pub cpu_rows: u64,
}

/// Joins of sides in pinned host memory, by the CPU and GPUs. It holds the device memory of a table and a ring on
/// each GPU, for several joins.
#[derive(Debug)]
pub struct CoProcessing {
    lanes: Vec<Lane>,
    shape: TableShape,
    threads: usize,
    /// The host memory to which a GPU's table is copied; `None` before the first copy, and after a join that failed
    /// or copied no table.
    memory: Option<Spill>,
}

impl CoProcessing {
    /// Takes device memory for a table and a ring on each GPU. Blocks.
    ///
    /// # Errors
    /// If device memory is too small, or a device is not a GPU or is lost.
    ///
    /// # Panics
    /// If the table is not one with linear probing, or its keys are not single numbers of the width of the payloads.
    pub fn new(
        devices: &[Arc<Device>],
        options: CoProcessingOptions,
    ) -> Result<CoProcessing, JoinError> {
        let CoProcessingOptions {
            shape,
            ring,
            threads,
        } = options;
        assert_eq!(shape.method(), TableMethod::LinearProbing);
        shape.width().assert_is_uniform("joins by CPU and GPUs");
        let lanes = devices.iter().map(|device| Lane::new(device, shape, ring));
        Ok(CoProcessing {
            lanes: lanes.collect::<Result<_, _>>()?,
            shape,
            threads,
            memory: None,
        })
    }

    /// Joins both sides. Blocks; must not be called on an async worker thread or on a device's thread. The host
    /// memory of a copied table stays pinned for the next join with [`Strategy::GpuBuilds`].
    ///
    /// # Errors
    /// The first error of a processor, when all have ended: if the table is too small, keys have too many rows
    /// ([`ChainTooLong`](forebay_hash_index::IndexError::ChainTooLong)), host memory is too small or cannot be
    /// pinned, the join is stopped, a thread panics, or a device is lost.
    ///
    /// # Panics
    /// If the strategy needs a GPU and there is none, or the sides are not of the table's width.
    pub fn run(
        &mut self,
        strategy: Strategy,
        (build, probe): (&PinnedColumns, &PinnedColumns),
        stop: &Stop,
    ) -> Result<CoProcessingReport, JoinError> {
        stop.check()?;
        assert!(!strategy.has_gpu() || !self.lanes.is_empty(), "no GPU");
        if strategy != Strategy::GpuBuilds {
            // Freeing it is no part of this join.
            self.memory = None;
        }
        let began = Instant::now();
        let (copy_to, cpu, rest) = self.cpu_table(strategy)?;
        let pinned = began.elapsed();
        stop.check()?;
        let lanes: &[Lane] = match strategy.has_gpu() {
            true => &self.lanes[..],
            false => &[],
        };
        let join = Join {
            shape: self.shape,
            threads: self.threads,
            sides: (build.host_rows(), probe.host_rows()),
        };
        let gpus = Gpus {
            lanes,
            sides: Some((build, probe)),
            copy_to,
        };
        let (report, cpu) = join.run(cpu, gpus, stop)?;
        drop(cpu.table);
        let joined = |table: Part<Spill>| Part::join([table].into_iter().chain(rest).collect());
        self.memory = cpu.memory.map(joined);
        Ok(CoProcessingReport {
            allocate: pinned + report.allocate,
            ..report
        })
    }

    /// Takes pinned memory for the table of the CPU if it is a copy. Returns where the first GPU copies its table,
    /// the table of the CPU, and what is left of the memory.
    fn cpu_table(&mut self, strategy: Strategy) -> Result<OfCpu, JoinError> {
        match strategy {
            Strategy::Gpu => Ok((None, None, None)),
            Strategy::Cpu | Strategy::GpuAndCpu => Ok((None, Some(CpuTable::Own), None)),
            Strategy::GpuBuilds => {
                let device = Arc::clone(&self.lanes[0].device);
                let bytes = self.shape.slot_bytes();
                let memory = match self.memory.take() {
                    Some(memory) => memory,
                    None => pinned(&device, bytes)?,
                };
                let mut parts = Part::divide(memory, &[bytes as usize]);
                let (rest, to) = (parts.pop(), parts.pop());
                let to = to.expect("one part more than there are cuts");
                let (sender, receiver) = channel();
                let table = CpuTable::Copied(device, receiver);
                Ok((Some((to, sender)), Some(table), rest))
            }
        }
    }
}

/// Where a GPU copies its table, the table of the CPU, and the memory behind a copied table.
type OfCpu = (Option<CopyTo>, Option<CpuTable>, Option<Part<Spill>>);

/// Joins both sides on the CPU, with tables and threads as [`CoProcessing`] has them; the sides need not be pinned.
/// Blocks; must not be called on an async worker thread.
///
/// # Errors
/// If host memory or the table is too small, keys have too many rows
/// ([`ChainTooLong`](forebay_hash_index::IndexError::ChainTooLong)), a thread panics, or the join is stopped.
///
/// # Panics
/// If the table is not one with linear probing, or the sides are not of its width.
pub fn join_on_cpu(
    shape: TableShape,
    sides: (HostRows<'_>, HostRows<'_>),
    threads: usize,
    stop: &Stop,
) -> Result<CoProcessingReport, JoinError> {
    stop.check()?;
    assert_eq!(shape.method(), TableMethod::LinearProbing);
    let join = Join {
        shape,
        threads,
        sides,
    };
    let gpus = Gpus {
        lanes: &[],
        sides: None,
        copy_to: None,
    };
    let (report, _) = join.run(Some(CpuTable::Own), gpus, stop)?;
    Ok(report)
}

/// The GPUs of a join.
struct Gpus<'a> {
    lanes: &'a [Lane],
    /// The sides; `None` without a GPU.
    sides: Option<(&'a PinnedColumns, &'a PinnedColumns)>,
    /// Where the first GPU copies its table.
    copy_to: Option<CopyTo>,
}

/// A join whose pinned and device memory is allocated.
struct Join<'a> {
    shape: TableShape,
    threads: usize,
    sides: (HostRows<'a>, HostRows<'a>),
}

impl Join<'_> {
    /// Runs all processors until no rows are left: the GPUs on threads of their own, the CPU from the calling thread.
    /// Returns what the join did, and what the CPU did.
    fn run(
        &self,
        cpu: Option<CpuTable>,
        gpus: Gpus<'_>,
        stop: &Stop,
    ) -> Result<(CoProcessingReport, CpuPart), JoinError> {
        let began = Instant::now();
        let (width, (build, probe)) = (self.shape.width(), self.sides);
        build.count(width);
        let left = Morsels::new(probe.count(width));
        let crew = Crew::new(stop);
        let of_cpu = Cpu {
            crew: &crew,
            threads: self.threads.saturating_sub(gpus.lanes.len()).max(1),
            shape: self.shape,
            build,
            probe,
            left: &left,
        };
        let (crew_of_all, left_of_all) = (&crew, &left);
        let mut copy_to = gpus.copy_to;
        let (part, found) = thread::scope(|scope| {
            let mut running = Vec::new();
            for lane in gpus.lanes {
                let (copy_to, sides) = (copy_to.take(), gpus.sides);
                let work = move || {
                    let sides = sides.expect("GPUs have sides in pinned memory");
                    gpu::work(crew_of_all, lane, sides, left_of_all, copy_to)
                };
                running.extend(crew_of_all.spawn(scope, work));
            }
            let part = cpu.and_then(|table| crew_of_all.guard(|| of_cpu.work(table)));
            let found: Vec<JoinTotals> = running.into_iter().filter_map(ended).collect();
            (part.unwrap_or_default(), found)
        });
        let built = crew.end()?;
        let ended = Instant::now();
        let mut totals = part.totals;
        found.into_iter().for_each(|it| totals.add(it));
        // Without GPUs, the build begins after the allocation. GPUs do not wait for the allocation.
        let before = match gpus.lanes.is_empty() {
            true => part.allocate,
            false => Duration::ZERO,
        };
        let report = CoProcessingReport {
            totals,
            allocate: part.allocate,
            build: (built - began).saturating_sub(before),
            probe: ended - built,
            cpu_rows: part.rows,
        };
        Ok((report, part))
    }
}
