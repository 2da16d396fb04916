//! Figures 2, 3 and 4 of Miura et al.

use std::path::Path;

use anyhow::{Context, Result};

use super::cell::Sweep;
use super::report::Value;
use crate::plot::figures::{About, Axis};
use crate::plot::{Plot, Point, draw};

const BUFFER: &str = "bytes of the buffer";
const THREADS: &str = "operations in flight";

/// A plot for each metric of a sweep.
const METRICS: [(Sweep, &str, About); 5] = [
    (
        Sweep::Buffers,
        "mb_per_s",
        About {
            number: 2,
            title: "One operation in flight",
            x: BUFFER,
            x_axis: Axis::Log2,
            y: "MB/s",
            y_axis: Axis::Log10,
            is_rate: true,
            paper: "rising up to buffers of 64 MB; CPU I/O and GPU-direct I/O are about equal.",
        },
    ),
    (
        Sweep::Buffers,
        "operations_per_s",
        About {
            number: 2,
            title: "One operation in flight",
            x: BUFFER,
            x_axis: Axis::Log2,
            y: "operations/s",
            y_axis: Axis::Log10,
            is_rate: true,
            paper: "CPU I/O and GPU-direct I/O are about equal.",
        },
    ),
    (
        Sweep::Buffers,
        "latency_us_median",
        About {
            number: 2,
            title: "One operation in flight",
            x: BUFFER,
            x_axis: Axis::Log2,
            y: "median latency in microseconds",
            y_axis: Axis::Log10,
            is_rate: false,
            paper: "CPU I/O and GPU-direct I/O are about equal.",
        },
    ),
    (
        Sweep::Threads,
        "mb_per_s",
        About {
            number: 3,
            title: "Many operations in flight",
            x: THREADS,
            x_axis: Axis::Linear,
            y: "MB/s",
            y_axis: Axis::Linear,
            is_rate: true,
            paper: "sequential reads are saturated by 4 threads, sequential writes by 2, on both paths.",
        },
    ),
    (
        Sweep::Threads,
        "latency_us_median",
        About {
            number: 3,
            title: "Many operations in flight",
            x: THREADS,
            x_axis: Axis::Linear,
            y: "median latency in microseconds",
            y_axis: Axis::Log10,
            is_rate: false,
            paper: "about equal on both paths.",
        },
    ),
];

/// CPU use, with a plot for each path.
static CPU: About = About {
    number: 4,
    title: "CPU use",
    x: THREADS,
    x_axis: Axis::Linear,
    y: "percent of one core",
    y_axis: Axis::Linear,
    is_rate: false,
    paper: "GPU-direct I/O takes more user and system time than CPU I/O.",
};

/// Metrics of CPU use, and their lines.
const CPU_METRICS: [(&str, &str); 3] = [
    ("cpu_user_percent", "user"),
    ("cpu_system_percent", "system"),
    ("cpu_wait_percent", "I/O wait"),
];

/// Draws the figures of a sweep.
///
/// # Errors
/// If the folder cannot be written.
pub(super) fn draw(sweep: Sweep, values: &[Value], folder: &Path) -> Result<()> {
    static ABOUT: [(Sweep, &str, About); 5] = METRICS;
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let own: Vec<&Value> = values
        .iter()
        .filter(|value| value.cell.sweep == sweep)
        .collect();
    let mut plots: Vec<Plot> = Vec::new();
    for value in &own {
        let panel = value.cell.panel();
        for (_, metric, about) in ABOUT
            .iter()
            .filter(|(of, metric, _)| *of == sweep && *metric == value.metric)
        {
            let name = format!("figure-{}-{panel}-{metric}", about.number);
            place(&mut plots, name, about, (&value.line, value));
        }
        let cpu = CPU_METRICS
            .iter()
            .find(|(metric, _)| *metric == value.metric);
        if let (Sweep::Threads, Some((_, line))) = (sweep, cpu) {
            let path = value.line.replace([',', ' '], "-");
            place(
                &mut plots,
                format!("figure-4-{panel}-{path}"),
                &CPU,
                (line, value),
            );
        }
    }
    for plot in &plots {
        let path = folder.join(format!("{}.svg", plot.name));
        draw::svg(plot, &path).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Adds a value to its plot.
fn place(
    plots: &mut Vec<Plot>,
    name: String,
    about: &'static About,
    (line, value): (&str, &Value),
) {
    let found = plots.iter().position(|plot| plot.name == name);
    let index = found.unwrap_or_else(|| {
        plots.push(Plot {
            name,
            about,
            series: Vec::new(),
        });
        plots.len() - 1
    });
    // A logarithmic axis has no zero.
    let shown = value.value.max(0.001);
    let point = Point {
        x: value.cell.x(),
        median: shown,
        min: shown,
        max: shown,
        n: 1,
    };
    plots[index].add(line, point);
}
