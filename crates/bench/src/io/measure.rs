//! What a measurement found.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::cell::{Cell, Offsets};
use super::content::Files;
use crate::q6::usage::{Meter, Usage};

/// Latencies and offsets of one thread.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Latency of each operation.
    pub(super) latencies: Vec<Duration>,
    /// Offsets that were written.
    pub(super) written: BTreeSet<u64>,
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) usage: Usage,
    /// Latencies, sorted.
    latencies: Vec<Duration>,
    /// Bytes of an operation.
    bytes: usize,
    /// Path that cuFile took, if it counts.
    pub(super) taken: Option<String>,
}

impl Found {
    /// # Errors
    /// If no operation was measured.
    pub(super) fn new(traces: &[Trace], usage: Usage, bytes: usize) -> Result<Found> {
        let all = traces.iter().flat_map(|trace| &trace.latencies);
        let mut latencies: Vec<Duration> = all.copied().collect();
        latencies.sort_unstable();
        latencies.first().context("no operation was measured")?;
        Ok(Found {
            usage,
            latencies,
            bytes,
            taken: None,
        })
    }

    pub(super) fn operations(&self) -> usize {
        self.latencies.len()
    }

    pub(super) fn operations_per_s(&self) -> f64 {
        self.operations() as f64 / self.usage.elapsed.as_secs_f64()
    }

    pub(super) fn mb_per_s(&self) -> f64 {
        self.operations_per_s() * self.bytes as f64 / 1e6
    }

    /// Returns the latency in microseconds that a share of the operations does not exceed.
    pub(super) fn latency_us(&self, share: f64) -> f64 {
        let last = self.latencies.len() - 1;
        let index = (last as f64 * share).ceil() as usize;
        self.latencies[index.min(last)].as_secs_f64() * 1e6
    }

    /// Returns a CPU time in percent of one core.
    pub(super) fn percent(&self, time: Duration) -> f64 {
        100.0 * time.as_secs_f64() / self.usage.elapsed.as_secs_f64()
    }
}

/// How much a run of a cell does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// As many operations as begin in this time, but at least one of each thread.
    Time(Duration),
    /// The whole file once. The bytes of each operation are checked, so its rate means nothing.
    Checked,
}

/// What is run: a cell over files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task<'a> {
    pub(super) cell: &'a Cell,
    pub(super) files: &'a Files,
    /// Seed of the content that is written.
    pub(super) seed: u64,
    pub(super) extent: Extent,
}

impl Task<'_> {
    /// Returns the offsets of one of several threads.
    pub(super) fn offsets(&self, thread: usize, threads: usize) -> Offsets {
        let wraps = self.extent != Extent::Checked;
        let bytes = self.files.bytes;
        self.cell.offsets(bytes, (thread, threads), wraps)
    }

    /// Checks the bytes of an operation, if each is checked.
    pub(super) fn check_each(&self, check: impl FnOnce() -> Result<()>) -> Result<()> {
        match self.extent {
            Extent::Checked => check(),
            Extent::Time(_) => Ok(()),
        }
    }
}

/// Decides whether a thread begins another operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    began: Instant,
    extent: Extent,
}

impl Clock {
    pub(super) fn start(extent: Extent) -> Clock {
        Clock {
            began: Instant::now(),
            extent,
        }
    }

    /// Returns whether another operation begins after `done` operations.
    pub(super) fn continues(&self, done: usize) -> bool {
        match self.extent {
            Extent::Time(budget) => done == 0 || self.began.elapsed() < budget,
            Extent::Checked => true,
        }
    }
}

