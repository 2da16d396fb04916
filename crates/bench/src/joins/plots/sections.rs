//! Plots of the sections `hybrid`, `spilled`, `gpus`, `co-processing` and `locality`.

use std::path::Path;

use anyhow::Result;

use super::{JOIN, UNIT, label, replace, several, single};
use crate::plot::bars::{self, Bar};
use crate::plot::draw::{self, Axes, Axis};
use crate::plot::{Plot, Point, option_of};
use crate::record::Record;

/// Rates of tables that lie partly in host memory.
const BY_SHARE: Axes = Axes {
    x: "thousandths of the table that are in device memory",
    x_axis: Axis::Linear,
    y: UNIT,
    y_axis: Axis::Log10,
};

/// Rates of the paper of Triton (Lutz et al., SIGMOD 2022), whose partitions spill to host memory.
const PAPER_SPILLED: [(&str, f64); 2] = [
    ("Triton, 128 M tuples a side: V100, NVLink 2.0", 2.3),
    ("Triton, 2,048 M tuples a side: V100, NVLink 2.0", 1.7),
];
/// Figure 21 of Lutz et al.: processors, and the rates of workloads A, B and C.
const PAPER_TOGETHER: [(&str, [f64; 3]); 4] = [
    ("CPU: POWER9", [0.52, 0.50, 0.54]),
    ("Het: POWER9 and V100, NVLink 2.0", [0.82, 1.64, 0.49]),
    ("GPU + Het: POWER9 and V100, NVLink 2.0", [2.92, 4.85, 0.86]),
    ("GPU: V100, NVLink 2.0", [3.81, 4.16, 2.34]),
];
/// Figures 13 and 14 of Lutz et al. by NVLink 2.0: the places of both sides and of the table, and the rates of
/// workloads A, B and C.
const PAPER_LOCALITY: [(&str, [f64; 3]); 5] = [
    ("sides in device, table in device", [4.67, 19.08, 2.56]),
    ("sides in host, table in device", [3.82, 4.18, 2.64]),
    ("sides in other-gpu, table in device", [2.24, 2.29, 2.51]),
    ("sides in host, table in host", [0.59, 0.66, 0.37]),
    ("sides in host, table in other-gpu", [0.24, 0.33, 0.13]),
];

/// Writes the plots of the records that there are to a folder. Returns how many.
///
/// # Errors
/// If a plot cannot be written.
pub(super) fn write(folder: &Path, records: &[&Record]) -> Result<usize> {
    let mut written = draw::write(folder, &hybrid(records))?;
    for (name, title, bars) in [
        (
            "joins-spilled",
            "Joins of sides in host memory by the memory that they may use",
            spilled(records),
        ),
        (
            "joins-gpus",
            "Joins of sides that several GPUs have",
            of_gpus(records),
        ),
        (
            "joins-co-processing",
            "Sides in host memory by CPU and GPU (figure 21 of Lutz et al.)",
            together(records),
        ),
        (
            "joins-locality",
            "Joins by the locality of sides and table (figures 13 and 14 of Lutz et al.: V100, NVLink 2.0)",
            by_place(records),
        ),
    ] {
        written += bars::write((folder, name), title, UNIT, &bars)?;
    }
    Ok(written)
}

/// Returns the rates of each hybrid table by its share in device memory, and those of the model.
fn hybrid(records: &[&Record]) -> Plot {
    let mut plot = Plot {
        name: "joins-hybrid".to_owned(),
        title: "Joins with a table that lies partly in host memory".to_owned(),
        axes: BY_SHARE,
        series: Vec::new(),
    };
    let several = several(records, |record| of_hybrid(record).is_some());
    for record in records.iter().filter(|record| record.metric == JOIN) {
        let Some((table, share)) = of_hybrid(record) else {
            continue;
        };
        plot.add(&label(table, record, several), Point::of(record, share));
        if let Some(rate) = by_model(records, record, share) {
            let line = label(&format!("{table}, by the model"), record, several);
            plot.add(&line, single(share, rate));
        }
    }
    plot
}

