//! The tables of the engine and their sizes.

use std::sync::Arc;
use std::time::Duration;

use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::datasource::TableType;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::SessionState;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use tokio::time::timeout;

use crate::catalogue::Kind;
use crate::engine::{Shared, Tables};
use crate::error::Result;
use crate::provider::Catalogs;
use crate::rows::Running;

/// Time to learn the size of a table. Many files take longer.
const TABLE_TIME_MAX: Duration = Duration::from_secs(1);

/// A table and its size.
#[derive(Debug, Clone)]
pub struct TableStatus {
    /// The schema.
    pub schema: String,
    /// The name.
    pub name: String,
    /// Whether it is a view.
    pub is_view: bool,
    /// What it declares of GPUs: `on`, `off`, or names of columns.
    pub gpu: Option<String>,
    /// Number of rows; `None` for views, tables of the source, and files that do not store it, such as CSV.
    pub rows: Option<u64>,
    /// Bytes of its files; `None` if they could not be listed, and for tables of the source.
    pub bytes: Option<u64>,
}

impl Tables {
    /// Returns the first `limit` tables, in the order of their names, and the number of those left out. Tables of the
    /// engine's [`Source`](crate::Source) come last, and only those that declare something of GPUs.
    ///
    /// # Errors
    /// If listing fails because of a defect.
    pub async fn listed(&self, limit: usize) -> Result<(Vec<TableStatus>, usize)> {
        let shared = Arc::clone(self.shared());
        let work = async move { listed(&shared, limit).await };
        Running::start(self.threads(), work).end().await
    }
}

async fn listed(shared: &Arc<Shared>, limit: usize) -> (Vec<TableStatus>, usize) {
    let catalogs = Catalogs::new(Arc::downgrade(shared)).lenient();
    let mut names = Vec::new();
    for schema in shared.catalogue.schema_names() {
        if let Some(provider) = catalogs.schema(&schema) {
            let tables = provider.table_names().into_iter();
            names.extend(tables.map(|table| (schema.clone(), table, Arc::clone(&provider))));
        }
    }
    names.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    let declared = shared.catalogue.declared().into_iter();
    let has_source = shared.source.is_some();
    let of_source = declared.filter(|(.., entry)| has_source && entry.kind == Kind::Source);
    let of_source: Vec<_> = of_source.collect();
    let left_out = (names.len() + of_source.len()).saturating_sub(limit);
    let mut found = Vec::new();
    for (schema, name, provider) in names.into_iter().take(limit) {
        let measured = timeout(TABLE_TIME_MAX, measured(shared.base(), &*provider, &name)).await;
        let (is_view, rows, bytes) = measured.unwrap_or_default();
        let entry = shared.catalogue.table(&schema, &name);
        found.push(TableStatus {
            gpu: entry.and_then(|it| it.gpu.as_ref().map(ToString::to_string)),
            schema,
            name,
            is_view,
            rows,
            bytes,
        });
    }
    for (schema, name, entry) in of_source.into_iter().take(limit - found.len()) {
        found.push(TableStatus {
            gpu: entry.gpu.as_ref().map(ToString::to_string),
            schema,
            name,
            is_view: false,
            rows: None,
            bytes: None,
        });
    }
    (found, left_out)
}

/// Returns whether a table is a view, its rows and its bytes.
async fn measured(
    state: &SessionState,
    schema: &dyn SchemaProvider,
    name: &str,
) -> (bool, Option<u64>, Option<u64>) {
    if let Ok(Some(TableType::View)) = schema.table_type(name).await {
        return (true, None, None);
    }
    let Ok(Some(table)) = schema.table(name).await else {
        return Default::default();
    };
    let table: &dyn TableProvider = &*table;
    match table.scan(state, None, &[], None).await {
        Ok(plan) => (false, rows_of(&*plan), bytes_of(&plan)),
        Err(_) => Default::default(),
    }
}

fn rows_of(plan: &dyn ExecutionPlan) -> Option<u64> {
    let context = StatisticsContext::new();
    let statistics = context.compute(plan, &StatisticsArgs::new()).ok()?;
    match statistics.num_rows {
        Precision::Exact(rows) => Some(rows as u64),
        Precision::Inexact(_) | Precision::Absent => None,
    }
}

/// Returns the bytes of the files that a plan reads.
fn bytes_of(plan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    if let Some(source) = plan.downcast_ref::<DataSourceExec>() {
        let files = source.data_source().downcast_ref::<FileScanConfig>()?;
        let files = files.file_groups.iter().flat_map(|group| group.iter());
        let bytes = files.map(|file| match &file.range {
            Some(range) => u64::try_from(range.end - range.start).unwrap_or(0),
            None => file.object_meta.size,
        });
        return Some(bytes.sum());
    }
    plan.children().into_iter().map(bytes_of).sum()
}
