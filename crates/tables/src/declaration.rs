//! `ALTER TABLE ... SET (gpu = ...)`: which columns of a table are kept where GPUs read them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::ResolvedTableReference;
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::SessionState;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::ObjectName;
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use serde::{Deserialize, Serialize};

use crate::catalogue::{Entry, Kind};
use crate::declared::leave_to_cpu;
use crate::engine::Shared;
use crate::error::{Code, Result, SqlError};
use crate::managed::described;
use crate::parse::{failed, folded};
use crate::provider::DATABASE;
use crate::rows::Running;
use crate::session::{Outcome, Session};
use crate::source::{Source, as_user, id_of, this_user};
use crate::types::type_name;
use crate::{ddl, provider};

/// Name of the only option of tables.
const GPU: &str = "gpu";
const TRUE: [&str; 4] = ["on", "true", "yes", "1"];
const FALSE: [&str; 4] = ["off", "false", "no", "0"];
/// Maximum bytes of the names of columns.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Maximum characters of a value in a message.
const VALUE_CHARACTERS: usize = 100;
/// What an error of a value tells.
const VALUES: &str = "use gpu = on, gpu = off, or gpu = 'column, column'";

/// What a table declares of GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Declaration {
    /// A GPU does not read the table, unless a session asks for it.
    Off,
    /// All columns that a GPU can keep are.
    On,
    /// These columns are kept.
    Columns(Vec<String>),
}

impl Declaration {
    /// Returns the bytes of the names of columns.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Declaration::Off | Declaration::On => 0,
            Declaration::Columns(columns) => columns.iter().map(String::len).sum(),
        }
    }
}

impl fmt::Display for Declaration {
    /// Writes the value of the option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Declaration::Off => f.write_str("off"),
            Declaration::On => f.write_str("on"),
            Declaration::Columns(columns) => {
                let is_plain = |name: &str| {
                    let is_letter = |it: char| it.is_ascii_lowercase() || it == '_';
                    let is_inner = |it: char| is_letter(it) || it.is_ascii_digit();
                    name.starts_with(is_letter) && name.chars().all(is_inner)
                };
                let names = columns.iter().map(|name| match is_plain(name) {
                    true => name.clone(),
                    false => format!("\"{}\"", name.replace('"', "\"\"")),
                });
                let names: Vec<_> = names.collect();
                let is_switch = matches!(&*names, [name] if switch(name).is_some());
                match is_switch {
                    true => write!(f, "\"{}\"", names[0]),
                    false => f.write_str(&names.join(", ")),
                }
            }
        }
    }
}

/// `ALTER TABLE ... SET (gpu = ...)`, or `RESET (gpu)`.
#[derive(Debug, Clone)]
pub(crate) struct AlterTable {
    name: ObjectName,
    if_exists: bool,
    /// `None` of `RESET`.
    declaration: Option<Declaration>,
}

/// Parses the statement, if the next one is an `ALTER TABLE` that sets options.
///
/// # Errors
/// If the options are others, or have other values.
pub(crate) fn parse(parser: &mut Parser<'_>) -> Result<Option<AlterTable>> {
    if !parser.peek_keyword(Keyword::ALTER) {
        return Ok(None);
    }
    let head = parser.maybe_parse(|parser| {
        parser.expect_keywords(&[Keyword::ALTER, Keyword::TABLE])?;
        let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
        let _only = parser.parse_keyword(Keyword::ONLY);
        let name = parser.parse_object_name(false)?;
        let word = parser.expect_one_of_keywords(&[Keyword::SET, Keyword::RESET])?;
        parser.expect_token(&Token::LParen)?;
        Ok((name, if_exists, word == Keyword::SET))
    });
    let Some((name, if_exists, sets)) = head.map_err(failed)? else {
        return Ok(None);
    };
    let options = parser.parse_comma_separated(|parser| option(parser, sets));
    let options = options.map_err(failed)?;
    parser.expect_token(&Token::RParen).map_err(failed)?;
    let mut declaration = None;
    for (index, (name, value)) in options.iter().enumerate() {
        if name != GPU {
            let message = format!("unrecognized parameter \"{name}\"");
            return Err(wrong(message, "the only parameter of tables is gpu"));
        }
        if index > 0 {
            let message = format!("parameter \"{GPU}\" specified more than once");
            return Err(wrong(message, "leave out one of them"));
        }
        declaration = value.as_deref().map(declared).transpose()?;
    }
    Ok(Some(AlterTable {
        name,
        if_exists,
        declaration,
    }))
}