/// Splits a case such as `join-hybrid/perfect/667` into the table and the thousandths of it that are on the device.
fn of_hybrid(record: &Record) -> Option<(&str, u64)> {
    let rest = record.case.strip_prefix("join-hybrid/")?;
    let (table, share) = rest.split_once('/')?;
    Some((table, share.parse().ok()?))
}

/// Returns the rate that the model gives instead of a measured one. Tables that are in one memory are its inputs.
fn by_model(records: &[&Record], measured: &Record, share: u64) -> Option<f64> {
    if matches!(share, 0 | 1000) {
        return Some(measured.median);
    }
    let mut own = records.iter().filter(|record| {
        record.case == measured.case
            && record.device == measured.device
            && record.date == measured.date
    });
    let of_model = own.find(|record| record.metric == "of_model")?;
    Some(measured.median / of_model.median)
}

/// Returns the latest rate of each label. `text` returns the label without the hardware, or `None` for a record of
/// another plot.
fn rates(records: &[&Record], text: impl Fn(&Record) -> Option<String>) -> Vec<Bar> {
    let several = several(records, |record| text(record).is_some());
    let mut bars = Vec::new();
    for record in records.iter().filter(|record| record.metric == JOIN) {
        if let Some(line) = text(record) {
            replace(&mut bars, label(&line, record, several), record.median);
        }
    }
    bars
}

/// Returns the rates of joins by the memory that they may use, and of joins with a filter. If there are any, the
/// rates of the paper of Triton follow.
fn spilled(records: &[&Record]) -> Vec<Bar> {
    let mut bars = rates(records, |record| {
        let method = record.case.strip_prefix("join-triton/")?;
        Some(format!("{method}{}", memory(&record.command)))
    });
    if !bars.is_empty() {
        bars.extend(PAPER_SPILLED.map(|(label, rate)| (label.to_owned(), rate)));
    }
    bars
}

/// Returns what the command of a run in the section `spilled` says about memory and rows. A smoke run has options of
/// its own.
fn memory(command: &str) -> String {
    let option = |name: &str| option_of(command, name);
    let has = |name: &str| command.split([' ', '=']).any(|word| word == name);
    if has("--smoke") {
        return String::new();
    }
    let mut text = format!(", {} on the GPU", option("--device-bytes").unwrap_or("8G"));
    for (name, before, after) in [
        ("--host-bytes", "", " in the host"),
        ("--chunk-bytes", "chunks of ", ""),
        ("--selectivity", "matches ", ""),
    ] {
        if let Some(value) = option(name) {
            text += &format!(", {before}{value}{after}");
        }
    }
    for (name, part) in [("--spill-directory", ", disk"), ("--filter", ", filter")] {
        if has(name) {
            text += part;
        }
    }
    text
}

/// Returns the rates of each workload and method on one GPU and on several.
fn of_gpus(records: &[&Record]) -> Vec<Bar> {
    rates(records, |record| {
        let (workload, method) = of_section(record, "gpus")?;
        Some(format!("{workload}, {method}"))
    })
}

/// Returns the rates of each workload and strategy of CPU and GPU. If there are any, those of the paper follow.
fn together(records: &[&Record]) -> Vec<Bar> {
    let bars = rates(records, |record| {
        let (workload, strategy) = of_section(record, "co-processing")?;
        Some(format!("{workload}, {strategy}"))
    });
    with_paper(bars, &PAPER_TOGETHER)
}

/// Returns the rates of each workload by the places of both sides and of the table. If there are any, those of the
/// paper follow.
fn by_place(records: &[&Record]) -> Vec<Bar> {
    let bars = rates(records, |record| {
        let (workload, places) = of_section(record, "locality")?;
        let parts: Vec<&str> = places.split('/').collect();
        let [sides, place, table] = parts[..] else {
            return None;
        };
        Some(format!(
            "{workload}, sides in {sides}, table in {place}, {table}"
        ))
    });
    with_paper(bars, &PAPER_LOCALITY)
}

/// Splits a case of a section, `join-WORKLOAD-SECTION/...`. Returns the workload in upper case, and the rest.
fn of_section<'a>(record: &'a Record, section: &str) -> Option<(String, &'a str)> {
    let (first, rest) = record.case.split_once('/')?;
    let workload = first.strip_prefix("join-")?.strip_suffix(section)?;
    Some((workload.strip_suffix('-')?.to_uppercase(), rest))
}

