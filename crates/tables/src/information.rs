//! `information_schema` as PostgreSQL has it.
//!
//! DataFusion's has fewer columns, and names types as Arrow does. What is not here comes from it.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::information_schema::InformationSchemaProvider;
use datafusion::catalog::{SchemaProvider, TableProvider};

use forebay_tables_delta::COLUMN_DEFAULT;

use crate::boxed;
use crate::computed::{self, Cell, Computed};
use crate::relations::{Column, Columns, Listed, Namespace, Relation, Schemas, View, Views};
use crate::types::type_name;

/// Bytes that a text may have, as PostgreSQL tells it.
const TEXT_BYTES_MAX: i32 = 1 << 30;
/// Digits of the fraction of a second.
const SECOND_DIGITS: i32 = 6;

/// The schema `information_schema`.
#[derive(Debug)]
pub(crate) struct InformationSchema {
    inner: InformationSchemaProvider,
    listed: Listed,
}

impl InformationSchema {
    /// Returns the schema that tells about these tables.
    pub(crate) fn new(listed: Listed) -> InformationSchema {
        let inner = InformationSchemaProvider::new(Arc::clone(&listed.databases));
        InformationSchema { inner, listed }
    }
}

impl InformationSchema {
    fn found<'all>(&'all self, name: &'all str) -> boxed::Table<'all> {
        Box::pin(async move {
            let listed = self.listed.clone();
            Ok(Some(match name {
                "tables" => Arc::new(Computed::new(TABLES, listed)) as Arc<dyn TableProvider>,
                "views" => Arc::new(Computed::new(VIEWS, Views(listed))),
                "columns" => Arc::new(Computed::new(COLUMNS, Columns(listed))),
                "schemata" => Arc::new(Computed::new(SCHEMATA, Schemas(listed))),
                "table_privileges" | "role_table_grants" => {
                    Arc::new(Computed::new(PRIVILEGES, listed))
                }
                _ => match EMPTY.iter().find(|(found, _)| *found == name) {
                    Some((_, columns)) => computed::empty_texts(columns)?,
                    None => return self.inner.table(name).await,
                },
            }))
        })
    }
}

impl SchemaProvider for InformationSchema {
    fn table_names(&self) -> Vec<String> {
        let mut names = self.inner.table_names();
        let more = MORE.iter().chain(EMPTY.iter().map(|(name, _)| name));
        names.extend(more.map(|name| (*name).to_owned()));
        names
    }

    boxed::table!(found);

    fn table_exist(&self, name: &str) -> bool {
        self.table_names().iter().any(|found| found == name)
    }
}

/// Tables that DataFusion lacks.
const MORE: &[&str] = &["table_privileges", "role_table_grants"];

const TABLES: &computed::Columns<Relation> = &[
    (
        "table_catalog",
        Cell::Text(|row| Some(row.database.clone())),
    ),
    ("table_schema", Cell::Text(|row| Some(row.schema.clone()))),
    ("table_name", Cell::Text(|row| Some(row.name.clone()))),
    (
        "table_type",
        Cell::Text(|row| Some(table_type(row).to_owned())),
    ),
    ("self_referencing_column_name", Cell::NoText),
    ("reference_generation", Cell::NoText),
    ("user_defined_type_catalog", Cell::NoText),
    ("user_defined_type_schema", Cell::NoText),
    ("user_defined_type_name", Cell::NoText),
    (
        "is_insertable_into",
        Cell::Text(|row| Some(yes_or_no(row.is_managed))),
    ),
    ("is_typed", Cell::Same("NO")),
    ("commit_action", Cell::NoText),
];

fn table_type(relation: &Relation) -> &'static str {
    match relation.is_view {
        true => "VIEW",
        false => "BASE TABLE",
    }
}

const VIEWS: &computed::Columns<View> = &[
    (
        "table_catalog",
        Cell::Text(|row| Some(row.relation.database.clone())),
    ),
    (
        "table_schema",
        Cell::Text(|row| Some(row.relation.schema.clone())),
    ),
    (
        "table_name",
        Cell::Text(|row| Some(row.relation.name.clone())),
    ),
    ("view_definition", Cell::Text(|row| row.query.clone())),
    ("check_option", Cell::Same("NONE")),
    ("is_updatable", Cell::Same("NO")),
    ("is_insertable_into", Cell::Same("NO")),
    ("is_trigger_updatable", Cell::Same("NO")),
    ("is_trigger_deletable", Cell::Same("NO")),
    ("is_trigger_insertable_into", Cell::Same("NO")),
];

const SCHEMATA: &computed::Columns<Namespace> = &[
    ("catalog_name", Cell::Text(|row| Some(row.database.clone()))),
    ("schema_name", Cell::Text(|row| Some(row.name.clone()))),
    ("schema_owner", Cell::Text(|row| Some(row.owner.clone()))),
    ("default_character_set_catalog", Cell::NoText),
    ("default_character_set_schema", Cell::NoText),
    ("default_character_set_name", Cell::NoText),
    ("sql_path", Cell::NoText),
];

