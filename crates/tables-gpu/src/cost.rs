//! The choice between the CPU and a device: the estimated times of a plan on both, by rates that runs correct.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use forebay_movement::Tier;
use forebay_movement::pick::{Measurements, Pattern};
use forebay_tables::GpuOptions;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;

use crate::amounts::{CPU_KINDS, DISK, GPU_KINDS, HOST, Scans};
use crate::columns::Columns;
use crate::figures::Figures;
use crate::fragment::Fragment;
use crate::gpu_files::PICKED_BYTES;
use crate::reason::Reason;
use crate::rule::is_last;
use crate::work::{Work, reads};

/// The planner chooses the CPU if the estimated time of the device is more than this many times that of the CPU. So a
/// rate that is a little wrong takes no plan from the device.
const MARGIN: f64 = 1.5;
/// Factor of the change of a rate after a run.
const STEP: f64 = 1.05;
/// Maximum factor between a rate and the one at the start.
const CHANGE_MAX: f64 = 16.0;
/// Rates at the start: rough figures, not measured.
const CPU_NS: [f64; CPU_KINDS] = [100_000.0, 100_000.0, 2.0];
const GPU_NS: [f64; GPU_KINDS] = [600_000.0, 200_000.0, 0.001, 0.02, 1.0, 100.0];

/// Nanoseconds for a unit of each kind of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rates<const KINDS: usize> {
    start: [f64; KINDS],
    now: [f64; KINDS],
}

impl<const KINDS: usize> Rates<KINDS> {
    pub(crate) fn new(ns: [f64; KINDS]) -> Rates<KINDS> {
        Rates { start: ns, now: ns }
    }

    /// Returns the nanoseconds of each kind of work.
    fn parts(&self, amounts: &[u64; KINDS]) -> [f64; KINDS] {
        std::array::from_fn(|kind| self.now[kind] * amounts[kind] as f64)
    }

    /// Returns the nanoseconds of all work.
    fn estimate(&self, amounts: &[u64; KINDS]) -> f64 {
        self.parts(amounts).iter().sum()
    }

    /// Changes the rate of the largest part of the estimate, by the time that a run took. All steps are equal: a rate
    /// follows the median of the runs, and a single slow run changes it little.
    fn correct(&mut self, amounts: &[u64; KINDS], took: Duration) {
        let parts = self.parts(amounts);
        let is_longer = took.as_secs_f64() * 1e9 > self.estimate(amounts);
        let largest = (0..KINDS).max_by(|one, other| parts[*one].total_cmp(&parts[*other]));
        if let Some(kind) = largest {
            let step = if is_longer { STEP } else { 1.0 / STEP };
            let start = self.start[kind];
            self.now[kind] = (self.now[kind] * step).clamp(start / CHANGE_MAX, start * CHANGE_MAX);
        }
    }
}

/// The rates of the CPU and of the devices.
#[derive(Debug)]
pub(crate) struct Costs {
    pub(crate) cpu: Mutex<Rates<CPU_KINDS>>,
    pub(crate) gpu: Mutex<Rates<GPU_KINDS>>,
    /// Whether runs correct them.
    pub(crate) learns: AtomicBool,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            cpu: Mutex::new(Rates::new(CPU_NS)),
            gpu: Mutex::new(Rates::new(GPU_NS)),
            // The plans of tests do not depend on times.
            learns: AtomicBool::new(!cfg!(test)),
        }
    }
}

impl Costs {
    /// Sets the rates of the paths to the device to those that were measured.
    pub(crate) fn set(&self, measurements: &Measurements) {
        let mut gpu = self.gpu.lock();
        for (kind, tier) in [(HOST, Tier::Pinned), (DISK, Tier::File)] {
            if let Some(choice) = measurements.pick(tier, PICKED_BYTES, Pattern::Sequential) {
                gpu.now[kind] = 1e9 / choice.bytes_per_s.max(1.0);
                gpu.start[kind] = gpu.now[kind];
            }
        }
    }

    fn learns(&self) -> bool {
        self.learns.load(Ordering::Relaxed)
    }
}

impl Columns {
    /// Checks that no table of a fragment is left to the CPU, and that the CPU is not estimated to be faster with the
    /// plan that the fragment replaces. Declared tables, and sessions that wait for columns or want errors, have
    /// chosen the device.
    ///
    /// # Errors
    /// The reason for the CPU.
    pub(crate) fn check_cost(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        fragment: &Fragment,
        options: &GpuOptions,
    ) -> Result<(), Reason> {
        if options.loads || options.strict {
            return Ok(());
        }
        let reads = reads(fragment)?;
        self.check_left_to_cpu(&reads)?;
        if self.are_declared(&reads) {
            return Ok(());
        }
        let (of_cpu, of_gpu) = (Scans::of(plan).amounts(), self.amounts(reads));
        let cpu = self.costs.cpu.lock().estimate(&of_cpu);
        let gpu = self.costs.gpu.lock().estimate(&of_gpu);
        match gpu > MARGIN * cpu {
            true => Err(Reason::of_estimates((cpu / 1e3) as u64, (gpu / 1e3) as u64)),
            false => Ok(()),
        }
    }

