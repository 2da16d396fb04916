//! What a statement does.

use datafusion::arrow::datatypes::DataType;
use datafusion::sql::parser::{CreateExternalTable, Statement};
use datafusion::sql::sqlparser::ast::{
    self, CloseCursor, DeclareType, DiscardObject, Expr, Ident, ObjectName, ObjectType, Reset, Set,
    UnaryOperator, Value,
};

use crate::copy::{CopyFrom, CopyOut};
use crate::declaration::AlterTable;
use crate::error::{Code, Result, SqlError};
use crate::kernels::ExplainKernels;
use crate::managed;
use crate::parse::{Body, Fetch, Parsed, folded};

/// A statement, by what it does.
#[derive(Debug, Clone)]
pub(crate) enum Command {
    /// Returns rows of a plan. `verb` begins the tag.
    Query {
        statement: Box<Statement>,
        verb: &'static str,
    },
    /// Returns the rows of a query as a file.
    Copy(Box<CopyOut>),
    /// Returns the kernels of a query.
    ExplainKernels(Box<ExplainKernels>),
    /// Adds rows of the client to a managed table.
    CopyFrom(Box<CopyFrom>),
    /// Changes the catalogue.
    Change(Box<Statement>),
    /// `CREATE TABLE`.
    CreateTable(Box<ast::CreateTable>),
    /// `INSERT`, `UPDATE` or `DELETE`.
    Write(Box<Statement>),
    Truncate(Box<ast::Truncate>),
    /// `ALTER TABLE` that sets or resets options.
    AlterTable(Box<AlterTable>),
    Declare(Declared),
    Fetch(Fetch),
    /// `CLOSE`; without a name, of all cursors.
    Close(Option<String>),
    /// `SHOW`; without a name, of all settings.
    Show(Option<Variable>),
    /// `SET`. Without a value, to the default.
    Set(Vec<(String, Option<String>)>),
    /// `RESET`; without a name, of all settings.
    Reset(Option<Variable>),
    Begin,
    Commit {
        chain: bool,
    },
    Rollback {
        chain: bool,
    },
    Savepoint(String),
    RollbackTo(String),
    Release(String),
    Prepare {
        name: String,
        parsed: Box<Parsed>,
        types: Vec<Option<DataType>>,
    },
    Execute {
        name: String,
        values: Vec<Expr>,
    },
    /// `DEALLOCATE`; without a name, of all statements.
    Deallocate(Option<String>),
    /// `DISCARD ALL`.
    Discard,
    /// A statement without an effect here, and its tag.
    Nothing(&'static str),
}

/// The name of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable(pub(crate) String);

/// `DECLARE`.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) statement: Box<Statement>,
    /// `SCROLL` or `NO SCROLL`.
    pub(crate) scroll: Option<bool>,
    pub(crate) holds: bool,
}

impl Command {
    /// Returns what a statement does.
    ///
    /// # Errors
    /// If the server does not have it.
    pub(crate) fn new(body: Body) -> Result<Command> {
        match body {
            Body::Copy(copied) => Ok(Command::Copy(copied)),
            Body::CopyFrom(copied) => Ok(Command::CopyFrom(copied)),
            Body::AlterTable(alter) => Ok(Command::AlterTable(alter)),
            Body::Fetch(fetch) => Ok(Command::Fetch(fetch)),
            Body::ExplainKernels(explained) => Ok(Command::ExplainKernels(explained)),
            Body::Sql(statement) => of_statement(statement),
        }
    }

    /// Returns the query that is planned when the statement is prepared.
    pub(crate) fn query(&self) -> Option<&Statement> {
        match self {
            Command::Query { statement, .. } | Command::Write(statement) => Some(statement),
            Command::Copy(copied) => Some(&copied.statement),
            Command::ExplainKernels(explained) => Some(&explained.statement),
            Command::Declare(declared) => Some(&declared.statement),
            _ => None,
        }
    }

    /// Returns whether the statement returns the rows of its query.
    pub(crate) fn is_query(&self) -> bool {
        matches!(self, Command::Query { .. })
    }

    /// Returns whether it may remove files of managed tables.
    pub(crate) fn removes_files(&self) -> bool {
        matches!(
            self,
            Command::Change(_) | Command::Write(_) | Command::Truncate(_) | Command::CopyFrom(_)
        )
    }
}

