//! A connection after its beginning: messages to statements, outcomes to replies.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use forebay_tables::{Code, Outcome, Prepared, Rows, Session, SqlError};
use pgwire::api::Type;
use pgwire::messages::PgWireFrontendMessage;
use pgwire::messages::response::EmptyQueryResponse;
use tokio::sync::watch;

use crate::door::{Access, Door, Key};
use crate::encode::Format;
use crate::extended::Portal;
use crate::reply::{self, Encoder};
use crate::startup::{Identity, Start};
use crate::wire::{ConnectionError, Wire};

/// Bytes of rows that are encoded before they are sent.
const ROWS_BYTES: usize = 64 << 10;

/// Why a message was not answered.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The statement failed. The client is told.
    Sql(SqlError),
    /// The connection ends.
    Connection(ConnectionError),
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Failure {
        Failure::Sql(error)
    }
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Failure {
        Failure::Connection(error)
    }
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) door: Arc<Door>,
    pub(crate) wire: Wire,
    pub(crate) session: Session,
    pub(crate) key: Key,
    pub(crate) portals: HashMap<String, Portal>,
    /// Types of the parameters of prepared statements, as the client was told.
    pub(crate) types: HashMap<String, Vec<Type>>,
    /// Whether messages are skipped until the next `Sync`.
    skips: bool,
    identity: Option<Identity>,
}

impl Connection {
    pub(crate) fn new(door: Arc<Door>, start: Start) -> Connection {
        Connection {
            door,
            wire: start.wire,
            session: start.session,
            key: start.key,
            identity: start.identity,
            portals: HashMap::new(),
            types: HashMap::new(),
            skips: false,
        }
    }

