//! Plots and tables of the papers' figures, from records.

pub(crate) mod bars;
pub(crate) mod draw;
mod figures;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::record::{self, Record};
use crate::{io, joins, q6, tables, transfer};
use draw::Axes;
use figures::{About, about};

/// Options of `forebay bench plot`.
#[derive(Args, Clone, Debug)]
pub struct PlotArgs {
    /// Files of JSON lines. If two lines are for the same point, the later line is used. Results of several machines
    /// or scales are drawn apart.
    #[arg(required = true, value_name = "FILE")]
    pub records: Vec<PathBuf>,
    /// Folder of the plots and, if there are records of documents, of FIGURES.md.
    #[arg(long, value_name = "FOLDER", default_value = "docs/benchmarks")]
    pub into: PathBuf,
}

/// One measured point.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) x: u64,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) n: usize,
}

/// A plot, such as `figure-12-regex`, with one line for each program.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) axes: Axes,
    pub(crate) series: Vec<(String, Vec<Point>)>,
}

/// Whether records are of several machines, and of several scales. The labels of their lines then name them, so that
/// the points of a line are comparable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Several {
    /// Whether labels name the hardware.
    pub(crate) machines: bool,
    /// Whether labels name the scale.
    pub(crate) scales: bool,
}

impl Several {
    /// Returns what the labels of these records name.
    pub(crate) fn of(records: &[&Record]) -> Several {
        // A machine has processors and GPUs.
        let are_several = |is_gpu: bool| {
            let own = records.iter();
            let own = own.filter(|record| (record.driver != "none") == is_gpu);
            let models: BTreeSet<&str> = own.map(|record| hardware(&record.device).1).collect();
            models.len() > 1
        };
        let scales: BTreeSet<String> = records.iter().map(|record| scale(record)).collect();
        Several {
            machines: are_several(true) || are_several(false),
            scales: scales.len() > 1,
        }
    }

    /// Returns the label of the line of a record.
    pub(crate) fn label(self, line: &str, record: &Record) -> String {
        let mut label = line.to_owned();
        if self.machines {
            label += &format!(", {}", hardware(&record.device).1);
        }
        if self.scales {
            label += &format!(", {}", scale(record));
        }
        label
    }
}

/// Returns the scale that the command of a record names, as in `scale 0.25`.
fn scale(record: &Record) -> String {
    let mut words = record.command.split([' ', '=']);
    match words.find(|word| matches!(*word, "--scale" | "--scale-factor" | "--smoke")) {
        None => "default scale".to_owned(),
        Some("--smoke") => "smoke run".to_owned(),
        Some(_) => format!("scale {}", words.next().unwrap_or("unknown")),
    }
}

/// Returns the value of an option, such as `--device-bytes`, in the command of a record.
pub(crate) fn option_of<'a>(command: &'a str, option: &str) -> Option<&'a str> {
    let mut words = command.split([' ', '=']);
    words.find(|word| *word == option)?;
    words.next()
}

/// Draws the figures that are recorded in files. Notes the name of each file that it writes.
///
/// # Errors
/// If a line of a file is not a record, no record belongs to a figure, or the folder cannot be written.
pub fn run(args: &PlotArgs) -> Result<()> {
    let mut records = Vec::new();
    for path in &args.records {
        records.extend(record::read(path)?);
    }
    write(&args.into, &records)
}

/// Writes a plot for each figure, and, for records of documents, `FIGURES.md` with their plots and tables.
///
/// # Errors
/// If no record belongs to a figure, or the folder cannot be written.
pub fn write(folder: &Path, records: &[Record]) -> Result<()> {
    let written = write_found(folder, records)?;
    ensure!(written > 0, "no record belongs to a figure");
    Ok(())
}

/// Writes the plots of a run, which may have measured no case of a figure.
///
/// # Errors
/// If the folder cannot be written.
pub(crate) fn write_of_run(folder: &Path, records: &[Record]) -> Result<()> {
    if write_found(folder, records)? == 0 {
        forebay_terminal::note("nothing is drawn: no case of a figure was measured");
    }
    Ok(())
}

