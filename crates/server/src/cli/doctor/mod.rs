//! `forebay doctor`: checks the machine, suggests remedies for problems, measures storage and transfers, and predicts
//! the rates of joins.

mod joins;
mod movement;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use clap::Args;
use forebay_cancel::Stop as Token;
use forebay_device::cuda::cufile::DirectSupport;
use forebay_device::cuda::{gpus, nvrtc_version};
use tokio::task::spawn_blocking;

use crate::descriptors;
use crate::settings::Sources;
use crate::stop::Stop;
use forebay_terminal::{OutputError, print_line};

/// Check GPU, driver, NVRTC, limits, storage and transfers, and suggest remedies
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Measure how fast this machine reads files and moves bytes to its GPU, keep the rates in the data directory, and
    /// predict the rates of joins; takes some seconds, and needs 256 MiB of free disk and 1 GiB of memory meanwhile.
    #[arg(long)]
    measure: bool,
    /// Data directory of the server, which keeps the measured rates.
    #[arg(long, value_name = "DIR", default_value = "forebay-data")]
    data: PathBuf,
    /// Print what cuFile would do here, and nothing else.
    #[arg(long, hide = true)]
    probe_cufile: bool,
    /// Read this directory instead of the machine's root, for tests and containers.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Minimum limit of open files with which the store works.
const OPEN_FILES_MIN: u64 = 512;
/// Minimum limit of locked memory for the pinned buffers of a GPU.
const LOCKED_BYTES_MIN: u64 = 1 << 30;
/// Library folders of common distributions.
const LIBRARY_FOLDERS: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/cuda/lib64",
    "usr/local/nvidia/lib64",
    "usr/local/lib",
];

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Present, or sufficient.
    Good,
    /// Missing, but the server works without it.
    Absent,
    /// A low limit that restricts the server.
    Limited,
    /// A problem that affects the server.
    Bad,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    remedy: Option<&'static str>,
}

/// Prints the report on a thread that may block. A request to stop ends a measurement, which then keeps nothing.
///
/// # Errors
/// If something that the server needs is missing or wrong, or the measurement fails. Missing optional parts are no
/// error.
pub async fn run(args: DoctorArgs, stop: &Stop) -> Result<()> {
    let (measures, token) = (args.measure, Token::never());
    let mut asked = measures.then(|| stop.listen());
    let cancelled = Arc::clone(&token.cancelled);
    let mut work = spawn_blocking(move || report(&args, &token));
    if let Some(asked) = &mut asked {
        tokio::select! {
            ended = &mut work => return ended?,
            _ = asked.changed() => cancelled.store(true, Ordering::Relaxed),
        }
    }
    work.await?
}

fn report(args: &DoctorArgs, stop: &Token) -> Result<()> {
    if args.probe_cufile {
        return Ok(print_line(DirectSupport::detect())?);
    }
    let mut findings = examine(&args.root);
    findings.push(movement::io_uring());
    let gpu = movement::gpu();
    let direct = movement::direct_support(gpu.is_ok());
    findings.extend(gpu.is_ok().then(|| movement::cufile(&direct)));
    for finding in &findings {
        print(finding)?;
    }
    match args.measure {
        true => movement::measure_and_keep(&args.data, gpu.as_ref(), &direct, stop)?,
        false => movement::print_rates(&args.data, gpu.as_ref().ok())?,
    }
    let is_bad = |finding: &&Finding| finding.verdict == Verdict::Bad;
    let failed = findings.iter().filter(is_bad).count();
    ensure!(failed == 0, "{failed} of {} checks failed", findings.len());
    Ok(())
}

fn print(finding: &Finding) -> Result<(), OutputError> {
    let mark = match finding.verdict {
        Verdict::Good => "ok     ",
        Verdict::Absent => "absent ",
        Verdict::Limited => "limited",
        Verdict::Bad => "PROBLEM",
    };
    print_line(format_args!(
        "{mark}  {:16}  {}",
        finding.what, finding.found
    ))?;
    match finding.remedy {
        Some(remedy) => print_line(format_args!("{:27}remedy: {remedy}", "")),
        None => Ok(()),
    }
}

fn examine(root: &Path) -> Vec<Finding> {
    let mut findings = vec![
        processors(root),
        memory(root),
        open_files(root),
        huge_pages(root),
        gpu(root),
    ];
    // Check the requirements of GPUs only if there is a GPU.
    if findings
        .iter()
        .all(|finding| finding.verdict != Verdict::Absent)
    {
        findings.extend(for_gpus(root));
    }
    findings
}

/// Checks what the server needs to use GPUs.
fn for_gpus(root: &Path) -> [Finding; 5] {
    [
        locked_memory(root),
        driver(root),
        library(
            root,
            "CUDA library",
            "libcuda.so",
            "install the NVIDIA driver (libcuda.so.1 comes with it)",
        ),
        library(
            root,
            "NVRTC",
            "libnvrtc.so",
            "install the CUDA runtime compiler (package cuda-nvrtc, or pip nvidia-cuda-nvrtc)",
        ),
        devices(),
    ]
}

