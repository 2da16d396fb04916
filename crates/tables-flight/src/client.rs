//! The client of a connection: its session, and its prepared statements.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::scalar::ScalarValue;
use forebay_tables::{Code, Outcome, Prepared, Rows, Session, SqlError, Tables};
use tonic::Status;

use crate::call::Call;
use crate::error::{malformed, plain, status};
use crate::parameters::Parameters;
use crate::tickets::Statement;
use crate::types;

/// Name of the statement that was described last, which is likely to run next.
const DESCRIBED: &str = "";
/// Maximum bytes of the text of a statement that is kept as described.
const DESCRIBED_BYTES_MAX: usize = 16 << 10;
/// The count that tells clients that none is known.
const UNKNOWN_COUNT: i64 = -1;

/// The client of a connection.
pub(crate) struct Client {
    tables: Arc<Tables>,
    user: String,
    session: Session,
    /// Text of the statement that was described last.
    described: Option<String>,
    /// By handle. The session has their plans.
    prepared: HashMap<String, Bound>,
    handles: u64,
}

/// A prepared statement's text, and the values of its parameters.
struct Bound {
    text: String,
    values: Option<Values>,
}

struct Values {
    row: Vec<ScalarValue>,
    /// Holds their memory.
    _call: Arc<Call>,
}

/// A statement that has run, or whose rows are being computed.
pub(crate) enum Ran {
    Done,
    Rows(Rows, SchemaRef),
}

/// What a prepared statement is.
pub(crate) struct Described {
    pub(crate) handle: String,
    /// Columns of its rows; `None` if it returns none.
    pub(crate) columns: Option<SchemaRef>,
    pub(crate) parameters: Schema,
}

impl Client {
    pub(crate) fn new(tables: &Arc<Tables>, user: &str) -> Client {
        Client {
            tables: Arc::clone(tables),
            user: user.to_owned(),
            session: tables.session(user),
            described: None,
            prepared: HashMap::new(),
            handles: 0,
        }
    }

    /// Prepares the session for a call of its user.
    ///
    /// # Errors
    /// If the connection has another user.
    pub(crate) fn enter(&mut self, call: &Call) -> Result<(), Status> {
        if call.identity.user != self.user {
            let message = format!(
                "this connection belongs to the user \"{}\": use another for \"{}\"",
                self.user, call.identity.user
            );
            return Err(Status::unauthenticated(message));
        }
        self.session.set_read_only(call.identity.is_read_only());
        // Clients of this protocol have no place for notices.
        self.session.take_notices();
        self.session.take_changed();
        Ok(())
    }

    /// Returns the columns of a statement's rows; `None` if it returns none.
    ///
    /// # Errors
    /// If it cannot be planned, or no prepared statement has the handle.
    pub(crate) async fn columns(
        &mut self,
        statement: &Statement,
    ) -> Result<Option<SchemaRef>, Status> {
        match statement {
            Statement::Prepared(handle) => {
                self.known(handle)?;
                let prepared = self.session.statement(handle).map_err(plain)?;
                Ok(sent(prepared))
            }
            Statement::Text(text) => {
                let prepared = self.plan(text, &[]).await?;
                check_unbound(&prepared)?;
                let columns = sent(&prepared);
                self.described = None;
                self.session.remove_statement(DESCRIBED);
                if text.len() <= DESCRIBED_BYTES_MAX {
                    self.session
                        .add_statement(DESCRIBED, prepared)
                        .map_err(plain)?;
                    self.described = Some(text.clone());
                }
                Ok(columns)
            }
        }
    }

    /// Runs a statement for its rows.
    ///
    /// # Errors
    /// If it fails before its first row.
    pub(crate) async fn query(&mut self, statement: &Statement) -> Result<Ran, Status> {
        let (text, prepared, values) = match statement {
            Statement::Prepared(handle) => {
                let bound = self.known(handle)?;
                let values = bound.values.as_ref().map(|values| values.row.clone());
                let text = bound.text.clone();
                let prepared = self.session.statement(handle).map_err(plain)?.clone();
                (text, prepared, values.unwrap_or_default())
            }
            Statement::Text(text) => (text.clone(), self.described(text).await?, Vec::new()),
        };
        let ran = self.run(&prepared, values).await;
        ran.map_err(|error| status(&error, &text))
    }

    /// Returns the plan of a text, which was described just now or is planned.
    async fn described(&mut self, text: &str) -> Result<Prepared, Status> {
        if self.described.take().as_deref() == Some(text)
            && let Ok(prepared) = self.session.statement(DESCRIBED).cloned()
        {
            self.session.remove_statement(DESCRIBED);
            return Ok(prepared);
        }
        let prepared = self.plan(text, &[]).await?;
        check_unbound(&prepared)?;
        Ok(prepared)
    }

