//! Plots of records: figures 2, 3 and 4 of Miura et al.

use std::path::Path;

use anyhow::Result;

use crate::plot::bars::{self, Panel, Scales};
use crate::plot::draw::{self, Axes, Axis};
use crate::plot::{Plot, Point, Several, find_or_add};
use crate::record::Record;

/// A kind of plot: one for each access, such as random reads, with a line for each path.
struct Kind {
    /// Series of the cases, as in `io-threads-random-read: host/4`.
    sweep: &'static str,
    metric: &'static str,
    /// End of the name of the file.
    name: &'static str,
    /// Figure of the paper, and what it shows.
    title: &'static str,
    axes: Axes,
}

/// Axes with the size of the buffer.
const fn by_buffer(y: &'static str) -> Axes {
    Axes {
        x: "bytes of a buffer",
        x_axis: Axis::Bytes,
        y,
        y_axis: Axis::Log10,
    }
}

/// Axes with the operations in flight.
const fn by_threads(y: &'static str) -> Axes {
    Axes {
        x: "operations in flight",
        x_axis: Axis::Count,
        y,
        y_axis: Axis::Log10,
    }
}

const KINDS: [Kind; 5] = [
    Kind {
        sweep: "io-buffer-",
        metric: "mb_per_s",
        name: "by-buffer-rate",
        title: "one operation in flight (figure 2 of Miura et al.)",
        axes: by_buffer("MB/s"),
    },
    Kind {
        sweep: "io-buffer-",
        metric: "operations_per_s",
        name: "by-buffer-operations",
        title: "one operation in flight (figure 2 of Miura et al.)",
        axes: by_buffer("operations/s"),
    },
    Kind {
        sweep: "io-buffer-",
        metric: "latency_us_median",
        name: "by-buffer-latency",
        title: "one operation in flight (figure 2 of Miura et al.)",
        axes: by_buffer("median latency, microseconds"),
    },
    Kind {
        sweep: "io-threads-",
        metric: "mb_per_s",
        name: "by-threads-rate",
        title: "several operations in flight (figure 3 of Miura et al.)",
        axes: by_threads("MB/s"),
    },
    Kind {
        sweep: "io-threads-",
        metric: "latency_us_median",
        name: "by-threads-latency",
        title: "several operations in flight (figure 3 of Miura et al.)",
        axes: by_threads("median latency, microseconds"),
    },
];

/// Metrics of CPU use.
const CPU_METRICS: [&str; 3] = ["cpu_user_percent", "cpu_system_percent", "cpu_wait_percent"];

/// Scales of the CPU use.
const CPU_SCALES: Scales<'static> = Scales {
    x: "operations in flight",
    y: "% of one core",
    parts: &["user", "system", "I/O wait"],
};

/// A record of a series: its access, as in `random-read`, its line, as in `host, hot cache`, and its place.
struct Placed<'a> {
    access: &'a str,
    line: &'a str,
    x: u64,
    record: &'a Record,
}

/// Returns the records of a series.
fn placed<'a>(records: &'a [&Record], sweep: &str) -> impl Iterator<Item = Placed<'a>> {
    records.iter().filter_map(move |record| {
        let (access, rest) = record.case.strip_prefix(sweep)?.split_once(": ")?;
        let (line, x) = rest.rsplit_once('/')?;
        // A yardstick such as `fio` measures the case of another program.
        let line = if record.engine == "forebay" {
            line
        } else {
            &record.engine
        };
        Some(Placed {
            access,
            line,
            x: x.parse().ok()?,
            record,
        })
    })
}

/// Writes the figures of the records that there are to a folder. Returns how many.
///
/// # Errors
/// If a plot cannot be written.
pub(crate) fn write(folder: &Path, records: &[&Record]) -> Result<usize> {
    let mut written = 0;
    for kind in KINDS {
        for plot in plots(&kind, records) {
            written += draw::write(folder, &plot)?;
        }
    }
    for (access, panels) in cpu_use(records) {
        let name = format!("io-{access}-cpu-use");
        written += bars::write_panels((folder, &name), CPU_SCALES, &panels)?;
    }
    Ok(written)
}

/// Returns the plots of a kind.
fn plots(kind: &Kind, records: &[&Record]) -> Vec<Plot> {
    let several = Several::of(records);
    let mut plots: Vec<Plot> = Vec::new();
    for Placed {
        access,
        line,
        x,
        record,
    } in placed(records, kind.sweep)
    {
        if record.metric != kind.metric {
            continue;
        }
        let name = format!("io-{access}-{}", kind.name);
        let is_known = |plot: &Plot| plot.name == name;
        let new = || Plot {
            name: name.clone(),
            title: format!("{}s, {}", capitalised(access), kind.title),
            axes: kind.axes,
            series: Vec::new(),
        };
        let label = several.label(line, record);
        find_or_add(&mut plots, is_known, new).add(&label, Point::of(record, x));
    }
    plots
}

/// Returns `Random read` for `random-read`.
fn capitalised(access: &str) -> String {
    let mut text = access.replace('-', " ");
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

/// Returns a panel for each path of each access, with a bar for each number of operations in flight.
fn cpu_use(records: &[&Record]) -> Vec<(String, Vec<Panel>)> {
    let several = Several::of(records);
    let mut figures: Vec<(String, Vec<Panel>)> = Vec::new();
    for Placed {
        access,
        line,
        x,
        record,
    } in placed(records, "io-threads-")
    {
        let mut metrics = CPU_METRICS.iter();
        let Some(part) = metrics.position(|metric| record.metric == *metric) else {
            continue;
        };
        let is_known = |(known, _): &(String, Vec<Panel>)| known == access;
        let (_, panels) = find_or_add(&mut figures, is_known, || (access.to_owned(), Vec::new()));
        let title = several.label(line, record);
        let is_known = |panel: &Panel| panel.title == title;
        let panel = find_or_add(panels, is_known, || Panel::new(&title));
        let (label, none) = (x.to_string(), vec![0.0; CPU_METRICS.len()]);
        let is_known = |(known, _): &(String, Vec<f64>)| *known == label;
        let (_, heights) = find_or_add(&mut panel.bars, is_known, || (label.clone(), none));
        heights[part] = record.median;
    }
    figures
}
