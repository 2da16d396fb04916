//! Plots of records of SQL: the time of each query of a benchmark, of all of them, and rows a second.

use std::path::Path;

use anyhow::Result;

use crate::plot::bars::{self, Bar};
use crate::plot::draw::{self, Axes, Axis};
use crate::plot::{Plot, Point, Several};
use crate::record::Record;

/// Times by query.
const BY_QUERY: Axes = Axes {
    x: "query, by its place in the benchmark",
    x_axis: Axis::Linear,
    y: "milliseconds",
    y_axis: Axis::Log10,
};

/// Benchmarks: the name in a case, and in a title.
const BENCHMARKS: [(&str, &str); 2] = [
    ("ssb", "Star Schema Benchmark"),
    ("tpch-hot", "TPC-H, columns in memory"),
];

/// Rows a second of PG-Strom's query 3 of SSB over 6 billion rows on SSDs, two GPUs, as its manual tells: 44.1 s.
const PG_STROM: (&str, f64) = ("PG-Strom, SSB 3, 2 GPUs, from SSDs", 6e9 / 44.1);

/// Writes the plots of the records that there are to a folder. Returns how many.
///
/// # Errors
/// If a plot cannot be written.
pub(crate) fn write(folder: &Path, records: &[&Record]) -> Result<usize> {
    let several = Several::of(records);
    let mut written = 0;
    for (name, title) in BENCHMARKS {
        let mut plot = Plot {
            name: format!("sql-{name}"),
            title: format!("{title}, each query"),
            axes: BY_QUERY,
            series: Vec::new(),
        };
        let mut queries = Vec::new();
        for (query, record) in of_queries(records, name) {
            let known = queries.iter().position(|it| *it == query);
            let place = known.unwrap_or_else(|| {
                queries.push(query);
                queries.len() - 1
            });
            let label = several.label(&engine(record), record);
            plot.add(&label, Point::of(record, place as u64 + 1));
        }
        written += draw::write(folder, &plot)?;
        let totals = totals(records, name);
        let (name, title) = (format!("sql-{name}-total"), format!("{title}, all queries"));
        written += bars::write((folder, &name), &title, "milliseconds", &totals)?;
    }
    let rates = rates(records);
    let title = "Rows of the largest table a second, as a client sees it";
    Ok(written + bars::write((folder, "sql-rows"), title, "rows a second", &rates)?)
}

/// Returns the records of single queries of a benchmark, and the query.
fn of_queries<'a>(
    records: &'a [&Record],
    benchmark: &str,
) -> impl Iterator<Item = (&'a str, &'a Record)> {
    records.iter().filter_map(move |record| {
        let (of, query) = record.case.split_once(' ')?;
        (of == benchmark).then_some((query, *record))
    })
}

/// Returns what a record is the time of.
fn engine(record: &Record) -> String {
    match record.metric.as_str() {
        "device_ms" => format!("{}, kernels", record.engine),
        _ => record.engine.clone(),
    }
}

/// Returns the time of all queries of a benchmark, for each engine. The last record of one counts.
fn totals(records: &[&Record], benchmark: &str) -> Vec<Bar> {
    let several = Several::of(records);
    let mut bars: Vec<Bar> = Vec::new();
    for record in records {
        let of = record.case.split_once(',');
        if of.is_some_and(|(of, rest)| of == benchmark && rest.ends_with(", total")) {
            let label = several.label(&engine(record), record);
            bars.retain(|(known, _)| *known != label);
            bars.push((label, record.median));
        }
    }
    bars
}

/// Returns the rows a second of query 3.1 of SSB, for each engine, and that of the paper's authors.
fn rates(records: &[&Record]) -> Vec<Bar> {
    let several = Several::of(records);
    let mut bars: Vec<Bar> = Vec::new();
    for (query, record) in of_queries(records, "ssb") {
        if query == "3.1"
            && record.metric == "client_ms"
            && let Some(rows) = record.expect
        {
            let label = format!("{}, SSB {query}, from memory", record.engine);
            let label = several.label(&label, record);
            bars.retain(|(known, _)| *known != label);
            bars.push((label, rows as f64 / record.median * 1e3));
        }
    }
    if !bars.is_empty() {
        bars.push((PG_STROM.0.to_owned(), PG_STROM.1));
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record as record_of;

    fn record(case: &str, engine: &str, metric: &str, median: f64) -> Record {
        Record {
            engine: engine.to_owned(),
            expect: Some(600),
            ..record_of("sql-gpu", case, metric, median)
        }
    }

    #[test]
    fn queries_totals_and_rates_are_drawn() {
        let folder = tempfile::tempdir().expect("room");
        let all = [
            record("ssb 1.1", "forebay, GPU", "device_ms", 1.5),
            record("ssb 3.1", "forebay, GPU", "client_ms", 2.0),
            record("ssb 3.1", "duckdb", "client_ms", 300.0),
            record("ssb, 13 queries, total", "forebay, GPU", "client_ms", 9.0),
            record("ssb, 13 queries, total", "forebay, GPU", "client_ms", 8.0),
            record("q6", "forebay, GPU", "client_ms", 3.0),
        ];
        let all: Vec<&Record> = all.iter().collect();
        assert_eq!(write(folder.path(), &all).expect("plots"), 3);
        let total = [("forebay, GPU".to_owned(), 8.0)];
        assert_eq!(totals(&all, "ssb"), total);
        let rates = rates(&all);
        assert_eq!((rates[0].1, rates[1].1, rates.len()), (300e3, 2e3, 3));
        assert_eq!(write(folder.path(), &[]).expect("nothing"), 0);
    }
}
