//! Draws a plot of lines as SVG.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::prelude::*;

use super::{Plot, Point};
use crate::size;

pub(super) const SIZE: (u32, u32) = (860, 460);
pub(super) const FONT: (&str, i32) = ("sans-serif", 14);
pub(super) const TITLE_FONT: (&str, i32) = ("sans-serif", 18);
/// Space for the labels of the axes, in pixels: height below the x axis, width beside the y axis.
const LABEL_PIXELS: (i32, i32) = (48, 78);
/// Height of a legend line, as a share of the height of the plotting area.
const LEGEND_LINE_SHARE: f64 = 0.055;
/// Colours that are distinct for colour-blind people too (Okabe and Ito).
pub(super) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(120, 120, 120),
];

/// Maximum of the values that are drawn.
pub(super) const VALUE_MAX: f64 = 1e15;
/// Minimum of the values on a logarithmic axis.
const LOG_VALUE_MIN: f64 = 1e-12;

/// A drawing area of an SVG file.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
/// The backend's errors borrow from the drawing.
pub(super) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The axes of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axes {
    /// Label of the x axis.
    pub(crate) x: &'static str,
    /// Scale of the x axis.
    pub(crate) x_axis: Axis,
    /// Label of the y axis.
    pub(crate) y: &'static str,
    /// Scale of the y axis.
    pub(crate) y_axis: Axis,
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Linear.
    Linear,
    /// Logarithmic, in powers of two.
    Log2,
    /// As [`Axis::Log2`], labelled with numbers.
    Count,
    /// As [`Axis::Log2`], labelled with sizes such as `64 KiB`.
    Bytes,
    /// Logarithmic, in powers of ten.
    Log10,
}

impl Axis {
    /// Returns the position of a value on the axis.
    fn place(self, value: f64) -> f64 {
        match self {
            Axis::Linear => value,
            Axis::Log2 | Axis::Count | Axis::Bytes => value.log2(),
            Axis::Log10 => value.log10(),
        }
    }

    /// Checks that a value has a position on the axis.
    ///
    /// # Errors
    /// For a value that is not finite or too large, and on a logarithmic axis for one that is not positive.
    fn check(self, value: f64) -> Result<()> {
        let least = match self {
            Axis::Linear => 0.0,
            _ => LOG_VALUE_MIN,
        };
        ensure!(
            (least..=VALUE_MAX).contains(&value),
            "the value {value} is not between {least} and {VALUE_MAX:e}"
        );
        Ok(())
    }

    /// Formats the value at a position on the axis.
    fn label(self, place: f64) -> String {
        match self {
            Axis::Linear => short(place),
            Axis::Log10 => short(10_f64.powf(place)),
            // Only whole powers are labelled.
            _ if (place - place.round()).abs() > 1e-6 => String::new(),
            Axis::Log2 => format!("2^{}", place.round()),
            Axis::Count => short(place.exp2()),
            Axis::Bytes => size::text(place.round().exp2() as usize),
        }
    }

    /// Returns the maximum number of labels.
    fn labels(self) -> usize {
        match self {
            Axis::Linear | Axis::Log10 => 11,
            Axis::Log2 | Axis::Count => 20,
            Axis::Bytes => 10,
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
            Axis::Log2 | Axis::Count | Axis::Bytes => least - 0.3..most + 0.3,
            Axis::Log10 => least - 0.2..most + 0.2,
        }
    }
}