    /// Serves the client until it leaves or the server stops.
    pub(crate) async fn serve(
        mut self,
        mut shutdown: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError> {
        loop {
            if self.wire.is_idle() {
                self.wire.flush().await?;
            }
            let message = tokio::select! {
                message = self.wire.next() => message,
                () = stopped(&mut shutdown) => return self.stop().await,
            };
            match message {
                Ok(Some(PgWireFrontendMessage::Terminate(_)) | None) => return Ok(()),
                Ok(Some(message)) => self.answer(message).await?,
                Err(error) => return self.end(error).await,
            }
        }
    }

    /// Tells the client that the server stops.
    async fn stop(mut self) -> Result<(), ConnectionError> {
        let message = "terminating connection due to administrator command";
        self.wire
            .put(&reply::fatal(&SqlError::new(Code::AdminShutdown, message)))?;
        self.wire.flush().await
    }

    /// Tells the client why its connection ends.
    async fn end(mut self, error: ConnectionError) -> Result<(), ConnectionError> {
        let code = match &error {
            ConnectionError::Memory(_) => Code::OutOfMemory,
            ConnectionError::Protocol(_) => Code::ProtocolViolation,
            _ => return Err(error),
        };
        let told = SqlError::new(code, error.to_string());
        if self.wire.put(&reply::fatal(&told)).is_ok() {
            let _ = self.wire.flush().await;
        }
        Err(error)
    }

    /// Reads the user's rights again if users were changed.
    ///
    /// # Errors
    /// If the user was removed, has another password, or no role here any more. The client is told.
    async fn check_user(&mut self) -> Result<(), ConnectionError> {
        let (users, Some(identity)) = (&self.door.users, &mut self.identity) else {
            return Ok(());
        };
        let changes = users.changes();
        if changes == identity.changes {
            return Ok(());
        }
        let read = || users.access(&identity.user, &identity.credentials);
        let Some(access) = tokio::task::block_in_place(read) else {
            let message = "the user was removed or changed: log in again";
            let error = SqlError::new(Code::InvalidAuthorization, message);
            self.wire.put(&reply::fatal(&error))?;
            self.wire.flush().await?;
            return Err(ConnectionError::Refused(error.message));
        };
        identity.changes = changes;
        self.session.set_read_only(access == Access::Read);
        Ok(())
    }

    async fn answer(&mut self, message: PgWireFrontendMessage) -> Result<(), ConnectionError> {
        self.check_user().await?;
        // A cancellation from before this message was for another one.
        self.key.cancelled.mark_unchanged();
        match message {
            PgWireFrontendMessage::Query(query) if !self.skips => {
                self.query(&query.query).await?;
                self.end_of_extended();
                reply::put_ready(&mut self.wire, &self.session)
            }
            PgWireFrontendMessage::Sync(_) => {
                self.skips = false;
                self.end_of_extended();
                reply::put_ready(&mut self.wire, &self.session)
            }
            _ if self.skips => Ok(()),
            message => {
                let text = self.text_of(&message);
                match self.extended(message).await {
                    Ok(()) => Ok(()),
                    Err(Failure::Connection(error)) => Err(error),
                    Err(Failure::Sql(error)) => {
                        self.skips = true;
                        self.session.fail();
                        reply::put_news(&mut self.wire, &mut self.session)?;
                        self.wire.put(&reply::error(&error, &text))
                    }
                }
            }
        }
    }

    /// Answers a simple query: several statements, of which the first that fails ends the rest.
    async fn query(&mut self, text: &str) -> Result<(), ConnectionError> {
        self.portals.remove("");
        match self.statements(text).await {
            Ok(()) => Ok(()),
            Err(Failure::Connection(error)) => Err(error),
            Err(Failure::Sql(error)) => {
                self.session.fail();
                reply::put_news(&mut self.wire, &mut self.session)?;
                self.wire.put(&reply::error(&error, text))
            }
        }
    }

    async fn statements(&mut self, text: &str) -> Result<(), Failure> {
        let tables = Arc::clone(&self.door.tables);
        let statements = guarded(&mut self.wire, &mut self.key, tables.parse(text)).await?;
        if statements.is_empty() {
            self.wire.put(&EmptyQueryResponse::new())?;
        }
        for statement in statements {
            if self.move_portal(&statement).await? {
                continue;
            }
            let run = self.session.prepare_and_run(statement);
            let (prepared, outcome) = guarded(&mut self.wire, &mut self.key, run).await?;
            reply::put_news(&mut self.wire, &mut self.session)?;
            match outcome {
                Outcome::Done(tag) => reply::put_done(&mut self.wire, &tag)?,
                Outcome::Rows(rows) => self.send_all(&prepared, rows).await?,
                Outcome::CopyIn(copied) => self.receive_copy(copied).await?,
            }
            self.wire.flush_if_full().await?;
        }
        Ok(())
    }

    async fn send_all(&mut self, prepared: &Prepared, mut rows: Rows) -> Result<(), Failure> {
        if let Some(encoder) = Encoder::of_copy(&rows, &self.session)? {
            return self.send_copy(encoder, rows).await;
        }
        let columns = prepared.columns().unwrap_or(rows.schema()).clone();
        let formats = vec![Format::Text; columns.fields().len()];
        let mut encoder = Encoder::new(columns, formats, &self.session);
        let description = reply::description(encoder.columns(), encoder.formats());
        self.wire.put(&description)?;
        let (count, _) = self.send(&mut encoder, &mut rows, u64::MAX).await?;
        reply::put_done(&mut self.wire, &rows.tag(count))?;
        Ok(())
    }

    /// Sends the rows of a `COPY`.
    pub(crate) async fn send_copy(
        &mut self,
        mut encoder: Encoder,
        mut rows: Rows,
    ) -> Result<(), Failure> {
        encoder.put_begin(&mut self.wire)?;
        let (count, _) = self.send(&mut encoder, &mut rows, u64::MAX).await?;
        encoder.put_end(&mut self.wire)?;
        Ok(reply::put_done(&mut self.wire, &rows.tag(count))?)
    }

    /// Sends at most `limit` rows. Returns their number, and whether there were fewer.
    pub(crate) async fn send(
        &mut self,
        encoder: &mut Encoder,
        rows: &mut Rows,
        limit: u64,
    ) -> Result<(u64, bool), Failure> {
        let mut count = 0;
        while count < limit {
            if !encoder.has_rows() {
                match guarded(&mut self.wire, &mut self.key, rows.next()).await? {
                    Some(batch) => encoder.begin(batch)?,
                    None => return Ok((count, true)),
                }
                continue;
            }
            count += encoder.put(&mut self.wire.out, ROWS_BYTES, limit - count)?;
            let key = &mut self.key;
            tokio::select! {
                biased;
                _ = key.cancelled.changed() => return Err(cancelled().into()),
                flushed = self.wire.flush_if_full() => flushed?,
            }
        }
        Ok((count, false))
    }
}

/// Runs a part of a statement until it is done, the client cancels it or leaves.
pub(crate) async fn guarded<T>(
    wire: &mut Wire,
    key: &mut Key,
    work: impl Future<Output = Result<T, SqlError>>,
) -> Result<T, Failure> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        result = &mut work => Ok(result?),
        _ = key.cancelled.changed() => Err(cancelled().into()),
        error = wire.closed() => Err(error.into()),
    }
}

/// Waits until the server stops.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|stops| *stops).await;
}

/// Returns the error of a statement that the client cancelled.
pub(crate) fn cancelled() -> SqlError {
    SqlError::new(
        Code::QueryCanceled,
        "canceling statement due to user request",
    )
}
