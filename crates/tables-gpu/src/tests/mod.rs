//! Queries on an engine and without it: the same rows.

mod arithmetic;
mod benchmarks;
mod cancelled;
mod chunks;
mod collections;
mod compiling;
mod cost;
mod data;
mod declared;
mod devices;
mod distinct;
mod edges;
mod emulated;
mod explain;
mod files;
mod filters;
mod floats;
mod full;
mod halves;
mod joins;
mod large;
mod lists;
mod ordinals;
mod partitions;
mod programs;
mod random;
mod reference;
mod repeats;
mod sessions;
mod shares;
mod slices;
mod spilled;
mod sqllogictest;
mod texts;
mod times;
mod unions;
mod warming;
mod wide_keys;
mod windows;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use forebay_memory::Share;
use forebay_tables::GpuOptions;
use futures_util::{Stream, StreamExt, stream};
use tempfile::TempDir;
use tokio::runtime::Handle;

use self::compiling::{compile_all, compile_longest, compile_those};
use self::data::{Sizes, write};
use self::devices::gpus;
use self::emulated::Emulated;
use self::floats::are_alike;
use self::random::{compare_random, number};
use crate::DeviceLimits;
use crate::columns::Columns;
use crate::engine::Engine;
use crate::giving_way::Freeing;
use crate::gpu::open_all;
use crate::rule::Fragments;

/// Returns the limits of devices that SQL has for itself, with this many bytes of each.
fn limits(max_bytes: u64) -> DeviceLimits {
    DeviceLimits {
        max_bytes,
        share_percent: 100,
    }
}