/// Parses an option, and its value if there may be one.
fn option(parser: &mut Parser<'_>, sets: bool) -> Result<(String, Option<String>), ParserError> {
    let name = folded(&parser.parse_identifier()?);
    if !sets {
        return Ok((name, None));
    }
    if !parser.consume_token(&Token::Eq) {
        // As PostgreSQL's options that are switches.
        return Ok((name, Some(TRUE[0].to_owned())));
    }
    let value = parser.next_token();
    let value = match value.token {
        Token::Word(word) if word.quote_style.is_none() => word.value,
        Token::SingleQuotedString(text) | Token::Number(text, _) => text,
        _ => return parser.expected("a value", value),
    };
    Ok((name, Some(value)))
}

fn wrong(message: impl Into<String>, hint: &str) -> SqlError {
    SqlError::new(Code::InvalidParameterValue, message.into()).with_hint(hint)
}

/// Returns the value of a switch, if a text is one.
fn switch(text: &str) -> Option<bool> {
    let is_of = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    match (is_of(&TRUE), is_of(&FALSE)) {
        (false, false) => None,
        (is_on, _) => Some(is_on),
    }
}

/// Returns the declaration of a value.
fn declared(value: &str) -> Result<Declaration> {
    match switch(value.trim()) {
        Some(true) => return Ok(Declaration::On),
        Some(false) => return Ok(Declaration::Off),
        None => {}
    }
    if value.len() > VALUE_BYTES_MAX {
        let message = format!("a value of {} bytes is too long for \"{GPU}\"", value.len());
        let hint = format!("{VALUE_BYTES_MAX} bytes are allowed; use gpu = on");
        return Err(SqlError::new(Code::LimitExceeded, message).with_hint(hint));
    }
    let names = names(value).map_err(|_| {
        let shown: String = value.chars().take(VALUE_CHARACTERS).collect();
        let message = format!("invalid value for parameter \"{GPU}\": \"{shown}\"");
        wrong(message, VALUES)
    })?;
    let mut known = HashSet::new();
    match names.iter().find(|name| !known.insert(*name)) {
        Some(name) => {
            let message = format!("column \"{name}\" specified more than once");
            Err(SqlError::new(Code::DuplicateColumn, message))
        }
        None => Ok(Declaration::Columns(names)),
    }
}

/// Parses names of columns.
fn names(value: &str) -> Result<Vec<String>, ParserError> {
    let mut parser = Parser::new(&PostgreSqlDialect {}).try_with_sql(value)?;
    let names = parser.parse_comma_separated(Parser::parse_identifier)?;
    parser.expect_token(&Token::EOF)?;
    Ok(names.iter().map(folded).collect())
}

/// Runs the statement.
///
/// # Errors
/// If there is no such table, or a GPU cannot keep a column, or the catalogue cannot be written.
pub(crate) async fn alter(session: &mut Session, alter: &AlterTable) -> Result<Outcome> {
    let state = Arc::clone(session.state());
    let shared = Arc::clone(session.tables().shared());
    let alter = alter.clone();
    let work = async move {
        let name = object_name_to_table_reference(alter.name.clone(), true)?;
        let defaults = &state.config_options().catalog;
        let name = name.resolve(&defaults.default_catalog, &defaults.default_schema);
        alter.run(&state, &shared, &name).await
    };
    let work = as_user(session.user().to_owned(), work);
    let threads = session.tables().threads();
    let notice = Running::start_blocking(threads, work).end().await??;
    if let Some(notice) = notice {
        session.notice(notice);
    }
    Ok(Outcome::Done("ALTER TABLE".to_owned()))
}

impl AlterTable {
    /// Changes the table. Returns what the client is told.
    async fn run(
        self,
        state: &SessionState,
        shared: &Arc<Shared>,
        name: &ResolvedTableReference,
    ) -> Result<Option<SqlError>> {
        if let Some(source) = source_of(shared, name) {
            return self.run_on_source(shared, source, name).await;
        }
        ddl::check_database(name)?;
        let Some(entry) = shared.catalogue.table(&name.schema, &name.table) else {
            let is_there = state
                .schema_for_ref(name.clone())
                .is_ok_and(|schema| schema.table_exist(&name.table));
            return match is_there {
                true => Err(undeclared(&name.table)),
                false => self.without_table(&name.table),
            };
        };
        if entry.kind == Kind::View {
            let message = format!("\"{}\" is a view, which has no options", name.table);
            return Err(SqlError::new(Code::WrongObjectType, message)
                .with_hint("declare the tables that it reads"));
        }
        let brings = self.brings();
        if brings {
            let table = provider::declared(shared, &name.table, &entry).await?;
            let file_columns = file_columns(shared, &entry, (&name.table, &*table)).await?;
            if let Some(Declaration::Columns(columns)) = &self.declaration {
                check(shared, columns, (&name.table, &*table), file_columns)?;
            }
        }
        shared
            .catalogue
            .declare(&name.schema, &name.table, &entry, self.declaration)?;
        Ok(follow(shared, brings))
    }

