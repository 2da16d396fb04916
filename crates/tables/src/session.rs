//! Sessions: statements, settings, transactions and cursors of a client.

mod cursors;
mod queries;
mod settings;
mod transaction;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::TableReference;
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast;
use forebay_memory::{Account, Share};
use parking_lot::Mutex;

use self::settings::show_columns;
use self::transaction::Transaction;
pub use self::transaction::TransactionStatus;
use crate::activity::{Activity, Counted};
use crate::command::{Command, Variable};
use crate::cursor::Cursor;
use crate::engine::Tables;
use crate::error::{Code, Result, SqlError};
use crate::managed::{self, CopyIn, Snapshots};
use crate::parse::Parsed;
use crate::planned::Planned;
use crate::rows::{Rows, Running, within};
use crate::variables::Variables;
use crate::{ddl, declaration, functions, kernels, plan};

/// Maximum number of prepared statements of a session, and of cursors.
const NAMES_MAX: usize = 10_000;

/// Bytes of a prepared statement, and further bytes for each byte of its text.
const PREPARED_BYTES: usize = 4 << 10;
const PREPARED_BYTES_OF_TEXT: usize = 32;

/// The session of a client. It runs one statement at a time.
#[derive(Debug)]
pub struct Session {
    tables: Arc<Tables>,
    user: String,
    state: Arc<SessionState>,
    variables: Arc<Mutex<Variables>>,
    transaction: Transaction,
    cursors: HashMap<String, Cursor>,
    statements: HashMap<String, Prepared>,
    notices: Vec<SqlError>,
    changed: Vec<(&'static str, String)>,
    is_read_only: bool,
    /// Whether a setting of DataFusion itself was changed. Plans of other sessions are then not used.
    is_tuned: bool,
    /// Memory of the prepared statements.
    share: Share,
    _counted: Counted,
}

/// A statement that is ready to run.
#[derive(Debug, Clone)]
pub struct Prepared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    text: String,
    command: Command,
    /// The statement's query, if it has one.
    query: Option<Arc<Planned>>,
    /// Whether the query ran.
    is_used: AtomicBool,
    /// Whether the statement runs as soon as it is planned, and once.
    is_run_at_once: bool,
    /// The number of changes of the catalogue when the query was planned.
    changes: u64,
    /// The memory of a long statement.
    _share: Option<Arc<Share>>,
    /// The rows of a query that returns the same until the catalogue changes, such as `SELECT 1`, and the number of
    /// changes of the catalogue before.
    constant: OnceLock<(u64, RecordBatch)>,
    parameters: Vec<Option<DataType>>,
    columns: Option<SchemaRef>,
}

/// What a statement gives.
#[derive(Debug)]
pub enum Outcome {
    /// Rows.
    Rows(Rows),
    /// A `COPY` that takes rows of the client.
    CopyIn(CopyIn),
    /// The tag that tells clients what was done, such as `CREATE VIEW`.
    Done(String),
}

impl Prepared {
    /// Returns a statement without text, which does nothing.
    pub fn empty() -> Prepared {
        Prepared(Arc::new(Inner {
            text: String::new(),
            _share: None,
            command: Command::Nothing(""),
            query: None,
            is_used: AtomicBool::new(false),
            is_run_at_once: false,
            changes: 0,
            constant: OnceLock::new(),
            parameters: Vec::new(),
            columns: None,
        }))
    }

    /// Returns whether the statement has no text.
    pub fn is_empty(&self) -> bool {
        self.0.text.is_empty()
    }

    /// Returns the types of the parameters, from `$1` on; `None` where any type will do.
    pub fn parameters(&self) -> &[Option<DataType>] {
        &self.0.parameters
    }

    /// Returns the columns of the rows; `None` if the statement returns none.
    pub fn columns(&self) -> Option<&SchemaRef> {
        self.0.columns.as_ref()
    }

    /// Returns about the bytes that the statement takes.
    fn bytes(&self) -> usize {
        PREPARED_BYTES + self.0.text.len().saturating_mul(PREPARED_BYTES_OF_TEXT)
    }
}

