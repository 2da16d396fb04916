//! Tables of `pg_catalog` that `datafusion-pg-catalog` lacks, or has without rows or columns that clients read.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, AsArray, Int32Array, ListBuilder, RecordBatch, StringBuilder, new_null_array,
};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef};
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::collect;

use crate::boxed;
use crate::computed::{self, Cell, Columns, Computed, Find, Rows, called, empty_texts};
use crate::relations::{BaseTables, Listed, Relation, View, Views, user};
use crate::variables::Variables;

/// The number of the session's user.
const USER: i32 = 10;

/// Names of the tables that are added.
pub(crate) const ADDED: &[&str] = &[
    "pg_user",
    "pg_shadow",
    "pg_group",
    "pg_indexes",
    "pg_sequences",
];

/// Returns the table of a name that is here in place of `datafusion-pg-catalog`'s; `None` if that one is right.
pub(crate) fn table(name: &str, listed: &Listed) -> Result<Option<Arc<dyn TableProvider>>> {
    let listed = listed.clone();
    Ok(Some(match name {
        "pg_views" => Arc::new(Computed::new(VIEWS, Views(listed))),
        "pg_tables" => Arc::new(Computed::new(TABLES, BaseTables(listed))),
        "pg_roles" => Arc::new(Computed::new(ROLES, Users)),
        "pg_user" | "pg_shadow" => Arc::new(Computed::new(USERS, Users)),
        "pg_settings" => Arc::new(Computed::new(SETTINGS, Settings)),
        "pg_group" => empty_texts(&["groname", "grosysid", "grolist"])?,
        "pg_indexes" => empty_texts(&[
            "schemaname",
            "tablename",
            "indexname",
            "tablespace",
            "indexdef",
        ])?,
        "pg_sequences" => empty_texts(&[
            "schemaname",
            "sequencename",
            "sequenceowner",
            "data_type",
            "start_value",
            "min_value",
            "max_value",
            "increment_by",
            "cycle",
            "cache_size",
            "last_value",
        ])?,
        _ => return Ok(None),
    }))
}

const VIEWS: &Columns<View> = &[
    (
        "schemaname",
        Cell::Text(|row| Some(row.relation.schema.clone())),
    ),
    (
        "viewname",
        Cell::Text(|row| Some(row.relation.name.clone())),
    ),
    (
        "viewowner",
        Cell::Text(|row| Some(row.relation.owner.clone())),
    ),
    ("definition", Cell::Text(|row| row.query.clone())),
];

const TABLES: &Columns<Relation> = &[
    ("schemaname", Cell::Text(|row| Some(row.schema.clone()))),
    ("tablename", Cell::Text(|row| Some(row.name.clone()))),
    ("tableowner", Cell::Text(|row| Some(row.owner.clone()))),
    ("tablespace", Cell::NoText),
    ("hasindexes", Cell::Truth(|_| false)),
    ("hasrules", Cell::Truth(|_| false)),
    ("hastriggers", Cell::Truth(|_| false)),
    ("rowsecurity", Cell::Truth(|_| false)),
];

const ROLES: &Columns<String> = &[
    ("rolname", Cell::Text(|user| Some(user.clone()))),
    ("rolsuper", Cell::Truth(|_| false)),
    ("rolinherit", Cell::Truth(|_| true)),
    ("rolcreaterole", Cell::Truth(|_| false)),
    ("rolcreatedb", Cell::Truth(|_| false)),
    ("rolcanlogin", Cell::Truth(|_| true)),
    ("rolreplication", Cell::Truth(|_| false)),
    ("rolconnlimit", Cell::Number(|_| Some(-1))),
    ("rolpassword", Cell::Same("********")),
    ("rolvaliduntil", Cell::NoText),
    ("rolbypassrls", Cell::Truth(|_| false)),
    ("rolconfig", Cell::NoText),
    ("oid", Cell::Number(|_| Some(USER))),
];

