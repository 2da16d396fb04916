//! The tables server on the status page, in its JSON and in the metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_tables::{
    Ending, GpuColumn, GpuColumns, GpuFigures, RunningStatement, SlowStatement, TableStatus,
    Tables as Engine,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::json::seconds;
use super::metrics::Page;

/// Maximum number of statements, and of tables, on the page.
const SHOWN_MAX: usize = 60;
/// Maximum number of columns of a GPU on the page.
const COLUMNS_MAX: usize = 60;
/// Maximum characters of the columns that a table declares for GPUs.
const GPU_CHARACTERS: usize = 160;
/// Age at which the list of tables is read again. It may take as many seconds as there are tables.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

/// The tables server; nothing if there is none.
pub struct Tables {
    engine: Option<Arc<Engine>>,
    listed: Mutex<Option<Listed>>,
}

/// The tables at a point in time.
struct Listed {
    at: Instant,
    tables: Vec<TableStatus>,
    left_out: usize,
}

impl Tables {
    /// Returns the tables of an engine.
    pub fn new(engine: Option<Arc<Engine>>) -> Tables {
        Tables {
            engine,
            listed: Mutex::default(),
        }
    }

    /// Returns the status as a JSON object; `null` without an engine. Texts of statements, and reasons, which
    /// name columns, are for clients of this machine.
    pub async fn json(&self, shows_texts: bool) -> Value {
        let Some(engine) = &self.engine else {
            return Value::Null;
        };
        let figures = engine.figures();
        let endings = Ending::ALL.into_iter().zip(figures.statements);
        let statements: serde_json::Map<String, Value> = endings
            .map(|(ending, count)| (ending.name().to_owned(), count.into()))
            .collect();
        let running = engine.running(SHOWN_MAX);
        let running: Vec<Value> = running
            .iter()
            .map(|it| of_running(it, shows_texts))
            .collect();
        let slow = engine.slow();
        let slow: Vec<Value> = slow.iter().map(|it| of_slow(it, shows_texts)).collect();
        let gpus = engine.gpu_figures();
        let gpus: Vec<Value> = gpus.iter().map(|it| of_gpu(it, shows_texts)).collect();
        // Names of files, columns and expressions are texts, too.
        let columns = match shows_texts {
            true => engine.gpu_columns(COLUMNS_MAX),
            false => Vec::new(),
        };
        let columns: Vec<Value> = columns.iter().map(of_columns).collect();
        let (tables, left_out) = self.listed(engine).await;
        json!({
            "sessions": figures.sessions,
            "statements": statements,
            "seconds": figures.time.as_secs_f64(),
            "rows": figures.rows,
            "slow": figures.slow,
            "plansFound": figures.plans_found,
            "plansMade": figures.plans_made,
            "plansRunAgain": figures.plans_run_again,
            "gpus": gpus,
            "gpuColumns": columns,
            "running": running,
            "slowStatements": slow,
            "tables": tables,
            "tablesLeftOut": left_out,
            "mayCancel": shows_texts,
        })
    }

    async fn listed(&self, engine: &Engine) -> (Vec<Value>, usize) {
        let mut listed = self.listed.lock().await;
        let is_old = listed
            .as_ref()
            .is_none_or(|it| it.at.elapsed() >= LIST_AGE_MAX);
        if is_old && let Ok((tables, left_out)) = engine.listed(SHOWN_MAX).await {
            *listed = Some(Listed {
                at: Instant::now(),
                tables,
                left_out,
            });
        }
        listed.as_ref().map_or_else(Default::default, |it| {
            (it.tables.iter().map(of_table).collect(), it.left_out)
        })
    }

    /// Cancels a statement by its number. Returns whether it was running.
    pub fn cancel(&self, number: u64) -> bool {
        let engine = self.engine.as_ref();
        engine.is_some_and(|engine| engine.cancel(number))
    }

