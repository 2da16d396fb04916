//! What the server tells of itself and of its tables.

use std::sync::{Arc, LazyLock};

use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{
    GetCatalogsBuilder, SqlInfoData, SqlInfoDataBuilder, XdbcTypeInfo, XdbcTypeInfoData,
    XdbcTypeInfoDataBuilder,
};
use arrow_flight::sql::{
    Command, CommandGetDbSchemas, CommandGetTableTypes, CommandGetTables, Nullable, Searchable,
    SqlInfo, SqlNullOrdering, SqlSupportedCaseSensitivity, SqlSupportedTransaction, XdbcDataType,
    XdbcDatetimeSubcode,
};
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::scalar::ScalarValue;
use forebay_tables::{Outcome, Session, SqlError, TEXT_BYTES_MAX, Tables};
use tonic::Status;

use crate::error::{defect, plain, unknown_command};
use crate::types::{as_sent, nullable, sent};

/// Type of tables that describe others.
const SYSTEM_TABLE: &str = "SYSTEM TABLE";
const TABLE_TYPES: [&str; 3] = [SYSTEM_TABLE, "TABLE", "VIEW"];

/// Returns the columns of a listing; `None` if the command is none.
pub(crate) fn columns(command: &Command) -> Option<SchemaRef> {
    Some(match command {
        Command::CommandGetCatalogs(_) => GetCatalogsBuilder::new().schema(),
        Command::CommandGetDbSchemas(command) => command.clone().into_builder().schema(),
        Command::CommandGetTables(command) => command.clone().into_builder().schema(),
        Command::CommandGetTableTypes(_) => CommandGetTableTypes {}.into_builder().schema(),
        Command::CommandGetSqlInfo(_) => Arc::new(SqlInfoDataBuilder::schema().clone()),
        Command::CommandGetXdbcTypeInfo(_) => XdbcTypeInfoDataBuilder::new().schema(),
        Command::CommandGetPrimaryKeys(_) => primary_keys(),
        Command::CommandGetExportedKeys(_)
        | Command::CommandGetImportedKeys(_)
        | Command::CommandGetCrossReference(_) => foreign_keys(),
        _ => return None,
    })
}

/// Returns the rows of a listing.
///
/// # Errors
/// If tables cannot be listed, or the command is no listing.
pub(crate) async fn rows(
    command: Command,
    tables: &Arc<Tables>,
    user: &str,
) -> Result<RecordBatch, Status> {
    let columns = columns(&command).ok_or_else(|| unknown_command(&command))?;
    let listing = Listing {
        session: tables.session(user),
        tables,
    };
    Ok(match command {
        Command::CommandGetCatalogs(_) => listing.catalogs().await?,
        Command::CommandGetDbSchemas(command) => listing.schemas(command).await?,
        Command::CommandGetTables(command) => listing.tables(command).await?,
        Command::CommandGetTableTypes(_) => {
            let mut builder = CommandGetTableTypes {}.into_builder();
            TABLE_TYPES.iter().for_each(|name| builder.append(name));
            builder.build().map_err(defect)?
        }
        Command::CommandGetSqlInfo(command) => {
            let infos = INFOS.as_ref().map_err(defect)?;
            command.into_builder(infos).build().map_err(defect)?
        }
        Command::CommandGetXdbcTypeInfo(command) => {
            let types = TYPES.as_ref().map_err(defect)?;
            command.into_builder(types).build().map_err(defect)?
        }
        // There are no keys.
        _ => RecordBatch::new_empty(columns),
    })
}

/// Lists tables in a session of its own.
struct Listing<'a> {
    session: Session,
    tables: &'a Arc<Tables>,
}

