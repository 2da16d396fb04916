//! The operator that reads a collection.

use std::fmt;
use std::sync::Arc;

use bson::{Document, doc};
use datafusion::arrow::array::{Int64Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, StatisticsArgs,
};
use futures_util::{StreamExt, stream};

use crate::column::Columns;
use crate::groups::{COUNT, VALUE};
use crate::reader::{Cursor, Reader, is_out_of_memory};
use crate::rows::Rows;

/// Rows of a batch.
const BATCH_ROWS: usize = 8_192;
/// Rows of a batch without columns. A batch of a hundred costs as much as one of a million.
const EMPTY_BATCH_ROWS: u64 = 1 << 20;

/// What the operator returns.
#[derive(Debug, Clone)]
pub(crate) enum Output {
    /// Columns of the documents.
    Columns(Columns),
    /// A row without columns for each document.
    Count,
    /// One row with the number of documents, the only column; the column may be left out.
    Total(Columns),
    /// The values of a field, and numbers of documents with each.
    Groups {
        /// The field.
        field: String,
        /// The columns of the value and of the number, or some of them.
        columns: Columns,
    },
}

/// Reads the documents that a filter selects, or counts them.
#[derive(Debug)]
pub(crate) struct DocumentsExec {
    reader: Reader,
    output: Output,
    filter: Document,
    limit: Option<usize>,
    /// How the documents server finds the documents, as its `explain` tells.
    stage: Document,
    /// Estimated number of documents of the collection, where that of rows depends on it.
    documents: Option<usize>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl DocumentsExec {
    /// Plans the read, for one run of a statement.
    ///
    /// # Errors
    /// If the user may not read the collection now.
    pub(crate) async fn plan(
        reader: Reader,
        output: Output,
        filter: Document,
        limit: Option<usize>,
    ) -> Result<DocumentsExec> {
        let schema = match &output {
            Output::Count => Arc::new(Schema::empty()),
            Output::Columns(columns) | Output::Groups { columns, .. } | Output::Total(columns) => {
                Arc::clone(&columns.schema)
            }
        };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let (command, arguments) = command(&output, &filter, limit);
        // The plan of the statement may have made the reader long ago.
        let reader = reader.with_rights_of_now();
        let stage = reader.explain(command, arguments).await?;
        let documents = match &output {
            Output::Total(_) => None,
            _ => usize::try_from(reader.count(Document::new()).await?).ok(),
        };
        Ok(DocumentsExec {
            reader,
            output,
            filter,
            limit,
            stage,
            documents,
            schema,
            properties: Arc::new(properties.with_scheduling_type(SchedulingType::NonCooperative)),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    fn batches(&self) -> SendableRecordBatchStream {
        let (reader, schema) = (self.reader.clone(), Arc::clone(&self.schema));
        let (command, arguments) = command(&self.output, &self.filter, self.limit);
        let stream = match &self.output {
            Output::Count => stream::once(async move {
                let rows = reader.count(arguments).await?;
                Ok::<_, datafusion::error::DataFusionError>(empty_rows(rows, schema))
            })
            .flat_map(|batches| match batches {
                Ok(batches) => batches.boxed(),
                Err(error) => stream::iter([Err(error)]).boxed(),
            })
            .boxed(),
            Output::Total(_) => stream::once(async move {
                let rows = reader.count(arguments).await?;
                total(rows, schema)
            })
            .boxed(),
            Output::Columns(columns) | Output::Groups { columns, .. } => {
                let rows = Rows::new(columns);
                let instead = self.output.instead(&self.filter);
                let opened = async move {
                    let opened = match (reader.open(command, arguments).await, instead) {
                        (Err(error), Some(arguments)) if is_out_of_memory(&error) => {
                            reader.open(command, arguments).await
                        }
                        (opened, _) => opened,
                    };
                    Ok((opened?, rows))
                };
                stream::once(opened)
                    .flat_map(|opened| match opened {
                        Ok((cursor, rows)) => documents(cursor, rows).boxed(),
                        Err(error) => stream::iter([Err(error)]).boxed(),
                    })
                    .boxed()
            }
        };
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            stream,
        ))
    }
}

/// Returns the command and its arguments.
fn command(output: &Output, filter: &Document, limit: Option<usize>) -> (&'static str, Document) {
    let limit = limit.and_then(|limit| i64::try_from(limit).ok());
    match output {
        Output::Count | Output::Total(_) => {
            let mut arguments = doc! { "query": filter };
            // A limit of zero means no limit to MongoDB.
            if let Some(limit) = limit.filter(|limit| *limit > 0) {
                arguments.insert("limit", limit);
            }
            ("count", arguments)
        }
        Output::Columns(columns) => {
            let mut arguments = Cursor::options();
            arguments.insert("filter", filter);
            if let Some(projection) = projection(columns) {
                arguments.insert("projection", projection);
            }
            if let Some(limit) = limit.filter(|limit| *limit > 0) {
                arguments.insert("limit", limit);
            }
            ("find", arguments)
        }
        Output::Groups { field, .. } => {
            let group = doc! { "_id": format!("${field}"), COUNT: { "$sum": 1 } };
            let values = doc! { "_id": 0, VALUE: "$_id", COUNT: 1 };
            let pipeline = vec![
                doc! { "$match": filter },
                doc! { "$group": group },
                doc! { "$project": values },
            ];
            let mut arguments = Cursor::options_of_aggregate();
            arguments.insert("pipeline", pipeline);
            ("aggregate", arguments)
        }
    }
}

impl Output {
    /// Returns the arguments of the command that counts each document alone, if the documents server has no memory for
    /// all groups.
    fn instead(&self, filter: &Document) -> Option<Document> {
        let Output::Groups { field, .. } = self else {
            return None;
        };
        let one = doc! { "_id": 0, VALUE: format!("${field}"), COUNT: { "$literal": 1 } };
        let mut arguments = Cursor::options_of_aggregate();
        arguments.insert(
            "pipeline",
            vec![doc! { "$match": filter }, doc! { "$project": one }],
        );
        Some(arguments)
    }
}

/// Returns the projection of these columns; `None` if the whole document is needed.
fn projection(columns: &Columns) -> Option<Document> {
    if !columns.columns.iter().all(|column| column.has_path()) {
        return None;
    }
    // Errors name the `_id`, which MongoDB adds to each projection.
    let names = columns.columns.iter().map(|column| &column.name);
    Some(names.map(|name| (name.clone(), 1.into())).collect())
}

/// Returns the rows of a cursor's documents.
fn documents(
    cursor: Cursor,
    rows: Rows,
) -> impl futures_util::Stream<Item = Result<RecordBatch>> + Send {
    let replies = stream::try_unfold((cursor, rows), |(mut cursor, mut rows)| async move {
        let mut batches = Vec::new();
        let each = |document: &bson::RawDocument| {
            rows.add(document)?;
            if rows.len() == BATCH_ROWS {
                batches.push(rows.take()?);
            }
            Ok(())
        };
        if !cursor.read(each).await? {
            return Ok(None);
        }
        if rows.len() > 0 {
            batches.push(rows.take()?);
        }
        Ok(Some((batches, (cursor, rows))))
    });
    replies.flat_map(|batches| match batches {
        Ok(batches) => stream::iter(batches.into_iter().map(Ok)).left_stream(),
        Err(error) => stream::iter([Err(error)]).right_stream(),
    })
}

/// Returns one row with the number of documents, if the schema has a column for it.
fn total(rows: u64, schema: SchemaRef) -> Result<RecordBatch> {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    let columns = schema
        .fields()
        .iter()
        .map(|_| Arc::new(Int64Array::from(vec![rows])) as _);
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let columns = columns.collect();
    Ok(RecordBatch::try_new_with_options(
        schema, columns, &options,
    )?)
}

/// Returns `rows` rows without columns.
fn empty_rows(
    rows: u64,
    schema: SchemaRef,
) -> impl futures_util::Stream<Item = Result<RecordBatch>> + Send {
    let batches = rows.div_ceil(EMPTY_BATCH_ROWS);
    stream::iter((0..batches).map(move |batch| {
        let count = (rows - batch * EMPTY_BATCH_ROWS).min(EMPTY_BATCH_ROWS);
        let options = RecordBatchOptions::new().with_row_count(Some(count as usize));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&schema),
            Vec::new(),
            &options,
        )?)
    }))
}

impl DisplayAs for DocumentsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (command, _) = command(&self.output, &self.filter, self.limit);
        let json = |document: &Document| {
            bson::Bson::from(document.clone())
                .into_relaxed_extjson()
                .to_string()
        };
        let namespace = self.reader.namespace();
        write!(
            f,
            "DocumentsExec: collection={namespace}, command={command}"
        )?;
        if !self.filter.is_empty() {
            write!(f, ", filter={}", json(&self.filter))?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit={limit}")?;
        }
        write!(f, ", plan={}", json(&self.stage))
    }
}

impl ExecutionPlan for DocumentsExec {
    fn name(&self) -> &str {
        "DocumentsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let counted = self.batches().map(move |batch| {
            if let Ok(batch) = &batch {
                baseline.record_output(batch.num_rows());
            }
            batch
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            counted,
        )))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema);
        if matches!(self.output, Output::Total(_)) {
            statistics.num_rows = Precision::Exact(1);
        } else if let Some(documents) = self.documents {
            let rows = self.limit.map_or(documents, |limit| limit.min(documents));
            statistics.num_rows = Precision::Inexact(rows);
        }
        Ok(Arc::new(statistics))
    }
}
