//! Draws bars as SVG: horizontal ones, and stacked ones in panels.

use std::path::Path;

use anyhow::{Result, ensure};
use plotters::prelude::*;

use super::draw::{Area, COLOURS, Drawn, FONT, SIZE, TITLE_FONT, VALUE_MAX, save, short};
use super::page::figure;

/// Size of a panel of stacked bars.
const PANEL_SIZE: (u32, u32) = (330, 380);
/// Height of a horizontal bar with its space, in pixels.
const BAR_PIXELS: u32 = 18;
/// Height of what is above and below the bars.
const AROUND_BARS_PIXELS: u32 = 94;
/// Width of the area of bars, about.
const BARS_PIXELS: f64 = 820.0;
/// Width of a letter of a label, about.
const LETTER_PIXELS: f64 = 6.0;
/// Letters of a value and of what separates it from its label, at most.
const VALUE_LETTERS: usize = 9;
/// Maximum number of panels of a file.
const PANELS_MAX: usize = 64;

/// A horizontal bar: its label and its value.
pub(crate) type Bar = (String, f64);

/// Stacked bars, side by side under a title.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// Label of each bar, and the heights of its parts from bottom to top.
    pub(crate) bars: Vec<(String, Vec<f64>)>,
}

impl Panel {
    /// Returns a panel without bars.
    pub(crate) fn new(title: &str) -> Panel {
        Panel {
            title: title.to_owned(),
            bars: Vec::new(),
        }
    }
}

/// What the bars of panels have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scales<'a> {
    /// Label of the x axis.
    pub(crate) x: &'a str,
    /// Label of the y axis.
    pub(crate) y: &'a str,
    /// Names of the parts of a bar.
    pub(crate) parts: &'a [&'a str],
}

/// Draws horizontal bars on a logarithmic axis, each with its label and value. More bars make a taller picture. Draws
/// nothing without bars. Returns the number of files.
///
/// # Errors
/// If a value cannot be drawn, or the file cannot be written.
pub(crate) fn write(
    (folder, name): (&Path, &str),
    title: &str,
    unit: &str,
    bars: &[Bar],
) -> Result<usize> {
    if bars.is_empty() {
        return Ok(0);
    }
    for (label, value) in bars {
        check(label, *value)?;
    }
    let height = SIZE
        .1
        .max(AROUND_BARS_PIXELS + BAR_PIXELS * bars.len() as u32);
    save(folder, name, (SIZE.0, height), |root| {
        draw_bars(root, title, unit, bars)
    })
}

/// Checks that the length of a bar is a number that can be drawn.
fn check(label: &str, value: f64) -> Result<()> {
    ensure!(
        (0.0..=VALUE_MAX).contains(&value),
        "{label} cannot be drawn: its value {value} is not between 0 and {VALUE_MAX:e}"
    );
    Ok(())
}

fn draw_bars(root: &Area<'_>, title: &str, unit: &str, bars: &[Bar]) -> Drawn {
    let place = |value: f64| value.max(1e-9).log10();
    let places = || bars.iter().map(|(_, value)| place(*value));
    let first = places().fold(f64::MAX, f64::min).floor() - 0.2;
    let highest = places().fold(f64::MIN, f64::max);
    // The labels stand behind the bars.
    let with_label = |(label, value): &Bar| {
        let letters = label.chars().count() + VALUE_LETTERS;
        let share = (letters as f64 * LETTER_PIXELS / BARS_PIXELS).min(0.8);
        (place(*value) - first) / (1.0 - share)
    };
    let widths = bars.iter().map(with_label);
    let last = first + widths.fold((highest - first) * 1.6, f64::max);
    let mut chart = ChartBuilder::on(root)
        .caption(title, TITLE_FONT)
        .margin(10)
        .x_label_area_size(48)
        .y_label_area_size(16)
        .build_cartesian_2d(first..last, 0.0..bars.len() as f64)?;
    let row = |index: usize| (bars.len() - 1 - index) as f64;
    let label = |place: &f64| match (place - place.round()).abs() < 1e-6 && *place < highest + 1.0 {
        true => short(10_f64.powf(*place)),
        false => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .light_line_style(WHITE)
        .x_desc(unit)
        .x_label_formatter(&label)
        .label_style(FONT)
        .draw()?;
    for (index, (label, value)) in bars.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let (low, high) = (
            (first, row(index) + 0.15),
            (place(*value), row(index) + 0.85),
        );
        chart.draw_series([Rectangle::new([low, high], colour.filled())])?;
        let text = format!(" {label}: {}", figure(*value));
        let size = (FONT.0, 12);
        chart.draw_series([Text::new(text, (place(*value), row(index) + 0.8), size)])?;
    }
    Ok(())
}

/// Draws panels of stacked bars side by side with one scale, unless there are none. Returns the number of files.
///
/// # Errors
/// If there are more than [`PANELS_MAX`] panels, a value cannot be drawn, or the file cannot be written.
pub(crate) fn write_panels(
    (folder, name): (&Path, &str),
    scales: Scales<'_>,
    panels: &[Panel],
) -> Result<usize> {
    if panels.is_empty() {
        return Ok(0);
    }
    ensure!(
        panels.len() <= PANELS_MAX,
        "{name} would have {} panels; at most {PANELS_MAX} are drawn",
        panels.len()
    );
    let (width, height) = PANEL_SIZE;
    let mut most = 1e-9_f64;
    for (label, parts) in panels.iter().flat_map(|panel| &panel.bars) {
        parts.iter().try_for_each(|part| check(label, *part))?;
        most = most.max(parts.iter().sum());
    }
    save(
        folder,
        name,
        (width * panels.len() as u32, height),
        |root| {
            for (panel, area) in panels.iter().zip(root.split_evenly((1, panels.len()))) {
                draw_panel(&area, panel, scales, most)?;
            }
            Ok(())
        },
    )
}

fn draw_panel(area: &Area<'_>, panel: &Panel, scales: Scales<'_>, most: f64) -> Drawn {
    let bars = &panel.bars;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (TITLE_FONT.0, 15))
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..bars.len() as f64, 0.0..most * 1.4)?;
    let label = |place: &f64| {
        let bar = bars.get(*place as usize).filter(|_| place.fract() == 0.5);
        bar.map_or_else(String::new, |(label, _)| label.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(2 * bars.len() + 1)
        .x_label_formatter(&label)
        .y_label_formatter(&|value| short(*value))
        .x_desc(scales.x)
        .y_desc(scales.y)
        .label_style((FONT.0, 12))
        .draw()?;
    for (part, name) in scales.parts.iter().enumerate() {
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
        .label_font((FONT.0, 12))
        .draw()?;
    Ok(())
}