    async fn run(
        &mut self,
        prepared: &Prepared,
        values: Vec<ScalarValue>,
    ) -> Result<Ran, SqlError> {
        if prepared.is_empty() {
            return Ok(Ran::Done);
        }
        match self.session.execute(prepared, values).await? {
            Outcome::Done(_) => Ok(Ran::Done),
            Outcome::CopyIn(_) => Err(SqlError::unsupported("COPY over Flight SQL")
                .with_hint("use INSERT, or PostgreSQL's protocol")),
            Outcome::Rows(rows) if rows.copy_options().is_some() => {
                Err(SqlError::unsupported("COPY over Flight SQL")
                    .with_hint("run the query itself, which returns rows"))
            }
            Outcome::Rows(rows) => {
                let columns = types::sent(prepared.columns().unwrap_or(rows.schema()));
                Ok(Ran::Rows(rows, columns))
            }
        }
    }

    /// Runs statements that return no rows. Returns the number of rows that they changed, or -1.
    ///
    /// # Errors
    /// If one fails. Those before it have run.
    pub(crate) async fn update(&mut self, text: &str) -> Result<i64, Status> {
        let told = |error: SqlError| status(&error, text);
        let statements = self.tables.parse(text).await.map_err(told)?;
        let mut count = UNKNOWN_COUNT;
        for statement in statements {
            let prepared = self.session.prepare(statement, &[]).await.map_err(told)?;
            check_unbound(&prepared)?;
            let changed = self.change(&prepared, Vec::new()).await.map_err(told)?;
            count = sum(count, changed);
        }
        Ok(count)
    }

    /// Runs a prepared statement that returns no rows, once for each row of `parameters`; without them, once with those
    /// that were bound. Returns the number of rows that it changed, or -1.
    ///
    /// # Errors
    /// If it fails. The runs before have taken effect.
    pub(crate) async fn update_prepared(
        &mut self,
        handle: &str,
        parameters: Option<&Parameters>,
    ) -> Result<i64, Status> {
        let text = self.known(handle)?.text.clone();
        let told = |error: SqlError| status(&error, &text);
        let Some(parameters) = parameters else {
            let values = self.known(handle)?.values.as_ref();
            let values = values.map_or_else(Vec::new, |values| values.row.clone());
            let prepared = self.session.statement(handle).map_err(told)?.clone();
            return self.change(&prepared, values).await.map_err(told);
        };
        let prepared = self.declare(handle, parameters).await?;
        let mut count = UNKNOWN_COUNT;
        for row in parameters.rows(prepared.parameters()).map_err(told)? {
            let row = row.map_err(told)?;
            let changed = self.change(&prepared, row).await.map_err(told)?;
            count = sum(count, changed);
        }
        Ok(count)
    }

    /// Runs a statement that returns no rows. Returns the number of rows that it changed, or -1.
    async fn change(
        &mut self,
        prepared: &Prepared,
        values: Vec<ScalarValue>,
    ) -> Result<i64, SqlError> {
        if prepared.is_empty() {
            return Ok(UNKNOWN_COUNT);
        }
        if prepared.columns().is_some() {
            let message = "the statement returns rows, and is no update";
            return Err(
                SqlError::new(Code::WrongObjectType, message).with_hint("run it as a query")
            );
        }
        match self.session.execute(prepared, values).await? {
            Outcome::Done(tag) => Ok(count_of(&tag)),
            Outcome::Rows(_) | Outcome::CopyIn(_) => {
                Err(SqlError::unsupported("COPY over Flight SQL"))
            }
        }
    }

    /// Keeps a prepared statement until the client closes it or leaves.
    ///
    /// # Errors
    /// If it cannot be planned, or there are too many.
    pub(crate) async fn prepare(&mut self, text: String) -> Result<Described, Status> {
        let prepared = self.plan(&text, &[]).await?;
        self.handles += 1;
        let handle = format!("flight {}", self.handles);
        let columns = sent(&prepared);
        let parameters = prepared.parameters().iter().enumerate();
        let parameters = parameters.map(|(index, data_type)| {
            let data_type = data_type.clone().unwrap_or(DataType::Utf8);
            types::nullable(&format!("${}", index + 1), data_type)
        });
        let parameters = types::sent(&Schema::new(parameters.collect::<Vec<_>>()));
        self.session
            .add_statement(&handle, prepared)
            .map_err(plain)?;
        let values = None;
        self.prepared.insert(handle.clone(), Bound { text, values });
        Ok(Described {
            handle,
            columns,
            parameters: parameters.as_ref().clone(),
        })
    }

