//! Managed tables as DataFusion reads them.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::object_store::path::Path as ObjectPath;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::scalar::ScalarValue;
use forebay_tables_delta::{DataFile, FileStats, Snapshot};
use serde_json::Value;

use super::{Managed, Snapshots};
use crate::boxed;

/// Name of the column that tells in which file of the snapshot a row is. Clients cannot name it by accident.
pub(super) const FILE: &str = "\u{2060}file";

/// A managed table, or a part of it.
#[derive(Debug, Clone)]
pub(crate) struct ManagedProvider {
    managed: Arc<Managed>,
    schema: SchemaRef,
    part: Part,
}

/// What is read of a table.
#[derive(Debug, Clone)]
enum Part {
    /// The version of the statement.
    Statement,
    /// This version, with the column [`FILE`].
    Files(Arc<Snapshot>),
    /// These files.
    Only(Vec<Arc<DataFile>>),
}

/// Returns a table as lists of columns show it: those of a managed table that may not be null are so.
pub(crate) fn listed(table: Arc<dyn TableProvider>) -> Arc<dyn TableProvider> {
    match table.downcast_ref::<ManagedProvider>() {
        Some(managed) => Arc::new(ManagedProvider {
            schema: managed.described(),
            ..managed.clone()
        }),
        None => table,
    }
}

/// Returns the columns of a table with what only the log of a managed table tells, such as their defaults.
pub(crate) fn described(table: &dyn TableProvider) -> SchemaRef {
    match table.downcast_ref::<ManagedProvider>() {
        Some(managed) => managed.described(),
        None => table.schema(),
    }
}

impl ManagedProvider {
    pub(crate) fn new(managed: Arc<Managed>) -> ManagedProvider {
        let described = managed.schema();
        // Defaults and the like would follow columns through plans, and DataFusion's own checks of nulls have no good
        // messages.
        let plain = described.fields().iter().map(|field| {
            let field = field.as_ref().clone().with_metadata(HashMap::new());
            field.with_nullable(true)
        });
        let schema = Arc::new(Schema::new(plain.collect::<Vec<_>>()));
        ManagedProvider {
            managed,
            schema,
            part: Part::Statement,
        }
    }

    pub(super) fn managed(&self) -> &Arc<Managed> {
        &self.managed
    }

    pub(super) fn name(&self) -> &str {
        &self.managed.name
    }

    pub(super) fn described(&self) -> SchemaRef {
        self.managed.schema()
    }

    /// Returns this version of the table, with the column [`FILE`].
    pub(super) fn with_files(&self, snapshot: &Arc<Snapshot>) -> ManagedProvider {
        let fields = self.schema.fields().iter().cloned();
        let fields: Vec<_> = fields.chain([Arc::new(file_field())]).collect();
        ManagedProvider {
            managed: Arc::clone(&self.managed),
            schema: Arc::new(Schema::new(fields)),
            part: Part::Files(Arc::clone(snapshot)),
        }
    }

    /// Returns these files of the table.
    pub(super) fn only(&self, files: Vec<Arc<DataFile>>) -> ManagedProvider {
        ManagedProvider {
            part: Part::Only(files),
            ..self.clone()
        }
    }
}

fn file_field() -> Field {
    Field::new(FILE, DataType::Int64, false)
}

