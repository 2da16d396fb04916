//! `pg_attribute` with the types that clients see, their precision and their scale.
//!
//! That of `datafusion-pg-catalog` has no modifiers of types, and takes most lists for texts. Clients read a table's
//! columns there, and `postgres_fdw` declares its foreign tables from it.

use std::cell::RefCell;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, Int16Array, Int32Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::{CatalogProviderList, MemTable, SchemaProvider, Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::collect;
use datafusion_pg_catalog::pg_catalog::catalog_info::CatalogInfo;
use datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_pg_catalog::pg_catalog::{PgCatalogSchemaProvider, PgCatalogStaticTables};

use crate::boxed;
use crate::relations::Listed;
use crate::system::{self, Classes};

/// Name of the schema.
pub(crate) const PG_CATALOG: &str = "pg_catalog";
/// Name of the table that is replaced.
const PG_ATTRIBUTE: &str = "pg_attribute";
/// Bytes of the header of a variable-length value, which PostgreSQL adds to a type modifier.
const HEADER_BYTES: i32 = 4;

tokio::task_local! {
    /// The columns of the tables that are listed, in the order in which they are.
    static LISTED: RefCell<Vec<SchemaRef>>;
}

/// The schema `pg_catalog`.
#[derive(Debug)]
pub(crate) struct PgCatalog {
    inner: PgCatalogSchemaProvider<Listing, EmptyContextProvider>,
    listed: Listed,
}

impl PgCatalog {
    /// Returns the schema of these databases.
    ///
    /// # Errors
    /// If the tables that are the same in all databases cannot be read.
    pub(crate) fn new(listed: Listed) -> Result<PgCatalog> {
        let tables = Arc::new(PgCatalogStaticTables::try_new()?);
        let databases = Listing(Arc::clone(&listed.databases));
        let inner = PgCatalogSchemaProvider::try_new(databases, tables, EmptyContextProvider)?;
        Ok(PgCatalog { inner, listed })
    }
}

impl PgCatalog {
    fn found<'all>(&'all self, name: &'all str) -> boxed::Table<'all> {
        Box::pin(async move {
            if let Some(table) = system::table(name, &self.listed)? {
                return Ok(Some(table));
            }
            let table = self.inner.table(name).await?;
            Ok(match name {
                PG_ATTRIBUTE => table.map(|inner| Arc::new(Attributes { inner }) as _),
                "pg_class" => {
                    let namespaces = self.inner.table("pg_namespace").await?;
                    let tables = table.zip(namespaces);
                    tables.map(|of| Arc::new(Classes::new(of, self.listed.clone())) as _)
                }
                "pg_constraint" | "pg_index" => table.as_ref().map(system::emptied).transpose()?,
                _ => table,
            })
        })
    }
}

impl SchemaProvider for PgCatalog {
    fn table_names(&self) -> Vec<String> {
        let mut names = self.inner.table_names();
        names.extend(system::ADDED.iter().map(|name| (*name).to_owned()));
        names
    }

    boxed::table!(found);

    fn table_exist(&self, name: &str) -> bool {
        self.inner.table_exist(name) || system::ADDED.contains(&name)
    }
}

/// Databases that note the columns of each table that is listed.
#[derive(Debug, Clone)]
struct Listing(Arc<dyn CatalogProviderList>);

#[async_trait]
impl CatalogInfo for Listing {
    async fn catalog_names(&self) -> Result<Vec<String>> {
        CatalogInfo::catalog_names(&self.0).await
    }

    async fn schema_names(&self, catalog: &str) -> Result<Option<Vec<String>>> {
        self.0.schema_names(catalog).await
    }

    async fn table_names(&self, catalog: &str, schema: &str) -> Result<Option<Vec<String>>> {
        self.0.table_names(catalog, schema).await
    }

    async fn table_schema(
        &self,
        catalog: &str,
        schema: &str,
        table: &str,
    ) -> Result<Option<SchemaRef>> {
        let columns = self.0.table_schema(catalog, schema, table).await?;
        if let Some(columns) = &columns {
            // Outside of `Attributes`, there is no list.
            let _ = LISTED.try_with(|listed| listed.borrow_mut().push(Arc::clone(columns)));
        }
        Ok(columns)
    }

    async fn table_type(
        &self,
        catalog: &str,
        schema: &str,
        table: &str,
    ) -> Result<Option<TableType>> {
        self.0.table_type(catalog, schema, table).await
    }
}

/// The table `pg_attribute`.
#[derive(Debug)]
struct Attributes {
    inner: Arc<dyn TableProvider>,
}

impl Attributes {
    fn scanned<'all>(
        &'all self,
        state: &'all dyn Session,
        projection: Option<&'all Vec<usize>>,
        filters: &'all [Expr],
        limit: Option<usize>,
    ) -> boxed::Scan<'all> {
        Box::pin(async move {
            let plan = self.inner.scan(state, None, &[], None).await?;
            let work = async {
                let batches = collect(plan, state.task_ctx()).await;
                batches.map(|batches| (batches, LISTED.with(RefCell::take)))
            };
            let (batches, listed) = LISTED.scope(RefCell::default(), work).await?;
            let columns: Vec<Column> = listed
                .iter()
                .flat_map(|table| table.fields())
                .map(|field| Column::of(field.data_type()))
                .collect();
            let mut start = 0;
            let typed = batches.into_iter().map(|batch| {
                let end = start + batch.num_rows();
                let columns = columns.get(start..end);
                start = end;
                columns.map_or(Ok(batch.clone()), |columns| with_types(&batch, columns))
            });
            let typed = typed.collect::<Result<Vec<_>>>()?;
            let table = MemTable::try_new(self.schema(), vec![typed])?;
            table.scan(state, projection, filters, limit).await
        })
    }
}