/// Runs `prepare` and then `work` on each of several threads, and measures `work` alone. Returns what each thread
/// kept, such as its buffer, so that it is checked and freed outside of the measurement.
///
/// # Errors
/// The first error of a thread.
pub(super) fn on_threads<P, K: Send>(
    threads: usize,
    extent: Extent,
    prepare: impl Fn(usize) -> Result<P> + Sync,
    work: impl Fn(usize, P, Clock) -> Result<(Trace, K)> + Sync,
) -> Result<(Vec<Trace>, Vec<K>, Usage)> {
    let ready = Barrier::new(threads + 1);
    let go = Barrier::new(threads + 1);
    let run = |thread| {
        // A panic before the barriers would let the other threads wait for ever.
        let prepared = catch_unwind(AssertUnwindSafe(|| prepare(thread)));
        let prepared = prepared.unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
        ready.wait();
        go.wait();
        let clock = Clock::start(extent);
        let worked = prepared.and_then(|prepared| work(thread, prepared, clock));
        worked.map(|(trace, kept)| (trace, kept, clock.began, Instant::now()))
    };
    let (ended, mut usage) = std::thread::scope(|scope| {
        let spawned = (0..threads).map(|thread| {
            let run = &run;
            scope.spawn(move || run(thread))
        });
        let spawned: Vec<_> = spawned.collect();
        ready.wait();
        let meter = Meter::start();
        go.wait();
        let ended: Vec<_> = spawned.into_iter().map(|thread| thread.join()).collect();
        (ended, meter.stop())
    });
    let mut traces = Vec::new();
    let mut kept = Vec::new();
    let mut times = Vec::new();
    for result in ended {
        let (trace, keeps, began, ended) = result.map_err(|_| anyhow!("a thread panicked"))??;
        traces.push(trace);
        kept.push(keeps);
        times.push((began, ended));
    }
    // On a busy machine, this thread begins and ends later than those that work.
    let began = times.iter().map(|(began, _)| *began).min();
    let ended = times.iter().map(|(_, ended)| *ended).max();
    if let (Some(began), Some(ended)) = (began, ended) {
        usage.elapsed = ended - began;
    }
    Ok((traces, kept, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_are_those_of_all_threads() {
        let trace = |ms: &[u64]| Trace {
            latencies: ms.iter().copied().map(Duration::from_millis).collect(),
            ..Trace::default()
        };
        let usage = Usage {
            elapsed: Duration::from_secs(2),
            user: Duration::from_secs(1),
            ..Usage::default()
        };
        let found = Found::new(&[trace(&[4, 1]), trace(&[2, 3])], usage, 1_000_000);
        let found = found.expect("four operations");
        assert_eq!((found.operations_per_s(), found.mb_per_s()), (2.0, 2.0));
        assert_eq!(
            (found.latency_us(0.0), found.latency_us(0.99)),
            (1000.0, 4000.0)
        );
        assert_eq!(found.percent(found.usage.user), 50.0);
        assert!(Found::new(&[trace(&[])], usage, 1).is_err());
    }

    #[test]
    fn each_thread_works_once_even_without_time() {
        let ran = on_threads(
            3,
            Extent::Time(Duration::ZERO),
            |thread| Ok(thread * 10),
            |thread, prepared, clock| {
                assert!(clock.continues(0) && !clock.continues(1));
                Ok((Trace::default(), thread + prepared))
            },
        );
        let (traces, kept, _) = ran.expect("no thread fails");
        assert_eq!((traces.len(), kept), (3, vec![0, 11, 22]));
        let failed = on_threads(
            2,
            Extent::Time(Duration::ZERO),
            |thread| {
                anyhow::ensure!(thread == 0, "thread 1 fails");
                Ok(())
            },
            |_, (), _| Ok((Trace::default(), ())),
        );
        assert!(failed.is_err());
    }

    #[test]
    fn a_panic_before_the_start_ends_the_measurement() {
        let failed = on_threads(
            3,
            Extent::Time(Duration::ZERO),
            |thread| {
                assert_ne!(thread, 1, "the test's panic");
                Ok(())
            },
            |_, (), _| Ok((Trace::default(), ())),
        );
        let error = failed.map(|_| ()).expect_err("thread 1 panicked");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
