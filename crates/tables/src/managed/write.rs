//! `INSERT`, `UPDATE`, `DELETE` and `TRUNCATE`.

use std::sync::Arc;

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::Column;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::logical_expr::{
    DmlStatement, Expr, LogicalPlan, LogicalPlanBuilder, Projection, WriteOp, dml::InsertOp,
};
use datafusion::physical_plan::execute_stream;
use datafusion::sql::sqlparser::ast;
use forebay_memory::Account;
use forebay_tables_delta::{Change, DataFile, Snapshot};
use futures_util::StreamExt;
use tokio::runtime::Handle;

use super::defaults::{not_managed, table};
use super::provider::{FILE, ManagedProvider};
use super::settled::settled;
use super::sink::Sink;
use super::{Managed, Snapshots, Stop};
use crate::engine::Shared;
use crate::error::{Code, Result, SqlError};
use crate::gpu::GpuOptions;
use crate::rows::Running;
use crate::session::{Outcome, Session};
use crate::source::as_user;

/// Refuses forms of statements that managed tables do not have.
///
/// # Errors
/// [`Code::FeatureNotSupported`].
pub(crate) fn check(sql: &ast::Statement) -> Result<()> {
    let (what, hint) = match sql {
        ast::Statement::Insert(insert) => {
            if insert.on.is_some() {
                ("INSERT ... ON CONFLICT", super::types::NO_KEYS)
            } else if insert.returning.is_some() {
                ("INSERT ... RETURNING", NO_RETURNING)
            } else if insert.overwrite || insert.replace_into || insert.or.is_some() {
                ("this form of INSERT", "use TRUNCATE or DELETE first")
            } else {
                return Ok(());
            }
        }
        ast::Statement::Update(update) => {
            if update.from.is_some() || !update.table.joins.is_empty() {
                ("UPDATE ... FROM", "use a subquery: SET a = (SELECT ...)")
            } else if update.returning.is_some() {
                ("UPDATE ... RETURNING", NO_RETURNING)
            } else {
                return Ok(());
            }
        }
        ast::Statement::Delete(delete) => {
            if delete.using.is_some() {
                (
                    "DELETE ... USING",
                    "use a subquery: WHERE a IN (SELECT ...)",
                )
            } else if delete.returning.is_some() {
                ("DELETE ... RETURNING", NO_RETURNING)
            } else if has_alias(delete) {
                ("DELETE FROM ... AS", "leave out the alias")
            } else if delete.limit.is_some() || !delete.order_by.is_empty() {
                (
                    "DELETE ... LIMIT",
                    "use a subquery: WHERE a IN (SELECT ... LIMIT 1)",
                )
            } else {
                return Ok(());
            }
        }
        _ => return Ok(()),
    };
    Err(SqlError::unsupported(what).with_hint(hint))
}

/// DataFusion forgets the alias of the table of a `DELETE`.
fn has_alias(delete: &ast::Delete) -> bool {
    let (ast::FromTable::WithFromKeyword(tables) | ast::FromTable::WithoutKeyword(tables)) =
        &delete.from;
    tables.iter().any(|table| {
        matches!(
            table.relation,
            ast::TableFactor::Table { alias: Some(_), .. }
        )
    })
}

const NO_RETURNING: &str = "use SELECT before or after it";

/// What a statement needs while it writes, on a thread of its own.
pub(super) struct Write {
    state: Arc<SessionState>,
    shared: Arc<Shared>,
    pub(super) account: Account,
    pub(super) stop: Stop,
}

impl Write {
    pub(super) fn new(session: &Session, stop: Stop) -> Write {
        let shared = Arc::clone(session.tables().shared());
        Write {
            state: Arc::clone(session.state()),
            account: shared.memory.clone(),
            shared,
            stop,
        }
    }
}

