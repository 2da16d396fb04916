//! Tests of the command.

use std::path::Path;

use clap::Parser;

use super::*;
use crate::record::Record;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: JoinsArgs,
}

pub(super) fn parse(arguments: &[&str]) -> Result<JoinsArgs, clap::Error> {
    let all = ["joins"].iter().chain(arguments);
    Command::try_parse_from(all).map(|command| command.args)
}

/// Runs all sections once. Returns the records, and writes the plots to a folder.
fn smoke(folder: &Path) -> Vec<Record> {
    let path = folder.join("joins.jsonl");
    let mut args = parse(&["--smoke", "--json"]).expect("right flags");
    args.results.record = Some(path.clone());
    args.results.plot = Some(folder.join("plots"));
    run(&args).unwrap_or_else(|error| panic!("{error:?}"));
    let text = std::fs::read_to_string(path).expect("a record");
    let records = text.lines().map(serde_json::from_str);
    records.map(|record| record.expect("a record")).collect()
}

/// Cases with a rate of probes that need a GPU.
const PROBED_BY_GPUS: [&str; 25] = [
    "join-a-device/perfect",
    "join-b-device/linear-probing",
    "join-c-device/bucketed",
    "join-narrow-keys-device/bucketed",
    "join-narrow-payloads-device/perfect",
    "join-composite-device/linear-probing",
    "join-a-pinned/zero-copy/perfect",
    "join-a-pinned/ring/linear-probing",
    "join-c-pinned/ring/perfect",
    "join-hybrid/linear-probing/667",
    "join-triton/hybrid",
    "join-a-gpus/replicated",
    "join-a-gpus/interleaved",
    "figures/transfer-a/ring/perfect",
    "figures/transfer-a/zero-copy/bucketed",
    "figures/transfer-a/pinned-copy/linear-probing",
    "figures/skew-host/1.25/perfect",
    "figures/probe-scaling/65536/linear-probing",
    "figures/build-scaling/30000/perfect",
    "join-a-co-processing/gpu",
    "join-a-co-processing/gpu-and-cpu",
    "join-a-co-processing/gpu-builds",
    "join-c-co-processing/gpu",
    "join-a-locality/device/device/bucketed",
    "join-c-locality/host/host/perfect",
];

/// Plots that need no GPU.
const DRAWN: [&str; 6] = [
    "ratio",
    "skew",
    "selectivity",
    "probe-rows",
    "build-rows",
    "co-processing",
];

#[test]
fn every_section_gives_the_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let records = smoke(folder.path());
    let has = |case: &str, metric: &str| {
        let mut records = records.iter();
        records.any(|record| record.case == case && record.metric == metric)
    };
    for case in [
        "join-cpu/a/perfect",
        "join-cpu/b/linear-probing",
        "join-cpu/c/bucketed",
        "join-cpu/narrow-keys/perfect",
        "join-cpu/composite/linear-probing",
    ] {
        assert!(
            has(case, "giga_tuples_per_s") && has(case, "allocation_s"),
            "{case}"
        );
    }
    for workload in ["c", "narrow-payloads", "composite"] {
        assert!(has(&format!("join-cpu/{workload}/partitioned"), "join_s"));
    }
    for case in [
        "figures/ratio/1:16/perfect",
        "figures/skew/1.25/linear-probing",
        "figures/selectivity/0/perfect",
        "figures/selectivity/0.75/bucketed",
        "figures/probe-rows/1024/perfect",
        "figures/build-rows/2/linear-probing",
    ] {
        assert!(has(case, "probe_giga_tuples_per_s"), "{case}");
    }
    for name in DRAWN {
        let plot = folder.path().join(format!("plots/joins-{name}.svg"));
        assert!(plot.exists(), "{}", plot.display());
    }
    let found = gpus();
    let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(found.is_ok() || !required, "{found:?}");
    for case in PROBED_BY_GPUS {
        assert_eq!(
            has(case, "probe_giga_tuples_per_s"),
            found.is_ok(),
            "{case}"
        );
    }
    for metric in ["giga_tuples_per_s", "cpu_share"] {
        for workload in ["a", "b", "c"] {
            let case = format!("join-{workload}-co-processing/cpu");
            assert!(has(&case, metric), "{case}: {metric}");
        }
    }
    for (case, metric) in [
        ("join-triton/partitioned", "join_s"),
        ("join-triton/partitioned-by-cpu", "join_s"),
        ("figures/build-scaling/30000/partitioned", "join_s"),
        ("join-c-gpus/partitioned", "join_s"),
    ] {
        assert_eq!(has(case, metric), found.is_ok(), "{case}");
    }
    let filtered = records.iter().find(|it| it.metric == "filtered_rows");
    let has_filtered = filtered.is_some_and(|it| it.min > 0.0);
    assert_eq!(has_filtered, found.is_ok(), "{filtered:?}");
}

