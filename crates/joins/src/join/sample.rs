//! Which processor divides both sides in less time, by a sample of their rows.

use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::cuda::Part;

use super::{HostMemory, PartitionedJoin};
use crate::{FirstPass, JoinError, JoinPlan, PinnedColumns};

/// Runs of a sample for each thread of the CPU.
const RUNS_OF_THREAD: usize = 4;
/// Divisor of the runs of a side: a sample has at most this part of them, so that a processor that is many times slower
/// than the other takes little of the time of the join.
const SAMPLE_FRACTION: usize = 32;

/// The times in which both processors divided the same sample of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleTimes {
    /// The time of the CPU.
    pub cpu: Duration,
    /// The time of the GPU.
    pub gpu: Duration,
}

impl SampleTimes {
    /// Returns whether the CPU divides both sides.
    fn is_by_cpu(&self) -> bool {
        self.cpu < self.gpu
    }
}

impl PartitionedJoin {
    /// Chooses the processor that divides both sides. Returns whether it is the CPU. Measures a sample if the plan
    /// names no processor, and no join before has done it.
    pub(super) fn choose_cpu(
        &mut self,
        heavy_keys: &[u64],
        sides: [&PinnedColumns; 2],
        stop: &Stop,
    ) -> Result<bool, JoinError> {
        match self.plan.first_pass {
            FirstPass::Gpu => return Ok(false),
            FirstPass::Cpu => return Ok(true),
            FirstPass::Choose => {}
        }
        if self.sample.is_none() {
            self.sample = self.sample_times(heavy_keys, sides, stop)?;
        }
        Ok(self.sample.is_some_and(|times| times.is_by_cpu()))
    }

    /// Measures both processors; `None` if there is no sample.
    fn sample_times(
        &mut self,
        heavy_keys: &[u64],
        sides: [&PinnedColumns; 2],
        stop: &Stop,
    ) -> Result<Option<SampleTimes>, JoinError> {
        let (side, runs) = sample_of(&self.plan);
        if runs == 0 {
            return Ok(None);
        }
        let mut time = |is_by_cpu| -> Result<Duration, JoinError> {
            // The first run warms up: kernels are compiled.
            self.divide_sample((is_by_cpu, heavy_keys), (sides[side], side, 1), stop)?;
            self.divide_sample((is_by_cpu, heavy_keys), (sides[side], side, runs), stop)
        };
        let gpu = time(false)?;
        let cpu = time(true)?;
        Ok(Some(SampleTimes { cpu, gpu }))
    }

    /// Divides the first `runs` runs of a side by one processor, and drops them. Returns the time until they are where
    /// a join has them.
    fn divide_sample(
        &mut self,
        (is_by_cpu, heavy_keys): (bool, &[u64]),
        (rows, side, runs): (&PinnedColumns, usize, usize),
        stop: &Stop,
    ) -> Result<Duration, JoinError> {
        let divider = self.divider(is_by_cpu, heavy_keys)?;
        let slices = self.slices_of(&divider, (side, runs))?;
        let host = self.host_memory(stop)?;
        // Most runs of a large join spill.
        let resident = match runs <= self.plan.in_host {
            true => Vec::new(),
            false => self.memory.resident.clone(),
        };
        let mut memory = self.run_memory(resident, self.parts(host.runs));
        memory.staging = self.parts(host.staging);
        let chunks = rows.chunks(self.plan.ring.slot_bytes, 0..runs);
        let began = Instant::now();
        let pass = (&divider, stop);
        let (divided, mut memory) =
            self.divide(&chunks, (slices, side, &(0..runs)), memory, pass)?;
        for place in divided.runs {
            let ended = place.finish();
            let ended = ended.map_err(|fault| JoinError::lost(&self.device, &fault))?;
            memory.spill.extend(ended.into_host());
        }
        let took = began.elapsed();
        self.host = Some(HostMemory {
            runs: Part::join(memory.spill),
            halves: host.halves,
            staging: Part::join(memory.staging),
        });
        Ok(took)
    }
}

/// Returns the side of a sample, the one with more rows, and the number of its runs; 0 if there is no sample.
fn sample_of(plan: &JoinPlan) -> (usize, usize) {
    let side = usize::from(plan.runs[1] > plan.runs[0]);
    let room = plan.resident + plan.in_host;
    let runs = RUNS_OF_THREAD * plan.threads;
    let runs = runs.min(plan.runs[side] / SAMPLE_FRACTION).min(room);
    // A sample would not show what accesses to a filter of all keys cost.
    let runs = if plan.has_filter { 0 } else { runs };
    (side, runs)
}

#[cfg(test)]
mod tests {
    use forebay_hash_index::Width;
    use forebay_movement::RingOptions;

    use super::*;
    use crate::JoinOptions;

    fn plan(rows: [u64; 2], threads: usize, has_filter: bool) -> JoinPlan {
        let options = JoinOptions {
            device_bytes: 8 << 30,
            host_bytes: 64 << 30,
            spill_directory: None,
            ring: RingOptions {
                slots: 8,
                slot_bytes: 16 << 20,
            },
            has_filter,
            first_pass: FirstPass::Choose,
            threads,
        };
        JoinPlan::new(Width::Eight, rows, options).expect("enough memory")
    }

    #[test]
    fn a_sample_has_few_runs_of_the_larger_side() {
        let large = [1_024_000_000; 2];
        assert_eq!(sample_of(&plan(large, 2, false)), (0, 8));
        assert_eq!(sample_of(&plan(large, 64, false)), (0, 30));
        assert_eq!(sample_of(&plan([1 << 20, 1 << 30], 16, false)), (1, 32));
        assert_eq!(sample_of(&plan([1 << 24, 1 << 20], 16, false)).1, 0);
        assert_eq!(sample_of(&plan([0, 0], 16, false)).1, 0);
        assert_eq!(sample_of(&plan(large, 16, true)).1, 0);
        let mut on_disk = plan(large, 16, false);
        (on_disk.resident, on_disk.in_host) = (1, 2);
        assert_eq!(sample_of(&on_disk), (0, 3));
    }

    #[test]
    fn the_cpu_divides_if_it_is_faster() {
        for (cpu_ms, gpu_ms, is_by_cpu) in [(1, 2, true), (2, 2, false), (3, 2, false)] {
            let times = SampleTimes {
                cpu: Duration::from_millis(cpu_ms),
                gpu: Duration::from_millis(gpu_ms),
            };
            assert_eq!(times.is_by_cpu(), is_by_cpu);
        }
    }
}
