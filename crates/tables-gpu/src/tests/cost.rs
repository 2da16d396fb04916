//! Plans that are given to the CPU or a device by estimated times, with rates that are given.

use std::sync::atomic::Ordering;

use forebay_tables::Session;

use super::data::Sizes;
use super::emulated;
use super::sessions::{Fixture, ON, done, plan_lines, rows};
use crate::cost::Rates;

const AUTO: &str = "SET forebay.gpu = auto; SET forebay.compile = wait";
const QUERY: &str = "SELECT flag, count(*), sum(b) FROM t WHERE a > 3 GROUP BY flag";
/// With it, all plans are a device's.
const SLOW_CPU: [f64; 3] = [1e12, 0.0, 0.0];

async fn explained(session: &mut Session, query: &str) -> String {
    plan_lines(session, &format!("EXPLAIN {query}"))
        .await
        .join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_tables_are_left_to_the_cpu_by_estimates() {
    let fixture = Fixture::new(Sizes(&[300]));
    let mut auto = fixture.session(AUTO).await;
    let mut on = fixture.session(ON).await;
    let mut strict = fixture
        .session(&format!("{AUTO}; SET forebay.strict = on"))
        .await;
    let of_one = "OnCpuExec: the CPU is estimated at 0.20 ms, the GPU at 0.80 ms";
    let of_two = "OnCpuExec: the CPU is estimated at 0.30 ms, the GPU at 1.00 ms";
    let queries = [
        (QUERY, of_one),
        ("SELECT b FROM t WHERE a = 5", of_one),
        (
            "SELECT b, name FROM t WHERE a > 3 ORDER BY b LIMIT 3",
            of_one,
        ),
        (
            "SELECT a, row_number() OVER (ORDER BY b) FROM t WHERE a > 3",
            of_one,
        ),
        (
            "SELECT flag, count(DISTINCT b) FROM t GROUP BY flag",
            of_one,
        ),
        (
            "SELECT flag, name, sum(b) FROM t GROUP BY ROLLUP (flag, name)",
            of_one,
        ),
        (
            "SELECT label, sum(b) FROM t JOIN d ON a = k GROUP BY label",
            of_two,
        ),
    ];
    for (query, reason) in queries {
        let plan = explained(&mut auto, query).await;
        assert!(plan.contains(reason), "{query}: {plan}");
        assert!(!plan.contains("GpuFragmentExec"), "{query}: {plan}");
        for session in [&mut on, &mut strict] {
            let plan = explained(session, query).await;
            assert!(plan.contains("GpuFragmentExec"), "{query}: {plan}");
        }
    }
    *fixture.columns.costs.cpu.lock() = Rates::new(SLOW_CPU);
    for (query, _) in queries {
        let plan = explained(&mut auto, query).await;
        assert!(plan.contains("GpuFragmentExec"), "{query}: {plan}");
    }
}

/// Files of which no row meets the conditions, by their statistics, take no time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn estimates_count_the_files_that_are_read() {
    let fixture = Fixture::new(Sizes(&[1]));
    let mut session = fixture.session(AUTO).await;
    let table = "CREATE TABLE m (k int, v int);
        INSERT INTO m SELECT value, value FROM generate_series(1, 10) AS s(value);
        INSERT INTO m SELECT value, value FROM generate_series(101, 120) AS s(value)";
    done(&mut session, table).await;
    // A millisecond a value.
    *fixture.columns.costs.cpu.lock() = Rates::new([0.0, 0.0, 1e6]);
    *fixture.columns.costs.gpu.lock() = Rates::new([1e12, 0.0, 0.0, 0.0, 0.0, 0.0]);
    for (condition, ms) in [
        ("k > 0", 60),
        ("k = 5", 20),
        ("k = 111", 40),
        ("k > 999", 0),
    ] {
        let query = format!("SELECT sum(v) FROM m WHERE {condition}");
        let plan = explained(&mut session, &query).await;
        let reason = format!("the CPU is estimated at {ms}.00 ms, the GPU at 1000000.00 ms");
        assert!(plan.contains(&reason), "{query}: {plan}");
    }
    let pairs = "SELECT count(*) FROM m AS x JOIN m AS y ON x.k < y.v";
    let plan = explained(&mut session, pairs).await;
    assert!(plan.contains("the CPU is estimated at 960.00 ms"), "{plan}");
}

/// A plan that is kept was decided, and stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_plan_stays_on_the_device() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let costs = &fixture.columns.costs;
    let given = *costs.cpu.lock();
    let mut without = fixture.session("SET forebay.gpu = off").await;
    let wanted = rows(&mut without, QUERY).await;
    // Brings the columns.
    let mut on = fixture.session(ON).await;
    assert_eq!(rows(&mut on, QUERY).await, wanted);
    let before = fixture.runs_again();
    let mut auto = fixture.session(AUTO).await;
    *costs.cpu.lock() = Rates::new(SLOW_CPU);
    for _ in 0..2 {
        assert_eq!(rows(&mut auto, QUERY).await, wanted);
    }
    assert_eq!(fixture.runs_again() - before, 1);
    *costs.cpu.lock() = given;
    let plan = explained(&mut auto, QUERY).await;
    assert!(plan.contains("the CPU is estimated"), "{plan}");
    assert_eq!(rows(&mut auto, QUERY).await, wanted);
    assert_eq!(fixture.runs_again() - before, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_correct_the_rates() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let costs = &fixture.columns.costs;
    let rates = || (*costs.cpu.lock(), *costs.gpu.lock());
    let (of_cpu, of_gpu) = rates();
    let mut on = fixture.session(ON).await;
    let mut auto = fixture.session(AUTO).await;
    rows(&mut auto, QUERY).await.expect("rows");
    assert_eq!(rates(), (of_cpu, of_gpu));
    costs.learns.store(true, Ordering::Relaxed);
    // What waits for columns tells nothing.
    rows(&mut on, QUERY).await.expect("rows");
    assert_eq!(rates(), (of_cpu, of_gpu));
    rows(&mut auto, QUERY).await.expect("rows");
    let (corrected, unchanged) = rates();
    assert_ne!(corrected, of_cpu);
    assert_eq!(unchanged, of_gpu);
    *costs.cpu.lock() = Rates::new(SLOW_CPU);
    rows(&mut auto, QUERY).await.expect("rows");
    let (unchanged, corrected) = rates();
    assert_eq!(unchanged, Rates::new(SLOW_CPU));
    assert_ne!(corrected, of_gpu);
}
