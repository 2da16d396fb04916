//! Plots of records: execution time by phase and CPU use, as in figures 5 and 7 of Miura et al., and rates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::plot::bars::{self, Panel, Scales};
use crate::plot::draw::{self, Axes, Axis};
use crate::plot::{Plot, Point, Several};
use crate::record::Record;
use crate::size;

/// Variants that do one step after another.
const SERIAL: [&str; 3] = ["serial-cpu", "serial-staged", "serial-direct"];
/// Variants that read the disk while they compute.
const RING: [&str; 4] = [
    "q6-cpu",
    "q6-disk-uring",
    "q6-disk-threads",
    "q6-direct-sync",
];

/// Rates by buffer size.
const RATES: Axes = Axes {
    x: "bytes of a buffer",
    x_axis: Axis::Bytes,
    y: "GB/s",
    y_axis: Axis::Log10,
};

/// Writes the plots to a folder. A plot without a measured case is not written. Returns the number of plots.
///
/// # Errors
/// If the folder cannot be written.
pub(crate) fn write(folder: &Path, records: &[&Record]) -> Result<usize> {
    let time = Scales {
        x: "bytes of a buffer",
        y: "seconds",
        parts: &["I/O", "transfer", "compute", "rest"],
    };
    let metrics = ["io_s", "transfer_s", "compute_s", "rest_s"];
    let phases = panels(&SERIAL, records, |own, case| values(own, case, &metrics));
    let usage = Scales {
        y: "% of one core",
        parts: &["user", "system", "wait for the disk"],
        ..time
    };
    let all: Vec<&str> = SERIAL.into_iter().chain(RING).collect();
    let percent = panels(&all, records, cpu_percent);
    let written = [
        bars::write_panels((folder, "q6-time"), time, &phases)?,
        bars::write_panels((folder, "q6-cpu-use"), usage, &percent)?,
        draw::write(folder, &rates(records))?,
    ];
    Ok(written.into_iter().sum())
}

/// Returns the median of each metric of a case; `None` if one is missing. The last record of a metric counts.
fn values(records: &[&Record], case: &str, metrics: &[&str]) -> Option<Vec<f64>> {
    let value = |metric: &&str| {
        let mut own = records.iter().rev();
        let found = own.find(|record| record.case == case && record.metric == *metric);
        found.map(|record| record.median)
    };
    metrics.iter().map(value).collect()
}

fn cpu_percent(records: &[&Record], case: &str) -> Option<Vec<f64>> {
    let elapsed = values(records, case, &["elapsed_s"])?[0];
    let seconds = values(records, case, &["user_s", "system_s", "wait_s"])?;
    Some(seconds.iter().map(|time| 100.0 * time / elapsed).collect())
}

/// Splits a case, such as `q6-pinned/65536`, into its name and its buffer size.
fn parts(case: &str) -> Option<(&str, u64)> {
    let (name, bytes) = case.rsplit_once('/')?;
    Some((name, bytes.parse().ok()?))
}

/// Returns a panel for each variant that was measured with buffers, with the heights of each of its cases.
fn panels(
    names: &[&str],
    records: &[&Record],
    heights: impl Fn(&[&Record], &str) -> Option<Vec<f64>>,
) -> Vec<Panel> {
    let several = Several::of(records);
    let mut panels = Vec::new();
    for name in names {
        let mut lines: BTreeMap<String, Vec<&Record>> = BTreeMap::new();
        for record in records {
            if parts(&record.case).is_some_and(|(of, _)| of == *name) {
                let own = lines.entry(several.label(name, record));
                own.or_default().push(*record);
            }
        }
        for (title, own) in lines {
            let sizes: BTreeSet<u64> = own
                .iter()
                .filter_map(|it| Some(parts(&it.case)?.1))
                .collect();
            let bar = |bytes: u64| {
                let heights = heights(&own, &format!("{name}/{bytes}"))?;
                Some((size::text(bytes as usize), heights))
            };
            let bars = sizes.into_iter().filter_map(bar).collect();
            panels.push(Panel { title, bars });
        }
    }
    panels.retain(|panel: &Panel| !panel.bars.is_empty());
    panels
}

/// Returns the rate of each case with buffers, by buffer size.
fn rates(records: &[&Record]) -> Plot {
    let mut plot = Plot {
        name: "q6-rates".to_owned(),
        title: "Query 6 of TPC-H by buffer size".to_owned(),
        axes: RATES,
        series: Vec::new(),
    };
    let several = Several::of(records);
    for record in records.iter().filter(|record| record.metric == "gb_per_s") {
        if let Some((name, bytes)) = parts(&record.case)
            && !SERIAL.contains(&name)
        {
            let label = several.label(name, record);
            plot.add(&label, Point::of(record, bytes));
        }
    }
    plot
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::tests::record;

    fn case(name: &str, buffer_bytes: usize) -> Vec<Record> {
        let metrics = [
            ("gb_per_s", 1.5),
            ("elapsed_s", 4.0),
            ("io_s", 1.0),
            ("transfer_s", 0.5),
            ("compute_s", 0.5),
            ("rest_s", 2.0),
            ("user_s", 1.0),
            ("system_s", 1.0),
            ("wait_s", 2.0),
        ];
        let case = format!("{name}/{buffer_bytes}");
        let records = metrics.map(|(metric, value)| record("q6", &case, metric, value));
        records.into()
    }

    #[test]
    fn each_plot_has_its_variants_phases_and_sizes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let measured = [
            case("serial-cpu", 64 << 10),
            case("serial-cpu", 16 << 20),
            case("q6-cpu", 64 << 10),
            vec![record("q6", "q6-device", "gb_per_s", 3000.0)],
        ]
        .concat();
        let measured: Vec<&Record> = measured.iter().collect();
        assert_eq!(write(folder.path(), &measured).expect("writable"), 3);
        for (name, texts) in [
            (
                "q6-time.svg",
                &["serial-cpu", "transfer", "rest", "64 KiB", "16 MiB"][..],
            ),
            ("q6-cpu-use.svg", &["q6-cpu", "system", "wait", "64 KiB"]),
            ("q6-rates.svg", &["q6-cpu", "GB/s", "64 KiB"]),
        ] {
            let text = fs::read_to_string(folder.path().join(name)).expect(name);
            for part in texts {
                assert!(text.contains(part), "{name}: {part}");
            }
        }
    }

    #[test]
    fn the_last_record_of_a_metric_counts() {
        let first = case("serial-cpu", 4096);
        let later = record("q6", "serial-cpu/4096", "system_s", 3.0);
        let records: Vec<&Record> = first.iter().chain([&later]).collect();
        let percent = cpu_percent(&records, "serial-cpu/4096");
        assert_eq!(percent, Some(vec![25.0, 75.0, 50.0]));
        assert_eq!(cpu_percent(&records, "serial-cpu/8192"), None);
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(write(folder.path(), &[]).expect("writable"), 0);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
