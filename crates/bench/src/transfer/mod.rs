//! `forebay bench transfer`: every way of moving bytes between host memory and GPUs, and reads of every memory.
//!
//! The measurements are those of figures 3 and 12 of Lutz et al. (SIGMOD 2020) and more: each transfer method by chunk
//! size, in both directions and in both at once; sequential, random and dependent reads of each memory that a processor
//! reaches. Every byte that is moved or read is checked. Allocation and pinning are measured apart.

mod methods;
pub(crate) mod plots;
mod reads;
mod report;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use forebay_device::cuda::gpus;
use forebay_device::{Device, DeviceOptions, DeviceSpec, Devices, HaltingDevices};
use forebay_movement::measure::Plan;
use forebay_movement::method::{StagedOptions, TransferMethod};

use crate::results::ResultArgs;
use crate::size;
use report::Report;

/// Chunk sizes of a run, in bytes.
const CHUNK_BYTES: [usize; 10] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
];
/// Chunk sizes of a smoke run.
const SMOKE_CHUNK_BYTES: [usize; 2] = [4 << 10, 64 << 10];
/// Bytes of device memory of a run. The rest of the card is left to unified memory.
const BUDGET_BYTES: u64 = 12 << 30;
/// Minimum bytes of a move and of a chunk: a page.
const BYTES_MIN: usize = 4096;
/// Maximum of an option that is a count.
const COUNT_MAX: u64 = 1 << 20;
/// Bytes of the pinned pool, from which staged copies take their buffers.
const POOL_BYTES: u64 = 512 << 20;
/// Bytes of device memory and of the pinned pool of a smoke run.
const SMOKE_BYTES: (u64, u64) = (64 << 20, 64 << 20);

/// Options of `forebay bench transfer`.
#[derive(Args, Clone, Debug)]
pub struct TransferArgs {
    /// Devices to measure: the first GPU, and its links to the others.
    #[arg(long, value_name = "LIST", default_value = "cuda")]
    pub devices: DeviceSpec,
    /// Measure only these sections.
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    pub only: Vec<Section>,
    /// Measure only these methods.
    #[arg(long, value_name = "METHOD", value_delimiter = ',')]
    pub methods: Vec<TransferMethod>,
    /// Sizes of a chunk, which one copy, prefetch or kernel moves, such as 64K,16M; from 4 KiB to 12 GiB.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = bytes())]
    pub chunk_bytes: Vec<usize>,
    /// Size of each move, such as 4G, from 4 KiB to 12 GiB; small chunks move less.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = bytes())]
    pub bytes: usize,
    /// Runs of each measurement of a transfer, at least 1; fewer of one that takes more than a second a run.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = count())]
    pub rounds: usize,
    /// Threads of the staged copy; three quarters of the cores by default.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    pub staged_threads: Option<usize>,
    /// Pinned buffers of each thread of the staged copy.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    pub staged_buffers: Option<usize>,
    /// Run quickly on little data, to check that every measurement works; the measured times mean nothing. Moves have
    /// 1 MiB.
    #[arg(long, conflicts_with = "bytes")]
    pub smoke: bool,
    /// What becomes of the results.
    #[command(flatten)]
    pub results: ResultArgs,
}

/// Returns the parser of a number of bytes that are moved.
fn bytes() -> impl Fn(&str) -> Result<usize, String> + Clone {
    size::multiples(1, BYTES_MIN..=BUDGET_BYTES as usize)
}

/// Returns the parser of a number of which there is at least one.
fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=COUNT_MAX)
}

/// The sections of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Reads of host memory by the processor.
    Cpu,
    /// Reads of device, host and peer memory by a GPU.
    Reads,
    /// Transfer methods by chunk size, in each direction.
    Methods,
    /// Transfer methods in both directions at once.
    Both,
    /// Copies from one GPU to another.
    Peers,
}

/// Every section.
const SECTIONS: [Section; 5] = [
    Section::Cpu,
    Section::Reads,
    Section::Methods,
    Section::Both,
    Section::Peers,
];

/// A run: its sizes, its devices and the results so far.
struct Session {
    /// The devices; empty if no GPU can be used.
    gpus: Vec<Arc<Device>>,
    /// Methods that the first GPU has and the options name.
    methods: Vec<TransferMethod>,
    plan: Plan,
    chunk_bytes: Vec<usize>,
    bytes: usize,
    rounds: usize,
    staged: StagedOptions,
    report: Report,
}

/// Measures the sections that the options name.
///
/// # Errors
/// If a named section needs a GPU and there is none, bytes are moved or read wrongly, or a file cannot be written.
pub(crate) fn run(args: &TransferArgs) -> Result<()> {
    let report = Report::begin(&args.results)?;
    let devices = start(args, &report)?.map(HaltingDevices::from);
    let gpus = devices
        .as_ref()
        .map(|devices| devices.list())
        .unwrap_or_default();
    let methods = match gpus.first() {
        Some(gpu) => methods::available(gpu, &args.methods, &report),
        None => Vec::new(),
    };
    let mut session = Session {
        plan: plan(args, gpus.first()),
        gpus,
        methods,
        chunk_bytes: chunks(args),
        bytes: if args.smoke { 1 << 20 } else { args.bytes },
        rounds: args.rounds,
        staged: staged(args),
        report,
    };
    for section in SECTIONS {
        if args.only.is_empty() || args.only.contains(&section) {
            session.measure(section)?;
        }
    }
    session.report.results.end()
}

impl Session {
    fn measure(&mut self, section: Section) -> Result<()> {
        match section {
            Section::Cpu => reads::by_cpu(self),
            _ if self.gpus.is_empty() => Ok(()),
            Section::Reads => reads::by_gpu(self),
            Section::Methods => methods::by_chunk(self),
            Section::Both => methods::both_at_once(self),
            Section::Peers => methods::between_gpus(self),
        }
    }
}

