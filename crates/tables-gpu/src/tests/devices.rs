//! Several devices: rows of a table on each, and the same answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_device::cuda::{Program, ProgramSpec};
use forebay_device::{DeviceContext, DeviceOptions, Devices, Step};
use forebay_memory::Share;

use super::data::Sizes;
use super::emulated::{self, Emulated};
use super::random::{compare_random, number};
use super::sessions::{self, ON};
use super::{Fixture, limits};
use crate::engine::{KernelLaunch, Launch};
use crate::giving_way::Freeing;
use crate::gpu::open_all;
use crate::source::{headers, options};

/// Creates a table `w` of one file with three chunks, of which the last is short.
const WIDE: &str =
    "COPY (SELECT value AS n, CASE WHEN value % 5 > 0 THEN CAST(CAST(value % 9000 AS DECIMAL(12, 2)) / 100 AS DECIMAL(12, 2)) END AS price,
        DATE '1990-01-01' + CAST(value % 3000 AS INT) AS day, (value % 1000) * 1000000007 AS far, value * 900000000007 AS big,
        -value * 700000000003 AS low, 'r' || (value % 7) AS flag,
        CASE WHEN value % 3 > 0 THEN 'row ' || value || ' of many' END AS note, CAST(value AS DOUBLE) / 7 AS ratio
        FROM generate_series(1, 530000))";

/// Queries over all of its rows, with few groups and with groups that a kernel selects.
const QUERIES: &[&str] = &[
    "SELECT flag, count(*), sum(n * n), min(n), max(price), sum(CAST(n AS DECIMAL(18, 0)) * 50000000) FROM w GROUP BY flag",
    "SELECT day, count(*), min(n), max(ratio), sum(CAST(n AS DECIMAL(18, 0)) * 1000000000000) FROM w GROUP BY day",
    "SELECT day, flag, sum(n) AS s, min(price) FROM w GROUP BY 1, 2 ORDER BY s DESC, 1, 2 LIMIT 7",
    "SELECT far, count(*), sum(n) AS s FROM w WHERE n > 262000 AND big > 0 AND low < 0 AND ratio > 0 GROUP BY far
        ORDER BY s DESC, 1 LIMIT 5",
    "SELECT flag, count(DISTINCT day), max(n) FROM w GROUP BY flag",
    "SELECT flag, count(*) FROM w WHERE note LIKE '%99 of%' OR note IS NULL AND n < 1000 GROUP BY flag",
    "SELECT label, count(*), sum(n) FROM w JOIN d ON n = k GROUP BY label",
    "SELECT big, count(*), sum(n) AS s FROM w WHERE n > 262000 GROUP BY big ORDER BY s DESC, 1 LIMIT 5",
    "SELECT flag, count(*) FROM w WHERE n BETWEEN 100 AND 200 GROUP BY flag",
];

/// Queries that run on all devices. Of the one behind, the totals are as many bytes as the rows.
const OF_ALL: std::ops::Range<usize> = 0..7;

async fn wide(devices: Vec<Arc<dyn crate::engine::Engine>>) -> Fixture {
    let fixture = Fixture::new(devices, Sizes(&[300, 7])).await;
    let path = fixture._folder.path().join("w/0.parquet");
    fixture
        .copy(&format!("{WIDE} TO '{}'", path.display()))
        .await;
    fixture.register("w").await;
    fixture
}

/// Returns what `EXPLAIN ANALYZE` prints.
pub(super) async fn explained(fixture: &Fixture, query: &str) -> String {
    let explained = format!("EXPLAIN ANALYZE {query}");
    let (plan, _) = Fixture::rows(&fixture.with, &explained).await;
    plan.expect(query).concat()
}

/// Returns the first GPU. Without one, prints that the test is skipped, or panics if `FOREBAY_REQUIRE_GPU=1`.
pub(super) fn gpus() -> Option<Devices> {
    gpus_of("cuda:0")
}

