//! The queries of TPC-H and of the Star Schema Benchmark, on an engine and without it: the same rows, by plans that
//! are kept, whose rows leave the device once.

use std::sync::Arc;

use forebay_bench::tables::parquet_file::{Table, write};
use forebay_bench::tables::{ssb, tpch};
use tempfile::TempDir;

use super::compile_longest;
use super::emulated::{self, Emulated};
use super::sessions::{Fixture, ON, plan_lines, rows};

const TPCH: &str = include_str!("../../../../tests/drivers/python/tpch_queries.py");

/// Numbers of kernels of each benchmark that are compiled, by the architecture.
const COMPILED: [usize; 3] = [2, 8, 2];
/// Minimum number of queries of TPC-H whose rows leave the device once.
const ONCE_MIN: usize = 20;

/// Queries 1.1 to 1.3 of SSB, then their conditions.
const FIRST: &str = "SELECT sum(lo_extendedprice * lo_discount) AS revenue FROM lineorder, date
    WHERE lo_orderdate = d_datekey AND CONDITION";
const OF_FIRST: [&str; 3] = [
    "d_year = 1993 AND lo_discount BETWEEN 1 AND 3 AND lo_quantity < 25",
    "d_yearmonthnum = 199401 AND lo_discount BETWEEN 4 AND 6 AND lo_quantity BETWEEN 26 AND 35",
    "d_weeknuminyear = 6 AND d_year = 1994 AND lo_discount BETWEEN 5 AND 7 AND lo_quantity BETWEEN 26 AND 35",
];

/// Queries 2.1 to 2.3.
const SECOND: &str = "SELECT sum(lo_revenue) AS revenue, d_year, p_brand1 FROM lineorder, date, part, supplier
    WHERE lo_orderdate = d_datekey AND lo_partkey = p_partkey AND lo_suppkey = s_suppkey AND CONDITION
    GROUP BY d_year, p_brand1 ORDER BY d_year, p_brand1";
const OF_SECOND: [&str; 3] = [
    "p_category = 'MFGR#12' AND s_region = 'AMERICA'",
    "p_brand1 BETWEEN 'MFGR#2221' AND 'MFGR#2228' AND s_region = 'ASIA'",
    "p_brand1 = 'MFGR#2222' AND s_region = 'EUROPE'",
];

/// Queries 3.1 to 3.4, and one with patterns: their keys and conditions.
const THIRD: &str = "SELECT KEYS, d_year, sum(lo_revenue) AS revenue FROM customer, lineorder, supplier, date
    WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_orderdate = d_datekey AND CONDITION
    GROUP BY KEYS, d_year ORDER BY d_year ASC, revenue DESC";
const OF_THIRD: [[&str; 2]; 5] = [
    [
        "c_nation, s_nation",
        "c_region = 'ASIA' AND s_region = 'ASIA' AND d_year >= 1992 AND d_year <= 1997",
    ],
    [
        "c_city, s_city",
        "c_nation = 'VIETNAM' AND s_nation = 'VIETNAM' AND d_year >= 1992 AND d_year <= 1997",
    ],
    [
        "c_city, s_city",
        "c_city IN ('VIETNAM  3', 'VIETNAM  6') AND s_city IN ('VIETNAM  3', 'VIETNAM  6')
            AND d_year >= 1992 AND d_year <= 1997",
    ],
    [
        "c_city, s_city",
        "c_city IN ('VIETNAM  3', 'VIETNAM  6') AND s_city IN ('VIETNAM  3', 'VIETNAM  6')
            AND d_yearmonth = 'Dec1997'",
    ],
    [
        "c_city, s_city",
        "c_nation LIKE 'U%' AND s_nation LIKE 'U%' AND d_yearmonth LIKE '%1997'",
    ],
];

/// Queries 4.1 to 4.3.
const FOURTH: &str =
    "SELECT KEYS, sum(lo_revenue - lo_supplycost) AS profit FROM date, customer, supplier, part, lineorder
    WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_partkey = p_partkey AND lo_orderdate = d_datekey
        AND CONDITION GROUP BY KEYS ORDER BY KEYS";
const OF_FOURTH: [[&str; 2]; 3] = [
    [
        "d_year, c_nation",
        "c_region = 'AMERICA' AND s_region = 'AMERICA' AND (p_mfgr = 'MFGR#1' OR p_mfgr = 'MFGR#2')",
    ],
    [
        "d_year, s_nation, p_category",
        "c_region = 'AMERICA' AND s_region = 'AMERICA' AND (d_year = 1997 OR d_year = 1998)
            AND (p_mfgr = 'MFGR#1' OR p_mfgr = 'MFGR#2')",
    ],
    [
        "d_year, s_city, p_brand1",
        "c_region = 'AMERICA' AND s_nation = 'CANADA' AND (d_year = 1997 OR d_year = 1998)
            AND p_category = 'MFGR#14'",
    ],
];