fn failed(error: crate::SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

impl ManagedProvider {
    fn scanned<'all>(
        &'all self,
        state: &'all dyn Session,
        projection: Option<&'all Vec<usize>>,
        _filters: &'all [Expr],
        limit: Option<usize>,
    ) -> boxed::Scan<'all> {
        Box::pin(async move {
            let files = match &self.part {
                Part::Statement => {
                    let seen = state
                        .config()
                        .get_extension::<Snapshots>()
                        .unwrap_or_default();
                    let snapshot = seen.of(&self.managed).map_err(failed)?;
                    snapshot.files().to_vec()
                }
                Part::Files(snapshot) => snapshot.files().to_vec(),
                Part::Only(files) => files.clone(),
            };
            let has_file_column = matches!(self.part, Part::Files(_));
            let columns = self.managed.schema().fields().len();
            let file_schema = match has_file_column {
                true => Arc::new(self.schema.project(&(0..columns).collect::<Vec<_>>())?),
                false => Arc::clone(&self.schema),
            };
            let partitions = match has_file_column {
                true => vec![Arc::new(file_field())],
                false => Vec::new(),
            };
            if files.is_empty() {
                let schema = match projection {
                    Some(columns) => Arc::new(self.schema.project(columns)?),
                    None => Arc::clone(&self.schema),
                };
                return Ok(Arc::new(EmptyExec::new(schema)) as Arc<dyn ExecutionPlan>);
            }
            let files = files.iter().enumerate().map(|(index, file)| {
                let partitioned = partitioned(file, &file_schema)?;
                Ok(match has_file_column {
                    true => partitioned
                        .with_partition_values(vec![ScalarValue::Int64(i64::try_from(index).ok())]),
                    false => partitioned,
                })
            });
            let files: Vec<PartitionedFile> = files.collect::<Result<_>>()?;
            let statistics = match has_file_column {
                true => Statistics::new_unknown(&self.schema),
                false => {
                    let of_files = files.iter().filter_map(|file| file.statistics.as_deref());
                    Statistics::try_merge_iter(of_files, &self.schema)?
                }
            };
            let groups = FileGroup::new(files).split_files(state.config().target_partitions());
            let format = ParquetFormatFactory::new().create(state, &HashMap::new())?;
            let table_schema = TableSchema::builder(file_schema)
                .with_table_partition_cols(partitions)
                .build();
            let source = format.file_source(table_schema);
            let config = FileScanConfigBuilder::new(ObjectStoreUrl::local_filesystem(), source)
                .with_file_groups(groups)
                .with_statistics(statistics)
                .with_projection_indices(projection.cloned())?
                .with_limit(limit)
                .build();
            format.create_physical_plan(state, config).await
        })
    }
}

impl TableProvider for ManagedProvider {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.managed.defaults.get(column)
    }

    boxed::scan!(scanned);

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        // The reader of Parquet takes conditions from the plan, and leaves out files by their statistics.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }
}

/// Returns a file as DataFusion reads it. As long as it is in a plan, it is not deleted.
fn partitioned(file: &Arc<DataFile>, schema: &Schema) -> Result<PartitionedFile> {
    let path = ObjectPath::from_absolute_path(file.path())
        .map_err(|error| DataFusionError::External(Box::new(error)))?;
    let mut partitioned = PartitionedFile::new("", file.size_bytes());
    partitioned.object_meta.location = path;
    let statistics = file.stats().map(|stats| statistics(&stats, file, schema));
    partitioned.statistics = statistics.map(Arc::new);
    Ok(partitioned.with_extension(Arc::clone(file)))
}

fn statistics(stats: &FileStats, file: &DataFile, schema: &Schema) -> Statistics {
    let count = |count: Option<u64>| {
        let count = count.and_then(|count| usize::try_from(count).ok());
        count.map_or(Precision::Absent, Precision::Exact)
    };
    let columns = schema.fields().iter().map(|field| {
        let nulls = stats.null_count.get(field.name()).and_then(Value::as_u64);
        let bound = |bounds: &serde_json::Map<String, Value>| {
            let value = bounds.get(field.name());
            let value = value.and_then(|value| scalar(value, field.data_type()));
            // Other tools may cut texts.
            value.map_or(Precision::Absent, |value| match value {
                ScalarValue::Utf8View(_) => Precision::Inexact(value),
                value => Precision::Exact(value),
            })
        };
        ColumnStatistics {
            null_count: count(nulls),
            min_value: bound(&stats.min_values),
            max_value: bound(&stats.max_values),
            ..ColumnStatistics::new_unknown()
        }
    });
    Statistics {
        num_rows: count(stats.num_records),
        total_byte_size: count(Some(file.size_bytes())).to_inexact(),
        column_statistics: columns.collect(),
    }
}

/// Returns a value of the statistics. Values of types that the log may round are not used.
fn scalar(value: &Value, data_type: &DataType) -> Option<ScalarValue> {
    let text = match (value, data_type) {
        (Value::Number(number), DataType::Int16 | DataType::Int32 | DataType::Int64) => {
            number.to_string()
        }
        (Value::String(text), DataType::Date32 | DataType::Utf8View) => text.clone(),
        _ => return None,
    };
    ScalarValue::try_from_string(text, data_type).ok()
}