/// Queries whose aggregates a kernel computes.
const QUERIES: &[&str] = &[
    "SELECT count(*) FROM t WHERE a > 5",
    "SELECT count(a), count(*), sum(b), min(b), max(b) FROM t",
    "SELECT sum(a), min(a), max(a), avg(a) FROM t WHERE b < 0",
    "SELECT sum(price * (1 - discount)) FROM t WHERE day >= DATE '1994-01-01' AND day < DATE '1995-01-01'",
    "SELECT sum(price * discount) FROM t WHERE discount BETWEEN 0.05 AND 0.07 AND quantity < 24",
    "SELECT flag, sum(quantity), sum(price), sum(price * (1 - discount)), sum(price * (1 - discount) * (1 + discount)),
        avg(quantity), avg(price), avg(discount), count(*) FROM t WHERE day <= DATE '1998-09-02' GROUP BY flag",
    "SELECT flag, name, count(*), sum(b) FROM t GROUP BY flag, name",
    "SELECT name, min(day), max(day), min(price), max(quantity), count(a) FROM t GROUP BY name",
    "SELECT a, count(*), sum(quantity) FROM t GROUP BY a",
    "SELECT a, name, ok, flag, count(*), sum(quantity), max(b) FROM t GROUP BY 1, 2, 3, 4",
    "SELECT extract(year FROM day), count(*) FROM t GROUP BY 1",
    "SELECT extract(year FROM day), flag, sum(price) FROM t WHERE name LIKE '%a%' GROUP BY 1, 2",
    "SELECT substr(name, 1, 1), count(*) FROM t GROUP BY 1",
    "SELECT count(*) FROM t WHERE name = 'ab'",
    "SELECT count(*) FROM t WHERE name <> 'ab'",
    "SELECT count(*) FROM t WHERE name IN ('ab', 'cd', 'x')",
    "SELECT count(*) FROM t WHERE name NOT IN ('ab', 'cd', 'x')",
    "SELECT count(*) FROM t WHERE name NOT IN ('ab', NULL)",
    "SELECT count(*) FROM t WHERE name IS NULL",
    "SELECT count(*) FROM t WHERE name IS NOT NULL AND a IS NULL",
    "SELECT count(*) FROM t WHERE name ILIKE 'A%' OR a = 3",
    "SELECT count(*) FROM t WHERE regexp_like(name, '^[a-c]+$') AND NOT ok",
    "SELECT count(*) FROM t WHERE upper(name) > 'B' AND length(flag) = 1",
    "SELECT count(*) FROM t WHERE ok",
    "SELECT count(*) FROM t WHERE NOT ok",
    "SELECT count(*) FROM t WHERE ok IS NOT TRUE",
    "SELECT count(*) FROM t WHERE (a > 3 OR ok) AND NOT (b > 0 AND a < 8)",
    "SELECT count(*) FROM t WHERE a IN (1, 2, 3, 5, 8)",
    "SELECT count(*) FROM t WHERE a NOT IN (1, 2, NULL)",
    "SELECT count(*) FROM t WHERE a NOT IN (1, 2)",
    "SELECT count(*) FROM t WHERE -a < -3",
    "SELECT count(*) FROM t WHERE a + quantity > 20",
    "SELECT count(*) FROM t WHERE a * 2 - 3 = 5",
    "SELECT count(*) FROM t WHERE price > quantity * 100",
    "SELECT count(*) FROM t WHERE price + discount > 500.25",
    "SELECT sum(CASE WHEN a > 3 THEN b ELSE 0 END), sum(CASE WHEN ok THEN 1 END) FROM t WHERE b BETWEEN -1000 AND 1000",
    "SELECT flag, sum(CASE WHEN name LIKE 'a%' THEN price ELSE 0 END) FROM t GROUP BY flag",
    "SELECT count(*) FILTER (WHERE a > 3), sum(price) FILTER (WHERE ok), min(a) FILTER (WHERE name = 'ab') FROM t",
    "SELECT flag, count(*) FILTER (WHERE a > 3), avg(price) FILTER (WHERE ok) FROM t GROUP BY flag",
    "SELECT flag, count(*) FROM t WHERE a > 1000 GROUP BY flag",
    "SELECT count(*), sum(a), max(price) FROM t WHERE a > 1000",
    "SELECT flag, avg(price) FROM t GROUP BY flag HAVING count(*) > 3",
    "SELECT max(moment), min(moment) FROM t WHERE moment > TIMESTAMP '2001-01-01 00:00:00'",
    "SELECT sum(wide) FROM t WHERE quantity > 3",
    "SELECT flag, sum(wide), min(wide), max(wide) FROM t GROUP BY flag",
    "SELECT sum(tiny), max(tiny), count(nothing), max(nothing) FROM t",
    "SELECT nothing, count(*) FROM t GROUP BY nothing",
    "SELECT count(*) FROM t WHERE nothing = 3 OR a = 3",
    "SELECT count(*) FROM t WHERE CAST(nothing AS DECIMAL(38, 20)) < CAST(0.5 AS DECIMAL(38, 20)) OR a = 3",
    "SELECT count(*) FROM t WHERE ok = (a > 3)",
    "SELECT sum(q), count(*) FROM (SELECT quantity * 2 AS q, a FROM t WHERE b > 0) WHERE a < 9 AND q > 4",
    "SELECT a * 6000 + quantity, count(*), sum(b) FROM t GROUP BY 1",
    "SELECT quantity - a, flag, min(a), max(b) FROM t WHERE ok GROUP BY 1, 2",
    "SELECT day, count(*) FROM t GROUP BY day ORDER BY 2 DESC, 1 LIMIT 5",
    "SELECT max(a), flag FROM t GROUP BY flag ORDER BY 1 DESC, 2 LIMIT 1",
    // A text with many values.
    "SELECT count(*) FROM t WHERE note LIKE '%7%3%'",
    "SELECT flag, count(*), sum(price) FROM t WHERE note NOT LIKE '%1_%2%' AND a > 2 GROUP BY flag",
    "SELECT substr(note, 1, 1), count(*) FROM t WHERE substr(note, 2, 1) IN ('1', '4', '8') GROUP BY 1",
    "SELECT length(note), count(*) FILTER (WHERE regexp_like(note, '[5-8]$')) FROM t WHERE note IS NOT NULL OR a < 3
        GROUP BY 1",
    "SELECT count(*) FROM t JOIN d ON a = k WHERE note LIKE '%9' OR label = 'x'",
    "SELECT note LIKE '1%', sum(CASE WHEN note > '5' THEN b ELSE 0 END) FROM t WHERE b < 2000 GROUP BY 1",
    "SELECT flag, count(*) FROM t WHERE note ILIKE '%9K OR%' OR note ILIKE '%s o_%4' GROUP BY flag",
    "SELECT count(*) FROM t WHERE note LIKE '1%' AND note NOT LIKE '%3' OR NOT (note LIKE '_2%' OR note LIKE '%\\% or%')",
    "SELECT count(*), sum(b) FROM t WHERE note LIKE '%\\_\\\\ or%' OR note LIKE '2_3%É%' OR note = '9' OR note <> '17 or 3'",
    "SELECT flag, count(*) FILTER (WHERE starts_with(note, '10')), count(*) FILTER (WHERE contains(note, '9 or 9')),
        count(*) FILTER (WHERE ends_with(note, '00') OR note IS NULL) FROM t GROUP BY flag",
    "SELECT count(*) FROM t WHERE regexp_like(note, '^[1-3]+.? or (4|5[^0-8]|[6-9]{2})$') OR note ~ '\\d\\D{3} 7'
        OR note !~* '[k-s]'",
    // Groups of keys that are far apart.
    "SELECT b, count(*), sum(quantity) FROM t GROUP BY b",
    "SELECT b, flag, max(wide), avg(price) FROM t GROUP BY 1, 2 ORDER BY 3 DESC NULLS LAST, 1, 2 LIMIT 9",
    "SELECT moment, day, count(*) FROM t GROUP BY 1, 2",
    "SELECT name, moment, min(b) FROM t WHERE a > 2 GROUP BY 1, 2 HAVING min(b) < 0",
    // Groups that kernels select.
    "SELECT day, flag, count(*), sum(b) FROM t GROUP BY 1, 2",
    "SELECT day, flag, sum(b) AS s, count(*) FROM t GROUP BY 1, 2 ORDER BY s DESC NULLS LAST, 1, 2 LIMIT 7",
    "SELECT day, flag, sum(b) AS s, count(*) FROM t GROUP BY 1, 2 ORDER BY s, 1, 2 LIMIT 7",
    "SELECT day, flag, sum(a) AS s FROM t GROUP BY 1, 2 ORDER BY s DESC NULLS FIRST, 1, 2 LIMIT 9",
    "SELECT day, flag, sum(a) AS s FROM t GROUP BY 1, 2 ORDER BY s NULLS FIRST, 1, 2 LIMIT 300",
    "SELECT day, flag, max(wide) AS m, min(price) FROM t GROUP BY 1, 2 HAVING min(price) < 50000.00 AND max(wide) >= 5
        ORDER BY m DESC, 1, 2 LIMIT 11",
    "SELECT day, flag, count(*) FROM t GROUP BY 1, 2 HAVING count(*) = 2 AND 100 < sum(b) AND avg(price) > 500",
    "SELECT day, flag, sum(price) FROM t GROUP BY 1, 2 HAVING sum(price) > (SELECT avg(price) * 1.25 FROM t)",
    "SELECT day, flag, sum(b) FROM t GROUP BY 1, 2 HAVING (SELECT max(b) / 2 FROM t) >= sum(b) AND count(*) = (SELECT min(a) + 1 FROM t WHERE a > 0)",
    "SELECT day, flag, count(*) FROM t GROUP BY 1, 2 HAVING count(*) >
        CASE WHEN (SELECT min(b) FROM t) > 100 THEN 1 WHEN (SELECT max(a) FROM t) > 0 THEN 2 ELSE 1000000 END",
    "SELECT day, flag, sum(a) FROM t GROUP BY 1, 2 HAVING sum(a) > coalesce((SELECT max(a) FROM t)::bigint, 0)",
    "SELECT day, flag, count(*) FROM t GROUP BY 1, 2 HAVING count(*) < (SELECT max(b) FROM t WHERE a > 1000000)",
    "SELECT day, flag, min(day) AS m FROM t GROUP BY 1, 2 HAVING sum(b) < 0 OR sum(b) > 90 ORDER BY m, 2 LIMIT 20",
    // Grouping sets.
    "SELECT flag, name, count(*), sum(b), avg(price) FROM t GROUP BY ROLLUP (flag, name)",
    "SELECT flag, ok, a, min(day), count(a), stddev(quantity) FROM t WHERE b > 0 GROUP BY CUBE (flag, ok, a)",
    "SELECT flag, name, sum(quantity), grouping(flag) FROM t GROUP BY GROUPING SETS ((name, flag), (flag), (name), (flag), ())",
    "SELECT flag, count(*), sum(a) FROM t WHERE a > 1000 GROUP BY ROLLUP (flag)",
    "SELECT flag, name, count(*), avg(price), grouping(name) FROM t GROUP BY GROUPING SETS ((flag), (name), ())",
    "SELECT label, flag, sum(price), count(*) FROM t JOIN d ON a = k GROUP BY ROLLUP (label, flag) HAVING count(*) > 2",
    "SELECT b, day, count(*) FROM t WHERE quantity < 30 GROUP BY GROUPING SETS ((b), (b, day))",
    // Groups that are grouped again.
    "SELECT sum(s), count(*), max(day) FROM (SELECT day, flag, sum(quantity) AS s FROM t GROUP BY 1, 2 HAVING sum(b) > 1000)",
    "SELECT flag, count(*), min(name), max(s), sum(c), count(m) FROM (SELECT day, flag, length(name) AS name, sum(a) AS s,
        count(*) AS c, max(a) AS m FROM t GROUP BY 1, 2, 3) GROUP BY flag",
    "SELECT s, count(*) FROM (SELECT b, day, count(a) AS s, min(wide) AS m FROM t GROUP BY 1, 2) WHERE m < 0 GROUP BY s",
    "SELECT flag, count(DISTINCT b), max(b) FROM t WHERE quantity > 4 GROUP BY flag",
    "SELECT label, sum(s), count(*) FROM (SELECT a, day, sum(quantity) AS s FROM t GROUP BY 1, 2) JOIN d ON a = k GROUP BY label",
    "SELECT o.flag, count(*) FROM (SELECT day, flag, sum(quantity) AS s FROM t GROUP BY 1, 2) AS o
        JOIN (SELECT flag, min(quantity) AS m FROM t GROUP BY flag) AS i ON o.flag = i.flag AND o.s > i.m GROUP BY 1",
    "SELECT day, -s FROM (SELECT day, flag, sum(quantity) AS s FROM t GROUP BY 1, 2 HAVING sum(quantity) <= 40)
        ORDER BY s DESC, day, flag LIMIT 3",
];