/// Runs a planned `INSERT`, `UPDATE` or `DELETE`.
///
/// # Errors
/// If it fails. Nothing is then changed.
pub(crate) async fn write(session: &mut Session, plan: LogicalPlan) -> Result<Outcome> {
    let LogicalPlan::Dml(dml) = plan else {
        return Err(SqlError::unsupported("this statement"));
    };
    let provider = source_as_provider(&dml.target)?;
    let Some(table) = provider.downcast_ref::<ManagedProvider>().cloned() else {
        return Err(not_managed(dml.table_name.table()));
    };
    let (tag, is_insert) = match &dml.op {
        WriteOp::Insert(InsertOp::Append) => ("INSERT 0", true),
        WriteOp::Update => ("UPDATE", false),
        WriteOp::Delete => ("DELETE", false),
        other => return Err(SqlError::unsupported(other.to_string())),
    };
    let count = run(session, async move |mut write| match is_insert {
        true => write.insert(&table, Arc::unwrap_or_clone(dml.input)).await,
        false => write.rewrite(&table, &dml).await,
    });
    let count = count.await?;
    Ok(Outcome::Done(format!("{tag} {count}")))
}

/// Runs `TRUNCATE`.
///
/// # Errors
/// If a table is no managed table, or the disk is full.
pub(crate) async fn truncate(session: &mut Session, sql: &ast::Truncate) -> Result<Outcome> {
    let names = sql.table_names.clone();
    let if_exists = sql.if_exists;
    let state = Arc::clone(session.state());
    let truncated = run(session, async move |mut write| {
        let mut tables = Vec::new();
        for target in names {
            match table(&state, &target.name).await {
                Ok(table) => tables.push(table),
                Err(error) if if_exists && error.code == Code::UndefinedTable => {}
                Err(error) => return Err(error),
            }
        }
        for table in tables {
            let managed = table.managed();
            let _turn = managed.turn(&mut write.stop).await?;
            let removed = managed.table.snapshot()?.files().to_vec();
            write.commit(managed, "TRUNCATE", Vec::new(), removed)?;
        }
        Ok(())
    });
    truncated.await?;
    Ok(Outcome::Done("TRUNCATE TABLE".to_owned()))
}

/// Runs work that writes, on a thread of its own. It stops when the returned future is dropped.
pub(super) async fn run<T: Send + 'static, F>(
    session: &Session,
    work: impl FnOnce(Write) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>> + Send + 'static,
{
    let (running, stop) = Stop::new();
    let write = Write::new(session, stop);
    let threads = session.tables().threads();
    let work = as_user(session.user().to_owned(), work(write));
    let done = Running::start_blocking(threads, work).end().await?;
    drop(running);
    done
}

impl Write {
    pub(super) async fn insert(
        &mut self,
        table: &ManagedProvider,
        input: LogicalPlan,
    ) -> Result<u64> {
        let managed = table.managed();
        let mut sink = Sink::new(managed, &self.account);
        self.pour(input, &mut sink).await?;
        let rows = sink.rows();
        self.commit(managed, "WRITE", sink.finish()?, Vec::new())?;
        managed.compact_later(&Handle::current());
        Ok(rows)
    }

    /// Writes the rows of a query.
    async fn pour(&mut self, plan: LogicalPlan, sink: &mut Sink) -> Result<()> {
        let mut rows = self.rows(plan).await?;
        while let Some(batch) = self.stop.unless(rows.next()).await? {
            sink.write(&batch?)?;
        }
        Ok(())
    }

    pub(super) async fn rows(&mut self, plan: LogicalPlan) -> Result<SendableRecordBatchStream> {
        let state = Arc::clone(&self.state);
        let planning = async {
            let plan = state.optimize(&plan)?;
            let plan = state
                .query_planner()
                .create_physical_plan(&plan, &*state)
                .await?;
            execute_stream(plan, state.task_ctx())
        };
        Ok(self.stop.unless(planning).await??)
    }

