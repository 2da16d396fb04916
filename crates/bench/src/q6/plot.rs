//! Plots of a run: execution time by phase and CPU use, as in figures 5 and 7 of Miura et al., and rates.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{Outcome, Sample, rest};

const PANEL_SIZE: (u32, u32) = (330, 380);
const FONT: (&str, i32) = ("sans-serif", 12);
const TITLE_FONT: (&str, i32) = ("sans-serif", 15);
/// Colours that are distinct for colour-blind people too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(150, 150, 150),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// One variant: a bar for each buffer size, each with the heights of its parts from bottom to top.
struct Panel<'a> {
    title: &'a str,
    bars: Vec<(String, Vec<f64>)>,
}

/// Writes the plots to a folder. A plot without a measured case is not written.
///
/// # Errors
/// If the folder cannot be written.
pub(super) fn write(folder: &Path, outcomes: &[Outcome]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let serial = ["serial-cpu", "serial-staged", "serial-direct"];
    let phases = panels(&serial, outcomes, phase_seconds);
    let legend = ["I/O", "transfer", "compute", "rest"];
    stacked(&folder.join("q6-time.svg"), "seconds", &legend, &phases)?;
    let ring = [
        "q6-cpu",
        "q6-disk-uring",
        "q6-disk-threads",
        "q6-direct-sync",
    ];
    let all: Vec<&str> = serial.into_iter().chain(ring).collect();
    let usage = panels(&all, outcomes, cpu_percent);
    let legend = ["user", "system", "wait"];
    stacked(
        &folder.join("q6-cpu-use.svg"),
        "% of one core",
        &legend,
        &usage,
    )?;
    rates(&folder.join("q6-rates.svg"), outcomes)
}

fn phase_seconds(sample: &Sample) -> Option<Vec<f64>> {
    let phases = sample.phases?;
    let all = [phases.io, phases.transfer, phases.compute, rest(sample)?];
    Some(all.map(|time| time.as_secs_f64()).to_vec())
}

fn cpu_percent(sample: &Sample) -> Option<Vec<f64>> {
    let usage = &sample.usage;
    let percent = 100.0 / usage.elapsed.as_secs_f64();
    let all = [usage.user, usage.system, usage.wait];
    Some(all.map(|time| time.as_secs_f64() * percent).to_vec())
}

/// Returns a panel for each case that was measured with buffers.
fn panels<'a>(
    names: &[&'a str],
    outcomes: &[Outcome],
    heights: fn(&Sample) -> Option<Vec<f64>>,
) -> Vec<Panel<'a>> {
    let panel = |name: &&'a str| {
        let own = outcomes.iter().filter(|outcome| outcome.name == **name);
        let bar =
            |outcome: &Outcome| Some((size(outcome.buffer_bytes?), heights(&outcome.typical)?));
        Panel {
            title: name,
            bars: own.filter_map(bar).collect(),
        }
    };
    let all = names.iter().map(panel);
    all.filter(|panel| !panel.bars.is_empty()).collect()
}

/// Formats a buffer size: `64K`, `1M`.
fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{}M", bytes >> 20),
        bytes => format!("{}K", bytes >> 10),
    }
}