/// Queries that the CPU computes, and a part of the reason.
const REFUSED: &[(&str, &str)] = &[
    ("SELECT avg(b * 8000) FROM t WHERE a > 3", "rounded"),
    ("SELECT median(a) FROM t WHERE a > 3", ""),
    ("SELECT count(DISTINCT ratio) FROM t WHERE a > 3", ""),
    (
        "SELECT sum(b * quantity * 200000) FROM t WHERE b < 5000",
        "leave the range",
    ),
    (
        "SELECT sum(wide * 4096) FROM t WHERE a > 3",
        "more than 64 bits",
    ),
];

#[derive(Clone)]
struct Fixture {
    _folder: Arc<TempDir>,
    with: SessionContext,
    lenient: SessionContext,
    without: SessionContext,
    columns: Arc<Columns>,
    /// Which queries of a list are compared: one of this many, from this index on.
    part: (usize, usize),
}

impl Fixture {
    async fn new(engines: Vec<Arc<dyn Engine>>, sizes: Sizes) -> Fixture {
        let config = SessionConfig::new().with_target_partitions(2);
        Fixture::with_config(engines, sizes, &config).await
    }

    async fn with_config(
        engines: Vec<Arc<dyn Engine>>,
        sizes: Sizes,
        config: &SessionConfig,
    ) -> Fixture {
        let folder = TempDir::new().expect("room");
        write(&folder.path().join("t"), sizes);
        joins::write_all(folder.path());
        let columns = Columns::new(engines, &Freeing::default(), None);
        let session = |options: GpuOptions| {
            let mut config = config.clone();
            config.options_mut().sql_parser.parse_float_as_decimal = true;
            // As in sessions: rows that cannot change the least `b` are left out of `min(a + 1)`, too.
            let optimizer = &mut config.options_mut().optimizer;
            optimizer.enable_aggregate_dynamic_filter_pushdown = false;
            config.options_mut().extensions.insert(options);
            let state = SessionStateBuilder::new()
                .with_default_features()
                .with_config(config)
                .with_physical_optimizer_rule(Arc::new(Fragments(Arc::clone(&columns))))
                .build();
            SessionContext::new_with_state(state)
        };
        let on = GpuOptions {
            is_on: true,
            loads: true,
            waits: true,
            strict: true,
        };
        let fixture = Fixture {
            lenient: session(GpuOptions {
                strict: false,
                ..on.clone()
            }),
            with: session(on),
            without: session(GpuOptions::default()),
            _folder: Arc::new(folder),
            columns: Arc::clone(&columns),
            part: (1, 0),
        };
        for table in joins::TABLES.into_iter().chain(["t"]) {
            fixture.register(table).await;
        }
        fixture
    }

