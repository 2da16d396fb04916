//! Scans of different tables under one name.
//!
//! DataFusion 55 takes two plans for the same if their scans have the same name and columns. Of the subqueries
//! `(SELECT sum(value) FROM generate_series(1, 10))` and `(SELECT sum(value) FROM generate_series(1, 20))` it computes
//! the first alone. All calls of a table function have one name, and so have tables of two schemas, once in a view.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::logical_plan::TableScanBuilder;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, TableScan};
use datafusion::optimizer::AnalyzerRule;

/// Gives each table of a query a name of its own. It comes before all other rules.
#[derive(Debug)]
pub(crate) struct NamedScans;

/// The tables of each name.
type Tables = HashMap<TableReference, Vec<Arc<dyn TableProvider>>>;

impl AnalyzerRule for NamedScans {
    fn analyze(&self, plan: LogicalPlan, _options: &ConfigOptions) -> Result<LogicalPlan> {
        let mut tables = Tables::new();
        plan.apply_with_subqueries(|node| {
            number(node, &mut tables);
            Ok(TreeNodeRecursion::Continue)
        })?;
        // The table that a statement changes is found by its name.
        let is_unique = tables.values().all(|tables| tables.len() == 1);
        if is_unique || matches!(plan, LogicalPlan::Dml(_)) {
            return Ok(plan);
        }
        plan.transform_up_with_subqueries(|node| match (number(&node, &mut tables), node) {
            (Some(number @ 1..), LogicalPlan::TableScan(scan)) if scan.filters.is_empty() => {
                renamed(scan, number).map(Transformed::yes)
            }
            (_, node) => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "named_scans"
    }
}

/// Returns which of the tables of its name a scan reads, counted from 0; `None` for other plans.
fn number(node: &LogicalPlan, tables: &mut Tables) -> Option<usize> {
    let LogicalPlan::TableScan(scan) = node else {
        return None;
    };
    let table = source_as_provider(&scan.source).ok()?;
    let known = tables.entry(scan.table_name.clone()).or_default();
    let found = known.iter().position(|known| Arc::ptr_eq(known, &table));
    Some(found.unwrap_or_else(|| {
        known.push(table);
        known.len() - 1
    }))
}

/// Returns a scan under a name of its own, with the columns that it had.
fn renamed(scan: TableScan, number: usize) -> Result<LogicalPlan> {
    let name = TableReference::bare(format!("{} {}", scan.table_name, number + 1));
    let inner = TableScanBuilder::new(name, scan.source)
        .with_projection(scan.projection)
        .with_fetch(scan.fetch)
        .build()?;
    LogicalPlanBuilder::from(LogicalPlan::TableScan(inner))
        .alias(scan.table_name)?
        .build()
}