impl Inner {
    /// Returns the text of the statement's query.
    fn query_text(&self) -> &str {
        match &self.command {
            Command::Copy(copied) => &copied.text,
            Command::ExplainKernels(explained) => &explained.text,
            _ => &self.text,
        }
    }
}

impl Session {
    pub(crate) fn new(tables: Arc<Tables>, user: &str) -> Session {
        let mut state = tables.shared().base().clone();
        let variables = Variables::new(tables.shared().has_gpu());
        let variables = Arc::new(Mutex::new(variables));
        variables.lock().fix("session_authorization", user);
        if let Err(error) = functions::register_session(&mut state, user, &variables) {
            tracing::error!(%error, "functions of a session are missing");
        }
        let share = tables.shared().memory.share();
        let mut session = Session {
            share,
            _counted: tables.shared().activity.session(),
            tables,
            user: user.to_owned(),
            state: Arc::new(state),
            variables,
            transaction: Transaction::default(),
            cursors: HashMap::new(),
            statements: HashMap::new(),
            notices: Vec::new(),
            changed: Vec::new(),
            is_read_only: false,
            is_tuned: false,
        };
        if let Err(error) = session.apply() {
            tracing::error!(%error, "a session lacks its settings");
        }
        session
    }

    /// Sets the number that `pg_backend_pid()` returns.
    pub fn set_process(&mut self, number: i32) {
        let function = Arc::new(functions::backend_pid(number));
        if let Err(error) = Arc::make_mut(&mut self.state).register_udf(function) {
            tracing::error!(%error, "a session does not know its process");
        }
    }

    /// Refuses all statements that change something, or no longer.
    pub fn set_read_only(&mut self, is_read_only: bool) {
        self.is_read_only = is_read_only;
    }