fn of_statement(statement: Statement) -> Result<Command> {
    match statement {
        Statement::Statement(sql) => of_sql(*sql),
        Statement::CreateExternalTable(_) => Ok(Command::Change(Box::new(statement))),
        Statement::CopyTo(_) => Ok(Command::Query {
            statement: Box::new(statement),
            verb: "COPY",
        }),
        Statement::Explain(_) => Ok(Command::Query {
            statement: Box::new(statement),
            verb: "EXPLAIN",
        }),
        // DataFusion's own RESET, of one setting.
        Statement::Reset(_) => {
            let text = statement.to_string();
            let name = text.split_whitespace().nth(1).unwrap_or_default();
            Ok(reset(name))
        }
    }
}

fn reset(name: &str) -> Command {
    let is_all = name.eq_ignore_ascii_case("all");
    Command::Reset((!is_all).then(|| Variable(name.to_owned())))
}

fn of_sql(sql: ast::Statement) -> Result<Command> {
    use ast::Statement as Sql;
    let command = match sql {
        Sql::Query(_)
        | Sql::ShowTables { .. }
        | Sql::ShowColumns { .. }
        | Sql::ShowFunctions { .. }
        | Sql::ExplainTable { .. } => query(sql, "SELECT"),
        Sql::Explain { .. } => query(sql, "EXPLAIN"),
        Sql::CreateView(_) | Sql::CreateSchema { .. } => change(sql),
        Sql::CreateTable(table) => Command::CreateTable(Box::new(table)),
        Sql::Truncate(truncate) => Command::Truncate(Box::new(truncate)),
        Sql::Insert(_) | Sql::Update(_) | Sql::Delete(_) => {
            managed::check(&sql)?;
            Command::Write(Box::new(Statement::Statement(Box::new(sql))))
        }
        Sql::Drop {
            object_type: ObjectType::Table | ObjectType::View | ObjectType::Schema,
            ..
        } => change(sql),
        Sql::Declare { mut stmts } => match stmts.pop() {
            Some(declared) => Command::Declare(of_declare(declared)?),
            None => return Err(SqlError::unsupported("DECLARE")),
        },
        Sql::Close { cursor } => Command::Close(match cursor {
            CloseCursor::All => None,
            CloseCursor::Specific { name } => Some(folded(&name)),
        }),
        Sql::ShowVariable { variable } => Command::Show(shown(&variable)),
        Sql::Set(set) => of_set(set)?,
        Sql::Reset(statement) => match statement.reset {
            Reset::ALL => Command::Reset(None),
            Reset::ConfigurationParameter(name) => reset(&variable_name(&name)),
        },
        Sql::StartTransaction { .. } => Command::Begin,
        Sql::Commit { chain, .. } => Command::Commit { chain },
        Sql::Rollback {
            savepoint: Some(name),
            ..
        } => Command::RollbackTo(folded(&name)),
        Sql::Rollback { chain, .. } => Command::Rollback { chain },
        Sql::Savepoint { name } => Command::Savepoint(folded(&name)),
        Sql::ReleaseSavepoint { name } => Command::Release(folded(&name)),
        Sql::Prepare {
            name,
            data_types,
            statement,
        } => of_prepare(&name, &data_types, *statement)?,
        Sql::Execute {
            name: Some(name),
            parameters,
            ..
        } => Command::Execute {
            name: variable_name(&name),
            values: parameters,
        },
        Sql::Deallocate { name, .. } => {
            let is_all = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all");
            Command::Deallocate((!is_all).then(|| folded(&name)))
        }
        Sql::Discard { object_type } => match object_type {
            DiscardObject::ALL => Command::Discard,
            _ => Command::Nothing("DISCARD"),
        },
        Sql::UNLISTEN { .. } => Command::Nothing("UNLISTEN"),
        other => return Err(unsupported(&other)),
    };
    Ok(command)
}

fn query(sql: ast::Statement, verb: &'static str) -> Command {
    Command::Query {
        statement: Box::new(Statement::Statement(Box::new(sql))),
        verb,
    }
}

fn change(sql: ast::Statement) -> Command {
    Command::Change(Box::new(Statement::Statement(Box::new(sql))))
}

/// Returns the error of a statement that the server does not have. It names the statement by its first words.
fn unsupported(sql: &ast::Statement) -> SqlError {
    let text = sql.to_string();
    let words = text.split([' ', '(']).filter(|word| !word.is_empty());
    let upper = words.take_while(|word| word.chars().all(|letter| letter.is_ascii_uppercase()));
    let name: Vec<&str> = upper.take(2).collect();
    let mut error = SqlError::unsupported(name.join(" "));
    if name == ["ALTER", "TABLE"] {
        error.message += ", except SET (gpu = ...) and RESET (gpu)";
    }
    error
}

