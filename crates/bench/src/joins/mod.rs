//! `forebay bench joins`: hash joins of generated rows in device memory, from host memory, on the CPU, and by several
//! processors.
//!
//! The workloads are A, B and C of Lutz et al. (SIGMOD 2020, table 2), and A with keys or payloads of other widths;
//! some sections have others. Every run must find the number of matches and the sums of both payloads that the
//! generator's formulas give, which use no hash table.

mod co_processing;
mod device;
mod figures;
mod gpus;
mod host;
mod hybrid;
mod locality;
mod moved;
mod pinned;
mod place;
pub(crate) mod plots;
mod report;
mod scaling;
mod section;
mod size;
mod spilled;
mod table;

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use forebay_device::cuda::gpus;
use forebay_device::{Device, DeviceOptions, Devices, HaltingDevices};
use forebay_hash_index::{JoinTotals, TableShape, Workload};
use forebay_movement::RingOptions;

use crate::results::ResultArgs;
use place::Place;
use report::{Case, Report, Sample};
use section::{Section, has_named, names, sections};
use size::{Tuples, scale};
use spilled::{Spilled, SpilledArgs};
use table::{COMPOSITE_TABLES, TABLES, Table};

/// Bytes of pinned memory of the device, for the ring.
const PINNED_BYTES: u64 = 256 << 20;
/// Slots of the ring.
const RING_SLOTS: usize = 8;
/// Bytes of a page, of which the slots of the ring consist.
const PAGE_BYTES: usize = 4096;
/// Bytes of device memory of a smoke run.
const SMOKE_BYTES: u64 = 1 << 30;
/// Default size of a chunk in the ring.
const CHUNK_BYTES: usize = 16 << 20;
/// Maximum number of runs of a measurement.
const ROUNDS_MAX: u64 = 1 << 20;
/// A join that takes longer is not repeated.
const SLOW: Duration = Duration::from_secs(10);

/// Options of `forebay bench joins`.
#[derive(Args, Clone, Debug)]
pub struct JoinsArgs {
    /// Fraction of the paper's tuples, from 0.00001 to 4. 1 needs 60 GiB of device memory and 110 GiB of host memory,
    /// or 48 and 72 GiB without the workload `composite`. The build sides of the workloads are not scaled below
    /// 262,144 tuples; sections that have workloads of their own also have minimums of their own.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.015625, value_parser = scale)]
    pub scale: f64,
    /// Measure only these workloads. The sections `pinned`, `gpus`, `co-processing` and `locality` have `a`, `b` and
    /// `c`; `hybrid`, `spilled`, `figures`, `skew-host`, `probe-scaling` and `build-scaling` have workloads of their
    /// own.
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub workloads: Vec<Tuples>,
    /// Measure only these sections. The default is `device,pinned,cpu`. Each of the others must be named alone, because
    /// it needs the memory that a second section would hold. `--plot` draws these others.
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    pub only: Vec<Section>,
    /// Measure only these tables.
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub tables: Vec<Table>,
    /// Size of a chunk in the ring, half keys and half payloads: a multiple of 4 KiB, at most 32 MiB. The default is
    /// 16M. Only the sections `pinned`, `spilled`, `figures`, `co-processing`, `probe-scaling` and `build-scaling` have
    /// a ring.
    #[arg(long, value_name = "SIZE", value_parser = chunk_bytes())]
    pub chunk_bytes: Option<usize>,
    /// Options of the sections `spilled` and `build-scaling`.
    #[command(flatten)]
    pub spilled: SpilledArgs,
    /// Runs of each measurement, at least 1, after one that warms up. A join that takes longer than ten seconds runs
    /// only once.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = rounds())]
    pub rounds: usize,
    /// Run every section once on few tuples, to check that it works; the measured times mean nothing. With
    /// `--workloads` or `--tables`, sections that have none of them are left out.
    #[arg(long, conflicts_with_all = [
        "scale", "rounds", "device_bytes", "host_bytes", "spill_directory", "selectivity", "filter", "first_pass"
    ])]
    pub smoke: bool,
    /// What becomes of the results.
    #[command(flatten)]
    pub results: ResultArgs,
}