#[test]
fn a_named_section_needs_its_gpu() {
    if gpus().is_ok() {
        return;
    }
    let args = parse(&["--smoke", "--only", "cpu,pinned"]).expect("right flags");
    let error = run(&args).expect_err("no GPU").to_string();
    assert!(error.contains("`pinned` needs a GPU"), "{error}");
}

#[test]
fn options_without_effect_are_refused_before_a_file_is_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let record = folder.path().join("joins.jsonl");
    for (flags, part) in [
        (
            "--only spilled --tables perfect,bucketed",
            "of the tables, `spilled` measures only `partitioned`, `linear-probing`",
        ),
        (
            "--only cpu,pinned --tables partitioned",
            "of the tables, `pinned` measures only `perfect`",
        ),
        (
            "--only device --workloads composite --tables bucketed,partitioned",
            "of the tables, `device` measures only `linear-probing`",
        ),
        (
            "--only pinned --workloads composite",
            "of the workloads, `pinned` measures only `a`, `b`, `c`",
        ),
        (
            "--only gpus --workloads composite",
            "of the workloads, `gpus` measures only `a`, `b`, `c`",
        ),
        (
            "--workloads composite --tables perfect,bucketed",
            "only `linear-probing`, `partitioned` have",
        ),
        (
            "--workloads a,composite --tables perfect",
            "only `linear-probing`, `partitioned` have",
        ),
        ("--only figures --workloads a", "leave out `--workloads`"),
        ("--only cpu,spilled", "name `spilled` alone"),
        ("--only cpu --chunk-bytes 1M", "`--chunk-bytes` has an"),
        (
            "--device-bytes 1G",
            "has an effect only in `spilled`, `build-scaling`",
        ),
        ("--only cpu --host-bytes 1G", "effect only in `spilled`"),
        ("--spill-directory /tmp", "has an effect only in `spilled`"),
        ("--selectivity 0.1", "has an effect only in `spilled`"),
        ("--only cpu --filter", "has an effect only in `spilled`"),
        ("--first-pass cpu", "has an effect only in `spilled`"),
        (
            "--plot plots",
            "`--plot` has an effect only in `hybrid`, `spilled`",
        ),
        (
            "--smoke --workloads composite --plot plots",
            "`locality`, `probe-scaling`, `build-scaling`: choose",
        ),
    ] {
        let mut args = parse(&flags.split(' ').collect::<Vec<_>>()).expect("right flags");
        args.results.record = Some(record.clone());
        let error = run(&args).expect_err("it is refused").to_string();
        assert!(error.contains(part), "{flags}: {error}");
    }
    assert!(!record.exists());
}

#[test]
fn a_run_has_the_sections_that_measure_what_is_named() {
    use Section::{
        BuildScaling, CoProcessing, Cpu, Device, Figures, Gpus, Locality, Pinned, Spilled,
    };
    for (flags, expected) in [
        (&["--rounds=1"][..], &[Device, Pinned, Cpu][..]),
        (&["--workloads=b"], &[Device, Pinned, Cpu]),
        (&["--smoke", "--workloads=composite"], &[Device, Cpu]),
        (&["--tables=partitioned"], &[Cpu]),
        (
            &["--workloads=composite", "--tables=bucketed,partitioned"],
            &[Cpu],
        ),
        (
            &["--smoke", "--workloads=b"],
            &[Device, Pinned, Cpu, Gpus, CoProcessing, Locality],
        ),
        (
            &["--smoke", "--tables=partitioned"],
            &[Cpu, Spilled, Gpus, BuildScaling],
        ),
        (&["--smoke", "--only=figures,cpu"], &[Cpu, Figures]),
    ] {
        let args = parse(flags).expect("right flags");
        let found = sections(&args, None).expect("all have an effect");
        assert_eq!(found, expected, "{flags:?}");
    }
    let args = parse(&["--only", "figures", "--tables", "partitioned"]).expect("right flags");
    sections(&args, Some("none")).expect("the CPU joins in partitions");
    let error = sections(&args, None).expect_err("a GPU does not");
    assert!(error.to_string().contains("of the tables"), "{error}");
}

#[test]
fn options_out_of_range_are_refused() {
    for (option, value, part) in [
        ("--scale", "0", "use a number from"),
        ("--scale", "5", "use a number from"),
        ("--rounds", "0", "0 is not in 1..="),
        ("--selectivity", "1.5", "use a number from 0 to 1"),
        ("--selectivity", "0.0004", "use whole thousandths"),
        ("--chunk-bytes", "33M", "from 4 KiB to 32 MiB"),
        ("--chunk-bytes", "5000", "use a multiple of 4 KiB"),
        (
            "--tables",
            "cuckoo",
            "possible values: perfect, linear-probing, bucketed, partitioned",
        ),
    ] {
        let error = parse(&[option, value]).expect_err("it is refused");
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = parse(&["--smoke", "--scale", "1"]).expect_err("it is refused");
    assert!(error.to_string().contains("cannot be used with"), "{error}");
}