    /// Appends the metrics.
    pub fn append(&self, page: &mut Page) {
        let Some(engine) = &self.engine else {
            return;
        };
        let figures = engine.figures();
        page.gauge("forebay_tables_sessions", "Open SQL sessions.")
            .sample(&[], figures.sessions);
        page.gauge(
            "forebay_tables_running_statements",
            "SQL statements that run.",
        )
        .sample(&[], engine.running(usize::MAX).len());
        let help = "SQL statements by how they ended: done, failed, or stopped by the client, a timeout or an administrator.";
        let mut statements = page.counter("forebay_tables_statements_total", help);
        for (ending, count) in Ending::ALL.into_iter().zip(figures.statements) {
            statements.sample(&[("ending", ending.name())], count);
        }
        page.counter(
            "forebay_tables_statement_seconds_total",
            "Time of all SQL statements together.",
        )
        .sample(&[], figures.time.as_secs_f64());
        page.counter(
            "forebay_tables_rows_total",
            "Rows that SQL statements returned.",
        )
        .sample(&[], figures.rows);
        page.counter(
            "forebay_tables_slow_statements_total",
            "SQL statements that were logged as slow.",
        )
        .sample(&[], figures.slow);
        let mut plans = page.counter(
            "forebay_tables_plans_total",
            "Plans of SQL queries: made, found from before, or run again on a GPU.",
        );
        plans.sample(&[("plan", "made")], figures.plans_made);
        plans.sample(&[("plan", "found")], figures.plans_found);
        plans.sample(&[("plan", "run_again")], figures.plans_run_again);
        let gpus = engine.gpu_figures();
        let help = "Aggregates of SQL over files by what computed them, a GPU or the CPU.";
        let mut aggregates = page.counter("forebay_tables_aggregates_total", help);
        for gpu in &gpus {
            aggregates.sample(&[("device", &gpu.device)], gpu.aggregates);
        }
        if !gpus.is_empty() {
            aggregates.sample(&[("device", "cpu")], gpus.iter().map(on_cpu).sum::<u64>());
        }
        let help = "Aggregates of SQL over files that the CPU computed, by the kind of the reason.";
        let mut reasons = page.counter("forebay_tables_aggregates_on_cpu_total", help);
        // The server has one rule for all its GPUs.
        for (kind, count) in gpus.iter().flat_map(|gpu| &gpu.on_cpu_kinds) {
            reasons.sample(&[("reason", kind)], *count);
        }
        let help = "Columns of files that a GPU reads in its memory or in that of the host.";
        let mut columns = page.gauge("forebay_tables_gpu_columns", help);
        for gpu in &gpus {
            columns.sample(&[("device", &gpu.device)], gpu.columns);
        }
        let help =
            "Bytes of these columns in the memory of the GPU and of the host, and in column files.";
        let mut bytes = page.gauge("forebay_tables_gpu_column_bytes", help);
        for gpu in &gpus {
            let place = |place| [("device", gpu.device.as_str()), ("place", place)];
            bytes.sample(&place("device"), gpu.column_bytes);
            bytes.sample(&place("host"), gpu.host_bytes);
            bytes.sample(&place("disk"), gpu.disk_bytes);
        }
    }
}

/// Returns the number of aggregates that a GPU did not compute.
fn on_cpu(gpu: &GpuFigures) -> u64 {
    gpu.on_cpu.iter().map(|(_, count)| count).sum()
}

fn of_gpu(gpu: &GpuFigures, shows_texts: bool) -> Value {
    let reasons: serde_json::Map<String, Value> = match shows_texts {
        true => gpu
            .on_cpu
            .iter()
            .cloned()
            .map(|(reason, count)| (reason, count.into()))
            .collect(),
        false => serde_json::Map::new(),
    };
    json!({
        "device": gpu.device,
        "aggregates": gpu.aggregates,
        "onCpu": on_cpu(gpu),
        "reasons": reasons,
        "columns": gpu.columns,
        "columnBytes": gpu.column_bytes,
        "hostBytes": gpu.host_bytes,
        "diskBytes": gpu.disk_bytes,
    })
}

fn of_columns(columns: &GpuColumns) -> Value {
    let (left_out, left_out_bytes) = columns.left_out;
    json!({
        "device": columns.device,
        "largest": columns.largest.iter().map(of_column).collect::<Vec<_>>(),
        "leftOut": left_out,
        "leftOutBytes": left_out_bytes,
    })
}

fn of_column(column: &GpuColumn) -> Value {
    json!({
        "table": column.table,
        "file": column.file,
        "name": column.name,
        "isDeclared": column.is_declared,
        "rows": column.rows,
        "deviceBytes": column.device_bytes,
        "hostBytes": column.host_bytes,
        "diskBytes": column.disk_bytes,
        "unusedSeconds": column.unused.as_secs_f64(),
    })
}

fn of_running(statement: &RunningStatement, shows_texts: bool) -> Value {
    json!({
        "number": statement.number,
        "user": statement.user,
        "text": shows_texts.then_some(&statement.text),
        "seconds": statement.elapsed.as_secs_f64(),
        "rowsRead": statement.rows_read,
        "rowsToRead": statement.rows_to_read,
        "rows": statement.rows,
    })
}

fn of_slow(statement: &SlowStatement, shows_texts: bool) -> Value {
    json!({
        "at": seconds(statement.at),
        "user": statement.user,
        "text": shows_texts.then_some(&statement.text),
        "seconds": statement.took.as_secs_f64(),
        "rows": statement.rows,
        "ending": statement.ending.name(),
    })
}

fn of_table(table: &TableStatus) -> Value {
    json!({
        "schema": table.schema,
        "name": table.name,
        "isView": table.is_view,
        "gpu": table.gpu.as_ref().map(|it| it.chars().take(GPU_CHARACTERS).collect::<String>()),
        "rows": table.rows,
        "bytes": table.bytes,
    })
}