fn good(what: &'static str, found: String) -> Finding {
    Finding {
        what,
        verdict: Verdict::Good,
        found,
        remedy: None,
    }
}

fn flawed(
    what: &'static str,
    verdict: Verdict,
    found: impl Into<String>,
    remedy: &'static str,
) -> Finding {
    Finding {
        what,
        verdict,
        found: found.into(),
        remedy: Some(remedy),
    }
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

fn processors(root: &Path) -> Finding {
    let text = read(root, "proc/cpuinfo").unwrap_or_default();
    let count = text
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    match count {
        0 => good(
            "processors",
            "unknown: /proc/cpuinfo cannot be read".to_owned(),
        ),
        count => good(
            "processors",
            format!("{count} ({})", model.unwrap_or("unknown model")),
        ),
    }
}

fn memory(root: &Path) -> Finding {
    let kib = |name: &str| meminfo(root, name).unwrap_or(0);
    let (total, available) = (kib("MemTotal:") >> 20, kib("MemAvailable:") >> 20);
    good("memory", format!("{available} of {total} GiB free"))
}

fn meminfo(root: &Path, name: &str) -> Option<u64> {
    let text = read(root, "proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the soft and the hard limit, each `None` if unlimited. Returns `None` instead of both if they cannot be
/// read.
fn limit(root: &Path, name: &str) -> Option<(Option<u64>, Option<u64>)> {
    let text = read(root, "proc/self/limits")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))?
        .to_owned();
    let mut words = line.split_whitespace().map(|word| word.parse().ok());
    Some((words.next()?, words.next()?))
}

/// Checks whether the hard limit of open files, which `forebay serve` uses, allows the default number of connections.
fn open_files(root: &Path) -> Finding {
    let what = "open files";
    let Some((_, hard)) = limit(root, "Max open files") else {
        return good(what, "unknown: /proc/self/limits cannot be read".to_owned());
    };
    let Some(hard) = hard else {
        return good(what, "unlimited".to_owned());
    };
    let wanted = connections_wanted();
    let room = |each| descriptors::room(hard, each).min(wanted);
    let (own, proxied) = (
        room(descriptors::OF_CONNECTION),
        room(descriptors::OF_PROXIED_CONNECTION),
    );
    let found = format!("{hard} allowed: enough for {own} connections, {proxied} with --upstream");
    if own == wanted {
        return good(what, found);
    }
    let verdict = match hard < OPEN_FILES_MIN {
        true => Verdict::Bad,
        false => Verdict::Limited,
    };
    flawed(
        what,
        verdict,
        found,
        "raise the hard limit (ulimit -Hn 65536, or LimitNOFILE=65536 in the unit file), or lower connections-max",
    )
}

/// Returns the default of `connections-max`.
fn connections_wanted() -> usize {
    let defaults = Sources::default().resolve();
    defaults.expect("the defaults are valid").connections_max
}

fn locked_memory(root: &Path) -> Finding {
    let what = "locked memory";
    match limit(root, "Max locked memory") {
        Some((Some(soft), _)) if soft < LOCKED_BYTES_MIN => flawed(
            what,
            Verdict::Limited,
            format!("{soft} bytes allowed; pinned buffers for a GPU need more"),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit file",
        ),
        Some((soft, _)) => good(what, format!("{} bytes allowed", in_words(soft))),
        None => good(what, "unknown: /proc/self/limits cannot be read".to_owned()),
    }
}

fn in_words(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

fn huge_pages(root: &Path) -> Finding {
    let what = "huge pages";
    let setting = read(root, "sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = setting
        .split('[')
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    match chosen {
        Some("never") | None => flawed(
            what,
            Verdict::Limited,
            format!(
                "transparent huge pages: {}",
                chosen.unwrap_or("not known to this kernel")
            ),
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(chosen) => good(what, format!("transparent huge pages: {chosen}")),
    }
}

fn gpu(root: &Path) -> Finding {
    let what = "GPU";
    let entries = fs::read_dir(root.join("dev"))
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    match names.filter(|name| is_gpu(name)).count() {
        0 => Finding {
            what,
            verdict: Verdict::Absent,
            found: "no /dev/nvidia device: `--devices auto` uses host devices".to_owned(),
            remedy: None,
        },
        count => good(what, format!("{count} NVIDIA device files")),
    }
}

fn driver(root: &Path) -> Finding {
    let what = "GPU driver";
    let version = read(root, "proc/driver/nvidia/version");
    match version.as_deref().and_then(|text| text.lines().next()) {
        Some(line) => good(what, line.trim().to_owned()),
        None => flawed(
            what,
            Verdict::Absent,
            "no NVIDIA kernel module",
            "install the NVIDIA driver",
        ),
    }
}

fn library(root: &Path, what: &'static str, prefix: &str, remedy: &'static str) -> Finding {
    let folders = LIBRARY_FOLDERS.iter().map(|folder| root.join(folder));
    let found = folders
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .find(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(prefix))
        });
    match found {
        Some(entry) => good(what, entry.path().display().to_string()),
        None => flawed(
            what,
            Verdict::Absent,
            format!("no file {prefix}.* in the usual library folders"),
            remedy,
        ),
    }
}

/// Checks which devices this process can start.
fn devices() -> Finding {
    let what = "devices";
    let gpus = match gpus() {
        Ok(gpus) => gpus,
        Err(error) => {
            return flawed(
                what,
                Verdict::Limited,
                format!("host devices only: {error}"),
                "until this is repaired, `--devices auto` means host devices",
            );
        }
    };
    match nvrtc_version() {
        Ok((major, minor)) => {
            let names = gpus
                .iter()
                .map(|gpu| format!("cuda:{} ({gpu}), ", gpu.ordinal));
            let names: String = names.collect();
            good(
                what,
                format!("{names}host devices; kernels by NVRTC {major}.{minor}"),
            )
        }
        Err(error) => flawed(
            what,
            Verdict::Limited,
            format!("host devices only: {error}"),
            "install NVRTC; until then `--devices auto` means host devices",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("files lie in folders")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        root
    }

    fn find(root: &tempfile::TempDir, what: &str) -> Finding {
        let found = examine(root.path())
            .into_iter()
            .find(|finding| finding.what == what);
        found.expect("every check is made on every machine")
    }

    #[test]
    fn a_bare_machine_has_no_gpu_and_no_problem() {
        let root = machine(&[]);
        let gpu = find(&root, "GPU");
        assert_eq!((gpu.verdict, gpu.remedy), (Verdict::Absent, None));
        let absent = examine(root.path())
            .into_iter()
            .filter(|finding| finding.verdict == Verdict::Absent);
        assert_eq!(
            absent.count(),
            1,
            "without a GPU, the requirements of GPUs are not checked"
        );
        assert!(
            examine(root.path())
                .iter()
                .all(|finding| finding.verdict != Verdict::Bad)
        );
    }

    #[test]
    fn a_gpu_is_seen() {
        let root = machine(&[
            ("dev/nvidia0", ""),
            ("dev/nvidiactl", ""),
            ("proc/driver/nvidia/version", "NVRM version: 570.1\nGCC"),
            ("usr/lib64/libcuda.so.1", ""),
        ]);
        assert_eq!(find(&root, "GPU").found, "1 NVIDIA device files");
        assert_eq!(find(&root, "GPU driver").found, "NVRM version: 570.1");
        assert_eq!(find(&root, "CUDA library").verdict, Verdict::Good);
        assert_eq!(find(&root, "NVRTC").verdict, Verdict::Absent);
    }

    #[test]
    fn too_little_memory_to_lock_is_named_with_its_remedy() {
        for (soft, verdict) in [
            ("65536", Verdict::Limited),
            ("1073741824", Verdict::Good),
            ("unlimited", Verdict::Good),
        ] {
            let limits = format!("Max locked memory         {soft}            {soft}     bytes\n");
            let root = machine(&[("dev/nvidia0", ""), ("proc/self/limits", &limits)]);
            let finding = find(&root, "locked memory");
            assert_eq!(finding.verdict, verdict, "{soft}");
            let names_limit = |remedy: &str| remedy.starts_with("ulimit -l unlimited");
            let is_limited = verdict == Verdict::Limited;
            assert_eq!(finding.remedy.is_some_and(names_limit), is_limited);
        }
    }

    #[test]
    fn few_open_files_are_named() {
        for (hard, verdict, expected) in [
            (
                "100",
                Verdict::Bad,
                "100 allowed: enough for 50 connections, 25 with --upstream",
            ),
            (
                "4096",
                Verdict::Limited,
                "4096 allowed: enough for 3584 connections, 1792 with",
            ),
            (
                "20000",
                Verdict::Good,
                "20000 allowed: enough for 10000 connections, 9744 with",
            ),
            (
                "20512",
                Verdict::Good,
                "20512 allowed: enough for 10000 connections, 10000 with",
            ),
            ("unlimited", Verdict::Good, "unlimited"),
        ] {
            let limits = format!(
                "Max open files            64                   {hard}                 files\n"
            );
            let root = machine(&[("proc/self/limits", &limits)]);
            let finding = find(&root, "open files");
            assert_eq!(
                (finding.verdict, finding.remedy.is_none()),
                (verdict, verdict == Verdict::Good)
            );
            assert!(finding.found.starts_with(expected), "{}", finding.found);
        }
    }
}