    /// Makes a change unless the statement ended early.
    pub(super) fn commit(
        &mut self,
        managed: &Managed,
        operation: &'static str,
        added: Vec<Arc<DataFile>>,
        removed: Vec<Arc<DataFile>>,
    ) -> Result<()> {
        self.stop.check()?;
        if added.is_empty() && removed.is_empty() {
            return Ok(());
        }
        managed.table.commit(&Change {
            operation,
            added,
            removed,
            is_data_change: true,
        })?;
        self.shared.declared.wake();
        Ok(())
    }

    /// Writes the files again in which rows change. Returns the number of those rows.
    async fn rewrite(&mut self, table: &ManagedProvider, dml: &DmlStatement) -> Result<u64> {
        let managed = table.managed();
        let _turn = managed.turn(&mut self.stop).await?;
        // Subqueries see the same version.
        let seen = self.state.config().get_extension::<Snapshots>();
        let snapshot = seen.unwrap_or_default().of(managed)?;
        let mut parts = Parts::of(dml)?;
        let mut _share = None;
        if let Some(condition) = &parts.condition {
            let (condition, share) = settled(self, condition).await?;
            (parts.condition, _share) = (Some(condition), Some(share));
        }
        let removed = self.changed_files(table, &snapshot, &parts).await?;
        if removed.is_empty() {
            return Ok(0);
        }
        let before: u64 = removed
            .iter()
            .map(|file| rows_of(file))
            .sum::<Result<u64>>()?;
        self.leave_to_cpu();
        let only = parts.scanned(&table.only(removed.clone()))?;
        let mut sink = Sink::new(managed, &self.account);
        if let Some(updated) = parts.updated(only.clone())? {
            self.pour(updated, &mut sink).await?;
        }
        let updated = sink.rows();
        if let Some(kept) = parts.kept(only)? {
            self.pour(kept, &mut sink).await?;
        }
        let (count, operation) = match parts.projection {
            Some(_) => (updated, "UPDATE"),
            None => (before.saturating_sub(sink.rows()), "DELETE"),
        };
        self.commit(managed, operation, sink.finish()?, removed)?;
        Ok(count)
    }

    /// Lets the CPU compute what follows: files that go away are not worth a place in the memory of a GPU.
    fn leave_to_cpu(&mut self) {
        let mut state = SessionState::clone(&self.state);
        let extensions = &mut state.config_mut().options_mut().extensions;
        extensions.insert(GpuOptions::default());
        self.state = Arc::new(state);
    }

    /// Returns the files with rows that change.
    async fn changed_files(
        &mut self,
        table: &ManagedProvider,
        snapshot: &Arc<Snapshot>,
        parts: &Parts<'_>,
    ) -> Result<Vec<Arc<DataFile>>> {
        let Some(condition) = &parts.condition else {
            return Ok(snapshot.files().to_vec());
        };
        let scanned = parts.scanned(&table.with_files(snapshot))?;
        let file = file_column(&scanned);
        let file =
            file.ok_or_else(|| SqlError::new(Code::InternalError, "a scan without files"))?;
        let plan = LogicalPlanBuilder::from(scanned)
            .filter(condition.clone())?
            .aggregate([Expr::Column(file)], Vec::<Expr>::new())?
            .build()?;
        let mut rows = self.rows(plan).await?;
        let mut found = Vec::new();
        while let Some(batch) = self.stop.unless(rows.next()).await? {
            let batch = batch?;
            found.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
        }
        found.sort_unstable();
        let files = found.into_iter().filter_map(|index| {
            let index = usize::try_from(index).ok()?;
            snapshot.files().get(index).cloned()
        });
        Ok(files.collect())
    }
}

fn file_column(scan: &LogicalPlan) -> Option<Column> {
    let mut columns = scan.schema().iter();
    let found = columns.find(|(_, field)| field.name() == FILE);
    found.map(Column::from)
}

fn rows_of(file: &DataFile) -> Result<u64> {
    let rows = file.stats().and_then(|stats| stats.num_records);
    rows.ok_or_else(|| SqlError::unsupported("a data file without a count of rows"))
}