    /// Runs a `COPY`.
    async fn copy(&self, copy: &str) {
        let copied = self.without.sql(copy).await.expect("a plan");
        copied.collect().await.expect("room");
    }

    /// Declares the folder of a table.
    async fn register(&self, table: &str) {
        let path = self._folder.path().join(table);
        let path = path.to_str().expect("a path");
        for context in [&self.with, &self.lenient, &self.without] {
            let registered = context.register_parquet(table, path, Default::default());
            registered.await.expect("files");
        }
    }

    /// Returns the sorted rows of a query as text, or its error; and whether a plan has an operator of the engine.
    async fn rows(context: &SessionContext, query: &str) -> (Result<Vec<String>, String>, bool) {
        let (rows, plan) = Fixture::ran(context, query).await;
        (rows, plan.is_some_and(|plan| has_operator(&plan)))
    }

    /// The same, with the plan that ran.
    async fn ran(
        context: &SessionContext,
        query: &str,
    ) -> (Result<Vec<String>, String>, Option<Arc<dyn ExecutionPlan>>) {
        let frame = context.sql(query).await.expect("a plan");
        let of_task = Arc::new(frame.task_ctx());
        let plan = match frame.create_physical_plan().await {
            Ok(plan) => plan,
            Err(error) => return (Err(error.to_string()), None),
        };
        let mut batches = match collect(Arc::clone(&plan), of_task).await {
            Ok(batches) => batches,
            Err(error) => return (Err(error.to_string()), Some(plan)),
        };
        // Without rows, some operators return a batch, and others none.
        batches.retain(|it| it.num_rows() > 0);
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&batches);
        let mut lines: Vec<_> = text
            .expect("text")
            .to_string()
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        (Ok(lines), Some(plan))
    }

    /// Runs all queries with the engine and without.
    async fn compare_all(&self, sizes: Sizes) {
        self.compare(
            QUERIES
                .iter()
                .chain(floats::QUERIES)
                .chain(arithmetic::QUERIES)
                .chain(times::QUERIES)
                .chain(ordinals::QUERIES)
                .chain(joins::QUERIES),
        )
        .await;
        // They take long, and the kernels of one row are those of few.
        if (2..10_000).contains(&sizes.0[0]) {
            let queries = repeats::QUERIES.iter().chain(distinct::QUERIES);
            self.compare(queries.chain(texts::QUERIES)).await;
        }
        // Each row has many others with its key, so lists of more rows would be too long.
        if (2..5_000).contains(&sizes.0.iter().sum::<usize>()) {
            self.compare(full::QUERIES).await;
        }
        if sizes.0[0] < 10_000 {
            self.compare(unions::QUERIES).await;
        }
        let is_large = sizes.0[0] > 2000;
        if is_large {
            self.compare(joins::OF_LARGE).await;
        }
        // Lists of more rows are too long for the engine of tests.
        if sizes.0[0] < 10_000 {
            self.compare(joins::LISTS.iter().chain(ordinals::LISTS))
                .await;
        }
        if is_large && sizes.0[0] < 10_000 {
            self.compare(joins::LISTS_OF_LARGE).await;
        }
    }

    /// Runs queries that the CPU computes, with the reasons.
    async fn compare_refused<'q>(&self, queries: impl IntoIterator<Item = &'q (&'q str, &'q str)>) {
        for (query, reason) in queries {
            let (with, has_operator) = Fixture::rows(&self.with, query).await;
            match with {
                Err(error) => assert!(error.contains(reason), "{query}: {error}"),
                Ok(rows) => panic!("{query}: {has_operator}, {rows:?}"),
            }
            let (lenient, _) = Fixture::rows(&self.lenient, query).await;
            let (without, _) = Fixture::rows(&self.without, query).await;
            assert!(without.is_ok(), "{query}: {without:?}");
            assert_eq!(lenient, without, "{query}");
        }
    }

    /// Runs queries with the engine and without.
    async fn compare<'q>(&self, queries: impl IntoIterator<Item = &'q &'q str>) {
        let (step, first) = self.part;
        let queries = queries.into_iter().skip(first).step_by(step);
        let compared = queries.map(|query| {
            let (fixture, query) = (self.clone(), query.to_string());
            SpawnedTask::spawn(async move {
                let (with, has_operator) = Fixture::rows(&fixture.with, &query).await;
                let (without, _) = Fixture::rows(&fixture.without, &query).await;
                let is_right = has_operator && are_alike(&query, &with, &without);
                (!is_right).then(|| format!("{query}: {has_operator}\n{with:#?}\n{without:#?}"))
            })
        });
        let compared = of_all_threads(compared);
        let wrong: Vec<_> = compared.filter_map(async |it| it).collect().await;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// Returns whether tests run at full size.
