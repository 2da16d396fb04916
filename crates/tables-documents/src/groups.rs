//! `count(*)` of a collection, and `GROUP BY` of a cached field: its cache knows the number of documents with each
//! value.

use std::sync::Arc;

use async_trait::async_trait;
use bson::Document;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, TableReference};
use datafusion::datasource::{TableType, provider_as_source, source_as_provider};
use datafusion::error::Result;
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, LogicalPlanBuilder, TableScan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{col, lit};

use crate::column::Columns;
use crate::filter::{all, filter};
use crate::reader::Reader;
use crate::scan::{DocumentsExec, Output};
use crate::table::CollectionTable;

/// Names of the columns of [`Counted`].
pub(crate) const VALUE: &str = "value";
pub(crate) const COUNT: &str = "count";

/// Counts documents instead of reading them, where a query only counts: all of them, or those with each value of a
/// cached field.
#[derive(Debug)]
pub(crate) struct CountedDocuments;

impl OptimizerRule for CountedDocuments {
    fn name(&self) -> &str {
        "counted_documents"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Aggregate(aggregate) = &plan else {
            return Ok(Transformed::no(plan));
        };
        match (counts(aggregate)?, &*aggregate.group_expr) {
            (None, _) => Ok(Transformed::no(plan)),
            (Some(counted), []) => Ok(Transformed::yes(total(aggregate, counted)?)),
            (Some(counted), _) => Ok(Transformed::yes(grouped(aggregate, counted)?)),
        }
    }
}

/// Returns the table of counts from which an aggregation can be computed; `None` if the documents server cannot answer.
fn counts(aggregate: &Aggregate) -> Result<Option<Counted>> {
    let key = match &*aggregate.group_expr {
        [] => None,
        [Expr::Column(key)] => Some(key),
        _ => return Ok(None),
    };
    let LogicalPlan::TableScan(scan) = &*aggregate.input else {
        return Ok(None);
    };
    if scan.fetch.is_some() || !aggregate.aggr_expr.iter().all(counts_rows) {
        return Ok(None);
    }
    let provider = source_as_provider(&scan.source)?;
    let Some(table) = provider.downcast_ref::<CollectionTable>() else {
        return Ok(None);
    };
    Ok(table_of(table, scan, key))
}

fn table_of(table: &CollectionTable, scan: &TableScan, key: Option<&Column>) -> Option<Counted> {
    let field = match key {
        None => None,
        Some(key) => {
            let field = table.columns.get(&key.name)?;
            if !field.is_exact || !field.has_path() {
                return None;
            }
            Some(field.name.clone())
        }
    };
    let filters: Option<Vec<Document>> = scan
        .filters
        .iter()
        .map(|condition| filter(condition, &table.columns))
        .map(|filter| filter.filter(|filter| filter.is_exact))
        .map(|filter| filter.map(|filter| filter.document))
        .collect();
    Some(Counted {
        reader: table.reader.clone(),
        field,
        filter: all(filters?),
        columns: Columns::of_groups(VALUE, COUNT),
    })
}

/// Returns whether an aggregate is `count(*)`, or that of a constant.
fn counts_rows(aggregate: &Expr) -> bool {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = aggregate else {
        return false;
    };
    let is_constant = |argument: &Expr| match argument {
        Expr::Literal(value, _) => !value.is_null(),
        _ => false,
    };
    func.name() == "count"
        && !params.distinct
        && params.filter.is_none()
        && params.args.iter().all(is_constant)
}

/// Returns the plan of a count of all documents.
fn total(aggregate: &Aggregate, counted: Counted) -> Result<LogicalPlan> {
    let name = counted.name();
    let source = provider_as_source(Arc::new(counted));
    let columns = aggregate.schema.iter().map(|(qualifier, field)| {
        coalesce(vec![col(COUNT), lit(0_i64)]).alias_qualified(qualifier.cloned(), field.name())
    });
    LogicalPlanBuilder::scan(name, source, None)?
        .project(columns.collect::<Vec<_>>())?
        .build()
}

/// Returns the plan of an aggregation over counted values. It adds the counts up, so that a value may have several.
fn grouped(aggregate: &Aggregate, counted: Counted) -> Result<LogicalPlan> {
    let name = counted.name();
    let source = provider_as_source(Arc::new(counted));
    let total = "total";
    let totals = match aggregate.aggr_expr.is_empty() {
        true => Vec::new(),
        false => vec![sum(col(COUNT)).alias(total)],
    };
    let plan = LogicalPlanBuilder::scan(name, source, None)?
        .aggregate(vec![col(VALUE)], totals)?
        .build()?;
    let mut columns = Vec::new();
    for (index, (qualifier, field)) in aggregate.schema.iter().enumerate() {
        let column = match index {
            0 => col(VALUE),
            _ => coalesce(vec![col(total), lit(0_i64)]),
        };
        columns.push(column.alias_qualified(qualifier.cloned(), field.name()));
    }
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

/// The number of documents that a filter selects; with a field, the numbers of those with each of its values.
#[derive(Debug)]
struct Counted {
    reader: Reader,
    /// A cached field.
    field: Option<String>,
    filter: Document,
    columns: Columns,
}

impl Counted {
    /// Returns a name that tables of other counts do not have: DataFusion takes scans of the same name and columns for
    /// the same.
    fn name(&self) -> TableReference {
        let field = self.field.as_deref().unwrap_or("*");
        let collection = self.reader.namespace();
        TableReference::bare(format!("count of {field} in {collection} {}", self.filter))
    }
}

#[async_trait]
impl TableProvider for Counted {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.columns.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let columns = self.columns.projected(projection);
        let output = match self.field.clone() {
            Some(field) => Output::Groups { field, columns },
            None => Output::Total(columns),
        };
        let (reader, filter) = (self.reader.clone(), self.filter.clone());
        let plan = DocumentsExec::plan(reader, output, filter, limit).await?;
        Ok(Arc::new(plan))
    }
}
