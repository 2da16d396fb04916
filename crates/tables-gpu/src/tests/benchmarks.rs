//! The queries of TPC-H and of the Star Schema Benchmark, on an engine and without it: the same rows, by plans that are
//! kept.

use std::sync::Arc;

use forebay_bench::tables::parquet_file::{Table, write};
use forebay_bench::tables::{ssb, tpch};
use tempfile::TempDir;

use super::emulated::{self, Emulated};
use super::sessions::{Fixture, ON, rows};

const TPCH: &str = include_str!("../../../../tests/drivers/python/tpch_queries.py");

/// Queries of SSB: one of each flight, and one with texts in its conditions and groups.
const SSB: [&str; 5] = [
    "SELECT sum(lo_extendedprice * lo_discount) AS revenue FROM lineorder, date
        WHERE lo_orderdate = d_datekey AND d_year = 1993 AND lo_discount BETWEEN 1 AND 3 AND lo_quantity < 25",
    "SELECT sum(lo_revenue), d_year, p_brand1 FROM lineorder, date, part, supplier
        WHERE lo_orderdate = d_datekey AND lo_partkey = p_partkey AND lo_suppkey = s_suppkey
            AND p_category = 'MFGR#12' AND s_region = 'AMERICA'
        GROUP BY d_year, p_brand1 ORDER BY d_year, p_brand1",
    "SELECT c_nation, s_nation, d_year, sum(lo_revenue) AS revenue FROM customer, lineorder, supplier, date
        WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_orderdate = d_datekey
            AND c_region = 'ASIA' AND s_region = 'ASIA' AND d_year BETWEEN 1992 AND 1997
        GROUP BY c_nation, s_nation, d_year ORDER BY d_year, revenue DESC",
    "SELECT c_city, s_city, d_year, sum(lo_revenue) AS revenue FROM customer, lineorder, supplier, date
        WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_orderdate = d_datekey
            AND c_nation LIKE 'U%' AND s_nation LIKE 'U%' AND d_yearmonth LIKE '%1997'
        GROUP BY c_city, s_city, d_year ORDER BY d_year, revenue DESC",
    "SELECT d_year, c_nation, sum(lo_revenue - lo_supplycost) AS profit FROM date, customer, supplier, part, lineorder
        WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_partkey = p_partkey AND lo_orderdate = d_datekey
            AND c_region = 'AMERICA' AND s_region = 'AMERICA' AND (p_mfgr = 'MFGR#1' OR p_mfgr = 'MFGR#2')
        GROUP BY d_year, c_nation ORDER BY d_year, c_nation",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_tpch() {
    // The texts of a file of Python. The first tells what it is.
    let texts = TPCH.split("\"\"\"").skip(1).step_by(2);
    let queries: Vec<_> = texts.skip(1).collect();
    assert_eq!(queries.len(), 22);
    compare(&tpch::tables(0.01), &queries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_ssb() {
    compare(&ssb::tables(0.01), &SSB).await;
}

/// Compares the rows of each query, first by a plan that is made and then by the one that is kept.
async fn compare(tables: &[Table], queries: &[&str]) {
    if !emulated::has_compiler() {
        return;
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
}
