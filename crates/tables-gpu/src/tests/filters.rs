//! Filters that a join of the CPU makes of the rows of a device.

use super::data::Sizes;
use super::emulated;
use super::sessions::{Fixture, ON, done, plan_lines, rows};

/// A table that no device reads as a whole: it has a column of bytes.
const TABLE: &str = "CREATE TABLE p (k int, raw bytea);
    INSERT INTO p (k) SELECT value % 100 FROM generate_series(1, 20000) AS s(value)";
const QUERY: &str = "SELECT k, raw, c FROM (SELECT a, count(*) AS c FROM t WHERE a > 8 GROUP BY a) AS g JOIN p ON k = a";

/// The filter of the groups reaches the scan of the other side, whether the device or the CPU has grouped the rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_a_device_filter_a_scan_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let mut without = fixture.session("SET forebay.gpu = off").await;
    done(&mut without, TABLE).await;
    let wanted = rows(&mut without, QUERY).await;
    // 200 rows of each of three keys, and four lines around them.
    assert_eq!(wanted.as_ref().map(Vec::len), Ok(604));
    for (settings, ran) in [
        ("SET forebay.gpu = auto", "ran on the CPU"),
        (ON, "ran there"),
    ] {
        let mut with = fixture.session(settings).await;
        assert_eq!(rows(&mut with, QUERY).await, wanted, "{settings}");
        let plan = plan_lines(&mut with, &format!("EXPLAIN ANALYZE {QUERY}")).await;
        let line_of = |text: &str| plan.iter().find(|line| line.contains(text));
        let fragment = line_of("GpuFragmentExec");
        assert!(fragment.is_some_and(|it| it.contains(ran)), "{plan:#?}");
        assert!(line_of("OnCpuExec: the column raw").is_some(), "{plan:#?}");
        // The least and the greatest key.
        let filter = line_of("DynamicFilterExec: DynamicFilter [");
        let has_keys = filter.is_some_and(|it| it.contains(">= 9") && it.contains("<= 11"));
        assert!(has_keys, "{plan:#?}");
    }
}
