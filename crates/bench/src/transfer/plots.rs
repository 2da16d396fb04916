//! Draws the results: rates by chunk size, the best rate of each method, and reads of each memory.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use super::report::Measurement;

const SIZE: (u32, u32) = (900, 480);
const FONT: (&str, i32) = ("sans-serif", 14);
const TITLE_FONT: (&str, i32) = ("sans-serif", 18);
/// Colours that are distinct for colour-blind people too (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(120, 120, 120),
];

/// The figures of reads: file, whether rates or latencies, title and unit.
const READS: [(&str, bool, &str, &str); 2] = [
    (
        "reads.svg",
        true,
        "Reads of each memory (figure 3 of Lutz et al.)",
        "GB/s",
    ),
    (
        "latency.svg",
        false,
        "Latency of dependent reads (figure 3 of Lutz et al.)",
        "ns",
    ),
];

/// A line: its label, and points of chunk bytes and rate.
type Line = (String, Vec<(f64, f64)>);

/// A bar: its label and its value.
type Bar = (String, f64);

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Writes the figures of the results that there are to a folder.
///
/// # Errors
/// If a figure cannot be written.
pub(super) fn write(folder: &Path, results: &[Measurement]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for direction in ["to-device", "to-host"] {
        let lines = lines(results, direction);
        let path = folder.join(format!("{direction}.svg"));
        let title = format!("Transfer methods by chunk size, {direction}");
        save(&path, lines.is_empty(), |root| {
            draw_lines(root, &title, &lines)
        })?;
    }
    let best = best(results);
    let path = folder.join("methods.svg");
    let title = "Best rate of each transfer method (figure 12 of Lutz et al.)";
    save(&path, best.is_empty(), |root| {
        draw_bars(root, title, "GB/s", &best)
    })?;
    for (file, is_rate, title, unit) in READS {
        let bars = reads(results, is_rate);
        save(&folder.join(file), bars.is_empty(), |root| {
            draw_bars(root, title, unit, &bars)
        })?;
    }
    Ok(())
}

/// Returns a line of rates by chunk size for each method.
fn lines(results: &[Measurement], direction: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for result in results {
        let parts: Vec<&str> = result.case.split('/').collect();
        let ["move", method, to, chunk] = parts[..] else {
            continue;
        };
        let Ok(chunk) = chunk.parse::<f64>() else {
            continue;
        };
        if to != direction || result.metric != "gb_per_s" {
            continue;
        }
        let point = (chunk, result.median);
        match lines.iter_mut().find(|(label, _)| label == method) {
            Some((_, points)) => points.push(point),
            None => lines.push((method.to_owned(), vec![point])),
        }
    }
    lines
}

/// Returns the best rate of each method and direction.
fn best(results: &[Measurement]) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    for result in results.iter().filter(|result| result.metric == "gb_per_s") {
        let Some(rest) = result.case.strip_prefix("move/") else {
            continue;
        };
        let label = rest.rsplit_once('/').map_or(rest, |(label, _)| label);
        match bars.iter_mut().find(|(known, _)| known == label) {
            Some((_, rate)) => *rate = rate.max(result.median),
            None => bars.push((label.to_owned(), result.median)),
        }
    }
    bars
}

/// Returns the measurements of reads with a metric. Random reads per second become gigabytes per second.
fn reads(results: &[Measurement], is_rate: bool) -> Vec<Bar> {
    let bar = |result: &Measurement| {
        let label = result.case.strip_prefix("read/")?;
        let value = match result.metric {
            "giga_reads_per_s" => result.median * random_bytes(label)?,
            _ => result.median,
        };
        ((result.metric != "latency_ns") == is_rate).then(|| (label.to_owned(), value))
    };
    results.iter().filter_map(bar).collect()
}

/// Returns the bytes of a read from a label such as `host-memory/random-8b`.
fn random_bytes(label: &str) -> Option<f64> {
    let (_, bytes) = label.split_once("random-")?;
    bytes.strip_suffix('b')?.parse().ok()
}

/// Draws a figure into a file, unless there is nothing to draw.
fn save(
    path: &Path,
    is_empty: bool,
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn,
) -> Result<()> {
    if is_empty {
        return Ok(());
    }
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
    // The backend's error borrows from the drawing, so convert it to text.
    draw(&root).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    root.present().map_err(|error| anyhow!("{error}"))?;
    Ok(())
}

