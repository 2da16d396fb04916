//! Reads columns of rows that are in no files: those of a versioned table, and those of a plan.

use std::sync::Arc;

use datafusion::common::exec_err;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use forebay_tables::{ColumnError, VersionedTable};
use futures_util::StreamExt;

use super::{
    EndOnDrop, Exprs, Failed, OfColumn, Stripes, To, failed, indexes_of, of_chunks, over_all,
    stored,
};
use crate::column::Column;
use crate::columns::{Columns, Resident};
use crate::fragment::Source;
use crate::giving_way::Need;
use crate::reason::Reason;
use crate::texts::TextsMax;

/// Maximum number of rows of a plan that is joined.
const PLAN_ROWS_MAX: usize = 16 << 20;
/// Why columns are not kept that were read while the table changed: their rows may be those of several versions.
pub(crate) const CHANGED: &str = "a table changed while its columns were read, or before";

/// Reads columns of all rows of a table, as the CPU's scan returns them.
///
/// # Errors
/// If the table cannot be read, or is not of its version before and after.
pub(super) async fn of_table(
    columns: &Columns,
    table: &Arc<dyn VersionedTable>,
    (wanted, need): (Exprs<'_>, Need),
    context: &Arc<TaskContext>,
) -> Result<Vec<Column>, Failed> {
    let check = || match table.is_current() {
        true => Ok(()),
        false => Err(failed(CHANGED)),
    };
    check()?;
    let read = indexes_of(wanted);
    let wanted = over_all(wanted, &read)?;
    let scan = table.scan_all(&read).await.map_err(failed)?;
    let rows = scan.execute(0, Arc::clone(context)).map_err(failed)?;
    let of_version = Arc::clone(table);
    // A load whose columns cannot be kept ends at once: others wait for their turn.
    let rows = rows.map(move |batch| match of_version.is_current() {
        true => batch,
        false => exec_err!("{CHANGED}"),
    });
    let share = |it| OfColumn::of_file(it, 1, context);
    let dropped = EndOnDrop(wanted.iter().map(share).collect());
    let shared = &*dropped.0;
    let stripes = Stripes {
        first: crc32c::crc32c(table.version().name.as_bytes()),
        step: 1,
    };
    let to = (To::Engine(need), stripes);
    let read = stored(columns, rows, &wanted, to, (shared, context)).await;
    check()?;
    of_chunks(columns, vec![read?], (&wanted, shared), need).await
}

/// Returns which columns an error applies to: the one that it names, or all that were read.
pub(super) fn not_read(error: DataFusionError, wanted: Exprs<'_>) -> Failed {
    let named = match error.find_root() {
        DataFusionError::External(inner) => inner.downcast_ref::<ColumnError>(),
        _ => None,
    };
    let of_column = named.and_then(|named| {
        let reads = |expr: &Arc<dyn PhysicalExpr>| {
            let mut read = collect_columns(expr).into_iter();
            read.any(|it| it.name() == named.column)
        };
        let index = wanted.iter().position(reads)?;
        Some(Failed::Column(index, Reason::of_data(named.to_string())))
    });
    of_column.unwrap_or_else(|| failed(error))
}

/// Brings the rows of a plan to the engine.
///
/// # Errors
/// If the plan fails, or there is no room.
pub(crate) async fn load_plan(
    columns: &Columns,
    plan: &Arc<dyn ExecutionPlan>,
    source: &Source,
    (began, context): (u64, &Arc<TaskContext>),
) -> Result<Resident, Reason> {
    let rows = execute_stream(Arc::clone(plan), Arc::clone(context)).map_err(Reason::of)?;
    let mut count = 0;
    let rows = rows.map(move |batch| {
        let batch = batch?;
        count += batch.num_rows();
        match count > PLAN_ROWS_MAX {
            true => exec_err!("the plan of a join returned more than {PLAN_ROWS_MAX} rows"),
            false => Ok(batch),
        }
    });
    let wanted: Vec<_> = source.columns.iter().map(|it| source.expr(*it)).collect();
    let shared: Vec<_> = wanted
        .iter()
        .map(|_| OfColumn::new(TextsMax::MANY, 1, context))
        .collect();
    let need = Need::Query(began);
    let to = To::Engine(need);
    let to = (to, Stripes::default());
    let read = stored(columns, rows.boxed(), &wanted, to, (&shared, context)).await;
    let loaded = match read {
        Ok(read) => of_chunks(columns, vec![read], (&wanted, &shared), need).await,
        Err(failed) => Err(failed),
    };
    let loaded = loaded.map_err(|failed| match failed {
        Failed::Column(_, reason) | Failed::Texts(_, reason) | Failed::Load(reason) => reason,
    })?;
    let loaded = loaded.into_iter().map(Arc::new);
    let columns = source.columns.iter().copied().zip(loaded);
    Ok(Resident {
        files: vec![columns.collect()],
    })
}