fn of_declare(declared: ast::Declare) -> Result<Declared> {
    let is_cursor = declared.declare_type == Some(DeclareType::Cursor);
    let (Some(name), Some(query), true) = (declared.names.first(), declared.for_query, is_cursor)
    else {
        return Err(SqlError::unsupported("DECLARE of anything but a cursor"));
    };
    Ok(Declared {
        name: folded(name),
        statement: Box::new(Statement::Statement(Box::new(ast::Statement::Query(query)))),
        scroll: declared.scroll,
        holds: declared.hold.unwrap_or(false),
    })
}

fn of_prepare(name: &Ident, types: &[ast::DataType], statement: ast::Statement) -> Result<Command> {
    let text = statement.to_string();
    let types = types.iter().map(crate::plan::arrow_type);
    Ok(Command::Prepare {
        name: folded(name),
        types: types.collect::<Result<_>>()?,
        parsed: Box::new(Parsed {
            share: None,
            text,
            body: Body::Sql(Statement::Statement(Box::new(statement))),
        }),
    })
}

/// Returns the setting that `SHOW` names; `None` for all.
fn shown(words: &[Ident]) -> Option<Variable> {
    let words: Vec<&str> = words.iter().map(|word| word.value.as_str()).collect();
    let name = words.join("_").to_ascii_lowercase();
    match name.as_str() {
        "all" => None,
        "transaction_isolation_level" => Some(Variable("transaction_isolation".to_owned())),
        "time_zone" => Some(Variable("timezone".to_owned())),
        "session_authorization" => Some(Variable(name)),
        _ => Some(Variable(words.join("."))),
    }
}

fn of_set(set: Set) -> Result<Command> {
    let one = |name: &str, value: Option<String>| Command::Set(vec![(name.to_owned(), value)]);
    Ok(match set {
        Set::SingleAssignment {
            variable, values, ..
        } => one(&variable_name(&variable), value_of(&values)),
        Set::MultipleAssignments { assignments } => Command::Set(
            assignments
                .iter()
                .map(|each| {
                    (
                        variable_name(&each.name),
                        value_of(std::slice::from_ref(&each.value)),
                    )
                })
                .collect(),
        ),
        Set::SetTimeZone { value, .. } => one("timezone", value_of(&[value])),
        Set::SetNames { charset_name, .. } => one("client_encoding", Some(charset_name.value)),
        Set::SetNamesDefault {} => one("client_encoding", None),
        // Every transaction reads only, and sees the files as each of its statements finds them.
        Set::SetTransaction { .. } => Command::Nothing("SET"),
        other => {
            let text = other.to_string();
            return Err(SqlError::unsupported(text));
        }
    })
}

fn variable_name(name: &ObjectName) -> String {
    let parts = name.0.iter().map(|part| match part.as_ident() {
        Some(ident) => ident.value.clone(),
        None => part.to_string(),
    });
    parts.collect::<Vec<_>>().join(".")
}

/// Returns the text of a setting's value; `None` for `DEFAULT`.
fn value_of(values: &[Expr]) -> Option<String> {
    if let [Expr::Identifier(name)] = values
        && name.quote_style.is_none()
        && name.value.eq_ignore_ascii_case("default")
    {
        return None;
    }
    let texts: Vec<String> = values.iter().map(text_of).collect();
    Some(texts.join(", "))
}

fn text_of(value: &Expr) -> String {
    match value {
        Expr::Identifier(name) => name.value.clone(),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => text.clone(),
            Value::Number(number, _) => number.clone(),
            other => other.to_string(),
        },
        Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } => format!("-{}", text_of(expr)),
        other => other.to_string(),
    }
}

/// Returns the statement with absolute locations, which mean the same when the server was started elsewhere.
pub(crate) fn with_absolute_locations(
    mut table: CreateExternalTable,
) -> Result<CreateExternalTable> {
    for location in &mut table.locations {
        if location.contains("://") {
            continue;
        }
        let is_folder = location.ends_with('/') || std::path::Path::new(location).is_dir();
        let absolute = std::path::absolute(&*location)
            .map_err(|error| SqlError::new(Code::UndefinedFile, format!("{location}: {error}")))?;
        *location = absolute.to_string_lossy().into_owned();
        if is_folder && !location.ends_with('/') {
            location.push('/');
        }
    }
    Ok(table)
}
