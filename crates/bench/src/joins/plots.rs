//! Plots of the cases that begin with `figures`: rates by the ratio and the sizes of both sides, by skew, by
//! selectivity and by transfer method. The other plots are in a module of their own.

mod sections;

use std::path::Path;

use anyhow::Result;

use crate::plot::bars::{self, Bar};
use crate::plot::draw::{self, Axes, Axis};
use crate::plot::{Plot, Point, Several};
use crate::record::Record;

const JOIN: &str = "giga_tuples_per_s";
const PROBE: &str = "probe_giga_tuples_per_s";
/// Unit of [`JOIN`].
const UNIT: &str = "G tuples/s, both sides";

/// A plot with a line for each table, machine and scale.
struct Figure {
    /// Name in cases.
    name: &'static str,
    title: &'static str,
    metric: &'static str,
    x: &'static str,
    x_axis: Axis,
    y: &'static str,
    /// Factor that makes the numbers in cases whole.
    factor: f64,
    /// Places and values of the paper's figure, if they are known.
    paper: &'static [(u64, f64)],
}

/// Label of the line of the paper. Its last rate is that of figure 12 over NVLink 2.0: their rows come from host
/// memory, while ours are in device memory.
const PAPER_LINE: &str = "Lutz et al., figure 18: V100, NVLink 2.0";

const FIGURES: [Figure; 8] = [
    Figure {
        name: "ratio",
        title: "Joins by the ratio of both sides",
        metric: JOIN,
        x: "rows of the probe side for each row of the build side",
        x_axis: Axis::Count,
        y: UNIT,
        factor: 1.0,
        paper: &[(1, 2.41), (2, 2.81), (4, 3.24), (8, 3.6), (16, 3.85)],
    },
    Figure {
        name: "skew",
        title: "Probes by the skew of their keys",
        metric: PROBE,
        x: "hundredths of the exponent of Zipf's distribution",
        x_axis: Axis::Linear,
        y: "G probes/s",
        factor: 100.0,
        paper: &[],
    },
    Figure {
        name: "selectivity",
        title: "Probes by their selectivity",
        metric: PROBE,
        x: "percent of the rows of the probe side that have a match",
        x_axis: Axis::Linear,
        y: "G probes/s",
        factor: 100.0,
        paper: &[],
    },
    Figure {
        name: "probe-rows",
        title: "Joins by the size of the probe side, with a small table",
        metric: JOIN,
        x: "rows of the probe side",
        x_axis: Axis::Log2,
        y: UNIT,
        factor: 1.0,
        paper: &[],
    },
    Figure {
        name: "build-rows",
        title: "Joins by the size of the build side",
        metric: JOIN,
        x: "rows of the build side",
        x_axis: Axis::Log2,
        y: UNIT,
        factor: 1.0,
        paper: &[],
    },
    Figure {
        name: "skew-host",
        title: "Probes by the skew of their keys, with the table in host memory",
        metric: PROBE,
        x: "hundredths of the exponent of Zipf's distribution",
        x_axis: Axis::Linear,
        y: "G probes/s",
        factor: 100.0,
        paper: &[],
    },
    Figure {
        name: "probe-scaling",
        title: "Joins of sides in host memory by the size of the probe side",
        metric: JOIN,
        x: "rows of the probe side",
        x_axis: Axis::Log2,
        y: UNIT,
        factor: 1.0,
        paper: &[],
    },
    Figure {
        name: "build-scaling",
        title: "Joins of sides in host memory by the size of both",
        metric: JOIN,
        x: "rows of each side",
        x_axis: Axis::Log2,
        y: UNIT,
        factor: 1.0,
        paper: &[],
    },
];

/// Names of the figure by transfer method in cases, and what its bars tell of the ratio of both sides. Records of the
/// first name have four rows of the probe side for each of the build side, those of the second are of workload A.
const TRANSFERS: [(&str, &str); 2] = [("transfer", ", 1:4"), ("transfer-a", ", 1:16")];