    /// Runs a statement without parameters.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn run(&mut self, parsed: Parsed) -> Result<Outcome> {
        let (_, outcome) = self.prepare_and_run(parsed).await?;
        Ok(outcome)
    }

    /// Plans a statement without parameters and runs it. The tables of the plan are compared with those that are there
    /// once, where [`prepare`](Session::prepare) and [`execute`](Session::execute) each do it.
    ///
    /// # Errors
    /// If the statement has parameters, or fails.
    pub async fn prepare_and_run(&mut self, parsed: Parsed) -> Result<(Prepared, Outcome)> {
        let mut prepared = self.prepare(parsed, &[]).await?;
        if let [_, ..] = prepared.parameters() {
            let error = SqlError::new(Code::UndefinedParameter, "there is no parameter $1");
            return self.failed(Err(error));
        }
        if let Some(inner) = Arc::get_mut(&mut prepared.0) {
            inner.is_run_at_once = true;
        }
        let outcome = self.execute(&prepared, Vec::new()).await?;
        Ok((prepared, outcome))
    }

    /// Plans a statement. `declared` are the types of its parameters, from `$1` on, where the client knows them.
    ///
    /// # Errors
    /// If the statement cannot be planned, or may not run now.
    pub async fn prepare(
        &mut self,
        parsed: Parsed,
        declared: &[Option<DataType>],
    ) -> Result<Prepared> {
        let deadline = self.deadline();
        let result = within(deadline, self.try_prepare(parsed, declared)).await;
        self.failed(result)
    }

    async fn try_prepare(
        &mut self,
        parsed: Parsed,
        declared: &[Option<DataType>],
    ) -> Result<Prepared> {
        let command = Command::new(parsed.body)?;
        let mut inner = Inner {
            text: parsed.text,
            _share: parsed.share,
            command,
            query: None,
            is_used: AtomicBool::new(false),
            is_run_at_once: false,
            changes: self.tables.shared().catalogue.changes(),
            constant: OnceLock::new(),
            parameters: declared.to_vec(),
            columns: None,
        };
        self.check_transaction(&inner.command)?;
        let query = inner.command.query().cloned();
        if let Some(statement) = query {
            let returns_rows = inner.command.is_query();
            let planned = self
                .planned(inner.query_text(), statement, declared, returns_rows)
                .await?;
            inner.parameters.clone_from(&planned.parameters);
            if returns_rows {
                inner.columns = planned.known_columns().cloned();
            }
            inner.query = Some(planned);
        }
        match &inner.command {
            Command::Show(variable) => inner.columns = Some(show_columns(variable.as_ref())),
            Command::ExplainKernels(_) => inner.columns = Some(kernels::columns()),
            Command::Fetch(fetch) if !fetch.moves => {
                inner.columns = Some(self.cursor(&fetch.cursor)?.schema().clone());
            }
            Command::Execute { name, .. } => {
                inner.columns = self.statement(name)?.0.columns.clone()
            }
            _ => {}
        }
        Ok(Prepared(Arc::new(inner)))
    }

    /// Refuses what a transaction that failed does not run.
    fn check_transaction(&self, command: &Command) -> Result<()> {
        let is_end = matches!(
            command,
            Command::Commit { .. } | Command::Rollback { .. } | Command::RollbackTo(_)
        );
        if self.transaction_status() != TransactionStatus::Failed || is_end {
            return Ok(());
        }
        let message =
            "current transaction is aborted, commands ignored until end of transaction block";
        Err(SqlError::new(Code::FailedTransaction, message))
    }

    /// Runs a statement. `parameters` are the values of its parameters, from `$1` on.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn execute(
        &mut self,
        prepared: &Prepared,
        parameters: Vec<ScalarValue>,
    ) -> Result<Outcome> {
        let mut run = self.activity().begin(&self.user, &prepared.0.text);
        let deadline = self.deadline();
        let work = within(deadline, self.try_execute(prepared, parameters));
        let result = run.part(work).await;
        if prepared.0.command.removes_files() {
            // Also if it failed or was cancelled, which may have been too late.
            self.tables.shared().plans.forget_versions();
            self.tables.shared().declared.wake();
        }
        if self.transaction.status.is_none()
            && let Some(seen) = self.state.config().get_extension::<Snapshots>()
        {
            seen.clear();
        }
        let outcome = self.failed(result)?;
        Ok(match outcome {
            Outcome::Rows(rows) => Outcome::Rows(rows.until(deadline).of_run(run)),
            Outcome::CopyIn(copy_in) => Outcome::CopyIn(copy_in.of_run(run)),
            done => {
                run.done();
                done
            }
        })
    }

    /// Records that the current statement failed, for errors that the caller finds itself.
    pub fn fail(&mut self) {
        if let Some(failed) = &mut self.transaction.status {
            *failed = true;
        }
    }

    fn failed<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.fail();
        }
        result
    }

    fn deadline(&self) -> Option<Instant> {
        let timeout = self.variables.lock().statement_timeout()?;
        Instant::now().checked_add(timeout)
    }

    async fn try_execute(
        &mut self,
        prepared: &Prepared,
        parameters: Vec<ScalarValue>,
    ) -> Result<Outcome> {
        self.check_transaction(&prepared.0.command)?;
        let done = |tag: &str| Ok(Outcome::Done(tag.to_owned()));
        match &prepared.0.command {
            Command::Query { verb, .. } => self
                .rows(prepared, &parameters, verb)
                .await
                .map(Outcome::Rows),
            Command::Copy(copied) => {
                let rows = self.rows(prepared, &parameters, "COPY").await?;
                Ok(Outcome::Rows(rows.copied(copied.options.clone())))
            }
            Command::ExplainKernels(_) => self.kernels(prepared, &parameters).await,
            Command::Change(statement) => {
                self.check_change()?;
                ddl::run(self, (**statement).clone(), &prepared.0.text).await
            }
            Command::AlterTable(_)
            | Command::CreateTable(_)
            | Command::Write(_)
            | Command::Truncate(_)
            | Command::CopyFrom(_) => self.change(prepared, &parameters).await,
            Command::Declare(declared) => self.declare(prepared, declared, parameters).await,
            Command::Fetch(fetch) => self.fetch(fetch).await,
            Command::Close(name) => self.close(name.as_deref()),
            Command::Show(variable) => self.show(variable.as_ref()).map(Outcome::Rows),
            Command::Set(settings) => {
                for (name, value) in settings {
                    self.set(name, value.as_deref())?;
                }
                done("SET")
            }
            Command::Reset(name) => {
                self.reset(name.as_ref().map(|Variable(name)| &**name))?;
                done("RESET")
            }
            Command::Prepare {
                name,
                parsed,
                types,
            } => {
                let prepared = Box::pin(self.try_prepare((**parsed).clone(), types)).await?;
                self.add_statement(name, prepared)?;
                done("PREPARE")
            }
            Command::Execute { name, values } => {
                Box::pin(self.execute_named(name, values.clone())).await
            }
            Command::Deallocate(name) => {
                self.deallocate(name.as_deref())?;
                done(if name.is_some() {
                    "DEALLOCATE"
                } else {
                    "DEALLOCATE ALL"
                })
            }
            Command::Discard => {
                self.cursors.clear();
                self.deallocate(None)?;
                self.reset(None)?;
                done("DISCARD ALL")
            }
            other => self.transact(other),
        }
    }

    /// Runs a prepared statement with the values of constant expressions.
    async fn execute_named(&mut self, name: &str, values: Vec<ast::Expr>) -> Result<Outcome> {
        let statement = self.statement(name)?.clone();
        if matches!(statement.0.command, Command::Execute { .. }) {
            // Two that name each other would run without end.
            return Err(SqlError::unsupported("EXECUTE of an EXECUTE"));
        }
        let state = Arc::clone(&self.state);
        let types = statement.parameters().to_vec();
        let work = async move { plan::values(&state, &values, &types) };
        let values = Running::start_blocking(self.tables.threads(), work)
            .end()
            .await??;
        self.try_execute(&statement, values).await
    }

    /// Runs a statement that changes managed tables, or options of tables.
    async fn change(&mut self, prepared: &Prepared, parameters: &[ScalarValue]) -> Result<Outcome> {
        self.check_change()?;
        self.start();
        match &prepared.0.command {
            Command::AlterTable(alter) => declaration::alter(self, alter).await,
            Command::CreateTable(sql) => managed::create(self, sql).await,
            Command::Truncate(sql) => managed::truncate(self, sql).await,
            Command::CopyFrom(copied) => {
                let copy_in = managed::copy_in(self, copied, self.deadline()).await?;
                Ok(Outcome::CopyIn(copy_in))
            }
            _ => {
                let query = self.query_of(prepared, parameters).await?;
                managed::write(self, query.plan().clone()).await
            }
        }
    }

    /// Runs a statement about the transaction, or one without an effect.
    fn transact(&mut self, command: &Command) -> Result<Outcome> {
        let tag = match command {
            Command::Begin => {
                self.begin();
                "BEGIN"
            }
            Command::Commit { chain } => self.commit(*chain),
            Command::Rollback { chain } => {
                self.rollback(*chain);
                "ROLLBACK"
            }
            Command::Savepoint(name) => {
                self.save(name)?;
                "SAVEPOINT"
            }
            Command::RollbackTo(name) => {
                self.rollback_to(name)?;
                "ROLLBACK"
            }
            Command::Release(name) => {
                self.release(name)?;
                "RELEASE"
            }
            Command::Nothing(tag) => tag,
            _ => return Err(SqlError::unsupported("this statement")),
        };
        Ok(Outcome::Done(tag.to_owned()))
    }

    /// Starts a statement: `now()` is this moment, and outside a transaction, tables are as they are now.
    fn start(&mut self) {
        if self.transaction.status.is_none() {
            self.renew_snapshots();
        }
        Arc::make_mut(&mut self.state).mark_start_execution();
    }

    /// Lets the statements that follow read the versions of tables from now on.
    fn renew_snapshots(&mut self) {
        let config = Arc::make_mut(&mut self.state).config_mut();
        config.set_extension(Arc::new(Snapshots::default()));
    }

    fn check_change(&self) -> Result<()> {
        if self.is_read_only {
            let message = "this user may only read";
            return Err(
                SqlError::new(Code::InsufficientPrivilege, message).with_hint(
                    "give the user the role readWrite or root: forebay user set NAME --role",
                ),
            );
        }
        if self.transaction.status.is_some() {
            let message = "transactions only read: this statement cannot run in one";
            return Err(SqlError::new(Code::ReadOnlyTransaction, message)
                .with_hint("run it outside of BEGIN and COMMIT"));
        }
        Ok(())
    }

    /// Returns the warnings since the last call.
    pub fn take_notices(&mut self) -> Vec<SqlError> {
        std::mem::take(&mut self.notices)
    }

    pub(crate) fn notice(&mut self, notice: SqlError) {
        self.notices.push(notice);
    }

    /// Keeps a prepared statement under a name.
    ///
    /// # Errors
    /// If there is one of this name, or there are too many.
    pub fn add_statement(&mut self, name: &str, prepared: Prepared) -> Result<()> {
        if self.statements.contains_key(name) && !name.is_empty() {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new(Code::DuplicateStatement, message));
        }
        check_count(self.statements.len(), "prepared statements", "DEALLOCATE")?;
        if self.share.try_grow(prepared.bytes() + name.len()).is_err() {
            let message = "there is no memory for another prepared statement";
            return Err(SqlError::new(Code::OutOfMemory, message).with_hint("use DEALLOCATE"));
        }
        if let Some(before) = self.statements.insert(name.to_owned(), prepared) {
            self.share.shrink(before.bytes() + name.len());
        }
        Ok(())
    }

    /// Returns the prepared statement of a name.
    ///
    /// # Errors
    /// If there is none.
    pub fn statement(&self, name: &str) -> Result<&Prepared> {
        self.statements.get(name).ok_or_else(|| {
            let message = format!("prepared statement \"{name}\" does not exist");
            SqlError::new(Code::InvalidStatementName, message)
        })
    }

    /// Forgets the prepared statement of a name, if there is one.
    pub fn remove_statement(&mut self, name: &str) {
        if let Some(before) = self.statements.remove(name) {
            self.share.shrink(before.bytes() + name.len());
        }
    }

    fn deallocate(&mut self, name: Option<&str>) -> Result<()> {
        match name {
            Some(name) => {
                self.statement(name)?;
                self.remove_statement(name);
            }
            None => {
                self.statements.clear();
                self.share.shrink_to(0);
            }
        }
        Ok(())
    }

    /// Returns names of all tables that need no schema.
    pub async fn table_names(&self) -> Vec<String> {
        let schema = &self.state.config_options().catalog.default_schema;
        let found = self
            .state
            .schema_for_ref(TableReference::partial(schema.as_str(), ""));
        let mut names = found.map_or_else(|_| Vec::new(), |schema| schema.table_names());
        names.sort();
        names
    }

    /// Returns the columns of a table.
    ///
    /// # Errors
    /// If there is no such table, or its files cannot be read.
    pub async fn describe(&self, name: &str) -> Result<SchemaRef> {
        let state = Arc::clone(&self.state);
        let name = name.to_owned();
        let work = async move {
            let table = TableReference::parse_str(&name);
            let table = match name.contains('/') || table.table() == name {
                true => TableReference::bare(&*name),
                false => table,
            };
            let schema = state.schema_for_ref(table.clone())?;
            let found = schema.table(table.table()).await?;
            found.map(|table| table.schema()).ok_or_else(|| {
                SqlError::new(
                    Code::UndefinedTable,
                    format!("table \"{name}\" does not exist"),
                )
            })
        };
        Running::start(self.tables.threads(), work).end().await?
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    pub(crate) fn state(&self) -> &Arc<SessionState> {
        &self.state
    }

    fn activity(&self) -> &Arc<Activity> {
        &self.tables.shared().activity
    }

    fn memory(&self) -> &Account {
        &self.tables.shared().memory
    }
}

fn check_count(count: usize, what: &str, remedy: &str) -> Result<()> {
    if count < NAMES_MAX {
        return Ok(());
    }
    let message = format!("the session has {NAMES_MAX} {what} already");
    Err(SqlError::new(Code::LimitExceeded, message).with_hint(format!("use {remedy}")))
}