    /// Changes a table of the source. Returns a notice for the client.
    async fn run_on_source(
        self,
        shared: &Shared,
        source: &dyn Source,
        name: &ResolvedTableReference,
    ) -> Result<Option<SqlError>> {
        let user = this_user();
        let table = source
            .table(user.as_deref(), &name.schema, &name.table)
            .await?;
        let Some(table) = table else {
            return self.without_table(&name.table);
        };
        let scan = table.scan(shared.base(), None, &[], None).await?;
        let id = id_of(&scan).ok_or_else(|| {
            let message = format!("a GPU cannot keep columns of \"{}\"", name.table);
            SqlError::new(Code::FeatureNotSupported, message)
        })?;
        if let Some(Declaration::Columns(columns)) = &self.declaration {
            let count = table.schema().fields().len();
            check(shared, columns, (&name.table, &*table), count)?;
        }
        let brings = self.brings();
        let entry = self.declaration.map(|gpu| Entry {
            gpu: Some(gpu),
            user,
            ..Entry::new(Kind::Source, id.to_owned())
        });
        shared
            .catalogue
            .declare_of_source(&name.schema, &name.table, entry)?;
        Ok(follow(shared, brings))
    }

    /// Returns whether columns are brought to GPUs.
    fn brings(&self) -> bool {
        !matches!(self.declaration, None | Some(Declaration::Off))
    }

    /// Returns the notice, or the error, for a table that does not exist.
    fn without_table(&self, name: &str) -> Result<Option<SqlError>> {
        match self.if_exists {
            true => Ok(Some(ddl::skipping(no_relation(name)))),
            false => Err(no_relation(name)),
        }
    }
}

/// Returns the source if a name belongs to it.
fn source_of<'s>(shared: &'s Shared, name: &ResolvedTableReference) -> Option<&'s dyn Source> {
    let source = shared.source.as_deref()?;
    let is_of = match &*name.catalog {
        // A created schema hides the source's schema of this name.
        DATABASE => !shared.catalogue.has_schema(&name.schema) && source.has_schema(&name.schema),
        other => other == source.name(),
    };
    is_of.then_some(source)
}

/// Lets GPUs follow the catalogue. Returns a notice for the client.
fn follow(shared: &Shared, brings: bool) -> Option<SqlError> {
    leave_to_cpu(shared);
    shared.declared.wake();
    (brings && !shared.has_gpu()).then(without_gpu)
}

fn no_relation(name: &str) -> SqlError {
    let message = format!("relation \"{name}\" does not exist");
    SqlError::new(Code::UndefinedTable, message)
}

/// Returns the error of a table that the catalogue does not have.
fn undeclared(name: &str) -> SqlError {
    let message = format!("\"{name}\" has no options: it was not made by CREATE TABLE");
    SqlError::new(Code::WrongObjectType, message).with_hint(
        "CREATE EXTERNAL TABLE n STORED AS PARQUET LOCATION '...' makes a table n of its files, which has the option",
    )
}

fn without_gpu() -> SqlError {
    let message =
        "this server has no GPU: the option is kept, and has an effect when it is started with one";
    SqlError::new(Code::Warning, message)
}

/// Returns the number of columns that are in the files of a table; the others are values of partitions.
///
/// # Errors
/// If the files are not those that GPUs read.
async fn file_columns(
    shared: &Shared,
    entry: &Entry,
    (name, table): (&str, &dyn TableProvider),
) -> Result<usize> {
    if entry.kind == Kind::Managed {
        return Ok(table.schema().fields().len());
    }
    let plan = table.scan(shared.base(), None, &[], None).await?;
    let scan = parquet_scan(&plan).ok_or_else(|| {
        let message = format!("the files of \"{name}\" are no Parquet, which GPUs read alone");
        SqlError::new(Code::FeatureNotSupported, message)
            .with_hint("copy them into a table: CREATE TABLE name AS SELECT ...")
    })?;
    let schema = scan.file_source.table_schema();
    Ok(schema.file_schema().fields().len())
}

/// Returns the scan of Parquet files that a plan is.
fn parquet_scan(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let scan = scan.data_source().downcast_ref::<FileScanConfig>()?;
    scan.file_source.is::<ParquetSource>().then_some(scan)
}