/// Figure 12 of the paper, workload A: each method, and its rates over NVLink 2.0 and PCIe 3.0.
const PAPER_TRANSFERS: [(&str, f64, Option<f64>); 8] = [
    ("coherence", 3.83, None),
    ("zero-copy", 3.81, Some(0.77)),
    ("pinned copy", 3.42, Some(0.74)),
    ("dynamic pinning", 2.36, Some(0.26)),
    ("staged copy", 2.15, Some(0.73)),
    ("pageable copy", 0.67, Some(0.25)),
    ("UM prefetch", 0.17, Some(0.54)),
    ("UM migration", 0.16, Some(0.25)),
];

/// Writes the plots of the records that there are to a folder. Returns how many.
///
/// # Errors
/// If a plot cannot be written.
pub(crate) fn write(folder: &Path, records: &[&Record]) -> Result<usize> {
    let mut written = 0;
    for figure in &FIGURES {
        written += draw::write(folder, &figure.plot(records))?;
    }
    let bars = transfers(records);
    let title = "Joins by the transfer method (figure 12 of Lutz et al. is of workload A, 1:16)";
    written += bars::write((folder, "joins-transfer"), title, UNIT, &bars)?;
    Ok(written + sections::write(folder, records)?)
}

impl Figure {
    fn plot(&self, records: &[&Record]) -> Plot {
        let mut plot = Plot {
            name: format!("joins-{}", self.name),
            title: self.title.to_owned(),
            axes: Axes {
                x: self.x,
                x_axis: self.x_axis,
                y: self.y,
                y_axis: Axis::Linear,
            },
            series: Vec::new(),
        };
        let several = several(records, is_of_figure);
        for (place, table, record) in cases(records, self.name, self.metric) {
            let Some(x) = self.place(place) else {
                continue;
            };
            plot.add(&label(table, record, several), Point::of(record, x));
        }
        if !plot.series.is_empty() {
            for (x, value) in self.paper {
                plot.add(PAPER_LINE, single(*x, *value));
            }
        }
        plot
    }

    /// Returns the place of a case such as `1:8` or `1.25` on the x axis.
    fn place(&self, text: &str) -> Option<u64> {
        let number: f64 = text.strip_prefix("1:").unwrap_or(text).parse().ok()?;
        Some((number * self.factor).round() as u64)
    }
}

/// Returns the point of a value that was not measured here.
fn single(x: u64, value: f64) -> Point {
    Point {
        x,
        median: value,
        min: value,
        max: value,
        n: 1,
    }
}

/// Returns place, table and record of each case of a figure, `figures/FIGURE/PLACE/TABLE`.
fn cases<'a>(
    records: &'a [&Record],
    figure: &str,
    metric: &str,
) -> impl Iterator<Item = (&'a str, &'a str, &'a Record)> {
    let of_metric = records.iter().filter(move |record| record.metric == metric);
    of_metric.filter_map(move |record| {
        let parts: Vec<&str> = record.case.split('/').collect();
        let ["figures", name, place, table] = parts[..] else {
            return None;
        };
        (name == figure).then_some((place, table, *record))
    })
}

fn is_of_figure(record: &Record) -> bool {
    record.case.starts_with("figures/")
}

/// Returns whether the records of a plot are of several scales. All labels have the hardware.
fn several(records: &[&Record], is_own: impl Fn(&Record) -> bool) -> Several {
    let own = records.iter().copied();
    let own = own.filter(|record| is_own(record));
    Several {
        machines: false,
        ..Several::of(&own.collect::<Vec<_>>())
    }
}

/// Returns the label of a line, with the hardware.
fn label(table: &str, record: &Record, several: Several) -> String {
    several.label(&format!("{table}: {}", record.device), record)
}

/// Returns the latest rate with each method, table, machine and scale. If there are any, the rates of the paper
/// follow.
fn transfers(records: &[&Record]) -> Vec<Bar> {
    let several = several(records, is_of_figure);
    let mut bars = Vec::new();
    for (figure, ratio) in TRANSFERS {
        for (method, table, record) in cases(records, figure, JOIN) {
            let line = label(&format!("{table}{ratio}"), record, several);
            replace(&mut bars, format!("{method}, {line}"), record.median);
        }
    }
    if !bars.is_empty() {
        let of_bus = |method: &str, bus: &str| format!("Lutz et al., {method}: V100, {bus}");
        for (method, nvlink, pcie) in PAPER_TRANSFERS {
            bars.push((of_bus(method, "NVLink 2.0"), nvlink));
            bars.extend(pcie.map(|rate| (of_bus(method, "PCIe 3.0"), rate)));
        }
    }
    bars
}