impl Listing<'_> {
    async fn catalogs(mut self) -> Result<RecordBatch, Status> {
        let query = "SELECT DISTINCT catalog_name FROM information_schema.schemata";
        let mut builder = GetCatalogsBuilder::new();
        for [name] in self.texts(query, &[]).await? {
            builder.append(name);
        }
        builder.build().map_err(defect)
    }

    async fn schemas(mut self, command: CommandGetDbSchemas) -> Result<RecordBatch, Status> {
        let query = "SELECT catalog_name, schema_name FROM information_schema.schemata";
        let mut builder = command.into_builder();
        for [catalog, name] in self.texts(query, &[]).await? {
            builder.append(catalog, name);
        }
        builder.build().map_err(defect)
    }

    async fn tables(mut self, command: CommandGetTables) -> Result<RecordBatch, Status> {
        let query = "SELECT table_catalog, table_schema, table_name, table_type FROM information_schema.tables \
            WHERE ($1::text IS NULL OR table_catalog = $1) AND table_schema LIKE $2 AND table_name LIKE $3";
        let pattern = |pattern: &Option<String>| pattern.clone().or(Some("%".to_owned()));
        let filters = [
            command.catalog.clone(),
            pattern(&command.db_schema_filter_pattern),
            pattern(&command.table_name_filter_pattern),
        ];
        let (types, with_columns) = (command.table_types.clone(), command.include_schema);
        let mut builder = command.into_builder();
        for [catalog, schema, name, kind] in self.texts(query, &filters).await? {
            let kind = match (&*schema, &*kind) {
                ("information_schema" | "pg_catalog", _) => SYSTEM_TABLE,
                (_, "VIEW") => "VIEW",
                _ => "TABLE",
            };
            if !types.is_empty() && !types.iter().any(|wanted| wanted == kind) {
                continue;
            }
            let columns = match with_columns {
                true => self.columns([&catalog, &schema, &name]).await,
                false => Schema::empty(),
            };
            let added = builder.append(catalog, schema, name, kind, &columns);
            added.map_err(defect)?;
        }
        builder.build().map_err(defect)
    }

    /// Returns the columns of a table. A table that cannot be read has none here; its own queries tell why.
    async fn columns(&mut self, name: [&str; 3]) -> Schema {
        let quoted = name.map(|part| format!("\"{}\"", part.replace('"', "\"\"")));
        let query = format!("SELECT * FROM {}", quoted.join("."));
        let prepared = async {
            let statement = self.tables.parse(&query).await?.remove(0);
            self.session.prepare(statement, &[]).await
        };
        let columns = prepared.await.ok().and_then(|prepared| {
            let columns = prepared.columns()?;
            Some(sent(columns).as_ref().clone())
        });
        columns.unwrap_or_else(Schema::empty)
    }

    /// Runs a query whose columns are texts.
    async fn texts<const N: usize>(
        &mut self,
        query: &str,
        values: &[Option<String>],
    ) -> Result<Vec<[String; N]>, Status> {
        let values = values.iter().cloned().map(ScalarValue::Utf8).collect();
        let mut batches = Vec::new();
        let run = async {
            let statement = self.tables.parse(query).await?.remove(0);
            let prepared = self.session.prepare(statement, &[]).await?;
            let Outcome::Rows(mut rows) = self.session.execute(&prepared, values).await? else {
                return Ok(());
            };
            let columns = sent(rows.schema());
            while let Some(batch) = rows.next().await? {
                batches.push(as_sent(&batch, &columns)?);
            }
            Ok::<_, SqlError>(())
        };
        run.await.map_err(plain)?;
        let text = |batch: &RecordBatch, row: usize, column: usize| {
            let texts = batch.column(column).as_string_opt::<i32>();
            let text = texts.filter(|texts| texts.is_valid(row));
            text.map_or_else(String::new, |texts| texts.value(row).to_owned())
        };
        let rows = batches.iter().flat_map(|batch| {
            (0..batch.num_rows())
                .map(move |row| std::array::from_fn(|column| text(batch, row, column)))
        });
        Ok(rows.collect())
    }
}

fn primary_keys() -> SchemaRef {
    let text = |name| nullable(name, DataType::Utf8);
    Arc::new(Schema::new(vec![
        text("catalog_name"),
        text("db_schema_name"),
        text("table_name").with_nullable(false),
        text("column_name").with_nullable(false),
        nullable("key_sequence", DataType::Int32).with_nullable(false),
        text("key_name"),
    ]))
}

fn foreign_keys() -> SchemaRef {
    let text = |name| nullable(name, DataType::Utf8);
    let rule = |name| nullable(name, DataType::UInt8).with_nullable(false);
    Arc::new(Schema::new(vec![
        text("pk_catalog_name"),
        text("pk_db_schema_name"),
        text("pk_table_name").with_nullable(false),
        text("pk_column_name").with_nullable(false),
        text("fk_catalog_name"),
        text("fk_db_schema_name"),
        text("fk_table_name").with_nullable(false),
        text("fk_column_name").with_nullable(false),
        nullable("key_sequence", DataType::Int32).with_nullable(false),
        text("fk_key_name"),
        text("pk_key_name"),
        rule("update_rule"),
        rule("delete_rule"),
    ]))
}

