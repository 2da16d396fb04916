//! The section of `forebay doctor` on storage and transfers: what this machine has, its measured rates, and the ways
//! that the engine picks.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use bson::{DateTime, doc};
use forebay_cancel::Stop as Token;
use forebay_device::cuda::cufile::DirectSupport;
use forebay_device::cuda::{Gpu, gpus, nvrtc_version};
use forebay_device::{DeviceOptions, Devices};
use forebay_movement::Tier;
use forebay_movement::pick::{Machine, Measurements, Pattern, SavedMeasurements, measure};
use forebay_movement::storage::FileReader;

use super::{Finding, Verdict, flawed, good};
use crate::cli::table;

/// GPU memory for the measurement.
const MEASURED_DEVICE_BYTES: u64 = 2 << 30;
/// Mode of a data directory that the command creates.
const OWNER_ONLY: u32 = 0o700;
/// The size for which ways are picked in the report.
const PICKED_BYTES: u64 = 1 << 30;

/// Prints what cuFile would do on this machine. Runs in a child process, which a crash of libcufile may end.
pub fn print_direct_support() {
    println!("{}", DirectSupport::detect());
}

/// Checks what the reads of files and transfers need.
pub fn examine(has_gpu: bool) -> Vec<Finding> {
    let mut findings = vec![io_uring()];
    if has_gpu {
        findings.push(cufile());
    }
    findings
}

fn io_uring() -> Finding {
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

fn cufile() -> Finding {
    let what = "cuFile";
    let found = direct_support().unwrap_or_else(|why| why);
    match found.contains("with nvidia-fs") || found.contains("peer-to-peer") {
        true => good(what, found),
        false => Finding {
            what,
            verdict: Verdict::Absent,
            found,
            remedy: Some(
                "nothing is needed: files are read into pinned memory; for reads straight into the GPU, load nvidia-fs",
            ),
        },
    }
}

/// Asks a child process what cuFile would do. An error says why cuFile must not be opened in this process.
fn direct_support() -> Result<String, String> {
    let child = env::current_exe().and_then(|program| {
        let mut child = Command::new(program);
        child.args(["doctor", "--probe-cufile"]).output()
    });
    match child {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(output) => Err(format!(
            "libcufile does not work here: its process ended with {}",
            output.status
        )),
        Err(error) => Err(format!("unknown: {error}")),
    }
}

/// Measures this machine, keeps the rates in the data directory, and returns them. Blocks for some seconds.
///
/// # Errors
/// If the data directory cannot be written, a device does not start, or a way that the machine has fails.
pub fn measure_and_keep(data: &Path, token: &Token) -> Result<SavedMeasurements> {
    let mut folder = DirBuilder::new();
    let folder = folder.recursive(true).mode(OWNER_ONLY);
    folder
        .create(data)
        .with_context(|| format!("creating {}", data.display()))?;
    let gpu = measured_gpu();
    let spec = if gpu.is_some() { "cuda:0" } else { "host:1" }.parse()?;
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(MEASURED_DEVICE_BYTES),
        ..DeviceOptions::default()
    };
    let devices = Devices::new(&spec, options)?;
    let measured = match devices.list().first() {
        Some(device) => measure(device, data, direct_support().is_ok(), token),
        None => bail!("no device started"),
    };
    devices.halt();
    if token.check().is_err() {
        bail!("the measurement was stopped; nothing was kept");
    }
    let measured = measured?;
    for (way, why) in &measured.missing {
        println!("{way}: not measured: {why}");
    }
    let date = DateTime::now().try_to_rfc3339_string().unwrap_or_default();
    let machine = Machine::this(gpu.as_ref());
    let saved = SavedMeasurements::new(date, machine, measured.measurements);
    saved.save(data)?;
    Ok(saved)
}

/// Returns the GPU that is measured: the first one, if kernels can be compiled for it.
fn measured_gpu() -> Option<Gpu> {
    nvrtc_version().ok()?;
    gpus().ok()?.into_iter().next()
}

/// Prints the rates of a data directory, and the way that is picked from each tier.
pub fn print_rates(data: &Path) {
    let what = "transfers";
    if data.exists() && !data.is_dir() {
        let found = format!("{} is not a directory", data.display());
        return super::print(&flawed(
            what,
            Verdict::Limited,
            found,
            "name the server's data directory by --data",
        ));
    }
    match SavedMeasurements::load(data, &Machine::this(measured_gpu().as_ref())) {
        Some(saved) => print_saved(&saved),
        None => super::print(&Finding {
            what,
            verdict: Verdict::Absent,
            found: format!(
                "this machine's rates are not in {0}; `forebay doctor --measure --data {0}` measures them in some seconds",
                data.display()
            ),
            remedy: None,
        }),
    }
}

/// Prints rates and picks.
pub fn print_saved(saved: &SavedMeasurements) {
    let machine = &saved.machine;
    let gpu = machine.gpu.as_deref().unwrap_or("no GPU");
    println!(
        "\nmeasured {} on {}, {gpu}\n",
        saved.date, machine.processors
    );
    print!("{}", rates(&saved.measurements));
    println!();
    for tier in [Tier::File, Tier::Pageable, Tier::Pinned] {
        if let Some(choice) = saved
            .measurements
            .pick(tier, PICKED_BYTES, Pattern::Sequential)
        {
            println!("from {tier}: {} ({})", choice.way, choice.why);
        }
    }
}

fn rates(measurements: &Measurements) -> String {
    let columns = [
        ("FROM", "from"),
        ("WAY", "way"),
        ("BYTES AT A TIME", "chunk"),
        ("GB/s", "rate"),
        ("CPU s/GB", "cpu"),
    ];
    let row = |rate: &forebay_movement::pick::Rate| {
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