/// Writes the plots for which there are records. Returns how many.
fn write_found(folder: &Path, records: &[Record]) -> Result<usize> {
    let of = |bench: &str| -> Vec<&Record> {
        let own = records.iter().filter(|record| record.bench == bench);
        own.collect()
    };
    let written = [
        documents(folder, records)?,
        io::plots::write(folder, &of("io"))?,
        q6::plot::write(folder, &of("q6"))?,
        transfer::plots::write(folder, &of("transfer"))?,
        joins::plots::write(folder, &of("joins"))?,
        tables::plots::write(folder, &of("sql-gpu"))?,
    ];
    Ok(written.into_iter().sum())
}

/// Writes the figures of documents and their page. Returns the number of plots.
fn documents(folder: &Path, records: &[Record]) -> Result<usize> {
    let records: Vec<&Record> = records
        .iter()
        .filter(|record| record.case.starts_with("figure-"))
        .collect();
    let plots = plots(&records)?;
    for plot in &plots {
        draw::write(folder, plot)?;
    }
    if !plots.is_empty() {
        let path = folder.join("FIGURES.md");
        fs::write(&path, page::of(&plots, &records))?;
        forebay_terminal::note(format_args!("written: {}", path.display()));
    }
    Ok(plots.len())
}

/// Groups records by figure and program, in the order of the figures' numbers.
fn plots(records: &[&Record]) -> Result<Vec<Plot>> {
    let mut plots: BTreeMap<(u32, String), Plot> = BTreeMap::new();
    let ours = records.iter().filter(|record| record.engine == "forebay");
    let machines: BTreeSet<&str> = ours.map(|record| hardware(&record.device).1).collect();
    for record in records {
        let (name, kind, x) = parts(&record.case)
            .with_context(|| format!("the case {} is not a point of a figure", record.case))?;
        let about = about(name).with_context(|| format!("{name} is not a figure of the paper"))?;
        let key = (about.number, name.to_owned());
        let plot = plots.entry(key).or_insert_with(|| Plot {
            name: name.to_owned(),
            title: title(name, about),
            axes: about.axes,
            series: Vec::new(),
        });
        plot.add(
            &label(record, kind, machines.len() > 1),
            point(record, x, about),
        );
    }
    Ok(plots.into_values().collect())
}

/// Returns the figure's number and title, and the variant if the plot's name has one: `regex` for `figure-12-regex`.
fn title(name: &str, about: &About) -> String {
    match name.splitn(3, '-').nth(2) {
        Some(part) => format!("{}. {} ({part})", about.number, about.title),
        None => format!("{}. {}", about.number, about.title),
    }
}

/// Splits a case, such as `figure-8: it leaves/1024`, into the name of the plot, an optional kind of line, and the x
/// value.
fn parts(case: &str) -> Option<(&str, Option<&str>, u64)> {
    let (line, x) = case.rsplit_once('/')?;
    let x = x.parse().ok()?;
    Some(match line.split_once(": ") {
        Some((name, kind)) => (name, Some(kind), x),
        None => (line, None, x),
    })
}

/// Splits a device text, such as `cuda:0 of NVIDIA H200`, into the devices and their hardware.
fn hardware(device: &str) -> (&str, &str) {
    device.split_once(" of ").unwrap_or((device, device))
}

/// Returns the label of a line, such as `forebay on host:2: cached`. `with_machine` adds the machine, for plots with
/// several machines.
fn label(record: &Record, kind: Option<&str>, with_machine: bool) -> String {
    let devices = if with_machine && record.engine == "forebay" {
        record.device.as_str()
    } else {
        hardware(&record.device).0
    };
    let mut label = format!("{} on {devices}", record.engine);
    if let Some(kind) = kind {
        label = format!("{label}: {kind}");
    }
    label
}

/// Converts a record to a point. Latencies of a single client become searches/s if the paper plots rates.
fn point(record: &Record, x: u64, about: &About) -> Point {
    let rate = |milliseconds: f64| 1e3 / milliseconds;
    match (record.metric.as_str(), about.is_rate) {
        ("client_ms", true) => Point {
            x,
            median: rate(record.median),
            min: rate(record.max),
            max: rate(record.min),
            n: record.n,
        },
        _ => Point::of(record, x),
    }
}

/// Returns the element that is wanted; adds it if it is missing.
pub(crate) fn find_or_add<T>(
    all: &mut Vec<T>,
    is_wanted: impl Fn(&T) -> bool,
    new: impl FnOnce() -> T,
) -> &mut T {
    let index = all.iter().position(is_wanted).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    });
    &mut all[index]
}