const USERS: &Columns<String> = &[
    ("usename", Cell::Text(|user| Some(user.clone()))),
    ("usesysid", Cell::Number(|_| Some(USER))),
    ("usecreatedb", Cell::Truth(|_| false)),
    ("usesuper", Cell::Truth(|_| false)),
    ("userepl", Cell::Truth(|_| false)),
    ("usebypassrls", Cell::Truth(|_| false)),
    ("passwd", Cell::Same("********")),
    ("valuntil", Cell::NoText),
    ("useconfig", Cell::NoText),
];

/// The user of the session.
#[derive(Debug)]
struct Users;

impl Find for Users {
    type Row = String;

    fn rows<'all>(&'all self, state: &'all dyn Session) -> Rows<'all, String> {
        Box::pin(async move { Ok(vec![user(state)]) })
    }
}

const SETTINGS: &Columns<(&'static str, Option<String>)> = &[
    ("name", Cell::Text(|(name, _)| Some((*name).to_owned()))),
    ("setting", Cell::Text(|(_, value)| value.clone())),
    ("unit", Cell::NoText),
    ("category", Cell::NoText),
    ("short_desc", Cell::NoText),
    ("extra_desc", Cell::NoText),
    ("context", Cell::Same("user")),
    ("vartype", Cell::Same("string")),
    ("source", Cell::Same("session")),
    ("min_val", Cell::NoText),
    ("max_val", Cell::NoText),
    ("enumvals", Cell::NoText),
    ("boot_val", Cell::NoText),
    ("reset_val", Cell::NoText),
    ("sourcefile", Cell::NoText),
    ("sourceline", Cell::NoNumber),
    ("pending_restart", Cell::Truth(|_| false)),
];

/// The settings of the session.
#[derive(Debug)]
struct Settings;

impl Find for Settings {
    type Row = (&'static str, Option<String>);

    fn rows<'all>(&'all self, state: &'all dyn Session) -> Rows<'all, Self::Row> {
        Box::pin(async move {
            let names = Variables::default().all().into_iter();
            let value = |name: &str| called(state, "current_setting", &[name]);
            Ok(names.map(|(name, _)| (name, value(name))).collect())
        })
    }
}

/// Returns a table without rows in place of one whose rows are about tables that the server does not have, with lists
/// where that one has texts.
pub(crate) fn emptied(table: &Arc<dyn TableProvider>) -> Result<Arc<dyn TableProvider>> {
    let schema = table.schema();
    let fields = schema.fields().iter().map(|field| {
        let item = match field.name().as_str() {
            "conkey" | "confkey" | "confdelsetcols" | "indkey" | "indoption" => DataType::Int16,
            "conpfeqop" | "conppeqop" | "conffeqop" | "conexclop" | "indcollation" | "indclass" => {
                DataType::Int32
            }
            _ => return field.as_ref().clone(),
        };
        Field::new(field.name(), DataType::new_list(item, true), true)
    });
    computed::empty(fields.collect())
}

/// The table `pg_class`, with the columns that `datafusion-pg-catalog`'s lacks.
#[derive(Debug)]
pub(crate) struct Classes {
    inner: Arc<dyn TableProvider>,
    /// The table `pg_namespace`.
    namespaces: Arc<dyn TableProvider>,
    listed: Listed,
    schema: SchemaRef,
}

/// What tables declare of GPUs, by the number of the schema and the name.
type Options = HashMap<(i32, String), String>;

impl Classes {
    pub(crate) fn new(
        (inner, namespaces): (Arc<dyn TableProvider>, Arc<dyn TableProvider>),
        listed: Listed,
    ) -> Classes {
        let schema = inner.schema();
        let fields = schema.fields().iter().map(|field| match &**field.name() {
            "relpartbound" => field.as_ref().clone().with_nullable(true),
            _ => field.as_ref().clone(),
        });
        let more = ["relacl", "reloptions"];
        let more =
            more.map(|name| Field::new(name, DataType::new_list(DataType::Utf8, true), true));
        let fields: Vec<Field> = fields.chain(more).collect();
        Classes {
            inner,
            namespaces,
            listed,
            schema: Arc::new(Schema::new(fields)),
        }
    }

