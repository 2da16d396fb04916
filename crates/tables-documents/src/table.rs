//! A collection as a table.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;

use crate::column::Columns;
use crate::filter::{self, filter};
use crate::reader::Reader;
use crate::scan::{DocumentsExec, Output};

/// Number of documents that are sampled at each end of a collection.
const SAMPLE_DOCUMENTS: i32 = 250;

/// A collection, as one user reads it.
#[derive(Debug)]
pub(crate) struct CollectionTable {
    pub(crate) reader: Reader,
    pub(crate) columns: Columns,
}

impl CollectionTable {
    /// Samples the collection for its columns.
    ///
    /// # Errors
    /// If the user may not read it.
    pub(crate) async fn open(reader: Reader) -> Result<CollectionTable> {
        let mut sample = reader.sample(SAMPLE_DOCUMENTS, false).await?;
        if sample.len() == SAMPLE_DOCUMENTS as usize {
            sample.extend(reader.sample(SAMPLE_DOCUMENTS, true).await?);
        }
        let exact = reader.string_fields();
        let columns = Columns::of(sample.iter().map(AsRef::as_ref), &exact);
        Ok(CollectionTable { reader, columns })
    }
}

#[async_trait]
impl TableProvider for CollectionTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.columns.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = |condition: &&Expr| match filter(condition, &self.columns) {
            Some(filter) if filter.is_exact => TableProviderFilterPushDown::Exact,
            Some(_) => TableProviderFilterPushDown::Inexact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let translated: Vec<_> = filters
            .iter()
            .filter_map(|condition| filter(condition, &self.columns))
            .collect();
        let is_exact = translated.iter().all(|filter| filter.is_exact);
        let selected = filter::all(translated.into_iter().map(|part| part.document).collect());
        let columns = self.columns.projected(projection);
        let output = match columns.columns.is_empty() && is_exact {
            true => Output::Count,
            false => Output::Columns(columns),
        };
        let reader = self.reader.clone();
        let plan = DocumentsExec::plan(reader, output, selected, limit).await?;
        Ok(Arc::new(plan))
    }
}