/// Draws stacked bars, the panels side by side with one scale.
fn stacked(path: &Path, unit: &str, legend: &[&str], panels: &[Panel<'_>]) -> Result<()> {
    if panels.is_empty() {
        return Ok(());
    }
    let (width, height) = PANEL_SIZE;
    let root = SVGBackend::new(path, (width * panels.len() as u32, height)).into_drawing_area();
    let heights = panels.iter().flat_map(|panel| &panel.bars);
    let most = heights.map(|(_, parts)| parts.iter().sum::<f64>());
    let most = most.fold(0.0, f64::max).max(1e-9);
    let draw = || -> Drawn {
        root.fill(&WHITE)?;
        for (panel, area) in panels.iter().zip(root.split_evenly((1, panels.len()))) {
            draw_panel(&area, panel, unit, legend, most)?;
        }
        Ok(root.present()?)
    };
    // The backend's error borrows from the plot, so convert it to text.
    draw().map_err(|error| anyhow!("writing {}: {error}", path.display()))
}

fn draw_panel(area: &Area<'_>, panel: &Panel<'_>, unit: &str, legend: &[&str], most: f64) -> Drawn {
    let bars = &panel.bars;
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, TITLE_FONT)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..bars.len() as f64, 0.0..most * 1.4)?;
    let label = |place: &f64| {
        let bar = bars.get(*place as usize).filter(|_| place.fract() == 0.5);
        bar.map_or_else(String::new, |(size, _)| size.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(2 * bars.len() + 1)
        .x_label_formatter(&label)
        .x_desc("buffer")
        .y_desc(unit)
        .label_style(FONT)
        .draw()?;
    for (part, name) in legend.iter().enumerate() {
        let style = COLOURS[part].filled();
        let rectangles = bars.iter().enumerate().map(|(index, (_, parts))| {
            let below: f64 = parts[..part].iter().sum();
            let left = index as f64;
            Rectangle::new(
                [(left + 0.15, below), (left + 0.85, below + parts[part])],
                style,
            )
        });
        chart
            .draw_series(rectangles)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font(FONT)
        .draw()?;
    Ok(())
}

/// Draws the rate of each case with buffers, by buffer size.
fn rates(path: &Path, outcomes: &[Outcome]) -> Result<()> {
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for outcome in outcomes {
        let is_serial = outcome.name.starts_with("serial-");
        let Some(bytes) = outcome.buffer_bytes.filter(|_| !is_serial) else {
            continue;
        };
        let point = ((bytes as f64).log2(), outcome.gb_per_s);
        match lines.iter_mut().find(|(name, _)| *name == outcome.name) {
            Some((_, points)) => points.push(point),
            None => lines.push((&outcome.name, vec![point])),
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    let root = SVGBackend::new(path, (860, 460)).into_drawing_area();
    draw_rates(&root, &lines).map_err(|error| anyhow!("writing {}: {error}", path.display()))
}

fn draw_rates(root: &Area<'_>, lines: &[(&str, Vec<(f64, f64)>)]) -> Drawn {
    root.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|(_, points)| points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let ends = (f64::MAX, f64::MIN);
        points().map(of).fold(ends, |(least, most), value| {
            (least.min(value), most.max(value))
        })
    };
    let ((left, right), (least, most)) = (bounds(|point| point.0), bounds(|point| point.1));
    let mut chart = ChartBuilder::on(root)
        .caption("Query 6 by buffer size", TITLE_FONT)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(
            left - 0.3..right + 3.0,
            (least * 0.7..most * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("bytes of a buffer")
        .y_desc("GB/s")
        .y_labels(20)
        .x_label_formatter(&|place| format!("2^{place}"))
        .label_style(FONT)
        .draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE.mix(0.8))
        .label_font(FONT)
        .draw()?;
    Ok(root.present()?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::report::Phases;
    use super::super::usage::Usage;
    use super::*;

    fn outcome(name: &str, buffer_bytes: usize) -> Outcome {
        let time = Duration::from_millis(buffer_bytes as u64 >> 16);
        let typical = Sample {
            usage: Usage {
                elapsed: 4 * time,
                user: time,
                system: time,
                wait: 2 * time,
            },
            phases: Some(Phases {
                io: time,
                transfer: time,
                compute: time,
            }),
            sum: None,
        };
        Outcome {
            name: name.to_owned(),
            buffer_bytes: Some(buffer_bytes),
            typical,
            gb_per_s: 1.5,
        }
    }

    #[test]
    fn each_plot_has_its_variants_phases_and_sizes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let into = folder.path().join("plots");
        let measured = [
            outcome("serial-cpu", 64 << 10),
            outcome("serial-cpu", 16 << 20),
            outcome("q6-cpu", 64 << 10),
        ];
        write(&into, &measured).expect("writable");
        let read = |name: &str| fs::read_to_string(into.join(name)).expect(name);
        for (name, texts) in [
            (
                "q6-time.svg",
                &["serial-cpu", "transfer", "rest", "64K", "16M"][..],
            ),
            ("q6-cpu-use.svg", &["q6-cpu", "system", "wait", "64K"]),
            ("q6-rates.svg", &["q6-cpu", "GB/s", "2^16"]),
        ] {
            let text = read(name);
            for part in texts {
                assert!(text.contains(part), "{name}: {part}");
            }
        }
    }

    #[test]
    fn phases_add_up_to_the_elapsed_time() {
        let sample = outcome("serial-cpu", 1 << 20).typical;
        let sum: f64 = phase_seconds(&sample).expect("phases").iter().sum();
        assert!((sum - sample.usage.elapsed.as_secs_f64()).abs() < 1e-9);
        assert_eq!(cpu_percent(&sample), Some(vec![25.0, 25.0, 50.0]));
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), &[]).expect("writable");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
