//! Queries of DataFusion's sqllogictest files, on an engine and without it: the same rows.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use datafusion::DATAFUSION_VERSION;
use datafusion::common::runtime::SpawnedTask;
use forebay_tables::{Session, parse};
use futures_util::StreamExt;
use tempfile::TempDir;
use tokio::runtime::Builder;

use super::emulated::{self, Emulated};
use super::floats::are_alike;
use super::sessions::{Fixture, ON, done, lines};
use super::{compile_longest, is_full, of_all_threads};

/// The files of which some queries run. With `FOREBAY_TEST_FULL=1` all queries of all files do.
const FILES: [&str; 14] = [
    "aggregate.slt",
    "aggregates_topk.slt",
    "group_by.slt",
    "imdb.slt",
    "in_list.slt",
    "join_only.slt",
    "joins.slt",
    "null_aware_anti_join.slt",
    "order.slt",
    "predicates.slt",
    "select.slt",
    "sort_merge_join.slt",
    "subquery.slt",
    "window.slt",
];

/// Maximum number of queries of a file that the engine computes. They are spread over the file.
const QUERIES_OF_FILE: usize = 4;
/// Minimum number of queries of all files that the engine computes.
const QUERIES_MIN: usize = 24;
/// Numbers of kernels that are compiled, by the architecture.
const COMPILED: [usize; 3] = [1, 4, 1];

/// What a session sets besides, as `sqllogictest.py`.
const SETUP: &str = "SET timezone = 'UTC'; SET statement_timeout = '300s'";
/// Stack of each thread, as in the server: some statements are deep.
const STACK_BYTES: usize = 16 << 20;

/// Functions whose floats the CPU rounds after each row, besides those that [`are_alike`] knows.
const ROUNDED: [&str; 5] = ["mean(", "var(", "corr(", "covar", "regr_"];

/// A statement of a file.
struct Statement {
    /// The file and the line.
    place: String,
    sql: String,
}

impl Statement {
    /// Returns the first word of the statement in lower case.
    fn verb(&self) -> String {
        let lines = self.sql.lines().map(str::trim_start);
        let lines = lines.filter(|line| !line.starts_with("--"));
        let mut words = lines.flat_map(|line| line.split(|it: char| !it.is_alphanumeric()));
        let word = words.find(|it| !it.is_empty());
        word.unwrap_or_default().to_lowercase()
    }

    fn is_query(&self) -> bool {
        ["select", "with"].contains(&self.verb().as_str())
    }

    /// Returns whether later queries may depend on the statement. Others change nothing, or name files that the crate
    /// does not have.
    fn is_needed(&self) -> bool {
        let is_external = self.sql.to_lowercase().contains("external");
        !is_external && !["explain", "copy"].contains(&self.verb().as_str())
    }
}

/// Returns the folder of the crate's files in Cargo's cache, to which Cargo downloads the crate if necessary.
fn test_files() -> PathBuf {
    let name = format!("datafusion-sqllogictest-{DATAFUSION_VERSION}");
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")));
    let sources = home.expect("a home").join("registry/src");
    let unpacked = || {
        let registries = fs::read_dir(&sources).ok()?.flatten();
        let mut folders = registries.map(|it| it.path().join(&name).join("test_files"));
        folders.find(|it| it.exists())
    };
    unpacked().unwrap_or_else(|| {
        // It unpacks the crate to read its manifest.
        let wanted = format!("datafusion-sqllogictest@{DATAFUSION_VERSION}");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["info", "--quiet", &wanted]).current_dir("/");
        let fetched = cargo.output().expect("cargo");
        let errors = String::from_utf8_lossy(&fetched.stderr);
        assert!(fetched.status.success(), "{errors}");
        unpacked().expect("the crate")
    })
}

/// Returns the files of a folder and its folders, without those that are only included.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let files = entries.flat_map(|it| match it.path() {
        path if path.is_dir() => files_below(&path),
        path => vec![path],
    });
    let is_file = |it: &PathBuf| it.extension().is_some_and(|it| it == "slt");
    files.filter(is_file).collect()
}

/// Returns the statements of a file, whatever they should give. Those for other databases run too, because only the
/// answers of the engine and of the CPU are compared.
fn statements(file: &Path) -> Vec<Statement> {
    let text = fs::read_to_string(file).expect("a file");
    let mut all = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["include", name] => {
                let included = file.with_file_name(name);
                // Patterns name the queries of TPC-H, whose tables are not in the crate.
                if included.exists() {
                    all.extend(statements(&included));
                }
            }
            ["statement" | "query", ..] => {
                let sql = lines.by_ref().map(|(_, line)| line);
                let sql = sql.take_while(|line| !["", "----"].contains(&line.trim()));
                let sql: Vec<_> = sql.collect();
                all.push(Statement {
                    place: format!("{}:{number}", file.display()),
                    sql: sql.join("\n"),
                });
            }
            _ => {}
        }
    }
    all
}