impl JoinsArgs {
    /// Returns the named workloads in order. If none is named, returns all that one of the named tables supports.
    fn tuples(&self) -> impl Iterator<Item = Tuples> {
        let named = Tuples::ALL.into_iter();
        let named = named.filter(move |tuples| has_named(&self.workloads, &[*tuples]));
        named.filter(move |tuples| *tuples != Tuples::Composite || self.has_composite())
    }

    /// Returns whether one of the named tables supports composite keys.
    fn has_composite(&self) -> bool {
        has_named(&self.tables, &COMPOSITE_TABLES)
    }

    /// Returns a workload of this run.
    fn workload(&self, tuples: Tuples) -> Workload {
        match self.smoke {
            true => tuples.smoke(),
            false => tuples.scaled(self.scale),
        }
    }

    /// Returns the workloads of this run that a section measures.
    fn workloads(&self, section: Section) -> Vec<(Tuples, Workload)> {
        let own = section.workloads();
        let tuples = self.tuples().filter(|tuples| own.contains(tuples));
        tuples.map(|it| (it, self.workload(it))).collect()
    }

    /// Returns the joins of the sections `spilled` and `build-scaling`.
    fn spilled(&self, ring: RingOptions) -> Spilled {
        match self.smoke {
            true => Spilled::smoke(),
            false => Spilled::scaled(self, ring),
        }
    }
}

/// A workload of this run, and its answer.
#[derive(Clone, Copy, Debug)]
struct Join {
    workload: Workload,
    answer: JoinTotals,
}

/// A join, and the first part of the names of its cases.
type Named<'a> = (&'a str, &'a Join);

/// A run: its devices and the results so far.
struct Session {
    devices: Option<HaltingDevices>,
    tables: Vec<Table>,
    ring: RingOptions,
    threads: usize,
    rounds: usize,
    is_smoke: bool,
    report: Report,
}

/// Measures what the options name.
///
/// # Errors
/// If an option has no effect, a join gives a wrong answer, memory is too small, or a named section needs a GPU and
/// there is none.
pub(crate) fn run(args: &JoinsArgs) -> Result<()> {
    let no_gpu = gpus().err().map(|error| error.to_string());
    let sections = sections(args, no_gpu.as_deref())?.into_iter();
    let has_devices = |section: &Section| no_gpu.is_none() || !section.needs_gpu();
    let (sections, left_out): (Vec<Section>, Vec<Section>) = sections.partition(has_devices);
    let (alone, others): (Vec<Section>, Vec<Section>) =
        sections.into_iter().partition(|section| section.is_alone());
    let mut session = Session::start(args, &others)?;
    if let Some(why) = no_gpu.filter(|_| !left_out.is_empty()) {
        let text = format!("left out, as they need a GPU: {} ({why})", names(&left_out));
        session.report.note(&text);
    }
    for tuples in args.tuples() {
        let of_tuples = others.iter().filter(|it| it.workloads().contains(&tuples));
        let of_tuples: Vec<&Section> = of_tuples.collect();
        if of_tuples.is_empty() {
            continue;
        }
        let join = session.join(tuples, args.workload(tuples));
        for section in of_tuples {
            session.measure(*section, tuples.name(), &join)?;
        }
    }
    for section in alone {
        session.measure_alone(section, args)?;
    }
    session.report.results.end()
}

/// Returns the parser of the size of a chunk.
fn chunk_bytes() -> impl Fn(&str) -> Result<usize, String> + Clone {
    let most = PINNED_BYTES as usize / RING_SLOTS;
    crate::size::multiples(PAGE_BYTES, PAGE_BYTES..=most)
}

/// Returns the parser of a number of runs.
fn rounds() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=ROUNDS_MAX)
}

impl Session {
    /// Starts the results, and the first GPU if one of these sections needs it.
    fn start(args: &JoinsArgs, sections: &[Section]) -> Result<Session> {
        let report = Report::begin(&args.results)?;
        let budget_bytes = args.smoke.then_some(SMOKE_BYTES);
        let devices = match sections.iter().any(|section| section.needs_gpu()) {
            true => Some(start_gpus("cuda:0", budget_bytes)?),
            false => None,
        };
        let tables = match args.tables.is_empty() {
            true => TABLES.to_vec(),
            false => args.tables.clone(),
        };
        Ok(Session {
            devices,
            tables,
            ring: RingOptions {
                slots: RING_SLOTS,
                slot_bytes: args.chunk_bytes.unwrap_or(CHUNK_BYTES),
            },
            threads: forebay_device::cores(),
            rounds: if args.smoke { 1 } else { args.rounds },
            is_smoke: args.smoke,
            report,
        })
    }

