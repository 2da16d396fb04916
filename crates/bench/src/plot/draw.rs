//! Draws a plot as SVG.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::figures::Axis;
use super::{Plot, Point};

const SIZE: (u32, u32) = (860, 460);
const FONT: (&str, i32) = ("sans-serif", 14);
const TITLE_FONT: (&str, i32) = ("sans-serif", 18);
/// Space for the labels of the axes, in pixels: height below the x axis, width beside the y axis.
const LABEL_PIXELS: (i32, i32) = (48, 78);
/// Height of a legend line, as a share of the height of the plotting area.
const LEGEND_LINE_SHARE: f64 = 0.055;
/// Colours that are distinct for colour-blind people too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

impl Axis {
    /// Returns the position of a value on the axis.
    fn place(self, value: f64) -> f64 {
        match self {
            Axis::Linear => value,
            Axis::Log2 => value.log2(),
            Axis::Log10 => value.log10(),
        }
    }

    /// Formats the value at a position on the axis.
    fn label(self, place: f64) -> String {
        match self {
            Axis::Linear => short(place),
            Axis::Log2 => format!("2^{place}"),
            Axis::Log10 => short(10_f64.powf(place)),
        }
    }

    /// Returns the range of the axis: minimum to maximum with a margin. A linear axis starts at zero.
    fn range(self, values: impl Iterator<Item = f64>) -> Range<f64> {
        let places = values.map(|value| self.place(value));
        let (least, most) = places.fold((f64::MAX, f64::MIN), |(least, most), place| {
            (least.min(place), most.max(place))
        });
        match self {
            Axis::Linear => 0.0..(most * 1.1).max(1.0),
            Axis::Log2 => least - 0.3..most + 0.3,
            Axis::Log10 => least - 0.2..most + 0.2,
        }
    }
}

/// Formats a number for an axis: `131k`, `2.5M`, `0.03`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 0.9995e9 => (value / 1e9, "G"),
        value if value >= 0.9995e6 => (value / 1e6, "M"),
        value if value >= 0.9995e3 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let digits = match scaled {
        scaled if scaled >= 99.95 || scaled == 0.0 => 0,
        scaled if scaled >= 0.995 => 1,
        _ => 3,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    };
    format!("{text}{unit}")
}

/// Draws a plot to a file: a line for each series, and at each point a bar from minimum to maximum.
pub fn svg(plot: &Plot, path: &Path) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    // The backend's error borrows from the plot, so convert it to text.
    draw(plot, &root).map_err(|error| anyhow!("{error}"))
}

fn draw(
    plot: &Plot,
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let about = plot.about;
    root.fill(&WHITE)?;
    let x_range = about
        .x_axis
        .range(plot.points().map(|point| point.x as f64));
    let ends = plot.points().flat_map(|point| [point.min, point.max]);
    let y_range = with_headroom(about.y_axis.range(ends), plot.series.len());
    let mut chart = ChartBuilder::on(root)
        .caption(title(plot), TITLE_FONT)
        .margin(10)
        .x_label_area_size(LABEL_PIXELS.0)
        .y_label_area_size(LABEL_PIXELS.1)
        .build_cartesian_2d(x_range, y_range)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(about.x)
        .y_desc(about.y)
        .x_label_formatter(&|place| about.x_axis.label(*place))
        .y_label_formatter(&|place| about.y_axis.label(*place))
        .label_style(FONT)
        .draw()?;
    let place = |point: &Point, y: f64| {
        let x = about.x_axis.place(point.x as f64);
        (x, about.y_axis.place(y))
    };
    for ((label, points), colour) in plot.series.iter().zip(COLOURS.iter().cycle()) {
        let line = points.iter().map(|point| place(point, point.median));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(3))?
            .label(label.as_str())
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        let bars = points.iter().map(|point| {
            let ends = [place(point, point.min), place(point, point.max)];
            PathElement::new(ends, colour.stroke_width(1))
        });
        chart.draw_series(bars)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(FONT)
        .draw()?;
    root.present()?;
    Ok(())
}

/// Extends the range at the top, for a legend of `lines` lines.
fn with_headroom(range: Range<f64>, lines: usize) -> Range<f64> {
    let share = (0.05 + LEGEND_LINE_SHARE * lines as f64).min(0.8);
    let headroom = (range.end - range.start) * share / (1.0 - share);
    range.start..range.end + headroom
}

/// Returns the figure's number and title, and the variant if the plot's name has one: `regex` for `figure-12-regex`.
fn title(plot: &Plot) -> String {
    let about = plot.about;
    match plot.name.splitn(3, '-').nth(2) {
        Some(part) => format!("{}. {} ({part})", about.number, about.title),
        None => format!("{}. {}", about.number, about.title),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_axes_are_short() {
        let texts = [0.0, 0.03, 1.0, 2.5, 131_072.0, 1e6, 99_999_999.0].map(short);
        assert_eq!(texts, ["0", "0.03", "1", "2.5", "131k", "1M", "100M"]);
    }

    #[test]
    fn a_place_on_an_axis_is_labelled_with_its_value() {
        let label = |axis: Axis, value| axis.label(axis.place(value));
        assert_eq!(label(Axis::Linear, 1e6), "1M");
        assert_eq!(label(Axis::Log2, 1_024.0), "2^10");
        assert_eq!(label(Axis::Log10, 1e6), "1M");
    }
}