impl TableProvider for Attributes {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }

    fn table_type(&self) -> TableType {
        self.inner.table_type()
    }

    boxed::scan!(scanned);
}

/// Returns a batch of `pg_attribute` with the types of these columns.
fn with_types(batch: &RecordBatch, columns: &[Column]) -> Result<RecordBatch> {
    let schema = batch.schema();
    let of = |value: fn(&Column) -> i32| -> ArrayRef {
        Arc::new(columns.iter().map(value).collect::<Int32Array>())
    };
    let replaced = schema.fields().iter().zip(batch.columns());
    let replaced = replaced.map(|(field, array)| match field.name().as_str() {
        "atttypid" => of(|column| column.type_id),
        "atttypmod" => of(|column| column.modifier),
        "attndims" => of(|column| column.dimensions),
        "attcollation" => of(|column| column.collation()),
        "attlen" => Arc::new(
            columns
                .iter()
                .map(|column| column.bytes)
                .collect::<Int16Array>(),
        ),
        _ => Arc::clone(array),
    });
    Ok(RecordBatch::try_new(
        Arc::clone(&schema),
        replaced.collect(),
    )?)
}

/// The type of a column, as PostgreSQL describes it.
#[derive(Debug, PartialEq, Eq)]
struct Column {
    type_id: i32,
    /// Bytes of a value; -1 if they vary.
    bytes: i16,
    /// Precision and scale of a decimal, or -1.
    modifier: i32,
    dimensions: i32,
}

impl Column {
    /// Returns the collation: that of the database for texts, as in `pg_type`.
    fn collation(&self) -> i32 {
        match self.type_id {
            25 | 1009 => 100,
            _ => 0,
        }
    }

    fn of(data_type: &DataType) -> Column {
        if let Some(items) = items(data_type) {
            let item = Column::of(items);
            return Column {
                type_id: array_of(item.type_id),
                bytes: -1,
                dimensions: item.dimensions + 1,
                ..item
            };
        }
        match data_type {
            DataType::Dictionary(_, values) => return Column::of(values),
            DataType::RunEndEncoded(_, values) => return Column::of(values.data_type()),
            _ => {}
        }
        let (type_id, bytes) = scalar(data_type);
        Column {
            type_id,
            bytes,
            modifier: modifier(data_type),
            dimensions: 0,
        }
    }
}

/// Returns the type of a list's items.
fn items(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _) => Some(field.data_type()),
        _ => None,
    }
}

/// Returns the identifier of a type, and the bytes of its values.
fn scalar(data_type: &DataType) -> (i32, i16) {
    match data_type {
        DataType::Boolean => (16, 1),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => (21, 2),
        DataType::Int32 | DataType::UInt16 => (23, 4),
        DataType::Int64 | DataType::UInt32 => (20, 8),
        DataType::UInt64
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => (1700, -1),
        DataType::Float16 | DataType::Float32 => (700, 4),
        DataType::Float64 => (701, 8),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => (17, -1),
        DataType::Struct(_) | DataType::Map(..) | DataType::Union(..) => (114, -1),
        DataType::Date32 | DataType::Date64 => (1082, 4),
        DataType::Time32(_) | DataType::Time64(_) => (1083, 8),
        DataType::Timestamp(_, None) => (1114, 8),
        DataType::Timestamp(_, Some(_)) => (1184, 8),
        DataType::Interval(_) | DataType::Duration(_) => (1186, 16),
        _ => (25, -1),
    }
}

/// Returns the type of arrays of a type. That of an array is itself.
fn array_of(type_id: i32) -> i32 {
    match type_id {
        16 => 1000,
        17 => 1001,
        21 => 1005,
        23 => 1007,
        20 => 1016,
        25 => 1009,
        114 => 199,
        700 => 1021,
        701 => 1022,
        1082 => 1182,
        1083 => 1183,
        1114 => 1115,
        1184 => 1185,
        1186 => 1187,
        1700 => 1231,
        array => array,
    }
}

fn modifier(data_type: &DataType) -> i32 {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => {
            ((i32::from(*precision) << 16) | (i32::from(*scale) & 0x7ff)) + HEADER_BYTES
        }
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_the_types_that_clients_see() {
        for (data_type, type_id, modifier, dimensions) in [
            (DataType::Decimal128(15, 2), 1700, (15 << 16 | 2) + 4, 0),
            (DataType::UInt32, 20, -1, 0),
            (DataType::new_list(DataType::Utf8View, true), 1009, -1, 1),
            (
                DataType::new_list(DataType::new_list(DataType::Int64, true), true),
                1016,
                -1,
                2,
            ),
            (
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
                25,
                -1,
                0,
            ),
        ] {
            let column = Column::of(&data_type);
            let found = (column.type_id, column.modifier, column.dimensions);
            assert_eq!(found, (type_id, modifier, dimensions), "{data_type}");
        }
    }
}