fn is_full() -> bool {
    std::env::var_os("FOREBAY_TEST_FULL").is_some_and(|value| value != "0")
}

/// Returns what tasks return, of which as many run at once as there are threads.
fn of_all_threads<T: Send + 'static>(
    tasks: impl Iterator<Item = SpawnedTask<T>>,
) -> impl Stream<Item = T> {
    let width = Handle::current().metrics().num_workers();
    let ended = tasks.map(async |task| match task.join().await {
        Ok(ended) => ended,
        Err(error) => resume_unwind(error.into_panic()),
    });
    stream::iter(ended).buffer_unordered(width)
}

fn has_operator(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.name() == "GpuFragmentExec" || plan.children().into_iter().any(has_operator)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_give_the_rows_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    // Columns of other sizes have other widths, and so most kernels are others.
    for (sizes, devices, part) in [
        (Sizes(&[1]), 1, (2, 0)),
        (Sizes(&[7, 8, 9]), 3, (2, 1)),
        (Sizes(&[3000, 1, 512, 513]), 1, (1, 0)),
    ] {
        let mut fixture = Fixture::new(emulated::devices(&emulated, devices), sizes).await;
        if !is_full() {
            fixture.part = part;
        }
        fixture.compare_all(sizes).await;
        if sizes.0[0] > 2000 {
            fixture
                .compare_refused(joins::REFUSED_OF_LARGE.iter())
                .await;
        }
    }
    assert!(emulated.searches.load(Ordering::Relaxed) > 0);
    compile_all(&emulated);
    // They are short.
    compile_longest(&emulated, |it| it.source.contains("select.cuh"), [1; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_of_random_queries_give_the_rows_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let engine = emulated::device();
    let fixture = Fixture::new(engine, Sizes(&[6_000, 700])).await;
    compare_random(&fixture, 24).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cpu_computes_what_kernels_do_not() {
    let emulated = emulated::device();
    let fixture = Fixture::new(emulated, Sizes(&[100])).await;
    fixture
        .compare_refused(
            REFUSED
                .iter()
                .chain(floats::REFUSED)
                .chain(arithmetic::REFUSED)
                .chain(times::REFUSED)
                .chain(ordinals::REFUSED)
                .chain(distinct::REFUSED)
                .chain(full::REFUSED)
                .chain(joins::REFUSED),
        )
        .await;
}

/// A file is kept without the values of its partition, which another scan may give it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_are_not_in_the_files_stay_on_the_cpu() {
    let emulated = emulated::device();
    let fixture = Fixture::new(emulated, Sizes(&[100])).await;
    let root = fixture._folder.path().join("parts");
    for part in ["part=1", "part=2"] {
        let folder = root.join(part);
        std::fs::create_dir_all(&folder).expect("room");
        write(&folder, Sizes(&[10]));
    }
    let create = format!(
        "CREATE EXTERNAL TABLE parts STORED AS PARQUET PARTITIONED BY (part) LOCATION '{}'",
        root.display()
    );
    for context in [&fixture.with, &fixture.lenient, &fixture.without] {
        let created = context.sql(&create).await.expect("a table");
        created.collect().await.expect("a table");
    }
    for query in [
        "SELECT part, count(*) FROM parts GROUP BY part",
        "SELECT sum(a) FROM parts WHERE part = '2' AND a > 3 OR a = 7",
    ] {
        let (strict, _) = Fixture::rows(&fixture.with, query).await;
        let error = strict.expect_err(query);
        assert!(error.contains("is not in the files"), "{error}");
        let (lenient, _) = Fixture::rows(&fixture.lenient, query).await;
        let (without, _) = Fixture::rows(&fixture.without, query).await;
        assert!(without.is_ok());
        assert_eq!(lenient, without, "{query}");
    }
}

/// Operators above an aggregate may rely on partitions by some of its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_of_an_aggregate_stay_those_of_the_plan() {
    if !emulated::has_compiler() {
        return;
    }
    let mut config = SessionConfig::new().with_target_partitions(4);
    let options = &mut config.options_mut().optimizer;
    options.hash_join_single_partition_threshold = 0;
    options.hash_join_single_partition_threshold_rows = 0;
    let engine = emulated::device();
    let fixture = Fixture::with_config(engine, Sizes(&[200, 300]), &config).await;
    for (query, is_on_engine) in [
        (
            "SELECT a, count(*) FROM (SELECT a, flag FROM t JOIN d ON a = k GROUP BY a, flag) AS n GROUP BY a",
            false,
        ),
        (
            "SELECT flag, label, count(*) FROM t JOIN d ON a = k GROUP BY ROLLUP (flag, label)",
            true,
        ),
        (
            "SELECT flag, b FROM t JOIN d ON a = k WHERE label <> 'x' ORDER BY b, flag LIMIT 9",
            true,
        ),
        // As query 2 of TPC-H.
        (
            "SELECT flag, label, b FROM t JOIN d ON a = k WHERE b = (SELECT min(i.b) FROM t AS i WHERE i.a = t.a)
                ORDER BY b, flag LIMIT 9",
            true,
        ),
    ] {
        let (without, _) = Fixture::rows(&fixture.without, query).await;
        assert!(without.is_ok());
        let context = if is_on_engine {
            &fixture.with
        } else {
            &fixture.lenient
        };
        let (with, _) = Fixture::rows(context, query).await;
        assert_eq!(with, without);
    }
}

/// Returns a fixture with a table `w` of a file of three chunks, in the order of its columns.
async fn wide() -> Fixture {
    let fixture = Fixture::new(emulated::device(), Sizes(&[1])).await;
    let folder = fixture._folder.path().join("w");
    let copy = format!(
        "COPY (SELECT value AS n, CASE WHEN value % 5 > 0 THEN CAST(CAST(value % 90000 AS DECIMAL(12, 2)) / 100 AS DECIMAL(12, 2)) END AS price,
            DATE '1900-01-01' + CAST(value % 80000 AS INT) AS day,
            CASE WHEN value % 11 > 0 THEN to_timestamp(value % 70000) END AS moment
            FROM generate_series(1, 530000)) TO '{}/0.parquet'",
        folder.display()
    );
    fixture.copy(&copy).await;
    fixture.register("w").await;
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_many_values_are_numbers_of_their_ranges() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = wide().await;
    for query in [
        "SELECT count(*), sum(n), max(day) FROM w WHERE n > 525000",
        "SELECT count(*), sum(n) FROM w WHERE n BETWEEN 262140 AND 262150",
        "SELECT day, count(*), sum(n) FROM w WHERE n > 300000 AND n % 10 = 0 OR n < 9 GROUP BY day",
        "SELECT price, count(*), min(n) FROM w WHERE n < 3000 OR n > 529000 GROUP BY price",
        "SELECT day, price, count(*) FROM w WHERE n < 50 GROUP BY day, price",
    ] {
        let (strict, has_operator) = Fixture::rows(&fixture.with, query).await;
        let (without, _) = Fixture::rows(&fixture.without, query).await;
        assert!(has_operator && without.is_ok(), "{query}");
        assert!(strict == without, "{query}");
    }
    for key in ["day", "price", "moment"] {
        let query =
            format!("SELECT {key}, count(*), min(n) FROM w WHERE n > 520000 GROUP BY {key}");
        let (lenient, _) = Fixture::rows(&fixture.lenient, &query).await;
        let (strict, _) = Fixture::rows(&fixture.with, &query).await;
        let (without, _) = Fixture::rows(&fixture.without, &query).await;
        assert!(lenient == without, "{query}");
        assert!(strict.is_ok(), "{query}");
    }
    let plan = "EXPLAIN ANALYZE SELECT count(*), sum(n) FROM w WHERE n > 525000";
    let (plan, _) = Fixture::rows(&fixture.with, plan).await;
    assert!(
        plan.expect("a plan")
            .concat()
            .contains("ran there: 5712 of 530000 rows")
    );
}