/// Returns these GPUs.
fn gpus_of(names: &str) -> Option<Devices> {
    if let Err(error) = forebay_device::cuda::gpus() {
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no GPU");
        return None;
    }
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(1 << 30),
        pinned_pool_bytes: 64 << 20,
        ..DeviceOptions::default()
    };
    let devices = Devices::new(&names.parse().expect("devices"), options);
    Some(devices.expect("the GPUs start"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_file_are_on_all_devices() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = wide(emulated::devices(&emulated, 2)).await;
    fixture.compare(QUERIES).await;
    for query in &QUERIES[OF_ALL] {
        let plan = explained(&fixture, query).await;
        assert!(plan.contains("on each of 2 GPUs"), "{query}: {plan}");
    }
    let plan = explained(&fixture, QUERIES[OF_ALL.end]).await;
    assert!(!plan.contains("GPUs"), "{plan}");
    // One chunk has all rows that count.
    let plan = explained(&fixture, QUERIES[QUERIES.len() - 1]).await;
    assert!(plan.contains("ran there: 262144 of 530000 rows"), "{plan}");
    assert!(!plan.contains("GPUs"), "{plan}");
    // The columns of the second device are read again.
    emulated.lost.store(2, Ordering::Relaxed);
    fixture.compare(&QUERIES[..3]).await;
    let plan = explained(&fixture, QUERIES[2]).await;
    assert!(!plan.contains("GPUs"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_without_room_leaves_rows_to_the_others() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    emulated.full.store(1, Ordering::Relaxed);
    let fixture = wide(emulated::devices(&emulated, 2)).await;
    fixture.compare(&QUERIES[1..3]).await;
    let plan = explained(&fixture, QUERIES[2]).await;
    assert!(
        !plan.contains("GPUs") && !plan.contains("on the host"),
        "{plan}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn column_files_are_read_onto_all_devices() {
    if !emulated::has_compiler() {
        return;
    }
    let query = "SELECT flag, count(*), sum(n), max(day) FROM w GROUP BY flag";
    let first = sessions::Fixture::new(Sizes(&[1]));
    let mut without = first.session("SET forebay.gpu = off").await;
    let path = first.files().join("w/0.parquet");
    std::fs::create_dir(first.files().join("w")).expect("room");
    let copy = format!("{WIDE} TO '{}'", path.display());
    sessions::rows(&mut without, &copy).await.expect("room");
    let wanted = sessions::rows(&mut without, query).await;
    for is_again in [false, true] {
        let fixture = first.started_with(2, 1 << 30);
        let mut with = fixture.session(ON).await;
        assert_eq!(sessions::rows(&mut with, query).await, wanted);
        let plan = sessions::rows(&mut with, &format!("EXPLAIN ANALYZE {query}")).await;
        let plan = plan.expect(query).join("\n");
        assert!(plan.contains("on each of 2 GPUs"), "{is_again}: {plan}");
        super::files::written(&fixture).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gpus_give_the_rows_of_the_cpu() {
    let count = forebay_device::cuda::gpus().map_or(0, |gpus| gpus.len());
    if count < 2 {
        println!("skipped: {count} GPUs");
        return;
    }
    let Some(devices) = gpus_of("cuda:0,cuda:1") else {
        return;
    };
    let open = || {
        let freeing = Freeing::default();
        let limits = limits(1 << 30);
        open_all(devices.list(), limits, Share::default(), None, &freeing).expect("room")
    };
    let fixture = wide(open()).await;
    fixture.compare(QUERIES).await;
    for query in &QUERIES[OF_ALL] {
        let plan = explained(&fixture, query).await;
        assert!(plan.contains("on each of 2 GPUs"), "{query}: {plan}");
    }
    let sizes = Sizes(&[600_000, 1, 262_145]);
    let fixture = Fixture::new(open(), sizes).await;
    fixture.compare_all(sizes).await;
    compare_random(&fixture, 20).await;
    drop(fixture);
    devices.halt();
}

/// Runs until its flag is set.
const ENDLESS: &str = "#include \"arguments.cuh\"
extern \"C\" __global__ void fragment(const __grid_constant__ Fragment f) {
    while (*static_cast<volatile u32*>(f.flag) == 0) {}
}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_of_a_cancelled_query_end() {
    let Some(devices) = gpus() else { return };
    let freeing = Freeing::default();
    let limits = limits(1 << 28);
    let engines = open_all(devices.list(), limits, Share::default(), None, &freeing);
    let engine = engines.expect("room").remove(0);
    let program = Program::new(ProgramSpec {
        name: "tables/endless.cu".to_owned(),
        source: ENDLESS.to_owned().into(),
        headers: headers(),
        options: options(),
        entries: vec!["fragment".to_owned()],
    });
    let launch = |rows: &[u32]| {
        let mut kernel = KernelLaunch::new(program.clone(), Vec::new());
        kernel.chunks = vec![rows.to_vec()];
        let mut launch = Launch::new(true);
        launch.kernels.push(kernel);
        launch
    };
    // A kernel without rows is compiled, and does not run.
    engine.run(launch(&[])).await.expect("no rows");
    let endless = engine.run(launch(&[1]));
    let (seen, sees) = tokio::sync::oneshot::channel();
    let mut seen = Some(seen);
    let begun = move |_: &mut DeviceContext| {
        let _ = seen.take().map(|it| it.send(()));
        Ok(Step::Done)
    };
    let device = devices.list().remove(0);
    device.submit(Box::new(begun)).expect("room in the queue");
    sees.await
        .expect("jobs of a class begin in the order in which they came");
    drop(endless);
    // It runs behind the other kernel.
    let next = engine.run(launch(&[]));
    let next = tokio::time::timeout(Duration::from_secs(60), next).await;
    next.expect("the other kernel ends").expect("no rows");
    drop(engine);
    devices.halt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
async fn a_gpu_gives_the_rows_of_the_cpu_for_random_queries() {
    let Some(devices) = gpus() else { return };
    let freeing = Freeing::default();
    let limits = limits(1 << 30);
    let engines = open_all(devices.list(), limits, Share::default(), None, &freeing);
    // Few rows leave time for many queries.
    let rows = number("FOREBAY_GPU_ROWS").map_or(20_000, |rows| rows as usize);
    let sizes: &[usize] = Box::leak(Box::new([rows, rows / 30 + 1]));
    let fixture = Fixture::new(engines.expect("room"), Sizes(sizes)).await;
    compare_random(&fixture, 100).await;
    drop(fixture);
    devices.halt();
}