fn draw_lines(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    lines: &[Line],
) -> Drawn {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let chunks = || points().map(|(chunk, _)| chunk.log2());
    let (first, last) = (
        chunks().fold(f64::MAX, f64::min),
        chunks().fold(0.0, f64::max),
    );
    let most = points().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(root)
        .caption(title, TITLE_FONT)
        .margin(10)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(first - 0.3..last + 0.3, 0.0..(most * 1.6).max(1e-6))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("bytes of a chunk")
        .y_desc("GB/s")
        .x_label_formatter(&|place| format!("2^{place}"))
        .label_style(FONT)
        .draw()?;
    for ((label, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let line = points.iter().map(|(chunk, rate)| (chunk.log2(), *rate));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(3))?
            .label(label.as_str())
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(FONT)
        .draw()?;
    Ok(())
}

/// Draws horizontal bars on a logarithmic axis, each with its label and value.
fn draw_bars(
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    unit: &str,
    bars: &[Bar],
) -> Drawn {
    let place = |value: f64| value.max(1e-9).log10();
    let places = || bars.iter().map(|(_, value)| place(*value));
    let first = places().fold(f64::MAX, f64::min).floor() - 0.2;
    let highest = places().fold(f64::MIN, f64::max);
    // The labels stand behind the bars.
    let last = highest + (highest - first) * 0.5;
    let mut chart = ChartBuilder::on(root)
        .caption(title, TITLE_FONT)
        .margin(10)
        .x_label_area_size(48)
        .y_label_area_size(16)
        .build_cartesian_2d(first..last, 0.0..bars.len() as f64)?;
    let row = |index: usize| (bars.len() - 1 - index) as f64;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_desc(unit)
        .x_label_formatter(&|place| format!("{}", 10_f64.powf(*place) as f32))
        .label_style(FONT)
        .draw()?;
    for (index, (label, value)) in bars.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let (low, high) = (
            (first, row(index) + 0.15),
            (place(*value), row(index) + 0.85),
        );
        chart.draw_series([Rectangle::new([low, high], colour.filled())])?;
        let text = format!(" {label}: {value:.3}");
        let size = (FONT.0, 12);
        chart.draw_series([Text::new(text, (place(*value), row(index) + 0.8), size)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(case: &str, metric: &'static str, median: f64) -> Measurement {
        Measurement {
            case: case.to_owned(),
            metric,
            median,
        }
    }

    #[test]
    fn all_figures_are_drawn_from_their_cases() {
        let results = [
            result("move/pinned-copy/to-device/4096", "gb_per_s", 1.5),
            result("move/pinned-copy/to-device/8192", "gb_per_s", 2.5),
            result("move/zero-copy/to-host/4096", "gb_per_s", 3.5),
            result("move/dynamic-pinning/to-host/4096", "pinning_s", 9.5),
            result("allocate/zero-copy/4096", "allocation_s", 9.5),
            result("read/host-memory/dependent", "latency_ns", 900.0),
            result("read/host-memory/random-8b", "giga_reads_per_s", 0.5),
        ];
        let to_device = lines(&results, "to-device");
        assert_eq!(
            to_device,
            [("pinned-copy".to_owned(), vec![(4096.0, 1.5), (8192.0, 2.5)])]
        );
        let expected = [
            ("pinned-copy/to-device".to_owned(), 2.5),
            ("zero-copy/to-host".to_owned(), 3.5),
        ];
        assert_eq!(best(&results), expected);
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), &results).expect("the folder is writable");
        for (file, text) in [
            ("to-device.svg", "pinned-copy"),
            ("to-host.svg", "zero-copy"),
            ("methods.svg", "3.500"),
            ("reads.svg", "host-memory/random-8b: 4.000"),
            ("latency.svg", "host-memory/dependent: 900.000"),
        ] {
            let drawn = fs::read_to_string(folder.path().join(file)).expect(file);
            assert!(drawn.contains(text), "{file}: {drawn}");
        }
    }

    #[test]
    fn nothing_is_drawn_without_results() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), &[]).expect("nothing to write");
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
    }
}
