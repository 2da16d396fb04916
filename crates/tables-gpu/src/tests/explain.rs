//! `EXPLAIN (FORMAT kernel)` on an engine of kernels.

use std::collections::HashSet;

use datafusion::arrow::array::AsArray;
use forebay_tables::{Outcome, Session, parse};

use super::data::Sizes;
use super::emulated;
use super::sessions::{Fixture, ON, rows};

/// Returns the kernels of a query.
async fn kernels(session: &mut Session, query: &str) -> Result<String, String> {
    let text = format!("EXPLAIN (FORMAT kernel) {query}");
    let parsed = parse(&text).expect("a statement").remove(0);
    let outcome = session.run(parsed).await.map_err(|it| it.to_string())?;
    let Outcome::Rows(mut rows) = outcome else {
        return Err("no rows".to_owned());
    };
    assert_eq!(rows.schema().field(0).name(), "QUERY PLAN");
    let mut lines = Vec::new();
    while let Some(batch) = rows.next().await.map_err(|it| it.to_string())? {
        let column = batch.column(0).as_string::<i32>().clone();
        lines.extend(column.iter().flatten().map(str::to_owned));
    }
    Ok(lines.join("\n"))
}

/// Returns the sources of kernels that are printed, without comments.
fn sources(printed: &str) -> Vec<String> {
    let kernels = printed.split("// Kernel ").skip(1);
    let sources = kernels.map(|kernel| {
        // The first line is the rest of a comment.
        let lines = kernel.lines().skip(1);
        let lines = lines.filter(|it| !it.starts_with("//") && !it.is_empty());
        let lines = lines.map(|it| it.split("  // ").next().unwrap_or_default());
        lines.collect::<Vec<_>>().join("\n")
    });
    sources.collect()
}

fn assert_has(printed: &str, texts: &[&str]) {
    for text in texts {
        assert!(printed.contains(text), "no {text:?} in\n{printed}");
    }
}

const JOIN: &str = "SELECT label, sum(price * (1 - discount)) AS revenue, count(*), avg(quantity) FROM t JOIN d ON a = k
    WHERE day > DATE '1995-03-15' AND flag <> 'R' AND label <> 'x' GROUP BY label";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plan_is_beside_the_code() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let mut session = fixture.session(ON).await;
    let printed = kernels(&mut session, JOIN).await.expect("kernels");
    assert_has(
        &printed,
        &[
            "// Fragment 1, ",
            "// Kernel 1 of 2: stores the other rows of the inner join: a = k\n",
            "// Kernel 2 of 2: adds rows to the totals of their groups\n",
            "// filter: day > 1995-03-15\n",
            "// filter: label != x\n",
            "// inner join: a = k\n",
            "// key 0: label\n",
            "  // price * (1 - discount)\n",
            "  // sum(price * (1 - discount))\n",
            "  // avg(CAST(quantity AS Float64))\n",
        ],
    );
    let grouped = "SELECT day, flag, sum(b) AS s FROM t GROUP BY 1, 2 HAVING count(*) > 1 ORDER BY s DESC LIMIT 7";
    let printed = kernels(&mut session, grouped).await.expect("kernels");
    assert_has(
        &printed,
        &[
            ": selects groups, and writes their totals\n",
            "//   having: count(*) > 1\n",
            "//   order by: sum(CAST(b AS Decimal128(20, 0))) DESC, limit 7\n",
            "//   group[0]: rows of the group, sum(CAST(b AS Decimal128(20, 0))), count(*)\n",
            "// key 0: day\n// key 1: flag\n",
        ],
    );
}