/// Formats a number for an axis or a bar: `131k`, `2.5M`, `0.03`.
pub(super) fn short(value: f64) -> String {
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

/// Draws a plot to an SVG file of its name in a folder, unless it has no points: a line for each series, and at each
/// point a bar from minimum to maximum. Returns the number of files.
///
/// # Errors
/// If a value cannot be drawn, or the file cannot be written.
pub(crate) fn write(folder: &Path, plot: &Plot) -> Result<usize> {
    if plot.series.is_empty() {
        return Ok(0);
    }
    for (label, points) in &plot.series {
        let drawn = points.iter().try_for_each(|point| check(plot.axes, point));
        drawn.with_context(|| format!("{label} of {} cannot be drawn", plot.name))?;
    }
    save(folder, &plot.name, SIZE, |root| draw(plot, root))
}

fn check(axes: Axes, point: &Point) -> Result<()> {
    axes.x_axis.check(point.x as f64)?;
    let values = [point.min, point.median, point.max];
    values
        .into_iter()
        .try_for_each(|value| axes.y_axis.check(value))
}

/// Draws an SVG file in a folder, which it makes if it is missing, and notes its name. Returns the number of files,
/// which is 1.
///
/// # Errors
/// If the name, which may come from a record, has other letters than `a` to `z`, digits and `-`, or the file cannot be
/// written.
pub(super) fn save(
    folder: &Path,
    name: &str,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<usize> {
    let is_plain = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
    ensure!(
        !name.is_empty() && name.chars().all(is_plain),
        "{name:?} is not a name of a plot"
    );
    let path = &folder.join(format!("{name}.svg"));
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let root = SVGBackend::new(path, size).into_drawing_area();
    let drawn: Drawn = root.fill(&WHITE).map_err(Into::into);
    let drawn = drawn.and_then(|()| draw(&root));
    let drawn = drawn.and_then(|()| Ok(root.present()?));
    drawn.map_err(|error| anyhow!("writing {}: {error}", path.display()))?;
    forebay_terminal::note(format_args!("written: {}", path.display()));
    Ok(1)
}

fn draw(plot: &Plot, root: &Area<'_>) -> Drawn {
    let axes = plot.axes;
    let xs = plot.points().map(|point| point.x as f64);
    let x_range = axes.x_axis.range(xs);
    let ends = plot.points().flat_map(|point| [point.min, point.max]);
    let y_values = axes.y_axis.range(ends);
    let y_range = with_headroom(y_values.clone(), plot.series.len());
    // There is nothing but the legend above the values.
    let y_label = |place: &f64| match *place <= y_values.end {
        true => axes.y_axis.label(*place),
        false => String::new(),
    };
    let mut chart = ChartBuilder::on(root)
        .caption(&plot.title, TITLE_FONT)
        .margin(10)
        .x_label_area_size(LABEL_PIXELS.0)
        .y_label_area_size(LABEL_PIXELS.1)
        .build_cartesian_2d(x_range, y_range)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_labels(axes.x_axis.labels())
        .x_label_formatter(&|place| axes.x_axis.label(*place))
        .y_label_formatter(&y_label)
        .label_style(FONT)
        .draw()?;
    let place = |point: &Point, y: f64| {
        let x = axes.x_axis.place(point.x as f64);
        (x, axes.y_axis.place(y))
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
    Ok(())
}

/// Extends the range at the top, for a legend of `lines` lines.
fn with_headroom(range: Range<f64>, lines: usize) -> Range<f64> {
    let share = (0.05 + LEGEND_LINE_SHARE * lines as f64).min(0.8);
    let headroom = (range.end - range.start) * share / (1.0 - share);
    range.start..range.end + headroom
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
        assert_eq!(label(Axis::Count, 16.0), "16");
        assert_eq!(label(Axis::Bytes, 65_536.0), "64 KiB");
        assert_eq!(Axis::Bytes.label(16.5), "", "no size is there");
    }

    fn plot(name: &str, axis: Axis, value: f64) -> Plot {
        let axes = Axes {
            x: "x",
            x_axis: Axis::Count,
            y: "y",
            y_axis: axis,
        };
        let point = Point {
            x: 1,
            median: value,
            min: value,
            max: value,
            n: 1,
        };
        Plot {
            name: name.to_owned(),
            title: "a title".to_owned(),
            axes,
            series: vec![("ours".to_owned(), vec![point])],
        }
    }

    #[test]
    fn values_that_have_no_place_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let written = |axis, value| write(folder.path(), &plot("p", axis, value)).is_ok();
        for value in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            assert!(!written(Axis::Linear, value), "{value}");
            assert!(!written(Axis::Log10, value), "{value}");
        }
        assert!(written(Axis::Linear, 0.0) && !written(Axis::Log10, 0.0));
        assert!(written(Axis::Log2, 1e15));
    }

    #[test]
    fn a_plot_stays_in_its_folder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["../p", "/p", "a/b", "a.b", ""] {
            let error = write(folder.path(), &plot(name, Axis::Linear, 1.0));
            let text = error.expect_err("no plain name").to_string();
            assert!(text.ends_with("is not a name of a plot"), "{text}");
        }
    }
}