/// The parts of an `UPDATE` or `DELETE`.
struct Parts<'a> {
    /// The table, under its alias if it has one.
    scan: &'a LogicalPlan,
    condition: Option<Expr>,
    /// The new rows; `None` of a `DELETE`.
    projection: Option<&'a Projection>,
}

impl Parts<'_> {
    fn of(dml: &DmlStatement) -> Result<Parts<'_>> {
        let (projection, source) = match (&dml.op, &*dml.input) {
            (WriteOp::Update, LogicalPlan::Projection(projection)) => {
                (Some(projection), &*projection.input)
            }
            (_, source) => (None, source),
        };
        let (condition, scan) = match source {
            LogicalPlan::Filter(filter) => (Some(filter.predicate.clone()), &*filter.input),
            source => (None, source),
        };
        if projection.is_some() && condition.as_ref().is_some_and(calls_volatile) {
            return Err(SqlError::unsupported(
                "UPDATE with a condition that differs from call to call",
            )
            .with_hint("use a condition without functions such as random()"));
        }
        Ok(Parts {
            scan,
            condition,
            projection,
        })
    }

    /// Returns the scan of another part of the table.
    fn scanned(&self, table: &ManagedProvider) -> Result<LogicalPlan> {
        scanned(self.scan, table)
    }

    /// Returns the rows that an `UPDATE` changes, with their new values.
    fn updated(&self, scan: LogicalPlan) -> Result<Option<LogicalPlan>> {
        let Some(projection) = self.projection else {
            return Ok(None);
        };
        let plan = LogicalPlanBuilder::from(scan);
        let plan = match &self.condition {
            Some(condition) => plan.filter(condition.clone())?,
            None => plan,
        };
        Ok(Some(plan.project(projection.expr.clone())?.build()?))
    }

    /// Returns the rows that stay as they are.
    fn kept(&self, scan: LogicalPlan) -> Result<Option<LogicalPlan>> {
        let Some(condition) = &self.condition else {
            return Ok(None);
        };
        let others = Expr::IsNotTrue(Box::new(condition.clone()));
        Ok(Some(
            LogicalPlanBuilder::from(scan).filter(others)?.build()?,
        ))
    }
}

fn scanned(scan: &LogicalPlan, table: &ManagedProvider) -> Result<LogicalPlan> {
    match scan {
        LogicalPlan::TableScan(scan) => {
            let source = provider_as_source(Arc::new(table.clone()));
            Ok(LogicalPlanBuilder::scan(scan.table_name.clone(), source, None)?.build()?)
        }
        LogicalPlan::SubqueryAlias(aliased) => {
            let inner = scanned(&aliased.input, table)?;
            Ok(LogicalPlanBuilder::from(inner)
                .alias(aliased.alias.clone())?
                .build()?)
        }
        other => Err(SqlError::unsupported(format!(
            "a change of {}",
            other.display()
        ))),
    }
}

/// Returns whether an expression, outside of its subqueries, may differ from call to call.
fn calls_volatile(expr: &Expr) -> bool {
    let found = expr.exists(|inner| Ok(inner.is_volatile_node()));
    found.unwrap_or(true)
}

/// Returns whether an expression may differ from call to call, also in its subqueries.
pub(super) fn is_volatile(expr: &Expr) -> bool {
    let mut found = false;
    let visited = expr.apply(|inner| {
        found |= match inner {
            Expr::ScalarSubquery(subquery) => has_volatile(&subquery.subquery),
            Expr::InSubquery(subquery) => has_volatile(&subquery.subquery.subquery),
            Expr::Exists(exists) => has_volatile(&exists.subquery.subquery),
            other => other.is_volatile_node(),
        };
        Ok(TreeNodeRecursion::Continue)
    });
    visited.is_err() || found
}

fn has_volatile(plan: &LogicalPlan) -> bool {
    let mut found = false;
    let visited = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            found |= expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })
    });
    visited.is_err() || found
}