static INFOS: LazyLock<Result<SqlInfoData, FlightError>> = LazyLock::new(|| {
    let mut infos = SqlInfoDataBuilder::new();
    infos.append(SqlInfo::FlightSqlServerName, "Forebay");
    infos.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    infos.append(SqlInfo::FlightSqlServerArrowVersion, ARROW_FORMAT);
    infos.append(SqlInfo::FlightSqlServerReadOnly, false);
    infos.append(SqlInfo::FlightSqlServerSql, true);
    infos.append(SqlInfo::FlightSqlServerSubstrait, false);
    let transactions = SqlSupportedTransaction::None as i32;
    infos.append(SqlInfo::FlightSqlServerTransaction, transactions);
    infos.append(SqlInfo::FlightSqlServerCancel, true);
    infos.append(SqlInfo::FlightSqlServerBulkIngestion, false);
    infos.append(SqlInfo::FlightSqlServerIngestTransactionsSupported, false);
    infos.append(SqlInfo::FlightSqlServerStatementTimeout, 0);
    infos.append(SqlInfo::SqlDdlCatalog, false);
    infos.append(SqlInfo::SqlDdlSchema, true);
    infos.append(SqlInfo::SqlDdlTable, true);
    let case = SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32;
    infos.append(SqlInfo::SqlIdentifierCase, case);
    infos.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    let case = SqlSupportedCaseSensitivity::SqlCaseSensitivityUnknown as i32;
    infos.append(SqlInfo::SqlQuotedIdentifierCase, case);
    infos.append(SqlInfo::SqlAllTablesAreSelectable, true);
    let nulls = SqlNullOrdering::SqlNullsSortedHigh as i32;
    infos.append(SqlInfo::SqlNullOrdering, nulls);
    infos.append(SqlInfo::SqlSearchStringEscape, "\\");
    infos.append(SqlInfo::SqlSchemaTerm, "schema");
    infos.append(SqlInfo::SqlCatalogTerm, "database");
    infos.append(SqlInfo::SqlCatalogAtStart, true);
    infos.append(SqlInfo::SqlMaxStatementLength, TEXT_BYTES_MAX as i64);
    infos.append(SqlInfo::SqlTransactionsSupported, false);
    infos.append(SqlInfo::SqlNamedParametersSupported, false);
    infos.build()
});

/// Version of Arrow's format.
const ARROW_FORMAT: &str = "1.3";

/// Name, type, bytes or digits, and quote of the types of columns.
const TYPE_NAMES: [(&str, XdbcDataType, i32, Option<&str>); 13] = [
    ("boolean", XdbcDataType::XdbcBit, 1, None),
    ("smallint", XdbcDataType::XdbcSmallint, 5, None),
    ("integer", XdbcDataType::XdbcInteger, 10, None),
    ("bigint", XdbcDataType::XdbcBigint, 19, None),
    ("real", XdbcDataType::XdbcReal, 7, None),
    ("double precision", XdbcDataType::XdbcDouble, 15, None),
    ("numeric", XdbcDataType::XdbcNumeric, 38, None),
    ("text", XdbcDataType::XdbcVarchar, i32::MAX, Some("'")),
    ("bytea", XdbcDataType::XdbcVarbinary, i32::MAX, Some("'")),
    ("date", XdbcDataType::XdbcDate, 10, Some("'")),
    ("time", XdbcDataType::XdbcTime, 15, Some("'")),
    ("timestamp", XdbcDataType::XdbcTimestamp, 26, Some("'")),
    ("interval", XdbcDataType::XdbcInterval, 49, Some("'")),
];

static TYPES: LazyLock<Result<XdbcTypeInfoData, FlightError>> = LazyLock::new(|| {
    let mut types = XdbcTypeInfoDataBuilder::new();
    for (name, data_type, size, quote) in TYPE_NAMES {
        let is_number = !matches!(name, "boolean") && quote.is_none();
        types.append(XdbcTypeInfo {
            type_name: name.to_owned(),
            data_type,
            column_size: Some(size),
            literal_prefix: quote.map(str::to_owned),
            literal_suffix: quote.map(str::to_owned),
            nullable: Nullable::NullabilityNullable,
            case_sensitive: name == "text",
            searchable: Searchable::Full,
            unsigned_attribute: is_number.then_some(false),
            sql_data_type: match data_type {
                XdbcDataType::XdbcDate | XdbcDataType::XdbcTime | XdbcDataType::XdbcTimestamp => {
                    XdbcDataType::XdbcDatetime
                }
                other => other,
            },
            datetime_subcode: match data_type {
                XdbcDataType::XdbcDate => Some(XdbcDatetimeSubcode::XdbcSubcodeYear),
                XdbcDataType::XdbcTime => Some(XdbcDatetimeSubcode::XdbcSubcodeTime),
                XdbcDataType::XdbcTimestamp => Some(XdbcDatetimeSubcode::XdbcSubcodeTimestamp),
                _ => None,
            },
            num_prec_radix: is_number.then_some(10),
            ..XdbcTypeInfo::default()
        });
    }
    types.build()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_changes_can_be_built() {
        let infos = INFOS.as_ref().expect("infos");
        let name = infos.record_batch([SqlInfo::FlightSqlServerName as u32]);
        assert_eq!(name.expect("a row").num_rows(), 1);
        let types = TYPES.as_ref().expect("types");
        let all = types.record_batch(None).expect("rows");
        assert_eq!(all.num_rows(), TYPE_NAMES.len());
    }
}
