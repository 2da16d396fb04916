//! Subqueries of a condition that is evaluated several times: they are computed once.

use std::sync::Arc;

use datafusion::catalog::MemTable;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Subquery, TableSource, lit};
use forebay_memory::Share;
use futures_util::StreamExt;

use super::provider::ManagedProvider;
use super::write::{Write, is_volatile};
use crate::error::{Code, Result, SqlError};

/// What a subquery becomes.
enum Settled {
    /// Its rows.
    Rows(Arc<LogicalPlan>),
    /// Whether it has rows.
    Exists(bool),
}

/// Returns a condition whose uncorrelated subqueries are rows, and the memory of these.
///
/// # Errors
/// If a subquery fails, or is correlated and may have other rows when it is computed again.
pub(super) async fn settled(write: &mut Write, condition: &Expr) -> Result<(Expr, Share)> {
    let mut found = Vec::new();
    condition.apply(|inner| {
        if let Some(subquery) = subquery_of(inner) {
            found.push((subquery.clone(), matches!(inner, Expr::Exists(_))));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut share = write.account.share();
    let mut settled = Vec::new();
    for (number, (subquery, is_exists)) in found.into_iter().enumerate() {
        settled.push(if !subquery.outer_ref_columns.is_empty() {
            check_steady(&subquery.subquery)?;
            None
        } else if is_exists {
            let plan = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone());
            let mut rows = write.rows(plan.limit(0, Some(1))?.build()?).await?;
            let mut has_rows = false;
            while let Some(batch) = write.stop.unless(rows.next()).await? {
                has_rows |= batch?.num_rows() > 0;
            }
            Some(Settled::Exists(has_rows))
        } else {
            let rows = computed(write, &subquery, number, &mut share).await?;
            Some(Settled::Rows(Arc::new(rows)))
        });
    }
    let mut settled = settled.into_iter();
    let replaced = condition.clone().transform_down(|inner| {
        if subquery_of(&inner).is_none() {
            return Ok(Transformed::no(inner));
        }
        Ok(match settled.next().flatten() {
            Some(settled) => Transformed::yes(settled.replacing(inner)),
            None => Transformed::no(inner),
        })
    });
    Ok((replaced.data()?, share))
}

fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery) => Some(subquery),
        Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::Exists(Exists { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. }) => Some(subquery),
        _ => None,
    }
}

/// Returns the rows of a subquery as a table.
async fn computed(
    write: &mut Write,
    subquery: &Subquery,
    number: usize,
    share: &mut Share,
) -> Result<LogicalPlan> {
    let mut rows = write.rows(subquery.subquery.as_ref().clone()).await?;
    let schema = rows.schema();
    let mut batches = Vec::new();
    while let Some(batch) = write.stop.unless(rows.next()).await? {
        let batch = batch?;
        share
            .try_grow(batch.get_array_memory_size())
            .map_err(|full| {
                SqlError::new(Code::OutOfMemory, full.to_string())
                    .with_hint("try again later, or raise --memory-bytes-max")
            })?;
        batches.push(batch);
    }
    let table: Arc<dyn TableSource> =
        provider_as_source(Arc::new(MemTable::try_new(schema, vec![batches])?));
    Ok(LogicalPlanBuilder::scan(format!("__forebay_{number}"), table, None)?.build()?)
}

impl Settled {
    fn replacing(self, expr: Expr) -> Expr {
        let plan = match self {
            Settled::Exists(has_rows) => {
                return match expr {
                    Expr::Exists(exists) => lit(has_rows != exists.negated),
                    other => other,
                };
            }
            Settled::Rows(plan) => plan,
        };
        match expr {
            Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(subquery.with_plan(plan)),
            Expr::InSubquery(found) => Expr::InSubquery(InSubquery {
                subquery: found.subquery.with_plan(plan),
                ..found
            }),
            Expr::SetComparison(found) => Expr::SetComparison(SetComparison {
                subquery: found.subquery.with_plan(plan),
                ..found
            }),
            other => other,
        }
    }
}

/// Refuses a correlated subquery that may have other rows when it is computed again: it takes some of many rows, or
/// reads what other clients change.
fn check_steady(plan: &LogicalPlan) -> Result<()> {
    let mut is_steady = true;
    plan.apply_with_subqueries(|node| {
        is_steady &= match node {
            LogicalPlan::Limit(_) | LogicalPlan::Window(_) | LogicalPlan::Distinct(_) => false,
            LogicalPlan::TableScan(scan) => {
                source_as_provider(&scan.source)?.is::<ManagedProvider>()
            }
            node => !node.expressions().iter().any(is_volatile),
        };
        Ok::<_, DataFusionError>(TreeNodeRecursion::Continue)
    })?;
    if is_steady {
        return Ok(());
    }
    let message = "a condition with a correlated subquery that has LIMIT, DISTINCT ON or a window, or reads what is no managed table,";
    Err(SqlError::unsupported(message)
        .with_hint("put its rows into a table first: CREATE TABLE ... AS SELECT ..."))
}
