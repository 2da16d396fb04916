//! Which processors should join two sides, from their measured rates.

use forebay_hash_index::{TableShape, Workload};

use super::Strategy;
use crate::predict::TableRates;

/// Maximum time of a strategy with CPU and GPUs, as a fraction of the time of one processor alone. The processors
/// share the bandwidth of host memory, which the prediction leaves out.
const GAIN: f64 = 0.95;

/// Rates of the GPUs with sides in pinned host memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuRates {
    /// Their tables in device memory. The rates include the bus, over which the rows come. Inserts are those of one
    /// GPU, because each builds a table of all rows; probes are those of all GPUs together.
    pub table: TableRates,
    /// Bytes per second of the copy of one GPU's table to host memory.
    pub copy_bytes_per_s: f64,
}

/// Rates of the processors of a join.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// All cores together, with a table in host memory. The time of inserts includes its allocation.
    pub cpu: TableRates,
    /// The GPUs; `None` without a GPU.
    pub gpu: Option<GpuRates>,
}

/// A processor that probes.
#[derive(Debug, Clone, Copy)]
struct Prober {
    /// The time when its table is complete, in seconds.
    ready_s: f64,
    /// Rows per second.
    rate: f64,
}

/// Returns the strategy with which a join by tables with linear probing is predicted to end first. The CPU alone or
/// the GPUs alone are chosen over strategies with both that gain less than 5 %.
pub fn choose(rates: &Rates, join: &Workload) -> Strategy {
    let mut best = (Strategy::Cpu, seconds(Strategy::Cpu, rates, join));
    if rates.gpu.is_none() {
        return best.0;
    }
    let alone = seconds(Strategy::Gpu, rates, join);
    if alone <= best.1 {
        best = (Strategy::Gpu, alone);
    }
    let alone = best.1;
    for strategy in [Strategy::GpuBuilds, Strategy::GpuAndCpu] {
        let together = seconds(strategy, rates, join);
        if together <= alone * GAIN && together < best.1 {
            best = (strategy, together);
        }
    }
    best.0
}

/// Returns the predicted time of a join in seconds; infinite if it needs a GPU and there is none.
fn seconds(strategy: Strategy, rates: &Rates, join: &Workload) -> f64 {
    let prober = |table: &TableRates| Prober {
        ready_s: time_s(join.build_rows as f64, table.inserts_per_s),
        rate: table.probes_per_s,
    };
    let cpu = prober(&rates.cpu);
    let rows = join.probe_rows as f64;
    if strategy == Strategy::Cpu {
        return alone_s(cpu, rows);
    }
    let Some(of_gpu) = &rates.gpu else {
        return f64::INFINITY;
    };
    let gpu = prober(&of_gpu.table);
    match strategy {
        Strategy::Cpu | Strategy::Gpu => alone_s(gpu, rows),
        Strategy::GpuAndCpu => together_s(cpu, gpu, rows),
        Strategy::GpuBuilds => {
            let shape = TableShape::linear_probing(join.width, join.build_rows);
            let copy_s = time_s(shape.slot_bytes() as f64, of_gpu.copy_bytes_per_s);
            let ready_s = gpu.ready_s + copy_s;
            together_s(Prober { ready_s, ..cpu }, gpu, rows)
        }
    }
}

/// Returns the time in which one processor probes with all rows.
fn alone_s(prober: Prober, rows: f64) -> f64 {
    prober.ready_s + time_s(rows, prober.rate)
}

/// Returns the time in which two processors probe with all rows. Each begins when its table is complete, and both end
/// at the same time.
fn together_s(one: Prober, other: Prober, rows: f64) -> f64 {
    let (first, second) = match one.ready_s <= other.ready_s {
        true => (one, other),
        false => (other, one),
    };
    let alone = alone_s(first, rows);
    if alone <= second.ready_s {
        return alone;
    }
    let before = first.rate * (second.ready_s - first.ready_s);
    second.ready_s + time_s(rows - before, first.rate + second.rate)
}