/// Starts the GPUs. Without a GPU, returns `None` and says why, unless a section needs one.
fn start(args: &TransferArgs, report: &Report) -> Result<Option<Devices>> {
    let card_bytes = gpus().map(|gpus| gpus.iter().map(|gpu| gpu.memory_bytes).min());
    let (budget_bytes, pool_bytes) = match card_bytes {
        _ if args.smoke => SMOKE_BYTES,
        Ok(Some(card_bytes)) => (BUDGET_BYTES.min(card_bytes / 3), POOL_BYTES),
        _ => (BUDGET_BYTES, POOL_BYTES),
    };
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(budget_bytes),
        pinned_pool_bytes: pool_bytes,
        ..DeviceOptions::default()
    };
    let error = match Devices::new(&args.devices, options) {
        Ok(devices)
            if devices
                .list()
                .iter()
                .any(|device| device.details().is_none()) =>
        {
            bail!(
                "{} are not all GPUs; use `cuda` or `cuda:<number>`",
                args.devices
            )
        }
        Ok(devices) => return Ok(Some(devices)),
        Err(error) => error,
    };
    if args.only.iter().any(|section| *section != Section::Cpu) {
        return Err(error).context("the sections need a GPU");
    }
    report.note(&format!("only the processor is measured: {error}"));
    Ok(None)
}

/// Returns the sizes of the reads. They leave room for other data in the device memory.
fn plan(args: &TransferArgs, gpu: Option<&Arc<Device>>) -> Plan {
    if args.smoke {
        return Plan::smoke();
    }
    let full = Plan::full();
    let most = gpu.map_or(full.device_bytes as u64, |gpu| {
        gpu.memory_budget_bytes() / 4 * 3
    });
    let mut plan = full;
    while plan.device_bytes as u64 > most {
        plan.device_bytes /= 2;
    }
    plan
}

fn chunks(args: &TransferArgs) -> Vec<usize> {
    match (args.chunk_bytes.is_empty(), args.smoke) {
        (false, _) => args.chunk_bytes.clone(),
        (true, true) => SMOKE_CHUNK_BYTES.to_vec(),
        (true, false) => CHUNK_BYTES.to_vec(),
    }
}

fn staged(args: &TransferArgs) -> StagedOptions {
    let usual = StagedOptions::default();
    StagedOptions {
        threads: args.staged_threads.unwrap_or(usual.threads),
        buffers: args.staged_buffers.unwrap_or(usual.buffers),
        ..usual
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: TransferArgs,
    }

    fn parse(arguments: &[&str]) -> TransferArgs {
        let all = ["bench"].iter().chain(arguments);
        Command::try_parse_from(all).expect("valid").args
    }

    #[test]
    fn the_processor_is_measured_without_a_gpu_and_the_results_are_drawn() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (plot, record) = (folder.path().join("plots"), folder.path().join("all.jsonl"));
        let mut args = parse(&["--smoke", "--only", "cpu"]);
        let results = &mut args.results;
        (results.plot, results.record) = (Some(plot.clone()), Some(record.clone()));
        run(&args).expect("the processor can be measured");
        let drawn = std::fs::read_to_string(plot.join("transfer-reads.svg")).expect("a figure");
        assert!(drawn.contains("</svg>") && drawn.contains("cpu"), "{drawn}");
        let recorded = std::fs::read_to_string(record).expect("a record");
        assert!(
            recorded.contains("read/cpu-host-memory/dependent"),
            "{recorded}"
        );
    }

    #[test]
    fn every_section_runs_on_a_gpu() {
        if let Err(error) = gpus() {
            let required =
                std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "{error}");
            println!("skipped: no GPU");
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut args = parse(&["--smoke", "--only", "cpu,reads,methods,both,peers"]);
        args.results.plot = Some(folder.path().to_owned());
        run(&args).unwrap_or_else(|error| panic!("{error:?}"));
        for name in ["reads", "methods", "to-device", "to-host", "both"] {
            let file = format!("transfer-{name}.svg");
            assert!(folder.path().join(&file).exists(), "{file}");
        }
    }

    #[test]
    fn host_devices_are_refused() {
        let error = run(&parse(&["--smoke", "--devices", "host:1"])).expect_err("no GPU");
        assert!(
            error.to_string().contains("host:1 are not all GPUs"),
            "{error}"
        );
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let refused = |arguments: &[&str]| {
            let all = ["bench"].iter().chain(arguments);
            let error = Command::try_parse_from(all).expect_err("it is refused");
            error.to_string()
        };
        for option in ["--chunk-bytes", "--bytes"] {
            assert!(refused(&[option, "0"]).contains("is not a size"));
            for value in ["10", "4095", "12884901889"] {
                let text = refused(&[option, value]);
                assert!(text.contains("from 4 KiB to 12 GiB"), "{text}");
            }
        }
        for option in ["--rounds", "--staged-threads", "--staged-buffers"] {
            let text = refused(&[option, "0"]);
            assert!(text.contains("0 is not in 1..="), "{text}");
        }
        let text = refused(&["--smoke", "--bytes", "8192"]);
        assert!(text.contains("cannot be used with"), "{text}");
    }

    #[test]
    fn options_replace_the_usual_sizes() {
        let args = parse(&[
            "--chunk-bytes",
            "4096,8K",
            "--staged-threads",
            "3",
            "--methods",
            "zero-copy",
        ]);
        assert_eq!(chunks(&args), [4096, 8192]);
        assert_eq!(staged(&args).threads, 3);
        assert_eq!(args.methods, [TransferMethod::ZeroCopy]);
        assert_eq!(plan(&args, None), Plan::full());
    }
}
