//! Window functions, and sorts of all rows.

use std::sync::Arc;

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use forebay_memory::Share;

use super::data::Sizes;
use super::emulated::{self, Emulated};
use super::{Fixture, gpus, limits};
use crate::giving_way::Freeing;
use crate::gpu::open_all;
use crate::window::is_window;

/// Queries whose functions kernels compute. Numbers of rows are those of an order in which no two are equal.
pub(super) const QUERIES: &[&str] = &[
    "SELECT a, b, rank() OVER (PARTITION BY a ORDER BY b) FROM t",
    "SELECT a, b, rank() OVER (PARTITION BY a ORDER BY b DESC NULLS LAST), dense_rank() OVER (PARTITION BY a ORDER BY b DESC NULLS LAST) FROM t",
    "SELECT name, quantity, dense_rank() OVER (PARTITION BY name ORDER BY quantity, a NULLS FIRST) FROM t",
    "SELECT * FROM (SELECT a, moment, b, row_number() OVER (PARTITION BY a ORDER BY moment, b, price) AS n FROM t) AS x WHERE n <= 3",
    "SELECT * FROM (SELECT flag, b, rank() OVER (PARTITION BY flag ORDER BY b) AS n FROM t WHERE quantity > 7) AS x WHERE n = 2 OR n = 5",
    "SELECT * FROM (SELECT flag, b, rank() OVER (PARTITION BY flag ORDER BY b) AS n FROM t WHERE quantity > 7) AS x WHERE n < 4 AND flag <> 'A'",
    // Running totals: those of peers are equal, those of rows are in an order without peers.
    "SELECT a, day, sum(quantity) OVER (PARTITION BY a ORDER BY day), count(*) OVER (PARTITION BY a ORDER BY day) FROM t WHERE quantity < 20",
    "SELECT day, min(price) OVER (ORDER BY day), max(b) OVER (ORDER BY day), avg(price) OVER (ORDER BY day) FROM t WHERE quantity < 20",
    "SELECT a, moment, sum(b) OVER (PARTITION BY a ORDER BY moment, b, price ROWS UNBOUNDED PRECEDING) FROM t WHERE quantity < 20",
    "SELECT a, day, count(a) OVER (ORDER BY a DESC), stddev(quantity) OVER (ORDER BY a DESC) FROM t WHERE quantity < 20",
    "SELECT name, max(name) OVER (PARTITION BY flag ORDER BY day), bool_or(ok) OVER (PARTITION BY flag ORDER BY day) FROM t WHERE quantity < 20",
    "SELECT day, fare, sum(fare) OVER (PARTITION BY flag ORDER BY day), avg(tip) OVER (PARTITION BY flag ORDER BY day) FROM t WHERE quantity < 20",
    "SELECT quantity, sum(price * (1 - discount)) OVER (PARTITION BY ok ORDER BY quantity) FROM t WHERE a > 2",
    // Of whole partitions.
    "SELECT a, b, sum(b) OVER (PARTITION BY a), count(*) OVER (PARTITION BY a) FROM t",
    "SELECT a, quantity, avg(quantity) OVER (PARTITION BY a, flag), min(day) OVER (PARTITION BY a, flag) FROM t WHERE quantity < 20",
    "SELECT b, sum(quantity) OVER (), max(b) OVER () FROM t WHERE b > 100",
    "SELECT nothing, count(*) OVER (PARTITION BY nothing) FROM t",
    "SELECT flag, max(price) OVER (PARTITION BY flag ORDER BY day RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM t WHERE quantity < 20",
    // Several windows, and joins.
    "SELECT a, b, rank() OVER (PARTITION BY a ORDER BY b), sum(quantity) OVER (PARTITION BY flag) FROM t WHERE quantity < 20",
    "SELECT label, b, rank() OVER (PARTITION BY label ORDER BY b) FROM t JOIN d ON a = k WHERE quantity < 40",
    "SELECT weight, rank() OVER (ORDER BY weight NULLS FIRST, b) FROM t LEFT JOIN d ON a = k",
    "SELECT k, weight, rank() OVER (ORDER BY weight) FROM t JOIN d ON a = k ORDER BY k, weight",
    // Sorts of all rows.
    "SELECT day, a, b FROM t WHERE quantity < 30 ORDER BY day, a, b",
    "SELECT a, b, price FROM t ORDER BY a DESC NULLS LAST, b DESC, price",
    "SELECT strange, b, price FROM t ORDER BY strange, b, price",
    "SELECT name, flag, moment FROM t WHERE a > 3 ORDER BY name NULLS FIRST, flag DESC, moment",
    "SELECT third, moment FROM t ORDER BY third DESC, moment",
    "SELECT ok, wide FROM t ORDER BY ok, wide DESC",
    "SELECT label, moment FROM t JOIN d ON a = k ORDER BY label DESC, moment",
    "SELECT k, weight, moment FROM t JOIN d ON a = k ORDER BY weight, k, moment",
    "SELECT weight, k FROM t JOIN d ON a = k WHERE moment > TIMESTAMP '2000-01-01' ORDER BY weight, k",
    "SELECT note, moment FROM t WHERE note LIKE '%7%' ORDER BY moment",
    "SELECT nothing, moment FROM t ORDER BY nothing, moment",
];

