//! `COPY ... FROM STDIN`: rows that a client sends.

use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::execution::SessionState;
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::Ident;
use tokio::sync::{mpsc, oneshot};

use super::Stop;
use super::defaults::table;
use super::provider::ManagedProvider;
use super::sink::Sink;
use super::write::Write;
use crate::activity::Run;
use crate::copy::{CopyFrom, CopyOptions};
use crate::error::{Code, Result, SqlError};
use crate::parse::folded;
use crate::rows::{Running, within};
use crate::session::Session;
use crate::source::as_user;

/// A `COPY ... FROM STDIN` in progress. If it is dropped before its end, nothing is changed.
#[derive(Debug)]
pub struct CopyIn {
    table: String,
    options: CopyOptions,
    columns: SchemaRef,
    deadline: Option<Instant>,
    rows: u64,
    batches: Option<mpsc::Sender<RecordBatch>>,
    task: Running<Result<()>>,
    /// Dropped last: the task ends without a change if it did not commit before.
    _running: oneshot::Sender<()>,
    end: Option<oneshot::Sender<()>>,
    run: Option<Run>,
}

impl CopyIn {
    /// Makes it a statement that runs.
    #[must_use]
    pub(crate) fn of_run(mut self, run: Run) -> CopyIn {
        self.run = Some(run);
        self
    }

    /// Returns the name of the table.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Returns how the rows are written.
    pub fn options(&self) -> &CopyOptions {
        &self.options
    }

    /// Returns the columns of the rows.
    pub fn columns(&self) -> &SchemaRef {
        &self.columns
    }

    /// Waits for `work`, a part of the statement.
    ///
    /// # Errors
    /// Those of `work`, and [`Code::QueryCanceled`] when the statement's timeout ends or it is cancelled.
    pub async fn within<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let work = within(self.deadline, work);
        match &mut self.run {
            Some(run) => run.part(work).await,
            None => work.await,
        }
    }

    /// Writes rows.
    ///
    /// # Errors
    /// If they, or rows before them, cannot be written.
    pub async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        let sent = match &self.batches {
            Some(batches) => {
                within(self.deadline, async {
                    Ok(batches.send(batch).await.is_ok())
                })
                .await?
            }
            None => false,
        };
        match sent {
            true => Ok(()),
            false => self.ended().await,
        }
    }

    /// Makes the rows part of the table. Returns the tag.
    ///
    /// # Errors
    /// If they cannot be written. Nothing is then changed.
    pub async fn finish(mut self) -> Result<String> {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        self.batches = None;
        let deadline = self.deadline;
        within(deadline, self.ended()).await?;
        if let Some(run) = &mut self.run {
            run.done();
        }
        Ok(format!("COPY {}", self.rows))
    }

    async fn ended(&mut self) -> Result<()> {
        self.task.end().await?
    }
}

/// Starts a `COPY ... FROM STDIN`.
///
/// # Errors
/// If the table is no managed table, or a column does not exist.
pub(crate) async fn copy_in(
    session: &Session,
    copied: &CopyFrom,
    deadline: Option<Instant>,
) -> Result<CopyIn> {
    let state = Arc::clone(session.state());
    let (name, named) = (copied.table.clone(), copied.columns.clone());
    let threads = session.tables().threads();
    let find = async move {
        let table = table(&state, &name).await?;
        let places = places(&table, &named)?;
        let columns = Columns::new(&state, &table, &places)?;
        Ok::<_, SqlError>((table, places, columns))
    };
    let find = as_user(session.user().to_owned(), find);
    let (table, places, columns) = Running::start_blocking(threads, find).end().await??;
    let (sender, batches) = mpsc::channel(1);
    let (running, stop) = Stop::new();
    let (end, ended) = oneshot::channel();
    let write = Write::new(session, stop);
    let received = Arc::new(table.described().project(&places).map_err(arrow_failed)?);
    let name = table.name().to_owned();
    let task = receive(write, table, columns, batches, ended);
    Ok(CopyIn {
        table: name,
        options: copied.options.clone(),
        columns: received,
        deadline,
        rows: 0,
        batches: Some(sender),
        task: Running::start_blocking(threads, task),
        _running: running,
        end: Some(end),
        run: None,
    })
}

/// Writes the rows that are received, and makes them part of the table after the end.
async fn receive(
    mut write: Write,
    table: ManagedProvider,
    columns: Columns,
    mut batches: mpsc::Receiver<RecordBatch>,
    mut ended: oneshot::Receiver<()>,
) -> Result<()> {
    let managed = table.managed();
    let mut sink = Sink::new(managed, &write.account);
    while let Some(batch) = write.stop.unless(batches.recv()).await? {
        sink.write(&columns.of_table(&batch)?)?;
    }
    if ended.try_recv().is_err() {
        return Err(super::stopped());
    }
    write.commit(managed, "WRITE", sink.finish()?, Vec::new())?;
    managed.compact_later(&tokio::runtime::Handle::current());
    Ok(())
}

/// Returns the places in the table of the columns that are received.
fn places(table: &ManagedProvider, named: &[Ident]) -> Result<Vec<usize>> {
    let schema = table.described();
    if named.is_empty() {
        return Ok((0..schema.fields().len()).collect());
    }
    let mut places = Vec::new();
    for name in named.iter().map(folded) {
        let place = schema.index_of(&name).map_err(|_| {
            let message = format!(
                "column \"{name}\" of relation \"{}\" does not exist",
                table.name()
            );
            SqlError::new(Code::UndefinedColumn, message)
        })?;
        if places.contains(&place) {
            let message = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(Code::DuplicateColumn, message));
        }
        places.push(place);
    }
    Ok(places)
}

/// Where the columns of the table come from.
struct Columns {
    schema: SchemaRef,
    sources: Vec<Source>,
}

enum Source {
    /// The column of this index of the received rows.
    Received(usize),
    /// The same value in each row.
    Constant(ScalarValue),
}

impl Columns {
    fn new(state: &SessionState, table: &ManagedProvider, places: &[usize]) -> Result<Columns> {
        let schema = table.described();
        let sources = schema.fields().iter().enumerate().map(|(place, field)| {
            if let Some(index) = places.iter().position(|known| *known == place) {
                return Ok(Source::Received(index));
            }
            let value = match table.managed().defaults.get(field.name()) {
                Some(default) => crate::plan::constant(state, default.clone(), field.data_type())?,
                None => ScalarValue::try_from(field.data_type())?,
            };
            Ok(Source::Constant(value))
        });
        Ok(Columns {
            sources: sources.collect::<Result<_>>()?,
            schema,
        })
    }

    /// Returns received rows with all columns of the table.
    fn of_table(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let columns = self.sources.iter().map(|source| -> Result<ArrayRef> {
            Ok(match source {
                Source::Received(index) => Arc::clone(batch.column(*index)),
                Source::Constant(value) => value.to_array_of_size(rows)?,
            })
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        // The nulls are checked later, with a better message.
        let fields = self.schema.fields().iter().zip(&columns);
        let fields = fields.map(|(field, column)| {
            field
                .as_ref()
                .clone()
                .with_nullable(true)
                .with_data_type(column.data_type().clone())
        });
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema, columns, &options).map_err(arrow_failed)
    }
}

fn arrow_failed(error: datafusion::arrow::error::ArrowError) -> SqlError {
    datafusion::error::DataFusionError::from(error).into()
}
