//! A collection as a table.

use std::sync::Arc;

use async_trait::async_trait;
use bson::Document;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use forebay_tables::{TableVersion, VersionedScan, VersionedTable};
use futures_util::future::BoxFuture;

use crate::SOURCE;
use crate::column::Columns;
use crate::filter::{self, filter};
use crate::reader::{Reader, Version};
use crate::scan::{DocumentsExec, Output};

/// Number of documents that are sampled at each end of a collection.
const SAMPLE_DOCUMENTS: i32 = 250;

/// A collection, as one user reads it.
#[derive(Debug, Clone)]
pub(crate) struct CollectionTable {
    pub(crate) reader: Reader,
    pub(crate) columns: Columns,
    opened: Version,
    version: TableVersion,
}

impl CollectionTable {
    /// Samples the collection, which has this version or a later one, for its columns.
    ///
    /// # Errors
    /// If the user may not read it.
    pub(crate) async fn open(reader: Reader, opened: Version) -> Result<CollectionTable> {
        let mut sample = reader.sample(SAMPLE_DOCUMENTS, false).await?;
        if sample.len() == SAMPLE_DOCUMENTS as usize {
            sample.extend(reader.sample(SAMPLE_DOCUMENTS, true).await?);
        }
        let exact = reader.string_fields();
        let columns = Columns::of(sample.iter().map(AsRef::as_ref), &exact);
        let version = TableVersion {
            name: format!("{SOURCE}.{}", reader.namespace()),
            id: opened.collection.to_string(),
            number: opened.changes,
            bytes: reader.document_bytes(),
        };
        Ok(CollectionTable {
            reader,
            columns,
            opened,
            version,
        })
    }
}

impl VersionedTable for CollectionTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.columns.schema)
    }

    fn version(&self) -> &TableVersion {
        &self.version
    }

    fn is_current(&self) -> bool {
        self.reader.has_documents_of(&self.opened)
    }

    /// Plans a scan of the store, in the order of the documents' record numbers.
    fn scan_all<'a>(
        &'a self,
        columns: &'a [usize],
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        Box::pin(async move {
            let output = Output::Columns(self.columns.projected(Some(&columns.to_vec())));
            let all = Document::new();
            let plan = DocumentsExec::plan(self.reader.clone(), output, all, None).await?;
            Ok(Arc::new(plan) as Arc<dyn ExecutionPlan>)
        })
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
        let differs = if translated.iter().any(|filter| filter.is_exact) {
            Some("conditions that the documents server answers from its cache")
        } else if self.reader.version().as_ref() != Some(&self.opened) {
            // A prepared statement may run for the first time long after it was planned.
            Some("a collection that changed after the statement was prepared")
        } else {
            limit.map(|_| "a scan with a limit")
        };
        let selected = filter::all(translated.into_iter().map(|part| part.document).collect());
        let columns = self.columns.projected(projection);
        let is_counted = columns.columns.is_empty() && is_exact;
        let output = match is_counted {
            true => Output::Count,
            false => Output::Columns(columns),
        };
        let reader = self.reader.clone();
        let plan = DocumentsExec::plan(reader, output, selected, limit).await?;
        let plan: Arc<dyn ExecutionPlan> = Arc::new(plan);
        if is_counted {
            return Ok(plan);
        }
        let all = || (0..self.columns.columns.len()).collect();
        let read = projection.cloned().unwrap_or_else(all);
        let table = Arc::new(self.clone());
        Ok(Arc::new(VersionedScan::new(plan, table, read, differs)))
    }
}