/// Comments are no part of what is compiled, so that queries of one shape share their kernels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_that_are_printed_are_those_that_run() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let mut session = fixture.session(ON).await;
    let queries = [
        JOIN,
        "SELECT count(*), sum(price * discount) FROM t WHERE quantity < 24 AND name LIKE 'a%'",
        "SELECT day, flag, sum(b) AS s FROM t GROUP BY 1, 2 ORDER BY s DESC LIMIT 7",
        "SELECT count(*) FROM t WHERE price > (SELECT avg(price) FROM t)",
    ];
    let mut printed = Vec::new();
    for query in queries {
        rows(&mut session, query).await.expect(query);
        printed.push(kernels(&mut session, query).await.expect(query));
    }
    let known = || -> HashSet<String> {
        let kernels = fixture.emulated.kernels.lock();
        kernels.keys().map(|it| it.trim().to_owned()).collect()
    };
    let before = known();
    for source in printed.iter().flat_map(|it| sources(it)) {
        assert!(before.contains(&source), "did not run:\n{source}");
    }
    // Another text with a line of code in it, and other numbers.
    let others = [
        JOIN.replace("1995-03-15", "1996-01-01")
            .replace("'x'", "'\n}\n'"),
        queries[1].replace("24", "23"),
    ];
    for (query, printed) in others.iter().zip(&printed) {
        let other = kernels(&mut session, query).await.expect(query);
        assert_ne!(other, *printed);
        assert_eq!(sources(&other), sources(printed), "{query}");
        rows(&mut session, query).await.expect(query);
    }
    assert_eq!(known(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_on_the_gpu_is_told() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let query = "SELECT count(*) FROM t WHERE a > 2";
    let mut lazy = fixture.session("SET forebay.gpu = auto").await;
    let printed = kernels(&mut lazy, query).await.expect("a reason");
    assert_has(
        &printed,
        &[
            "// OnCpuExec: the CPU is estimated at 0.20 ms, the GPU at 0.80 ms\n",
            "// SET forebay.gpu = on ",
        ],
    );
    let mut off = fixture.session("SET forebay.gpu = off").await;
    let error = kernels(&mut off, query).await.expect_err("no kernels");
    assert_has(&error, &["forebay.gpu is off"]);
    let mut session = fixture.session(ON).await;
    let median = "SELECT median(s) FROM (SELECT flag, sum(b) AS s FROM t GROUP BY 1)";
    let printed = kernels(&mut session, median).await.expect("kernels");
    assert_has(&printed, &["// OnCpuExec: median", "// Fragment 1, "]);
    for (query, texts) in [
        (
            "SELECT a, lag(b) OVER (ORDER BY b) FROM t WHERE a > 3",
            ["// OnCpuExec: the window function lag", "// Fragment 1, "],
        ),
        (
            "SELECT a, row_number() OVER (ORDER BY b) FROM t WHERE a > 3",
            [
                "Kernel 2 of 3: sorts rows by b, and computes row_number() of them",
                "// Fragment 1, ",
            ],
        ),
        (
            "SELECT t.b, d.label FROM t FULL JOIN d ON a = k WHERE label > 'b' OR b > 3",
            ["// Fragment 2, ", "anti join: "],
        ),
        (
            "SELECT s, label FROM (SELECT a, sum(b) AS s FROM t GROUP BY a) AS x FULL JOIN d ON a = k",
            [
                "// OnCpuExec: a full join with rows of a plan",
                "// Fragment 1, ",
            ],
        ),
        (
            "SELECT b FROM t WHERE random() > 0.5",
            ["// OnCpuExec: ", "random is not computed"],
        ),
        (
            "SELECT b FROM t WHERE random() > 0.5 LIMIT 10",
            ["// OnCpuExec: ", "random is not computed"],
        ),
    ] {
        let printed = kernels(&mut session, query).await.expect(query);
        assert_has(&printed, &texts);
    }
    let printed = kernels(&mut session, "SELECT 1").await.expect("no kernels");
    assert_has(&printed, &["no aggregate, join, condition"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_statements_have_kernels() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(ON).await;
    let text = "EXPLAIN (FORMAT kernel) SELECT count(*) FROM t WHERE a > $1";
    let parsed = parse(text).expect("a statement").remove(0);
    let prepared = session.prepare(parsed, &[]).await.expect("a plan");
    let columns = prepared.columns().expect("columns");
    assert_eq!(columns.field(0).name(), "QUERY PLAN");
    for _ in 0..2 {
        let values = vec![datafusion::scalar::ScalarValue::from(3_i64)];
        let outcome = session.execute(&prepared, values).await;
        let Ok(Outcome::Rows(mut rows)) = outcome else {
            panic!("{outcome:?}");
        };
        let batch = rows.next().await.expect("lines").expect("lines");
        let mut lines = batch.column(0).as_string::<i32>().iter().flatten();
        assert!(
            lines.any(|line| line.starts_with("// filter: ")),
            "{batch:?}"
        );
    }
}
