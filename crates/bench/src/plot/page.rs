//! `FIGURES.md`: each plot with its table and the paper's result.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::figures::about;
use super::{Plot, Point, hardware};
use crate::record::Record;

const HEAD: &str = "\
# The paper's figures

`forebay bench plot` writes this page from lines of `bench/record/`. It follows figures 6 to 13 of *DistGPU Cache*
(Morishima & Matsutani, 2016): random values of eight letters, the same searches and sizes. [METHOD](../benchmarks/METHOD.md)
describes how each figure is made, [BIAS](../benchmarks/BIAS.md) what is unfair. The paper prints no tables; its results are
stated in words below each plot.

The paper's machine: Intel Xeon E5-2637 v3 at 3.5 GHz, 128 GB, up to three GeForce GTX 980 with 4 GB each, local or over
20 Gbit/s Ethernet; MongoDB 2.6.6 on a file system in memory; CUDA 6.0.
";

/// Returns the page for plots made from `records`.
pub fn of(plots: &[Plot], records: &[&Record]) -> String {
    let mut page = format!("{HEAD}\n{}\n", ours(records));
    for plot in plots {
        add_plot(&mut page, plot);
    }
    page
}

/// Returns the machines and commits of the records.
fn ours(records: &[&Record]) -> String {
    let set = |of: fn(&Record) -> String| -> String {
        let all: BTreeSet<String> = records.iter().map(|record| of(record)).collect();
        all.into_iter().collect::<Vec<_>>().join("; ")
    };
    let hardware = set(|record| hardware(&record.device).1.to_owned());
    let commits = set(|record| format!("`{}`", record.commit));
    let days = set(|record| record.date.chars().take(10).collect());
    format!("Measured for this page: on {hardware}; commits {commits}; dates {days}.")
}

fn add_plot(page: &mut String, plot: &Plot) {
    let name = &plot.name;
    let Some(about) = about(name) else {
        return;
    };
    let part = name.splitn(3, '-').nth(2);
    let part = part.map(|part| format!(" ({part})")).unwrap_or_default();
    let heading = format!("Figure {}{part}: {}", about.number, about.title);
    let _ = write!(page, "\n## {heading}\n\n![{heading}]({name}.svg)\n\n");
    let _ = write!(page, "The paper: {}\n\n", about.paper);
    let labels: Vec<&str> = plot
        .series
        .iter()
        .map(|(label, _)| label.as_str())
        .collect();
    let _ = writeln!(
        page,
        "| {}, {} | {} |",
        plot.axes.y,
        plot.axes.x,
        labels.join(" | ")
    );
    let _ = writeln!(page, "|---|{}", "---|".repeat(labels.len()));
    let xs: BTreeSet<u64> = plot.points().map(|point| point.x).collect();
    for x in xs {
        let cells: Vec<String> = plot
            .series
            .iter()
            .map(|(_, points)| cell(points, x))
            .collect();
        let _ = writeln!(page, "| {} | {} |", grouped(x), cells.join(" | "));
    }
}

/// Formats median, minimum and maximum, and the number of measurements.
fn cell(points: &[Point], x: u64) -> String {
    let point = points.iter().find(|point| point.x == x);
    point.map_or_else(String::new, |point| {
        let Point {
            median,
            min,
            max,
            n,
            ..
        } = point;
        format!(
            "{} ({} to {}, n {n})",
            figure(*median),
            figure(*min),
            figure(*max)
        )
    })
}

/// Formats a value with at least three significant digits.
pub(super) fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => grouped(value.round() as u64),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// Formats a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_rounded() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(131_072), "131,072");
        assert_eq!(figure(1_234.5), "1,235");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(0.0317), "0.032");
    }
}