    /// Returns the options of tables.
    async fn options(&self, state: &dyn Session) -> Result<Options> {
        let declared = self.listed.declared();
        let mut options = Options::new();
        if declared.is_empty() {
            return Ok(options);
        }
        let plan = self.namespaces.scan(state, None, &[], None).await?;
        for batch in collect(plan, state.task_ctx()).await? {
            let (Some(numbers), Some(names)) =
                (batch.column_by_name("oid"), batch.column_by_name("nspname"))
            else {
                continue;
            };
            let names = names.as_string::<i32>().iter().flatten();
            for (number, schema) in numbers
                .as_primitive::<Int32Type>()
                .values()
                .iter()
                .zip(names)
            {
                let tables = declared.iter().filter(|(of, ..)| of == schema);
                let tables = tables.map(|(_, table, gpu)| ((*number, table.clone()), gpu.clone()));
                options.extend(tables);
            }
        }
        Ok(options)
    }

    /// Returns the options of the rows.
    fn listed_options(batch: &RecordBatch, options: &Options) -> ArrayRef {
        let mut lists = ListBuilder::new(StringBuilder::new());
        let numbers = batch.column_by_name("relnamespace");
        let numbers = numbers.and_then(|it| it.as_primitive_opt::<Int32Type>());
        let names = batch.column_by_name("relname");
        let names = names.and_then(|it| it.as_string_opt::<i32>());
        for row in 0..batch.num_rows() {
            let of_row = numbers.zip(names);
            let key = of_row.map(|(number, name)| (number.value(row), name.value(row).to_owned()));
            let gpu = key.and_then(|key| options.get(&key));
            if let Some(gpu) = gpu {
                lists.values().append_value(format!("gpu={gpu}"));
            }
            lists.append(gpu.is_some());
        }
        Arc::new(lists.finish())
    }

    /// Adds the columns to rows. The user may read them all.
    fn extended(&self, batch: &RecordBatch, user: &str, options: &Options) -> Result<RecordBatch> {
        let count = batch.num_rows();
        let mut access = ListBuilder::new(StringBuilder::new());
        for _ in 0..count {
            access.values().append_value(format!("{user}=r/{user}"));
            access.append(true);
        }
        let access: ArrayRef = Arc::new(access.finish());
        let column = |field: &Arc<Field>| -> ArrayRef {
            match (&**field.name(), batch.column_by_name(field.name())) {
                ("relacl", _) => Arc::clone(&access),
                ("reloptions", _) => Classes::listed_options(batch, options),
                ("relowner", _) => Arc::new(Int32Array::from(vec![USER; count])),
                ("relpartbound", _) | (_, None) => new_null_array(field.data_type(), count),
                (_, Some(array)) => Arc::clone(array),
            }
        };
        let columns = self.schema.fields().iter().map(column).collect();
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

impl Classes {
    fn scanned<'all>(
        &'all self,
        state: &'all dyn Session,
        projection: Option<&'all Vec<usize>>,
        filters: &'all [Expr],
        limit: Option<usize>,
    ) -> boxed::Scan<'all> {
        Box::pin(async move {
            let plan = self.inner.scan(state, None, &[], None).await?;
            let batches = collect(plan, state.task_ctx()).await?;
            let user = user(state);
            let options = self.options(state).await?;
            let extended = batches.iter();
            let extended = extended.map(|batch| self.extended(batch, &user, &options));
            let extended = extended.collect::<Result<Vec<_>>>()?;
            let table = MemTable::try_new(self.schema(), vec![extended])?;
            table.scan(state, projection, filters, limit).await
        })
    }
}

impl TableProvider for Classes {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        self.inner.table_type()
    }

    boxed::scan!(scanned);
}