impl Point {
    /// Returns the values of a record at a place.
    pub(crate) fn of(record: &Record, x: u64) -> Point {
        Point {
            x,
            median: record.median,
            min: record.min,
            max: record.max,
            n: record.n,
        }
    }
}

impl Plot {
    pub(crate) fn add(&mut self, label: &str, point: Point) {
        let is_known = |(known, _): &(String, Vec<Point>)| known == label;
        let new = || (label.to_owned(), Vec::new());
        let (_, points) = find_or_add(&mut self.series, is_known, new);
        points.retain(|other| other.x != point.x);
        points.push(point);
        points.sort_by_key(|point| point.x);
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|(_, points)| points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record as record_of;

    fn record(case: &str, metric: &str, value: f64) -> Record {
        record_of("documents", case, metric, value)
    }

    #[test]
    fn a_case_names_its_figure_its_line_and_its_place() {
        assert_eq!(
            parts("figure-8: it leaves/1024"),
            Some(("figure-8", Some("it leaves"), 1024))
        );
        assert_eq!(
            parts("figure-12-regex/10"),
            Some(("figure-12-regex", None, 10))
        );
        assert_eq!(parts("figure-6"), None);
    }

    #[test]
    fn the_later_line_about_a_point_counts_and_times_become_rates() {
        let records = [
            record("figure-10/1000000", "client_ms", 20.0),
            record("figure-10/100000", "client_ms", 2.0),
            record("figure-10/1000000", "client_ms", 10.0),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let plots = plots(&records).expect("the records are points of figures");
        let medians: Vec<f64> = plots[0].points().map(|point| point.median).collect();
        assert_eq!(medians, [500.0, 100.0]);
    }

    #[test]
    fn a_line_has_one_machine_and_one_scale() {
        let of = |device: &str, command: &str| Record {
            device: device.to_owned(),
            command: command.to_owned(),
            ..record("figure-6/1", "searches_per_s", 1.0)
        };
        let all = [
            of("host:2 of A", "forebay bench q6 --scale-factor=10"),
            of("1 thread of A", "forebay bench q6 --rounds 2"),
            of("host:2 of B", "forebay bench q6 --smoke"),
        ];
        let all: Vec<&Record> = all.iter().collect();
        let labels = |records: &[&Record]| -> Vec<String> {
            let several = Several::of(records);
            let labels = records.iter().map(|record| several.label("q6", record));
            labels.collect()
        };
        assert_eq!(labels(&all[..1]), ["q6"]);
        assert_eq!(labels(&all[..2]), ["q6, scale 10", "q6, default scale"]);
        assert_eq!(labels(&all)[2], "q6, B, smoke run");
    }

    #[test]
    fn pictures_and_a_page_are_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut records: Vec<Record> = (10..20)
            .map(|exponent| {
                let case = format!("figure-6/{}", 1 << exponent);
                record(&case, "searches_per_s", f64::from(exponent))
            })
            .collect();
        records.push(record("figure-13: cached/0", "documents_per_s", 1e5));
        records.push(record("exact-one-client", "client_us", 1.0));
        write(folder.path(), &records).expect("the folder is writable");
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
        assert!(read("figure-6.svg").contains("forebay on host:2"));
        assert!(read("figure-13.svg").contains("</svg>"));
        let page = read("FIGURES.md");
        assert!(
            page.contains("figure-6.svg") && page.contains("524,288"),
            "{page}"
        );
        let other = [record_of("io", "other", "mb_per_s", 1.0)];
        for nothing in [&records[11..], &other] {
            let error = write(folder.path(), nothing).expect_err("none is of a figure");
            assert!(error.to_string().contains("no record"), "{error}");
        }
    }

    #[test]
    fn records_of_movement_are_drawn_too() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let into = folder.path().join("plots");
        let records = [
            record_of("transfer", "move/zero-copy/to-host/4096", "gb_per_s", 1.0),
            record_of("q6", "q6-pinned/65536", "gb_per_s", 1.0),
            record_of("io", "io-buffer-random-read: host/4096", "mb_per_s", 1.0),
        ];
        write(&into, &records).expect("the folder is writable");
        for name in [
            "transfer-to-host.svg",
            "q6-rates.svg",
            "io-random-read-by-buffer-rate.svg",
        ] {
            assert!(into.join(name).exists(), "{name}");
        }
        assert!(!into.join("FIGURES.md").exists(), "it is of documents");
    }
}