/// Checks that GPUs can keep columns.
fn check(
    shared: &Shared,
    columns: &[String],
    (name, table): (&str, &dyn TableProvider),
    file_columns: usize,
) -> Result<()> {
    let schema = described(table);
    let fields = schema.fields().iter().enumerate();
    let indexes: HashMap<&str, usize> = fields.map(|(index, it)| (&**it.name(), index)).collect();
    for column in columns {
        let index = *indexes.get(&**column).ok_or_else(|| {
            let message = format!("column \"{column}\" of relation \"{name}\" does not exist");
            let hint = format!("columns in upper case are quoted: gpu = '\"Name\"'; {VALUES}");
            SqlError::new(Code::UndefinedColumn, message).with_hint(hint)
        })?;
        if index >= file_columns {
            let message = format!("column \"{column}\" is not in the files of \"{name}\"");
            return Err(wrong(message, "leave it out: GPUs read columns of files"));
        }
        let data_type = schema.field(index).data_type();
        if !shared.gpu_rules.iter().all(|rule| rule.keeps(data_type)) {
            let kind = type_name(data_type);
            let message = format!("a GPU cannot keep column \"{column}\" of type {kind}");
            return Err(wrong(message, "leave it out"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Body, parse};

    fn parsed(text: &str) -> Result<Option<Declaration>> {
        match parse(text)?.remove(0).body {
            Body::AlterTable(alter) => Ok(alter.declaration),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn options_are_parsed_as_postgresql_does() {
        let columns = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            Some(Declaration::Columns(names.collect()))
        };
        for (text, wanted) in [
            ("ALTER TABLE t SET (gpu = on)", Some(Declaration::On)),
            ("alter table s.t set (GPU)", Some(Declaration::On)),
            (
                "ALTER TABLE ONLY t SET (gpu = 'OFF')",
                Some(Declaration::Off),
            ),
            (
                "ALTER TABLE IF EXISTS t SET (gpu=0)",
                Some(Declaration::Off),
            ),
            ("ALTER TABLE t RESET (gpu)", None),
            ("ALTER TABLE t SET (gpu = price)", columns(&["price"])),
            (
                "ALTER TABLE t SET (gpu = 'Price, \"Day\", \"a,b\"')",
                columns(&["price", "Day", "a,b"]),
            ),
            ("ALTER TABLE t SET (gpu = '\"on\"')", columns(&["on"])),
            (
                "ALTER TABLE t SET (gpu = '\"a\"\"\"\"b\", \"Straße\", \"\\\"')",
                columns(&["a\"\"b", "Straße", "\\"]),
            ),
        ] {
            let found = parsed(text).expect(text);
            assert_eq!(found, wanted, "{text}");
            // What is shown can be set.
            if let Some(declaration) = found {
                let again = declared(&declaration.to_string());
                assert_eq!(again.as_ref(), Ok(&declaration), "{text}");
            }
        }
        for (text, code) in [
            (
                "ALTER TABLE t SET (fillfactor = 70)",
                Code::InvalidParameterValue,
            ),
            (
                "ALTER TABLE t SET (gpu = on, gpu = off)",
                Code::InvalidParameterValue,
            ),
            ("ALTER TABLE t SET (gpu = '')", Code::InvalidParameterValue),
            (
                "ALTER TABLE t SET (gpu = 'a b')",
                Code::InvalidParameterValue,
            ),
            ("ALTER TABLE t SET (gpu = 'a, A')", Code::DuplicateColumn),
            ("ALTER TABLE t SET (gpu = (1))", Code::SyntaxError),
            ("ALTER TABLE t SET (gpu = on", Code::SyntaxError),
        ] {
            assert_eq!(parsed(text).expect_err(text).code, code, "{text}");
        }
    }

    #[test]
    fn names_are_limited() {
        let names = |count: usize| (0..count).map(|it| format!("c{it}")).collect::<Vec<_>>();
        let set = |count| format!("ALTER TABLE t SET (gpu = '{}')", names(count).join(","));
        let many = Some(Declaration::Columns(names(9_000)));
        assert_eq!(parsed(&set(9_000)), Ok(many));
        let error = parsed(&set(20_000)).expect_err("too many");
        assert_eq!(error.code, Code::LimitExceeded);
        let wrong = format!("ALTER TABLE t SET (gpu = '{}')", "a ".repeat(30_000));
        let error = parsed(&wrong).expect_err("no names");
        assert!(error.message.len() < 200, "{error}");
    }
}
