//! Tickets: what a client fetches rows with, and the queries in progress that it can cancel with them.
//!
//! A ticket holds what the server needs to run the statement. So a ticket that is never used costs nothing, and works
//! on each connection.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_flight::sql::{ProstMessageExt, TicketStatementQuery};
use arrow_flight::{FlightInfo, Ticket};
use bytes::Bytes;
use forebay_net::random_bytes;
use forebay_tables::{Code, SqlError};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;
use tonic::Status;

use crate::error::{malformed, plain};

/// Bytes of the number of a query.
const NUMBER_BYTES: usize = 16;

/// Identifies a query to those who have its ticket.
type Number = [u8; NUMBER_BYTES];

/// A statement to run for its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) number: Number,
    pub(crate) statement: Statement,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Statement {
    /// A text.
    Text(String),
    /// The handle of a prepared statement of the connection.
    Prepared(String),
}

impl Query {
    pub(crate) fn new(statement: Statement) -> Query {
        let mut number = [0; NUMBER_BYTES];
        random_bytes(&mut number);
        Query { number, statement }
    }

    pub(crate) fn ticket(&self) -> Ticket {
        let (kind, text) = match &self.statement {
            Statement::Text(text) => (b't', text),
            Statement::Prepared(handle) => (b'p', handle),
        };
        let handle = [&self.number[..], &[kind], text.as_bytes()].concat();
        let statement_handle = Bytes::from(handle);
        let message = TicketStatementQuery { statement_handle };
        Ticket::new(message.as_any().encode_to_vec())
    }

    /// Returns the query of a ticket of this server.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn of_ticket(ticket: &TicketStatementQuery) -> Result<Query, Status> {
        let foreign = || malformed("the ticket is not one of this server");
        let (number, rest) = ticket
            .statement_handle
            .split_first_chunk()
            .ok_or_else(foreign)?;
        let (kind, text) = rest.split_first().ok_or_else(foreign)?;
        let text = String::from_utf8(text.to_vec()).map_err(|_| foreign())?;
        let statement = match kind {
            b't' => Statement::Text(text),
            b'p' => Statement::Prepared(text),
            _ => return Err(foreign()),
        };
        let number = *number;
        Ok(Query { number, statement })
    }
}

/// The queries in progress.
#[derive(Default)]
pub(crate) struct Running(Arc<Mutex<HashMap<Number, Entry>>>);

struct Entry {
    user: String,
    cancel: Arc<watch::Sender<bool>>,
}

/// A query in progress, while it is kept.
pub(crate) struct Progress {
    number: Number,
    cancel: Arc<watch::Sender<bool>>,
    all: Arc<Mutex<HashMap<Number, Entry>>>,
}

impl Running {
    /// Records that a query begins. If it is in progress already, the later one can be cancelled.
    pub(crate) fn begin(&self, number: Number, user: &str) -> Progress {
        let cancel = Arc::new(watch::Sender::new(false));
        let entry = Entry {
            user: user.to_owned(),
            cancel: Arc::clone(&cancel),
        };
        self.0.lock().insert(number, entry);
        Progress {
            number,
            cancel,
            all: Arc::clone(&self.0),
        }
    }

    /// Cancels the query of a flight. Returns whether it was in progress.
    ///
    /// # Errors
    /// If the flight is not one of this server.
    pub(crate) fn cancel(&self, flight: &FlightInfo, user: &str) -> Result<bool, Status> {
        let mut tickets = flight.endpoint.iter().filter_map(|end| end.ticket.as_ref());
        let ticket = tickets.next().map_or(&[][..], |ticket| &ticket.ticket);
        let any = arrow_flight::sql::Any::decode(ticket).map_err(malformed)?;
        let Some(ticket) = any.unpack().map_err(malformed)? else {
            return Ok(false);
        };
        let query = Query::of_ticket(&ticket)?;
        let running = self.0.lock();
        let found = running
            .get(&query.number)
            .filter(|entry| entry.user == user);
        if let Some(entry) = found {
            entry.cancel.send_replace(true);
        }
        Ok(found.is_some())
    }
}

impl Progress {
    /// Waits until the query is cancelled, and returns the error that tells so.
    pub(crate) async fn cancelled(&self) -> Status {
        let mut cancelled = self.cancel.subscribe();
        let _ = cancelled.wait_for(|cancelled| *cancelled).await;
        let message = "canceling statement due to user request";
        let told = plain(SqlError::new(Code::QueryCanceled, message));
        let (message, metadata) = (told.message().to_owned(), told.metadata().clone());
        Status::with_metadata(tonic::Code::Cancelled, message, metadata)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let is_own = |entry: &Entry| Arc::ptr_eq(&entry.cancel, &self.cancel);
        if all.get(&self.number).is_some_and(is_own) {
            all.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_flight::FlightEndpoint;
    use arrow_flight::sql::Any;
    use futures_util::FutureExt;

    #[test]
    fn tickets_hold_their_queries() {
        for statement in [
            Statement::Text("SELECT 'é'".to_owned()),
            Statement::Prepared("7".to_owned()),
        ] {
            let query = Query::new(statement);
            let any = Any::decode(query.ticket().ticket).expect("a message");
            let ticket = any.unpack().expect("a ticket").expect("a ticket");
            assert_eq!(Query::of_ticket(&ticket).expect("our own"), query);
        }
        for foreign in [
            &b""[..],
            b"0123456789abcdef",
            b"0123456789abcdefx",
            b"0123456789abcdeft\xff",
        ] {
            let statement_handle = Bytes::copy_from_slice(foreign);
            let ticket = TicketStatementQuery { statement_handle };
            Query::of_ticket(&ticket).expect_err("foreign");
        }
    }

    #[test]
    fn only_the_user_cancels_a_query_in_progress() {
        let running = Running::default();
        let query = Query::new(Statement::Text("SELECT 1".to_owned()));
        let endpoint = FlightEndpoint::new().with_ticket(query.ticket());
        let flight = FlightInfo::new().with_endpoint(endpoint);
        let cancels = |user| running.cancel(&flight, user).expect("our own");
        assert!(!cancels("ada"), "not yet");
        let progress = running.begin(query.number, "ada");
        assert!(!cancels("alan") && progress.cancelled().now_or_never().is_none());
        assert!(cancels("ada") && progress.cancelled().now_or_never().is_some());
        drop(progress);
        assert!(!cancels("ada"), "no longer");
    }
}