const PRIVILEGES: &computed::Columns<Relation> = &[
    ("grantor", Cell::Text(|row| Some(row.owner.clone()))),
    ("grantee", Cell::Text(|row| Some(row.owner.clone()))),
    (
        "table_catalog",
        Cell::Text(|row| Some(row.database.clone())),
    ),
    ("table_schema", Cell::Text(|row| Some(row.schema.clone()))),
    ("table_name", Cell::Text(|row| Some(row.name.clone()))),
    ("privilege_type", Cell::Same("SELECT")),
    ("is_grantable", Cell::Same("NO")),
    ("with_hierarchy", Cell::Same("YES")),
];

const COLUMNS: &computed::Columns<Column> = &[
    (
        "table_catalog",
        Cell::Text(|row| Some(row.relation.database.clone())),
    ),
    (
        "table_schema",
        Cell::Text(|row| Some(row.relation.schema.clone())),
    ),
    (
        "table_name",
        Cell::Text(|row| Some(row.relation.name.clone())),
    ),
    (
        "column_name",
        Cell::Text(|row| Some(row.field.name().clone())),
    ),
    ("ordinal_position", Cell::Number(|row| Some(row.position))),
    (
        "column_default",
        Cell::Text(|row| row.field.metadata().get(COLUMN_DEFAULT).cloned()),
    ),
    (
        "is_nullable",
        Cell::Text(|row| Some(yes_or_no(row.field.is_nullable()))),
    ),
    (
        "data_type",
        Cell::Text(|row| Some(data_type(row.data_type()))),
    ),
    ("character_maximum_length", Cell::NoNumber),
    (
        "character_octet_length",
        Cell::Number(|row| octets(row.data_type())),
    ),
    (
        "numeric_precision",
        Cell::Number(|row| Some(number(row.data_type())?.0)),
    ),
    (
        "numeric_precision_radix",
        Cell::Number(|row| Some(number(row.data_type())?.1)),
    ),
    (
        "numeric_scale",
        Cell::Number(|row| number(row.data_type())?.2),
    ),
    (
        "datetime_precision",
        Cell::Number(|row| time_digits(row.data_type())),
    ),
    ("interval_type", Cell::NoText),
    ("interval_precision", Cell::NoNumber),
    ("character_set_catalog", Cell::NoText),
    ("character_set_schema", Cell::NoText),
    ("character_set_name", Cell::NoText),
    ("collation_catalog", Cell::NoText),
    ("collation_schema", Cell::NoText),
    ("collation_name", Cell::NoText),
    ("domain_catalog", Cell::NoText),
    ("domain_schema", Cell::NoText),
    ("domain_name", Cell::NoText),
    (
        "udt_catalog",
        Cell::Text(|row| Some(row.relation.database.clone())),
    ),
    ("udt_schema", Cell::Same("pg_catalog")),
    (
        "udt_name",
        Cell::Text(|row| Some(internal_name(&type_name(row.data_type())))),
    ),
    ("scope_catalog", Cell::NoText),
    ("scope_schema", Cell::NoText),
    ("scope_name", Cell::NoText),
    ("maximum_cardinality", Cell::NoNumber),
    (
        "dtd_identifier",
        Cell::Text(|row| Some(row.position.to_string())),
    ),
    ("is_self_referencing", Cell::Same("NO")),
    ("is_identity", Cell::Same("NO")),
    ("identity_generation", Cell::NoText),
    ("identity_start", Cell::NoText),
    ("identity_increment", Cell::NoText),
    ("identity_maximum", Cell::NoText),
    ("identity_minimum", Cell::NoText),
    ("identity_cycle", Cell::Same("NO")),
    ("is_generated", Cell::Same("NEVER")),
    ("generation_expression", Cell::NoText),
    (
        "is_updatable",
        Cell::Text(|row| Some(yes_or_no(row.relation.is_managed))),
    ),
];