/// Kernels return at least the groups that the plan above keeps, and few more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_selected_by_kernels() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = wide().await;
    for (aggregates, above, groups) in [
        ("sum(n) AS s", "ORDER BY s DESC LIMIT 10", 3..1000),
        ("sum(n) AS s", "ORDER BY s LIMIT 3", 3..1000),
        (
            "sum(n) AS s",
            "HAVING sum(n) > 1829900 AND count(*) = 6",
            5..20,
        ),
        (
            "sum(CAST(n AS DECIMAL(18, 0)) * 1000000000000) AS s",
            "ORDER BY s DESC LIMIT 2",
            2..1000,
        ),
        (
            "min(n) AS s",
            "HAVING min(n) < 100 ORDER BY s DESC LIMIT 40",
            40..90,
        ),
        (
            "sum(CAST(n AS DOUBLE)) AS s",
            "ORDER BY s DESC LIMIT 10",
            3..1000,
        ),
        (
            "sum(CAST(n AS DOUBLE) / 7) AS s",
            "ORDER BY s LIMIT 3",
            3..1000,
        ),
        // All that are equal, of which `EXPLAIN` prints the thousands.
        ("count(*) AS s", "ORDER BY s DESC, price LIMIT 4", 60..70),
    ] {
        let query = format!("SELECT price, {aggregates} FROM w GROUP BY price {above}");
        let (strict, has_operator) = Fixture::rows(&fixture.with, &query).await;
        let (without, _) = Fixture::rows(&fixture.without, &query).await;
        assert!(has_operator && without.is_ok(), "{query}");
        assert_eq!(strict, without, "{query}");
        let explained = format!("EXPLAIN ANALYZE {query}");
        let (plan, _) = Fixture::rows(&fixture.with, &explained).await;
        let plan = plan.expect("a plan").concat();
        let returned = plan.split_once("GpuFragmentExec").and_then(|(_, plan)| {
            let (_, rows) = plan.split_once("output_rows=")?;
            let end = rows.find(|it: char| !it.is_ascii_digit())?;
            rows[..end].parse::<usize>().ok()
        });
        assert!(
            returned.is_some_and(|it| groups.contains(&it)),
            "{query}: {plan}"
        );
    }
}

