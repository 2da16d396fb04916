//! The section of `forebay doctor` on storage and transfers: what this machine has, its measured rates, and the ways
//! that the engine picks.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, Error, Result, ensure};
use bson::{DateTime, doc};
use forebay_cancel::Stop as Token;
use forebay_device::cuda::cufile::{DirectSupport, try_in_child};
use forebay_device::cuda::{Gpu, gpus, nvrtc_version};
use forebay_device::{DeviceOptions, Devices, HaltingDevices};
use forebay_movement::Tier;
use forebay_movement::pick::{
    Machine, Measured, Measurements, Pattern, Rate, SavedMeasurements, measure,
};
use forebay_movement::storage::FileReader;

use super::{Finding, Verdict, flawed, good, joins, print};
use crate::cli::table;
use forebay_terminal::{OutputError, print_line};

/// GPU memory for the measurement.
const MEASURED_DEVICE_BYTES: u64 = 2 << 30;
/// Mode of a data directory that the command creates.
const OWNER_ONLY: u32 = 0o700;
/// The size for which ways are picked in the report.
const PICKED_BYTES: u64 = 1 << 30;
/// What to do about a path that is no directory.
const NAME_DATA: &str = "name the server's data directory by --data";

/// Returns the GPU that is measured: the first one, if kernels can be compiled for it.
///
/// # Errors
/// What is missing.
pub fn gpu() -> Result<Gpu> {
    let first = gpus().context("no GPU")?.into_iter().next();
    nvrtc_version()?;
    first.context("no GPU: the driver has none")
}

/// Returns what cuFile would do on this machine. A child process tries it first, because libcufile can crash.
pub fn direct_support(has_gpu: bool) -> DirectSupport {
    let unavailable = |why| DirectSupport::Unavailable { why };
    if !has_gpu {
        return unavailable("it needs a GPU".to_owned());
    }
    match try_in_child(["doctor", "--probe-cufile"]) {
        Ok(_) => DirectSupport::detect(),
        Err(error) => unavailable(error.to_string()),
    }
}

/// Checks whether one thread can keep many reads in flight.
pub fn io_uring() -> Finding {
    let what = "io_uring";
    match (FileReader::Uring { depth: 1 }).check() {
        Ok(()) => good(
            what,
            "allowed: one thread keeps many reads in flight".to_owned(),
        ),
        Err(cause) => flawed(
            what,
            Verdict::Absent,
            format!("{cause}; files are read by several threads"),
            "allow io_uring in the container's seccomp profile, or sysctl kernel.io_uring_disabled=0",
        ),
    }
}

/// Describes what cuFile would do.
pub fn cufile(direct: &DirectSupport) -> Finding {
    let (what, found) = ("cuFile", direct.to_string());
    match direct.is_direct() {
        true => good(what, found),
        false => flawed(
            what,
            Verdict::Absent,
            found,
            "none needed: files are read into pinned memory; for reads straight into the GPU, load nvidia-fs",
        ),
    }
}

/// Measures this machine, keeps the rates in the data directory, and prints them with the joins that they predict.
/// Blocks for some seconds.
///
/// # Errors
/// If the data directory cannot be written, a device does not start, a method that the machine has fails, or `stop`
/// ends the measurement.
pub fn measure_and_keep(
    data: &Path,
    gpu: Result<&Gpu, &Error>,
    direct: &DirectSupport,
    stop: &Token,
) -> Result<()> {
    create(data)?;
    let spec = if gpu.is_ok() { "cuda:0" } else { "host:1" }.parse()?;
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(MEASURED_DEVICE_BYTES),
        ..DeviceOptions::default()
    };
    let devices = HaltingDevices::from(Devices::new(&spec, options)?);
    let device = devices.list().into_iter().next();
    let device = device.context("no device started")?;
    let measured = measure(&device, data, direct, stop);
    ensure!(
        stop.check().is_ok(),
        "the measurement was stopped; nothing was kept"
    );
    let Measured {
        measurements,
        missing,
        cached,
    } = measured?;
    let date = DateTime::now().try_to_rfc3339_string().unwrap_or_default();
    let saved = SavedMeasurements::new(date, Machine::this(gpu.ok()), measurements);
    saved.save(data)?;
    if let Err(why) = gpu {
        print_line(format_args!("transfers: not measured: {why:#}"))?;
    }
    for (way, why) in &missing {
        print_line(format_args!("{way}: not measured: {why}"))?;
    }
    if let Some(why) = &cached {
        print_line(format_args!(
            "file: its rates are of memory, because it is read through the page cache: {why}"
        ))?;
    }
    print_saved(&saved)?;
    Ok(joins::print_predictions(
        &device,
        &saved.measurements,
        cached.as_deref(),
        stop,
    )?)
}

/// Creates the data directory if it does not exist.
fn create(data: &Path) -> Result<()> {
    let mut folder = DirBuilder::new();
    let created = folder.recursive(true).mode(OWNER_ONLY).create(data);
    ensure!(!is_other(data), "{}; {NAME_DATA}", not_directory(data));
    created.with_context(|| format!("creating {}", data.display()))
}

/// Returns whether a path names something that is no directory.
fn is_other(path: &Path) -> bool {
    path.exists() && !path.is_dir()
}

fn not_directory(path: &Path) -> String {
    format!("{} is not a directory", path.display())
}

/// Prints the rates of a data directory, and the way that is picked from each tier.
pub fn print_rates(data: &Path, gpu: Option<&Gpu>) -> Result<(), OutputError> {
    let what = "transfers";
    if is_other(data) {
        return print(&flawed(
            what,
            Verdict::Limited,
            not_directory(data),
            NAME_DATA,
        ));
    }
    match SavedMeasurements::load(data, &Machine::this(gpu)) {
        Ok(saved) => print_saved(&saved),
        Err(why) => print(&Finding {
            what,
            verdict: Verdict::Absent,
            found: format!(
                "this machine's rates are not in {0}: {why}; `forebay doctor --measure --data {0}` measures them in some seconds",
                data.display()
            ),
            remedy: None,
        }),
    }
}

/// Prints rates and picks.
fn print_saved(saved: &SavedMeasurements) -> Result<(), OutputError> {
    let machine = &saved.machine;
    let gpu = machine.gpu.as_deref().unwrap_or("no GPU");
    print_line(format_args!(
        "\nmeasured {} on {}, {gpu}\n\n{}",
        saved.date,
        machine.processors,
        rates(&saved.measurements)
    ))?;
    for tier in [Tier::File, Tier::Pageable, Tier::Pinned] {
        let picked = saved
            .measurements
            .pick(tier, PICKED_BYTES, Pattern::Sequential);
        if let Some(choice) = picked {
            print_line(format_args!("from {tier}: {} ({})", choice.way, choice.why))?;
        }
    }
    Ok(())
}

fn rates(measurements: &Measurements) -> String {
    let columns = [
        ("FROM", "from"),
        ("WAY", "way"),
        ("BYTES AT A TIME", "chunk"),
        ("GB/s", "rate"),
        ("CPU s/GB", "cpu"),
    ];
    let row = |rate: &Rate| {
        doc! {
            "from": rate.source.name(),
            "way": rate.way.name(),
            "chunk": rate.chunk_bytes.to_string(),
            "rate": format!("{:.2}", rate.bytes_per_s / 1e9),
            "cpu": rate.cpu_s_per_gb.map_or_else(String::new, |cpu| format!("{cpu:.2}")),
        }
    };
    let rows: Vec<bson::Document> = measurements.rates.iter().map(row).collect();
    table::of(&columns, &rows)
}