/// The same below aggregates, joins and sorts, so that few rows are returned.
const AGGREGATED: &[&str] = &[
    "SELECT a, max(c) FROM (SELECT a, sum(quantity) OVER (PARTITION BY a ORDER BY day) AS c FROM t) AS x GROUP BY a",
    "SELECT a, max(c) FROM (SELECT a, sum(quantity) OVER (PARTITION BY a ORDER BY day) AS c FROM t) AS x GROUP BY a ORDER BY a",
    "SELECT name, max(c) FROM (SELECT name, count(*) OVER (PARTITION BY name ORDER BY day) AS c FROM t) AS x GROUP BY name ORDER BY name",
    "SELECT count(*), sum(CAST(n AS bigint)) FROM (SELECT rank() OVER (PARTITION BY a ORDER BY b) AS n FROM t) AS x WHERE n > 2",
    "SELECT flag, sum(price) FROM (SELECT flag, price, row_number() OVER (PARTITION BY flag, a ORDER BY moment, b, price) AS n FROM t) AS x WHERE n <= 2 GROUP BY flag",
    "SELECT n, count(*) FROM (SELECT dense_rank() OVER (PARTITION BY quantity ORDER BY a) AS n FROM t) AS x GROUP BY n",
    "SELECT label, sum(CAST(n AS bigint)) FROM (SELECT a, rank() OVER (ORDER BY day) AS n FROM t) AS x JOIN d ON a = k GROUP BY label",
    "SELECT day, n FROM (SELECT day, rank() OVER (ORDER BY day DESC) AS n FROM t) AS x ORDER BY n DESC LIMIT 7",
    "SELECT flag, sum(b), count(*) FROM (SELECT flag, b FROM t WHERE a > 3 ORDER BY moment) AS x GROUP BY flag",
    "SELECT count(*), max(m) FROM (SELECT a, max(c) AS m FROM (SELECT a, sum(quantity) OVER (PARTITION BY a ORDER BY day) AS c FROM t) AS x GROUP BY a) AS y",
    // Ranks of many rows, and partitions of one row or of all.
    "SELECT sum(quantity) FROM (SELECT quantity, row_number() OVER (PARTITION BY flag ORDER BY moment, b, price) AS n FROM t) AS x WHERE n > 2 AND n < 70000",
    "SELECT max(c), min(c), count(*) FROM (SELECT sum(quantity) OVER (ORDER BY moment, b, price ROWS UNBOUNDED PRECEDING) AS c FROM t) AS x",
    "SELECT max(c), sum(c) FROM (SELECT count(*) OVER (PARTITION BY moment, b) AS c FROM t) AS x",
    "SELECT max(c), sum(c) FROM (SELECT max(b) OVER (PARTITION BY nothing) AS c FROM t) AS x",
];

/// Queries that the CPU may compute: numbers of more than 63 bits, and functions whose rows have no order of their
/// own.
const EITHER: &[&str] = &[
    "SELECT max(c), max(n) FROM (SELECT c, rank() OVER (PARTITION BY a ORDER BY b) AS n FROM (SELECT a, b, CASE WHEN b > 5 THEN 18446744073709551615 ELSE 0 END AS c FROM t) AS x) AS y",
    "SELECT count(*), sum(n) FROM (SELECT CAST(row_number() OVER () AS bigint) AS n FROM t) AS x",
    "SELECT quantity, lag(quantity) OVER (ORDER BY moment, b, price) FROM t",
    "SELECT sum(quantity) OVER (ORDER BY moment, b, price ROWS 3 PRECEDING) FROM t",
    "SELECT sum(quantity) FILTER (WHERE ok) OVER (PARTITION BY a) FROM t",
    "SELECT a, rank() OVER (ORDER BY strange, moment, b) FROM t",
    "SELECT name, m, lag(m) OVER (PARTITION BY name ORDER BY m) FROM (SELECT name, max(c) AS m FROM (SELECT name, flag, count(*) OVER (PARTITION BY name ORDER BY day) AS c FROM t) AS x GROUP BY name, flag) AS y",
    "SELECT rank() OVER (ORDER BY day), a FROM t ORDER BY day, a, moment LIMIT 20",
    "SELECT j.k, sum(quantity * s1) FROM t JOIN (SELECT k, s * 2 AS s1 FROM (SELECT k, sum(v) AS s FROM m GROUP BY k ORDER BY k) AS q) AS j ON a = j.k GROUP BY j.k ORDER BY j.k",
    "SELECT j.k, sum(v * s1) FROM m JOIN (SELECT a AS k, s * 2 AS s1 FROM (SELECT a, sum(quantity) AS s FROM t GROUP BY a ORDER BY a) AS q) AS j ON m.k = j.k GROUP BY j.k ORDER BY j.k",
    "SELECT k, count(*) OVER (PARTITION BY k) FROM d JOIN (SELECT a + 1 AS b, a FROM (SELECT DISTINCT a FROM t ORDER BY a) AS q) AS j(b, k2) ON d.k = j.k2",
];