/// Returns a time in seconds: 0 for nothing, at any rate.
fn time_s(count: f64, per_s: f64) -> f64 {
    if count <= 0.0 {
        return 0.0;
    }
    count / per_s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::WORKLOAD_A;

    /// 16 cores beside an H100 on PCIe 5, about as recorded: `join-cpu/a/linear-probing` and
    /// `join-a-pinned/ring/linear-probing`.
    fn recorded() -> Rates {
        Rates {
            cpu: TableRates {
                inserts_per_s: 0.12e9,
                probes_per_s: 0.25e9,
            },
            gpu: Some(GpuRates {
                table: TableRates {
                    inserts_per_s: 3.3e9,
                    probes_per_s: 3.3e9,
                },
                copy_bytes_per_s: 55e9,
            }),
        }
    }

    /// Returns the recorded rates with those of the CPU times a factor.
    fn with_cpu(times: f64) -> Rates {
        let TableRates {
            inserts_per_s,
            probes_per_s,
        } = recorded().cpu;
        Rates {
            cpu: TableRates {
                inserts_per_s: times * inserts_per_s,
                probes_per_s: times * probes_per_s,
            },
            ..recorded()
        }
    }

    fn workload(build_rows: u64, probe_rows: u64) -> Workload {
        Workload {
            build_rows,
            probe_rows,
            ..WORKLOAD_A
        }
    }

    #[test]
    fn without_a_gpu_the_cpu_joins() {
        let rates = Rates {
            gpu: None,
            ..recorded()
        };
        assert_eq!(choose(&rates, &WORKLOAD_A), Strategy::Cpu);
        assert_eq!(choose(&rates, &workload(0, 0)), Strategy::Cpu);
        assert!(seconds(Strategy::Gpu, &rates, &WORKLOAD_A).is_infinite());
    }

    #[test]
    fn a_slow_cpu_leaves_the_gpu_alone_and_a_slow_gpu_the_cpu() {
        // Two cores: they would take 1 % of the rows.
        assert_eq!(choose(&with_cpu(0.125), &WORKLOAD_A), Strategy::Gpu);
        // A GPU behind a slow bus.
        assert_eq!(choose(&with_cpu(1000.0), &WORKLOAD_A), Strategy::Cpu);
    }

    #[test]
    fn a_cpu_that_builds_slowly_gets_a_copy_of_the_table() {
        let rates = recorded();
        assert_eq!(choose(&rates, &WORKLOAD_A), Strategy::GpuBuilds);
        // The GPU has nearly ended when the CPU's own table is complete.
        let own = seconds(Strategy::GpuAndCpu, &rates, &WORKLOAD_A);
        let alone = seconds(Strategy::Gpu, &rates, &WORKLOAD_A);
        assert_eq!(own, alone);
        // The copy takes as long as all probes by the GPU.
        let few = workload(1 << 27, 1 << 27);
        assert_eq!(choose(&rates, &few), Strategy::Gpu);
    }

    #[test]
    fn a_cpu_that_builds_fast_builds_its_own_table() {
        let mut rates = with_cpu(4.0);
        rates.cpu.inserts_per_s = 3e9;
        assert_eq!(choose(&rates, &WORKLOAD_A), Strategy::GpuAndCpu);
    }

    #[test]
    fn both_processors_end_at_once() {
        let prober = |ready_s, rate| Prober { ready_s, rate };
        // 10 rows before the other begins, then 30 by both.
        let both = [prober(1.0, 10.0), prober(2.0, 5.0)];
        for [one, other] in [both, [both[1], both[0]]] {
            assert!((together_s(one, other, 40.0) - 4.0).abs() < 1e-9);
            assert!((together_s(one, other, 5.0) - 1.5).abs() < 1e-9);
            assert!((together_s(one, other, 0.0) - 1.0).abs() < 1e-9);
        }
    }
}