/// Adds a bar at the end, instead of an earlier one with the same label.
fn replace(bars: &mut Vec<Bar>, label: String, value: f64) {
    bars.retain(|(known, _)| *known != label);
    bars.push((label, value));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::tests::record;

    #[test]
    fn all_figures_are_drawn_from_their_cases() {
        let case = |case, metric, value| record("joins", case, metric, value);
        let records = [
            case("figures/ratio/1:1/perfect", JOIN, 5.0),
            case("figures/ratio/1:16/perfect", JOIN, 20.0),
            case("figures/ratio/1:16/perfect", "build_s", 0.5),
            case("figures/skew/0/perfect", PROBE, 20.0),
            case("figures/skew/1.25/linear-probing", PROBE, 40.0),
            case("figures/selectivity/0.25/perfect", PROBE, 10.0),
            case("figures/probe-rows/1024/perfect", JOIN, 10.0),
            case("figures/build-rows/2/perfect", JOIN, 10.0),
            case("figures/transfer/ring/perfect", JOIN, 3.5),
            case("figures/transfer-a/ring/perfect", JOIN, 3.25),
            case("figures/transfer-a/limit", "gb_per_s", 50.0),
            case("join-a-device/perfect", JOIN, 25.0),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let skew = FIGURES[1].plot(&records);
        let places = skew.series.iter().map(|(_, points)| points[0].x);
        assert_eq!(places.collect::<Vec<_>>(), [0, 125]);
        let (label, paper) = FIGURES[0].plot(&records).series.remove(1);
        assert_eq!((label.as_str(), paper.len()), (PAPER_LINE, 5));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let written = write(folder.path(), &records).expect("the folder is writable");
        assert_eq!(written, 6);
        for (file, texts) in [
            ("joins-ratio.svg", ["perfect: host:2", "V100"]),
            ("joins-skew.svg", ["linear-probing", "exponent"]),
            ("joins-selectivity.svg", ["perfect", "percent"]),
            (
                "joins-probe-rows.svg",
                ["perfect", "rows of the probe side"],
            ),
            (
                "joins-build-rows.svg",
                ["perfect", "rows of the build side"],
            ),
            (
                "joins-transfer.svg",
                ["ring, perfect, 1:4: host:2", "coherence: V100, NVLink"],
            ),
        ] {
            let drawn = fs::read_to_string(folder.path().join(file)).expect(file);
            for text in texts {
                assert!(drawn.contains(text), "{file}: {text} in {drawn}");
            }
        }
    }

    #[test]
    fn a_line_has_one_scale() {
        let of = |case: &str, scale: &str| Record {
            command: format!("forebay bench joins --scale {scale}"),
            ..record("joins", case, JOIN, 1.0)
        };
        let records = [
            of("figures/build-rows/1024/perfect", "1"),
            of("figures/build-rows/16/perfect", "0.015625"),
            of("figures/build-rows/64/perfect", "0.015625"),
            of("join-a-device/perfect", "0.5"),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let lines = |records: &[&Record]| -> Vec<(bool, Vec<u64>)> {
            let of_line = |(label, points): &(String, Vec<Point>)| {
                let places = points.iter().map(|point| point.x);
                (label.ends_with(", scale 0.015625"), places.collect())
            };
            FIGURES[4]
                .plot(records)
                .series
                .iter()
                .map(of_line)
                .collect()
        };
        let expected = [(false, vec![1024]), (true, vec![16, 64])];
        assert_eq!(lines(&records), expected);
        assert_eq!(lines(&records[1..]), [(false, vec![16, 64])]);
    }

    #[test]
    fn nothing_is_drawn_without_records_of_figures() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let other = record("joins", "join-a-device/perfect", JOIN, 1.0);
        let written = write(folder.path(), &[&other]).expect("nothing to write");
        assert_eq!(written, 0);
    }
}