/// Returns the rows of a query, in its order if it gives one, and whether the CPU computes a window or sorts all
/// rows.
pub(super) async fn rows(context: &SessionContext, query: &str) -> (Vec<String>, (bool, bool)) {
    let frame = context.sql(query).await.expect("a plan");
    let of_task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.expect(query);
    let is_on_cpu = is_on_cpu(&plan);
    let batches = collect(plan, of_task).await.expect(query);
    let text = pretty_format_batches(&batches).expect("text").to_string();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    if !is_ordered(query) {
        lines.sort();
    }
    (lines, is_on_cpu)
}

/// Returns whether a query gives an order, in which no two rows are equal.
fn is_ordered(query: &str) -> bool {
    query
        .rsplit(')')
        .next()
        .is_some_and(|it| it.contains("ORDER BY"))
        || query.starts_with("SELECT") && !query.contains('(') && query.contains("ORDER BY")
}

/// Returns whether the CPU computes a window, and whether it sorts all rows.
fn is_on_cpu(plan: &Arc<dyn ExecutionPlan>) -> (bool, bool) {
    if plan.name() == "GpuFragmentExec" {
        return (false, false);
    }
    let own = (
        is_window(plan),
        plan.is::<SortExec>() && plan.fetch().is_none(),
    );
    let below = plan.children().into_iter().map(is_on_cpu);
    below.fold(own, |(window, sort), (one, other)| {
        (window | one, sort | other)
    })
}

/// Compares all queries, or those that return few rows of large tables.
async fn compare(fixture: &Fixture, sizes: Sizes) {
    fixture.compare(AGGREGATED).await;
    if sizes.0[0] > 10_000 {
        return;
    }
    fixture.compare(QUERIES).await;
    for query in EITHER {
        let (with, _) = Fixture::rows(&fixture.lenient, query).await;
        let (without, _) = Fixture::rows(&fixture.without, query).await;
        assert!(without.is_ok(), "{query}: {without:?}");
        assert_eq!(with, without, "{query}");
    }
    for query in QUERIES.iter().chain(AGGREGATED) {
        let (with, is_on_cpu) = rows(&fixture.with, query).await;
        let (without, _) = rows(&fixture.without, query).await;
        // The CPU may sort what functions of windows are computed of.
        let is_known = query.contains("OVER") && !is_on_cpu.0;
        assert!(is_known || is_on_cpu == (false, false), "{query}");
        assert!(
            !is_ordered(query) || with == without,
            "{query}\n{with:#?}\n{without:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn window_functions_are_those_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    for (sizes, devices) in [
        (Sizes(&[1]), 1),
        (Sizes(&[7, 8, 9]), 3),
        (Sizes(&[3000, 1, 512, 513]), 1),
    ] {
        let fixture = Fixture::new(emulated::devices(&emulated, devices), sizes).await;
        compare(&fixture, sizes).await;
    }
    super::compile_all(&emulated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_computes_the_window_functions_of_the_cpu() {
    let Some(devices) = gpus() else { return };
    let device = devices.list().remove(0);
    for sizes in [
        Sizes(&[1]),
        Sizes(&[31, 32, 33]),
        Sizes(&[3000, 1, 512, 513]),
        Sizes(&[600_000, 1, 262_145]),
    ] {
        let (devices, freeing) = (vec![Arc::clone(&device)], Freeing::default());
        let limits = limits(1 << 30);
        let engines = open_all(devices, limits, Share::default(), None, &freeing).expect("room");
        let fixture = Fixture::new(engines, sizes).await;
        compare(&fixture, sizes).await;
    }
    drop(device);
    devices.halt();
}
