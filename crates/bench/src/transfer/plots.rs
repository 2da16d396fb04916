//! Plots of records: rates by chunk size, the best rate of each method, and reads of each memory.

use std::path::Path;

use anyhow::Result;

use crate::plot::bars::{self, Bar};
use crate::plot::draw::{self, Axes, Axis};
use crate::plot::{Plot, Point, Several, find_or_add};
use crate::record::Record;

/// Rates by chunk size.
const BY_CHUNK: Axes = Axes {
    x: "bytes of a chunk",
    x_axis: Axis::Bytes,
    y: "GB/s",
    y_axis: Axis::Linear,
};

/// Directions of a move, as in a case and in a title.
const DIRECTIONS: [(&str, &str); 3] = [
    ("to-device", "to the device"),
    ("to-host", "to the host"),
    ("both", "both directions together"),
];

/// Writes the plots of the records that there are to a folder. Returns how many.
///
/// # Errors
/// If a plot cannot be written.
pub(crate) fn write(folder: &Path, records: &[&Record]) -> Result<usize> {
    let several = Several::of(records);
    let mut written = 0;
    for (direction, text) in DIRECTIONS {
        let mut plot = Plot {
            name: format!("transfer-{direction}"),
            title: format!("Transfer methods by chunk size, {text}"),
            axes: BY_CHUNK,
            series: Vec::new(),
        };
        for (method, chunk_bytes, record) in moves(records, direction) {
            let label = several.label(method, record);
            plot.add(&label, Point::of(record, chunk_bytes));
        }
        written += draw::write(folder, &plot)?;
    }
    let (rates, latencies) = (reads(records), values(records, "latency_ns"));
    for (name, title, unit, all) in [
        (
            "transfer-methods",
            "Best rate of each transfer method (figure 12 of Lutz et al.)",
            "GB/s",
            best(records),
        ),
        (
            "transfer-reads",
            "Reads of each memory (figure 3 of Lutz et al.)",
            "GB/s",
            rates,
        ),
        (
            "transfer-latency",
            "Latency of dependent reads (figure 3 of Lutz et al.)",
            "nanoseconds a read",
            latencies,
        ),
    ] {
        written += bars::write((folder, name), title, unit, &all)?;
    }
    Ok(written)
}

/// Returns the method and the chunk size of each move in a direction.
fn moves<'a>(
    records: &'a [&Record],
    direction: &str,
) -> impl Iterator<Item = (&'a str, u64, &'a Record)> {
    let rates = records.iter().filter(|record| record.metric == "gb_per_s");
    rates.filter_map(move |record| {
        let parts: Vec<&str> = record.case.split('/').collect();
        let ["move", method, to, chunk] = parts[..] else {
            return None;
        };
        let chunk_bytes = chunk.parse().ok().filter(|_| to == direction)?;
        Some((method, chunk_bytes, *record))
    })
}

/// Returns the best rate of each method and direction.
fn best(records: &[&Record]) -> Vec<Bar> {
    let several = Several::of(records);
    let mut bars: Vec<Bar> = Vec::new();
    for (direction, text) in DIRECTIONS {
        for (method, _, record) in moves(records, direction) {
            let label = several.label(&format!("{method}, {text}"), record);
            let is_known = |(known, _): &Bar| *known == label;
            let (_, rate) = find_or_add(&mut bars, is_known, || (label.clone(), 0.0));
            *rate = rate.max(record.median);
        }
    }
    bars
}

/// Returns the measurements of reads with a metric; the later one of the same case.
fn values(records: &[&Record], metric: &str) -> Vec<Bar> {
    let several = Several::of(records);
    let mut bars: Vec<Bar> = Vec::new();
    for record in records.iter().filter(|record| record.metric == metric) {
        let Some(label) = record.case.strip_prefix("read/") else {
            continue;
        };
        let label = several.label(label, record);
        bars.retain(|(known, _)| *known != label);
        bars.push((label, record.median));
    }
    bars
}

/// Returns the rates of reads. Random reads per second become gigabytes per second.
fn reads(records: &[&Record]) -> Vec<Bar> {
    let in_order = values(records, "gb_per_s").into_iter();
    let at_random = values(records, "giga_reads_per_s").into_iter();
    let in_bytes = |(label, reads): Bar| {
        let bytes = random_bytes(&label)?;
        Some((label, reads * bytes))
    };
    in_order.chain(at_random.filter_map(in_bytes)).collect()
}

/// Returns the bytes of a read from a label that begins as `host-memory/random-8b`.
fn random_bytes(label: &str) -> Option<f64> {
    let (_, rest) = label.split_once("random-")?;
    let (bytes, _) = rest.split_once('b')?;
    bytes.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::tests::record;

    #[test]
    fn all_figures_are_drawn_from_their_cases() {
        let records = [
            record(
                "transfer",
                "move/pinned-copy/to-device/4096",
                "gb_per_s",
                1.5,
            ),
            record(
                "transfer",
                "move/pinned-copy/to-device/65536",
                "gb_per_s",
                2.5,
            ),
            record("transfer", "move/zero-copy/to-host/4096", "gb_per_s", 3.5),
            record("transfer", "move/zero-copy/both/1048576", "gb_per_s", 6.5),
            record(
                "transfer",
                "move/zero-copy/both/1048576",
                "to_host_gb_per_s",
                9.5,
            ),
            record(
                "transfer",
                "move/dynamic-pinning/to-host/4096",
                "pinning_s",
                9.5,
            ),
            record("transfer", "allocate/zero-copy/4096", "allocation_s", 9.5),
            record(
                "transfer",
                "read/host-memory/dependent",
                "latency_ns",
                900.0,
            ),
            record(
                "transfer",
                "read/host-memory/random-8b",
                "giga_reads_per_s",
                0.5,
            ),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let expected = [
            ("pinned-copy, to the device".to_owned(), 2.5),
            ("zero-copy, to the host".to_owned(), 3.5),
            ("zero-copy, both directions together".to_owned(), 6.5),
        ];
        assert_eq!(best(&records), expected);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let written = write(folder.path(), &records).expect("the folder is writable");
        assert_eq!(written, 6);
        for (file, texts) in [
            ("transfer-to-device.svg", ["pinned-copy", "64 KiB"]),
            ("transfer-to-host.svg", ["zero-copy", "bytes of a chunk"]),
            ("transfer-both.svg", ["zero-copy", "1 MiB"]),
            ("transfer-methods.svg", ["3.5", "GB/s"]),
            (
                "transfer-reads.svg",
                ["host-memory/random-8b: 4.00", "GB/s"],
            ),
            ("transfer-latency.svg", ["dependent: 900", "nanoseconds"]),
        ] {
            let drawn = fs::read_to_string(folder.path().join(file)).expect(file);
            for text in texts {
                assert!(drawn.contains(text), "{file}: {text} in {drawn}");
            }
        }
    }

    #[test]
    fn nothing_is_drawn_without_records() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(write(folder.path(), &[]).expect("nothing to write"), 0);
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
    }
}