/// Adds rates of the paper to bars, if there are any: of workloads A, B and C for each label.
fn with_paper(mut bars: Vec<Bar>, paper: &[(&str, [f64; 3])]) -> Vec<Bar> {
    if bars.is_empty() {
        return bars;
    }
    for (label, rates) in paper {
        for (workload, rate) in ["A", "B", "C"].into_iter().zip(rates) {
            bars.push((format!("Lutz et al., {workload}, {label}"), *rate));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    /// Reads a file of `bench/record/`.
    fn read(name: &str) -> Vec<Record> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/record");
        record::read(&folder.join(name)).expect("a record of this repository")
    }

    #[test]
    fn all_sections_are_drawn_from_the_records() {
        let files = [
            "2026-11-28-h100-joins.jsonl",
            "2026-11-29-h200-spilled-joins.jsonl",
            "2026-11-29-two-h200-joins-2.jsonl",
            "2026-11-29-h200-joins-2.jsonl",
        ];
        let records: Vec<Record> = files.into_iter().flat_map(read).collect();
        let own = records.iter().filter(|record| record.bench == "joins");
        let own: Vec<&Record> = own.collect();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let written = write(folder.path(), &own).expect("the folder is writable");
        assert_eq!(written, 4);
        let h200 = "cuda:0 of NVIDIA H200";
        for (file, text) in [
            (
                "joins-hybrid.svg",
                "perfect, by the model: cuda:0".to_owned(),
            ),
            (
                "joins-spilled.svg",
                format!("partitioned, 1G on the GPU, 2G in the host, disk: {h200}: 0.082"),
            ),
            (
                "joins-gpus.svg",
                "C, interleaved-own: cuda:0+cuda:1 of".to_owned(),
            ),
            ("joins-co-processing.svg", format!("gpu: {h200}: 3.39")),
        ] {
            let path = folder.path().join(file);
            let drawn = std::fs::read_to_string(path).expect(file);
            assert!(drawn.contains(&text), "{file}: {text} in {drawn}");
        }
    }

    #[test]
    fn the_model_has_the_ends_and_what_each_rate_says() {
        let records = read("2026-11-28-h100-joins.jsonl");
        let own = records.iter().filter(|record| record.bench == "joins");
        let plot = hybrid(&own.collect::<Vec<_>>());
        let line = |name: &str| {
            let mut lines = plot.series.iter();
            let found = lines.find(|(label, _)| label.starts_with(name));
            &found.expect("it is drawn").1
        };
        let (measured, model) = (line("perfect: "), line("perfect, by the model: "));
        let places: Vec<u64> = measured.iter().map(|point| point.x).collect();
        assert_eq!(places, [0, 500, 667, 750, 900, 1000]);
        let rates = measured.iter().zip(model);
        let of_model: Vec<f64> = rates
            .map(|(one, other)| one.median / other.median)
            .collect();
        for (found, recorded) in of_model.iter().zip([1.0, 1.488, 1.639, 1.634, 2.070, 1.0]) {
            assert!((found - recorded).abs() < 1e-3, "{of_model:?}");
        }
    }

    #[test]
    fn places_are_those_of_the_case() {
        let case = |case| record::tests::record("joins", case, JOIN, 2.0);
        let records = [
            case("join-c-locality/host/other-gpu/perfect"),
            case("join-c-gpus/partitioned"),
        ];
        let bars = by_place(&records.iter().collect::<Vec<_>>());
        let own = "C, sides in host, table in other-gpu, perfect: ";
        assert!(bars[0].0.starts_with(own), "{bars:?}");
        assert_eq!(bars.len(), 1 + 3 * PAPER_LOCALITY.len(), "{bars:?}");
    }

    #[test]
    fn memory_is_that_of_the_command() {
        for (options, expected) in [
            ("", ", 8G on the GPU"),
            (
                " --chunk-bytes=32M --filter --selectivity 0.1 --device-bytes 2G",
                ", 2G on the GPU, chunks of 32M, matches 0.1, filter",
            ),
            (" --smoke", ""),
        ] {
            let command = format!("forebay bench joins --only spilled{options}");
            assert_eq!(memory(&command), expected, "{options}");
        }
    }
}