/// Returns the 13 queries of SSB, and one more. The tables of the tests have 20 suppliers: of queries 2.3, 3.2 to 3.4
/// and 4.3, the brand, the nations and the cities are others, of which there are rows.
fn ssb_queries() -> Vec<String> {
    let of = |query: &str, keys: &str, condition: &str| {
        query.replace("KEYS", keys).replace("CONDITION", condition)
    };
    let first = OF_FIRST.map(|condition| of(FIRST, "", condition));
    let second = OF_SECOND.map(|condition| of(SECOND, "", condition));
    let third = OF_THIRD.map(|[keys, condition]| of(THIRD, keys, condition));
    let fourth = OF_FOURTH.map(|[keys, condition]| of(FOURTH, keys, condition));
    let all = first.into_iter().chain(second).chain(third);
    all.chain(fourth).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_tpch() {
    // The texts of a file of Python. The first tells what it is.
    let texts = TPCH.split("\"\"\"").skip(1).step_by(2);
    let queries: Vec<_> = texts.skip(1).collect();
    assert_eq!(queries.len(), 22);
    let Some(fixture) = compare(&tpch::tables(0.01), &queries).await else {
        return;
    };
    assert_leave_once(&fixture, &queries).await;
    compile_longest(&fixture.emulated, |_| true, COMPILED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_ssb() {
    let queries = ssb_queries();
    assert_eq!(queries.len(), 14);
    if let Some(fixture) = compare(&ssb::tables(0.01), &queries).await {
        compile_longest(&fixture.emulated, |_| true, COMPILED);
    }
}

/// Compares the rows of each query, first by a plan that is made and then by the one that is kept. Returns `None`
/// without a compiler.
async fn compare(tables: &[Table], queries: &[impl AsRef<str>]) -> Option<Fixture> {
    if !emulated::has_compiler() {
        return None;
    }
    let folder = TempDir::new().expect("room");
    let files = folder.path().join("files");
    std::fs::create_dir_all(&files).expect("a folder");
    for table in tables {
        write(table, &files, 2).expect("a table");
    }
    let emulated = Emulated::new();
    let engines = emulated::devices(&emulated, 1);
    let fixture = Fixture::over(Arc::new(folder), (emulated, engines), None);
    let mut with = fixture.session(ON).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    for query in queries {
        let query = query.as_ref();
        let wanted = rows(&mut without, query).await;
        let lines = wanted.as_ref().map_or(0, Vec::len);
        // Four lines are around the rows.
        assert!(lines > 4, "{query}: {wanted:?}");
        let before = fixture.runs_again();
        for _ in 0..3 {
            assert_eq!(rows(&mut with, query).await, wanted, "{query}");
        }
        assert_eq!(fixture.runs_again() - before, 2, "{query}");
    }
    Some(fixture)
}

/// Checks that the rows of most queries leave the device once, those of scalar subqueries apart.
async fn assert_leave_once(fixture: &Fixture, queries: &[&str]) {
    let mut session = fixture.session(ON).await;
    let (mut once, mut others) = (0, Vec::new());
    for (number, query) in (1..).zip(queries) {
        let plan = plan_lines(&mut session, &format!("EXPLAIN {query}")).await;
        let (_, [rows, of_subqueries]) = leaving(&plan, 0, false);
        once += usize::from(rows == 1);
        if (rows, of_subqueries) != (1, 0) {
            println!("query {number}: {rows} times, and {of_subqueries} of subqueries");
            others.extend((rows != 1).then_some((number, rows, plan)));
        }
    }
    assert!(once >= ONCE_MIN, "{once}: {others:#?}");
}

/// Returns how often rows leave the device in the part of a plan that begins with this line, and how often those of
/// scalar subqueries do, behind the number of the line on which the part ends. `stay` tells that a fragment is right
/// above: groups of this one stay on the device for it.
fn leaving(plan: &[String], first: usize, stay: bool) -> (usize, [usize; 2]) {
    let depth = |line: usize| plan[line].len() - plan[line].trim_start().len();
    let name = plan[first].trim_start();
    let is_fragment = name.starts_with("GpuFragmentExec");
    // The first input is the plan of the CPU, which runs instead.
    let has_other = is_fragment || name.starts_with("AlternativesExec");
    let has_subqueries = name.starts_with("ScalarSubqueryExec");
    let mut times = [usize::from(is_fragment && !stay), 0];
    let (mut next, mut input) = (first + 1, 0);
    while next < plan.len() && depth(next) > depth(first) {
        let (end, [rows, of_subqueries]) = leaving(plan, next, is_fragment);
        match input {
            0 if has_other => {}
            1.. if has_subqueries => times[1] += rows + of_subqueries,
            _ => {
                times[0] += rows;
                times[1] += of_subqueries;
            }
        }
        (next, input) = (end, input + 1);
    }
    (next, times)
}

/// Plans, and how often rows leave the device in each.
const PLANS: [(&str, [usize; 2]); 4] = [
    // Of the other fragment, the plan of the CPU has a copy.
    (
        "SortExec
  GpuFragmentExec
    HashJoinExec
      GpuFragmentExec
    GpuFragmentExec
      DataSourceExec",
        [1, 0],
    ),
    (
        "GpuFragmentExec
  DataSourceExec
  ProjectionExec
    GpuFragmentExec
      DataSourceExec",
        [2, 0],
    ),
    (
        "ScalarSubqueryExec
  GpuFragmentExec
    DataSourceExec
  ProjectionExec
    GpuFragmentExec
      DataSourceExec",
        [1, 1],
    ),
    (
        "AlternativesExec
  AggregateExec
  HashJoinExec
    GpuFragmentExec
    GpuFragmentExec",
        [2, 0],
    ),
];

#[test]
fn rows_that_leave_the_device_are_counted() {
    for (plan, wanted) in PLANS {
        let lines: Vec<String> = plan.lines().map(str::to_owned).collect();
        assert_eq!(leaving(&lines, 0, false), (lines.len(), wanted), "{plan}");
    }
}