/// Returns the sorted lines of the rows of a statement, or its error.
async fn answer(session: &mut Session, statement: &Statement) -> Result<Vec<String>, String> {
    let parsed = parse(&statement.sql).map_err(|it| it.to_string())?;
    let parsed = parsed.into_iter().next().ok_or("no statement")?;
    let outcome = session.run(parsed).await.map_err(|it| it.to_string())?;
    lines(outcome).await
}

/// Runs a query on the engine, and without it if the engine computed a part of the query. Returns `None` if the engine
/// did not.
///
/// # Errors
/// How the rows differ. Errors are not compared, because their texts may name any row.
async fn compare(
    fixture: &Fixture,
    session: &mut Session,
    query: &Statement,
) -> Option<Result<(), String>> {
    let before = fixture.columns.counts.on_device();
    let found = answer(session, query).await;
    if fixture.columns.counts.on_device() == before {
        return None;
    }
    done(session, "SET forebay.gpu = off").await;
    let wanted = answer(session, query).await;
    done(session, "SET forebay.gpu = on").await;
    let Statement { place, sql } = query;
    let text = sql.to_lowercase();
    let is_rounded = ROUNDED.iter().any(|it| text.contains(it));
    let text = if is_rounded { "stddev" } else { &text };
    let are_same = found.is_err() && wanted.is_err() || are_alike(text, &found, &wanted);
    Some(match are_same {
        true => Ok(()),
        false => Err(format!("{place}: {sql}\n{found:#?}\n{wanted:#?}")),
    })
}

/// Compares queries of a file, and adds their kernels to those of all files. Returns the number of queries that the
/// engine computed, and those of them whose rows differ.
async fn compare_file(file: &Path, all: &Emulated) -> (usize, Vec<String>) {
    let folder = Arc::new(TempDir::new().expect("room"));
    fs::create_dir(folder.path().join("files")).expect("room");
    let emulated = Emulated::new();
    let engines = emulated::devices(&emulated, 1);
    let fixture = Fixture::over(folder, (Arc::clone(&emulated), engines), None);
    let mut session = fixture.session(&format!("{ON}; {SETUP}")).await;
    let statements = statements(file);
    let queries = statements.iter().filter(|it| it.is_query()).count();
    let spacing = match is_full() {
        true => 0,
        false => queries / QUERIES_OF_FILE,
    };
    let (mut computed, mut skipped, mut wrong) = (0, spacing, Vec::new());
    for statement in &statements {
        if !statement.is_query() {
            if statement.is_needed() {
                drop(answer(&mut session, statement).await);
            }
        } else if skipped < spacing {
            skipped += 1;
        } else if let Some(compared) = compare(&fixture, &mut session, statement).await {
            (computed, skipped) = (computed + 1, 0);
            wrong.extend(compared.err());
        }
    }
    let name = file.display();
    println!("{computed} of {queries} queries of {name} ran on the engine");
    all.kernels.lock().extend(emulated.kernels.lock().drain());
    (computed, wrong)
}

/// Compares the files. Returns the number of queries that the engine computed.
async fn compare_files(all: &Arc<Emulated>) -> usize {
    let folder = test_files();
    let files = match is_full() {
        true => files_below(&folder),
        false => FILES.iter().map(|it| folder.join(it)).collect(),
    };
    let compared = files.into_iter().map(|file| {
        let all = Arc::clone(all);
        SpawnedTask::spawn(async move { compare_file(&file, &all).await })
    });
    let compared = of_all_threads(compared);
    let compared: Vec<_> = compared.collect().await;
    let (computed, wrong): (Vec<_>, Vec<_>) = compared.into_iter().unzip();
    let wrong = wrong.concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    computed.into_iter().sum()
}

#[test]
fn queries_of_sqllogictest_give_the_rows_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.enable_all().thread_stack_size(STACK_BYTES).build();
    let all = Emulated::new();
    let computed = runtime.expect("threads").block_on(compare_files(&all));
    assert!(computed >= QUERIES_MIN, "{computed}");
    compile_longest(&all, |_| true, COMPILED);
}