/// Tables without rows, and their columns.
const EMPTY: &[(&str, &[&str])] = &[
    (
        "table_constraints",
        &[
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
            "table_catalog",
            "table_schema",
            "table_name",
            "constraint_type",
            "is_deferrable",
            "initially_deferred",
            "enforced",
            "nulls_distinct",
        ],
    ),
    (
        "key_column_usage",
        &[
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
            "table_catalog",
            "table_schema",
            "table_name",
            "column_name",
            "ordinal_position",
            "position_in_unique_constraint",
        ],
    ),
    (
        "referential_constraints",
        &[
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
            "unique_constraint_catalog",
            "unique_constraint_schema",
            "unique_constraint_name",
            "match_option",
            "update_rule",
            "delete_rule",
        ],
    ),
    (
        "constraint_column_usage",
        &[
            "table_catalog",
            "table_schema",
            "table_name",
            "column_name",
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
        ],
    ),
    (
        "check_constraints",
        &[
            "constraint_catalog",
            "constraint_schema",
            "constraint_name",
            "check_clause",
        ],
    ),
    (
        "sequences",
        &[
            "sequence_catalog",
            "sequence_schema",
            "sequence_name",
            "data_type",
            "numeric_precision",
            "numeric_precision_radix",
            "numeric_scale",
            "start_value",
            "minimum_value",
            "maximum_value",
            "increment",
            "cycle_option",
        ],
    ),
    (
        "triggers",
        &[
            "trigger_catalog",
            "trigger_schema",
            "trigger_name",
            "event_manipulation",
            "event_object_catalog",
            "event_object_schema",
            "event_object_table",
            "action_order",
            "action_condition",
            "action_statement",
            "action_orientation",
            "action_timing",
            "action_reference_old_table",
            "action_reference_new_table",
            "action_reference_old_row",
            "action_reference_new_row",
            "created",
        ],
    ),
    (
        "domains",
        &[
            "domain_catalog",
            "domain_schema",
            "domain_name",
            "data_type",
            "domain_default",
        ],
    ),
    (
        "foreign_tables",
        &[
            "foreign_table_catalog",
            "foreign_table_schema",
            "foreign_table_name",
            "foreign_server_catalog",
            "foreign_server_name",
        ],
    ),
    (
        "column_privileges",
        &[
            "grantor",
            "grantee",
            "table_catalog",
            "table_schema",
            "table_name",
            "column_name",
            "privilege_type",
            "is_grantable",
        ],
    ),
];

fn yes_or_no(is_so: bool) -> String {
    match is_so {
        true => "YES".to_owned(),
        false => "NO".to_owned(),
    }
}

fn data_type(data_type: &DataType) -> String {
    let name = type_name(data_type);
    match name.ends_with("[]") {
        true => "ARRAY".to_owned(),
        false => name,
    }
}

/// Returns the name of a type in `pg_type`.
fn internal_name(name: &str) -> String {
    if let Some(item) = name.strip_suffix("[]") {
        return format!("_{}", internal_name(item));
    }
    let name = match name {
        "boolean" => "bool",
        "smallint" => "int2",
        "integer" => "int4",
        "bigint" => "int8",
        "real" => "float4",
        "double precision" => "float8",
        "time without time zone" => "time",
        "timestamp without time zone" => "timestamp",
        "timestamp with time zone" => "timestamptz",
        other => other,
    };
    name.to_owned()
}

fn octets(data_type: &DataType) -> Option<i32> {
    (type_name(data_type) == "text").then_some(TEXT_BYTES_MAX)
}

/// Returns the precision of a number, the base in which it is counted, and the scale.
fn number(data_type: &DataType) -> Option<(i32, i32, Option<i32>)> {
    Some(match (&*type_name(data_type), data_type) {
        ("smallint", _) => (16, 2, Some(0)),
        ("integer", _) => (32, 2, Some(0)),
        ("bigint", _) => (64, 2, Some(0)),
        ("real", _) => (24, 2, None),
        ("double precision", _) => (53, 2, None),
        (
            _,
            DataType::Decimal32(precision, scale)
            | DataType::Decimal64(precision, scale)
            | DataType::Decimal128(precision, scale)
            | DataType::Decimal256(precision, scale),
        ) => (i32::from(*precision), 10, Some(i32::from(*scale))),
        ("numeric", _) => (20, 10, Some(0)),
        _ => return None,
    })
}

fn time_digits(data_type: &DataType) -> Option<i32> {
    match &*type_name(data_type) {
        "date" => Some(0),
        "interval" => Some(SECOND_DIGITS),
        name if name.starts_with("time") && !name.ends_with("[]") => Some(SECOND_DIGITS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::TimeUnit;

    use super::*;

    #[test]
    fn types_are_described_as_postgresql_describes_them() {
        let list = DataType::new_list(DataType::Int32, true);
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        for (arrow, name, internal, precision, digits) in [
            (
                DataType::Int64,
                "bigint",
                "int8",
                Some((64, 2, Some(0))),
                None,
            ),
            (
                DataType::Float64,
                "double precision",
                "float8",
                Some((53, 2, None)),
                None,
            ),
            (
                DataType::Decimal128(10, 2),
                "numeric",
                "numeric",
                Some((10, 10, Some(2))),
                None,
            ),
            (DataType::Utf8View, "text", "text", None, None),
            (DataType::Date32, "date", "date", None, Some(0)),
            (
                time,
                "timestamp without time zone",
                "timestamp",
                None,
                Some(6),
            ),
            (list, "ARRAY", "_int4", None, None),
        ] {
            assert_eq!(data_type(&arrow), name);
            assert_eq!(internal_name(&type_name(&arrow)), internal);
            assert_eq!(number(&arrow), precision, "{name}");
            assert_eq!(time_digits(&arrow), digits, "{name}");
        }
    }
}