/// Has many threads, as each waits for the compiler at times. `FOREBAY_GPU_PARTS` is the number of parts of the
/// queries, and `FOREBAY_GPU_PART` the index of the part that runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
async fn a_gpu_gives_the_rows_of_the_cpu() {
    let Some(devices) = gpus() else { return };
    let device = devices.list().remove(0);
    let open = || {
        let (devices, freeing) = (vec![Arc::clone(&device)], Freeing::default());
        open_all(devices, limits(1 << 30), Share::default(), None, &freeing).expect("room")
    };
    let of_part = |name, other| number(name).map_or(other, |it| it as usize);
    let part = (
        of_part("FOREBAY_GPU_PARTS", 1),
        of_part("FOREBAY_GPU_PART", 0),
    );
    for sizes in [
        Sizes(&[1]),
        Sizes(&[31, 32, 33]),
        Sizes(&[700, 1]),
        Sizes(&[2047, 2048, 2049]),
        Sizes(&[600_000, 1, 262_145]),
    ] {
        let mut fixture = Fixture::new(open(), sizes).await;
        fixture.part = part;
        fixture.compare_all(sizes).await;
        if sizes.0[0] < 1000 {
            let queries = lists::QUERIES.iter().chain(floats::JOINS);
            fixture.compare(queries).await;
        }
    }
    halves::compared(open()).await;
    drop(device);
    devices.halt();
}
