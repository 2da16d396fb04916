//! Filters that operators of the CPU make while a query runs, at scans of the CPU beside fragments and below them.

use std::sync::Arc;

use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::SessionConfig;

use super::Fixture;
use super::data::Sizes;
use super::emulated::{self, Emulated};
use crate::reason::Reason;

/// Number of files of the table `z`, and of rows of each.
const FILES: usize = 4;
const ROWS: usize = 500;

/// Returns a fixture with a table `z` that has a column of a type which no device reads. `n` and `k` grow from row to
/// row of a file.
async fn with_bytes(emulated: &Arc<Emulated>) -> Fixture {
    // The rows of a join reach a sort before the next file is read.
    let mut config = SessionConfig::new()
        .with_target_partitions(1)
        .with_batch_size(64);
    // The keys of the first side of a join filter the second, whichever is smaller.
    config.options_mut().optimizer.join_reordering = false;
    let engines = emulated::devices(emulated, 1);
    let fixture = Fixture::with_config(engines, Sizes(&[700, 1]), &config).await;
    let folder = fixture._folder.path().join("z");
    for file in 0..FILES {
        // The files are not in the order of `n`, or no sort would be needed.
        let part = file ^ 1;
        let (first, last) = (part * ROWS, (part + 1) * ROWS - 1);
        let copy = format!(
            "COPY (SELECT CAST(value / 100 AS INT) AS k, value AS n, CAST('a' AS bytea) AS raw
                FROM generate_series({first}, {last})) TO '{}/{file}.parquet'",
            folder.display()
        );
        fixture.copy(&copy).await;
    }
    fixture.register("z").await;
    fixture
}

/// Returns how many rows scans of the CPU returned that are not below a fragment.
fn scanned(plan: &Arc<dyn ExecutionPlan>) -> usize {
    match plan.name() {
        "GpuFragmentExec" => 0,
        "DataSourceExec" => {
            let metrics = plan.metrics().expect("metrics");
            metrics.output_rows().expect("a number of rows")
        }
        _ => plan.children().into_iter().map(scanned).sum(),
    }
}

/// Runs a query with the engine and without. Returns how many rows the CPU scanned beside fragments, and the plan.
async fn ran(fixture: &Fixture, query: &str) -> (usize, String) {
    let (with, plan) = Fixture::ran(&fixture.lenient, query).await;
    let (without, _) = Fixture::rows(&fixture.without, query).await;
    // There are rows, beside the lines of the head.
    assert!(without.as_ref().is_ok_and(|it| it.len() > 4), "{without:?}");
    assert_eq!(with, without, "{query}");
    let plan = plan.expect("a plan");
    let text = displayable(plan.as_ref()).indent(true).to_string();
    (scanned(&plan), text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_reach_the_scans_beside_fragments() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = with_bytes(&Emulated::new()).await;
    for (filter, query) in [
        (
            "join",
            "SELECT k, n, raw, c FROM (SELECT a, count(*) AS c FROM t WHERE a > 8 GROUP BY a) AS g JOIN z ON k = a",
        ),
        (
            "topk",
            "SELECT k, n, raw, c FROM (SELECT a, count(*) AS c FROM t GROUP BY a) AS g JOIN z ON k = a
                ORDER BY n LIMIT 5",
        ),
    ] {
        let mut counts = Vec::new();
        for is_on in [false, true] {
            let set = format!(
                "SET datafusion.optimizer.enable_{filter}_dynamic_filter_pushdown = {is_on}"
            );
            fixture.lenient.sql(&set).await.expect("a setting");
            let (count, plan) = ran(&fixture, query).await;
            assert!(plan.contains("ran there"), "{plan}");
            counts.push(count);
        }
        assert!(counts[1] > 0 && counts[1] < counts[0], "{query}: {counts:?}");
    }
}

/// The filter of a join is at the scan below a fragment. Kernels do not read it; the CPU does if it reads the rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fragments_below_a_join_return_the_rows_that_it_needs() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = with_bytes(&emulated).await;
    let query = "SELECT k, n, raw, c, s FROM z JOIN (SELECT a, count(*) AS c, sum(b) AS s FROM t GROUP BY a) AS g ON k = a
        WHERE n < 300";
    for (error, place) in [
        (None, "ran there"),
        (Some(Reason::new("no compiler")), "ran on the CPU"),
    ] {
        *emulated.compile_error.lock() = error;
        let (_, plan) = ran(&fixture, query).await;
        let is_filtered = plan.contains("DynamicFilter [");
        assert!(is_filtered && plan.contains(place), "{plan}");
    }
}
