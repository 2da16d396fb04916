//! Plots of the section `figures`: rates by the ratio and the sizes of both sides, by skew, by selectivity and by
//! transfer method.

use std::path::Path;

use anyhow::Result;

use crate::plot::bars::{self, Bar};
use crate::plot::draw::{self, Axes, Axis};
use crate::plot::{Plot, Point, Several};
use crate::record::Record;

const JOIN: &str = "giga_tuples_per_s";
const PROBE: &str = "probe_giga_tuples_per_s";

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
    /// A point of the paper: its label, place and value.
    paper: Option<(&'static str, u64, f64)>,
}

const FIGURES: [Figure; 5] = [
    Figure {
        name: "ratio",
        title: "Joins by the ratio of both sides",
        metric: JOIN,
        x: "rows of the probe side for each row of the build side",
        x_axis: Axis::Count,
        y: "G tuples/s, both sides",
        factor: 1.0,
        // Workload A.
        paper: Some(("Lutz et al., perfect: V100", 16, 4.7)),
    },
    Figure {
        name: "skew",
        title: "Probes by the skew of their keys",
        metric: PROBE,
        x: "hundredths of the exponent of Zipf's distribution",
        x_axis: Axis::Linear,
        y: "G probes/s",
        factor: 100.0,
        paper: None,
    },
    Figure {
        name: "selectivity",
        title: "Probes by their selectivity",
        metric: PROBE,
        x: "percent of the rows of the probe side that have a match",
        x_axis: Axis::Linear,
        y: "G probes/s",
        factor: 100.0,
        paper: None,
    },
    Figure {
        name: "probe-rows",
        title: "Joins by the size of the probe side, with a small table",
        metric: JOIN,
        x: "rows of the probe side",
        x_axis: Axis::Log2,
        y: "G tuples/s, both sides",
        factor: 1.0,
        paper: None,
    },
    Figure {
        name: "build-rows",
        title: "Joins by the size of the build side",
        metric: JOIN,
        x: "rows of the build side",
        x_axis: Axis::Log2,
        y: "G tuples/s, both sides",
        factor: 1.0,
        paper: None,
    },
];

/// Results of the paper for workload A with the probe side in host memory.
const PAPER_TRANSFER: [(&str, f64); 2] = [
    ("Lutz et al., perfect: V100, NVLink 2.0", 3.83),
    ("Lutz et al., perfect: V100, PCIe 3.0", 0.77),
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
    let title = "Joins by the transfer method of the probe side (figure 12 of Lutz et al.)";
    written += bars::write(
        (folder, "joins-transfer"),
        title,
        "G tuples/s, both sides",
        &bars,
    )?;
    Ok(written)
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
        let several = several(records);
        for (place, table, record) in cases(records, self.name, self.metric) {
            let Some(x) = self.place(place) else {
                continue;
            };
            plot.add(&label(table, record, several), Point::of(record, x));
        }
        if let Some((label, x, value)) = self.paper.filter(|_| !plot.series.is_empty()) {
            let point = Point {
                x,
                median: value,
                min: value,
                max: value,
                n: 1,
            };
            plot.add(label, point);
        }
        plot
    }

    /// Returns the place of a case such as `1:8` or `1.25` on the x axis.
    fn place(&self, text: &str) -> Option<u64> {
        let number: f64 = text.strip_prefix("1:").unwrap_or(text).parse().ok()?;
        Some((number * self.factor).round() as u64)
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

/// Returns whether the records of figures are of several scales. All labels have the hardware.
fn several(records: &[&Record]) -> Several {
    let of_figures = records.iter().copied();
    let of_figures = of_figures.filter(|record| record.case.starts_with("figures/"));
    Several {
        machines: false,
        ..Several::of(&of_figures.collect::<Vec<_>>())
    }
}

/// Returns the label of a line, with the hardware.
fn label(table: &str, record: &Record, several: Several) -> String {
    several.label(&format!("{table}: {}", record.device), record)
}

/// Returns the latest rate with each method, table, machine and scale. If there are any, the rates of the paper
/// follow.
fn transfers(records: &[&Record]) -> Vec<Bar> {
    let several = several(records);
    let mut bars: Vec<Bar> = Vec::new();
    for (method, table, record) in cases(records, "transfer", JOIN) {
        let text = format!("{method}, {}", label(table, record, several));
        bars.retain(|(known, _)| *known != text);
        bars.push((text, record.median));
    }
    if !bars.is_empty() {
        bars.extend(PAPER_TRANSFER.map(|(label, rate)| (label.to_owned(), rate)));
    }
    bars
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
            case("figures/transfer/limit", "gb_per_s", 50.0),
            case("join-a-device/perfect", JOIN, 25.0),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let skew = FIGURES[1].plot(&records);
        let places = skew.series.iter().map(|(_, points)| points[0].x);
        assert_eq!(places.collect::<Vec<_>>(), [0, 125]);
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
            ("joins-transfer.svg", ["ring, perfect", "NVLink"]),
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