    /// Binds the parameters of a prepared statement.
    ///
    /// # Errors
    /// If they are not one row, or do not fit the statement.
    pub(crate) async fn bind(
        &mut self,
        handle: &str,
        parameters: Option<&Parameters>,
        call: Arc<Call>,
    ) -> Result<(), Status> {
        let values = match parameters {
            None => None,
            Some(parameters) => {
                let count = parameters.row_count();
                if count != 1 {
                    let message = format!("a query takes one row of parameters, not {count}");
                    return Err(malformed(message));
                }
                let prepared = self.declare(handle, parameters).await?;
                let mut rows = parameters.rows(prepared.parameters()).map_err(plain)?;
                let row = rows.next().transpose().map_err(plain)?;
                row.map(|row| Values { row, _call: call })
            }
        };
        self.known_mut(handle)?.values = values;
        Ok(())
    }

    /// Plans a prepared statement again if the types of its parameters differ from those that were inferred.
    async fn declare(&mut self, handle: &str, parameters: &Parameters) -> Result<Prepared, Status> {
        let text = self.known(handle)?.text.clone();
        let prepared = self.session.statement(handle).map_err(plain)?.clone();
        let declared = parameters.declared();
        let inferred = prepared.parameters();
        let fits = |(declared, inferred): (&Option<DataType>, &Option<DataType>)| {
            declared.is_none() || declared == inferred
        };
        if declared.len() != inferred.len() || declared.iter().zip(inferred).all(fits) {
            return Ok(prepared);
        }
        let prepared = self.plan(&text, &declared).await?;
        self.session.remove_statement(handle);
        self.session
            .add_statement(handle, prepared.clone())
            .map_err(plain)?;
        Ok(prepared)
    }

    /// Forgets a prepared statement.
    ///
    /// # Errors
    /// If there is none of this handle.
    pub(crate) fn close(&mut self, handle: &str) -> Result<(), Status> {
        self.known(handle)?;
        self.prepared.remove(handle);
        self.session.remove_statement(handle);
        Ok(())
    }

    fn known(&self, handle: &str) -> Result<&Bound, Status> {
        self.prepared.get(handle).ok_or_else(|| unknown(handle))
    }

    fn known_mut(&mut self, handle: &str) -> Result<&mut Bound, Status> {
        self.prepared.get_mut(handle).ok_or_else(|| unknown(handle))
    }

    /// Plans the only statement of a text.
    async fn plan(
        &mut self,
        text: &str,
        declared: &[Option<DataType>],
    ) -> Result<Prepared, Status> {
        let told = |error: SqlError| status(&error, text);
        let mut statements = self.tables.parse(text).await.map_err(told)?;
        if statements.len() > 1 {
            let message = "a query is one statement";
            let error = SqlError::new(Code::SyntaxError, message);
            return Err(plain(error.with_hint("run several as an update")));
        }
        match statements.pop() {
            None => Ok(Prepared::empty()),
            Some(statement) => {
                let prepared = self.session.prepare(statement, declared).await;
                prepared.map_err(told)
            }
        }
    }
}

/// Returns the columns of a statement's rows as they are sent.
fn sent(prepared: &Prepared) -> Option<SchemaRef> {
    prepared.columns().map(|columns| types::sent(columns))
}

fn unknown(handle: &str) -> Status {
    let message = format!("this connection has no prepared statement \"{handle}\"");
    plain(SqlError::new(Code::InvalidStatementName, message))
}

/// Refuses a statement with parameters, for which there are no values.
fn check_unbound(prepared: &Prepared) -> Result<(), Status> {
    match prepared.parameters() {
        [] => Ok(()),
        _ => {
            let error = SqlError::new(Code::UndefinedParameter, "there is no parameter $1");
            Err(plain(
                error.with_hint("prepare the statement to bind parameters"),
            ))
        }
    }
}

/// Returns the count of a tag such as `INSERT 0 5`.
fn count_of(tag: &str) -> i64 {
    let number = tag.rsplit(' ').next().and_then(|word| word.parse().ok());
    number.unwrap_or(UNKNOWN_COUNT)
}

fn sum(count: i64, more: i64) -> i64 {
    match (count, more) {
        (count, UNKNOWN_COUNT) => count,
        (UNKNOWN_COUNT, more) => more,
        (count, more) => count.saturating_add(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_have_counts() {
        for (tag, count) in [
            ("INSERT 0 5", 5),
            ("DELETE 0", 0),
            ("CREATE VIEW", -1),
            ("", -1),
        ] {
            assert_eq!(count_of(tag), count, "{tag}");
        }
        assert_eq!(
            (sum(-1, -1), sum(-1, 2), sum(3, -1), sum(3, 4)),
            (-1, 2, 3, 7)
        );
    }
}
