//! Collects the measurements of all rounds, for each point of a figure.

use anyhow::{Context, Result};

use crate::documents::report::Report;
use crate::record::Measured;
use crate::statistics::Summary;

/// The measurements of each point of a figure, one per round.
#[derive(Debug, Default)]
pub struct Samples {
    points: Vec<Point>,
}

#[derive(Debug)]
struct Point {
    case: String,
    engine: String,
    devices: String,
    metric: &'static str,
    expect: Option<u64>,
    values: Vec<f64>,
}

impl Samples {
    /// Adds a measurement to its point.
    pub fn add(&mut self, case: &str, by: Measured<'_>, metric: &'static str, value: f64) {
        let is_it = |point: &&mut Point| {
            point.case == case
                && point.engine == by.engine
                && point.devices == by.devices
                && point.metric == metric
        };
        match self.points.iter_mut().find(is_it) {
            Some(point) => point.values.push(value),
            None => self.points.push(Point {
                case: case.to_owned(),
                engine: by.engine.to_owned(),
                devices: by.devices.to_owned(),
                metric,
                expect: by.expect,
                values: vec![value],
            }),
        }
    }

    /// Reports every point, in the order of the points' first measurements.
    ///
    /// # Errors
    /// As for [`Report::add`].
    pub fn report(self, report: &mut Report) -> Result<()> {
        for point in self.points {
            let by = Measured {
                engine: &point.engine,
                devices: &point.devices,
                expect: point.expect,
            };
            let summary =
                Summary::of(&point.values).context("a point of a figure has no measurement")?;
            report.add(&point.case, by, point.metric, summary)?;
        }
        Ok(())
    }
}