    /// Computes the answer of a workload from its formulas.
    fn answer(&self, workload: Workload) -> Join {
        let answer = workload.answer(self.threads);
        Join { workload, answer }
    }

    /// Computes the answer of a named workload, and notes its rows.
    fn join(&self, tuples: Tuples, workload: Workload) -> Join {
        self.report.note(&format!(
            "workload {}: {} by {} tuples, keys of {} bytes and payloads of {}",
            tuples.name(),
            workload.build_rows,
            workload.probe_rows,
            workload.width.key_bytes(),
            workload.width.payload_bytes()
        ));
        self.answer(workload)
    }

    /// Returns the tables of a workload that a run measures, with their shapes.
    fn shapes(&self, workload: &Workload) -> Vec<(Table, TableShape)> {
        let tables = self.tables.iter();
        tables
            .filter_map(|table| Some((*table, table.shape(workload)?)))
            .collect()
    }

    fn gpu(&self) -> Option<Arc<Device>> {
        self.devices.as_ref()?.list().into_iter().next()
    }

    /// Measures a workload in a section that is not [alone](Section::is_alone).
    fn measure(&mut self, section: Section, name: &str, join: &Join) -> Result<()> {
        match (section, self.gpu()) {
            (Section::Cpu, _) => host::measure(self, join, &format!("join-cpu/{name}")),
            (Section::Device, Some(gpu)) => {
                let name = format!("join-{name}-device");
                device::measure(self, slice::from_ref(&gpu), (join, Place::Device), &name)
            }
            (Section::Pinned, Some(gpu)) => {
                pinned::measure(self, &gpu, join, &format!("join-{name}-pinned"))
            }
            _ => Ok(()),
        }
    }

    /// Measures a section that is [alone](Section::is_alone).
    fn measure_alone(&mut self, section: Section, args: &JoinsArgs) -> Result<()> {
        match section {
            Section::Device | Section::Pinned | Section::Cpu => Ok(()),
            Section::Hybrid => {
                let scale = if args.smoke { 0.0 } else { args.scale };
                hybrid::measure(self, hybrid::workload(scale))
            }
            Section::Spilled => {
                let spilled = args.spilled(self.ring);
                spilled::measure(self, spilled)
            }
            Section::Gpus => gpus::measure(self, &args.workloads(section)),
            Section::Figures => figures::measure(self, args.scale),
            Section::SkewHost => figures::measure_skew_host(self, args.scale),
            Section::CoProcessing => co_processing::measure(self, &args.workloads(section)),
            Section::Locality => locality::measure(self, &args.workloads(section)),
            Section::ProbeScaling => scaling::measure_probe_sides(self, args.scale),
            Section::BuildScaling => {
                let spilled = args.spilled(self.ring);
                scaling::measure_build_sides(self, args.scale, &spilled)
            }
        }
    }

    /// Runs a join once to warm up, then as often as the options say; a join that is [`SLOW`] only once. Checks all
    /// answers, and reports the times of all runs but the one that warms up. Returns their samples.
    fn add(
        &mut self,
        (name, devices): (String, &str),
        join: &Join,
        mut once: impl FnMut() -> Result<Sample>,
    ) -> Result<Vec<Sample>> {
        let first = once()?;
        let timed: Vec<Sample> = match first.time() > SLOW {
            true => vec![first],
            false => (0..self.rounds).map(|_| once()).collect::<Result<_>>()?,
        };
        let case = Case {
            name: &name,
            devices,
            workload: &join.workload,
        };
        self.report.add(case, join.answer, (&first, &timed))?;
        Ok(timed)
    }
}

/// Starts GPUs, such as `cuda:0` or `cuda` for all, with a budget or most of the memory of each.
///
/// # Errors
/// If there is no such GPU, or memory is too small.
fn start_gpus(spec: &str, budget_bytes: Option<u64>) -> Result<HaltingDevices> {
    let options = DeviceOptions {
        cuda_memory_budget_bytes: budget_bytes,
        pinned_pool_bytes: PINNED_BYTES,
        ..DeviceOptions::default()
    };
    Ok(Devices::new(&spec.parse()?, options)?.into())
}

#[cfg(test)]
mod tests;
