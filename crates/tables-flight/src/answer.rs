//! Answers: rows as a stream of messages, which a task of its own fills as the client takes them.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arrow_flight::FlightData;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use forebay_memory::Share;
use forebay_tables::{Rows, SqlError};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;

use crate::door::Settings;
use crate::error::{defect, exhausted, plain};
use crate::tickets::Progress;
use crate::types;

/// Messages to a client.
pub(crate) type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Returns a stream of these messages.
pub(crate) fn messages<T: Send + 'static>(
    messages: impl IntoIterator<Item = T, IntoIter: Send + 'static>,
) -> Messages<T> {
    stream::iter(messages.into_iter().map(Ok)).boxed()
}

/// Returns the messages of rows that are there.
pub(crate) fn of_batch(rows: RecordBatch) -> Messages<FlightData> {
    let columns = rows.schema();
    let mut parts = Vec::new();
    types::divide(rows, &mut parts);
    encoded(columns, stream::iter(parts.into_iter().rev().map(Ok)))
        .map(|message| message.map_err(failed))
        .boxed()
}

/// Returns the messages of a query's rows, as `columns` describes them. The query ends when the client takes no
/// message for a while, leaves or cancels it.
pub(crate) fn of_rows(
    rows: Rows,
    columns: SchemaRef,
    progress: Progress,
    settings: &Settings,
) -> Messages<FlightData> {
    let (sender, messages) = mpsc::channel(1);
    let end = Arc::new(OnceLock::new());
    let answer = Answer {
        messages,
        end: Arc::clone(&end),
        is_done: false,
    };
    let (share, limit) = (settings.memory.share(), settings.message_timeout);
    tokio::spawn(async move {
        let result = tokio::select! {
            result = send(rows, columns, &sender, share, limit) => result,
            cancelled = progress.cancelled() => Err(cancelled),
            () = sender.closed() => return,
        };
        let is_first = end.set(result).is_ok();
        debug_assert!(is_first, "only this task sets the end");
    });
    Box::pin(answer)
}

/// Encodes and sends rows.
async fn send(
    rows: Rows,
    columns: SchemaRef,
    sender: &mpsc::Sender<FlightData>,
    mut share: Share,
    limit: Duration,
) -> Result<(), Status> {
    let parts = stream::try_unfold(Parts::new(rows, Arc::clone(&columns)), Parts::next);
    let mut encoded = encoded(columns, parts.map(|part| part.map_err(flight_error)));
    while let Some(message) = encoded.next().await {
        let message = message.map_err(failed)?;
        // This message, the one that waits, and the one that is being written.
        let bytes = message.data_body.len().saturating_mul(3);
        share.try_resize(bytes).map_err(|_| exhausted("rows"))?;
        match timeout(limit, sender.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_left)) => return Ok(()),
            Err(_elapsed) => {
                let message = "the client did not take the rows in time";
                return Err(Status::deadline_exceeded(message));
            }
        }
    }
    Ok(())
}

fn encoded(
    columns: SchemaRef,
    parts: impl Stream<Item = Result<RecordBatch, FlightError>> + Send + 'static,
) -> impl Stream<Item = Result<FlightData, FlightError>> {
    FlightDataEncoderBuilder::new()
        .with_schema(columns)
        .with_max_flight_data_size(usize::MAX)
        .build(parts)
}

fn flight_error(error: SqlError) -> FlightError {
    FlightError::Tonic(Box::new(plain(error)))
}

fn failed(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        other => defect(other),
    }
}

/// The rows of a query, in parts of a size that is good to send.
struct Parts {
    rows: Rows,
    columns: SchemaRef,
    /// The last part first.
    waiting: Vec<RecordBatch>,
}

impl Parts {
    fn new(rows: Rows, columns: SchemaRef) -> Parts {
        Parts {
            rows,
            columns,
            waiting: Vec::new(),
        }
    }

    async fn next(mut self) -> Result<Option<(RecordBatch, Parts)>, SqlError> {
        loop {
            if let Some(part) = self.waiting.pop() {
                let part = types::as_sent(&part, &self.columns)?;
                return Ok(Some((part, self)));
            }
            match self.rows.next().await? {
                Some(rows) => types::divide(rows, &mut self.waiting),
                None => return Ok(None),
            }
        }
    }
}

/// The messages of a query, then its error if it failed.
struct Answer {
    messages: mpsc::Receiver<FlightData>,
    /// Set before the sender is dropped, unless its task panicked.
    end: Arc<OnceLock<Result<(), Status>>>,
    is_done: bool,
}

impl Stream for Answer {
    type Item = Result<FlightData, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        if let Some(message) = ready!(self.messages.poll_recv(context)) {
            return Poll::Ready(Some(Ok(message)));
        }
        self.is_done = true;
        Poll::Ready(match self.end.get() {
            Some(Ok(())) => None,
            Some(Err(status)) => Some(Err(status.clone())),
            None => Some(Err(defect(
                "the statement failed because of a defect of the server, which logged it",
            ))),
        })
    }
}