    /// Returns the timer of an aggregate on the CPU. Returns `None` for plans that return rows before they have read
    /// all, of which a device computes a part, or that read an unknown number of values.
    pub(crate) fn timer(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<Timer>> {
        let is_aggregate = plan.downcast_ref::<AggregateExec>().is_some_and(is_last);
        if !is_aggregate || !self.costs.learns() {
            return None;
        }
        let scans = Scans::of(plan);
        (!scans.has_fragment && scans.values < u64::MAX).then(|| {
            Arc::new(Timer {
                costs: Arc::clone(&self.costs),
                amounts: scans.amounts(),
                began: OnceLock::new(),
                left: AtomicUsize::new(plan.properties().partitioning.partition_count()),
            })
        })
    }
}

impl Work {
    /// Corrects the rates of the device by a run that waited for neither columns, kernels nor other plans.
    pub(crate) fn learn(&self, figures: &Figures, partitions: &[Vec<RecordBatch>]) {
        let costs = &self.columns.costs;
        let has_waited = self.options.loads
            || !self.plans.is_empty()
            || !figures.compiled.is_zero()
            || !figures.searched.is_zero();
        if has_waited || !costs.learns() {
            return;
        }
        let rows = partitions.iter().flatten().map(RecordBatch::num_rows);
        let (tables, bytes) = (self.fragment.sources.len() as u64, figures.bytes);
        let (disk, rows) = (figures.from_disk.bytes, rows.sum::<usize>() as u64);
        let amounts = [1, tables, bytes.device, bytes.host, disk, rows];
        let took = figures.began.elapsed();
        costs.gpu.lock().correct(&amounts, took);
    }
}

/// Corrects the rates of the CPU by the time from when a plan begins until all its partitions have returned rows, or
/// ended.
#[derive(Debug)]
pub(crate) struct Timer {
    costs: Arc<Costs>,
    amounts: [u64; CPU_KINDS],
    began: OnceLock<Instant>,
    /// Number of partitions that have returned nothing.
    left: AtomicUsize,
}

impl Timer {
    /// Returns the rows of a partition, which a timer measures if there is one.
    pub(crate) fn timed(
        timer: Option<&Arc<Timer>>,
        rows: SendableRecordBatchStream,
    ) -> SendableRecordBatchStream {
        let Some(timer) = timer.cloned() else {
            return rows;
        };
        let schema = rows.schema();
        let rows = stream::once(async move {
            let began = *timer.began.get_or_init(Instant::now);
            let mut rows = rows.peekable();
            let has_failed = matches!(Pin::new(&mut rows).peek().await, Some(Err(_)));
            if !has_failed && timer.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                let mut rates = timer.costs.cpu.lock();
                rates.correct(&timer.amounts, began.elapsed());
            }
            rows
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows.flatten()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_the_median_of_runs_within_limits() {
        let mut rates = Rates::new([100_000.0, 2.0]);
        let small = [1, 10];
        // One that took long for another reason.
        rates.correct(&small, Duration::from_secs(60));
        assert_eq!(rates.now, [100_000.0 * STEP, 2.0]);
        for run in 0..200 {
            let took = if run % 3 == 0 { 9_000 } else { 300 };
            rates.correct(&small, Duration::from_micros(took));
        }
        assert!((250_000.0..350_000.0).contains(&rates.now[0]), "{rates:?}");
        // Most of the time of a large table is that of its values.
        let (before, large) = (rates.now[0], [1, 1_000_000_000]);
        for _ in 0..200 {
            rates.correct(&large, Duration::from_secs(3600));
        }
        assert_eq!(rates.now, [before, 2.0 * CHANGE_MAX]);
        for _ in 0..200 {
            rates.correct(&large, Duration::ZERO);
        }
        assert_eq!(rates.now, [before, 2.0 / CHANGE_MAX]);
    }

    #[test]
    fn rates_start_with_those_that_were_measured() {
        let measured = r#"{"rates": [
            {"source": "pinned", "way": "pinned-copy", "chunk_bytes": 1024, "bytes_per_s": 5e10},
            {"source": "file", "way": "staged-uring", "chunk_bytes": 1024, "bytes_per_s": 2e9}
        ]}"#;
        let costs = Costs::default();
        costs.set(&serde_json::from_str(measured).expect("measurements"));
        let gpu = costs.gpu.lock();
        assert_eq!((gpu.now[HOST], gpu.now[DISK]), (0.02, 0.5));
        assert_eq!(gpu.now, gpu.start);
    }
}
