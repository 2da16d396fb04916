//! `COPY ... FROM STDIN`: the rows that a client sends.
//!
//! # Sources
//! `copyfrom.c` and `copyfromparse.c` of PostgreSQL 15.

mod columns;
mod rows;

use datafusion::arrow::array::timezone::Tz;
use forebay_tables::{Code, CopyFormat, CopyIn, SqlError};
use pgwire::messages::PgWireFrontendMessage;
use pgwire::messages::copy::CopyInResponse;

use self::rows::Reader;
use crate::connection::{Connection, Failure, cancelled, guarded};
use crate::encode::Format;
use crate::reply;
use crate::wire::ConnectionError;

impl Connection {
    /// Receives the rows of a `COPY`, and answers it.
    pub(crate) async fn receive_copy(&mut self, mut copied: CopyIn) -> Result<(), Failure> {
        let zone = self.session.setting("TimeZone");
        let zone: Option<Tz> = zone.and_then(|zone| zone.parse().ok());
        let mut reader = Reader::new(&copied, zone, &self.door.settings.memory)?;
        self.wire.put(&response(&copied))?;
        self.wire.flush().await?;
        while let Some(data) = self.next_data(&mut copied).await? {
            reader.feed(&data)?;
            while let Some(batch) = reader.next_batch()? {
                guarded(&mut self.wire, &mut self.key, copied.write(batch)).await?;
            }
        }
        for batch in reader.finish()? {
            guarded(&mut self.wire, &mut self.key, copied.write(batch)).await?;
        }
        let tag = guarded(&mut self.wire, &mut self.key, copied.finish()).await?;
        Ok(reply::put_done(&mut self.wire, &tag)?)
    }

    /// Returns the next part of the data; `None` after the last.
    async fn next_data(&mut self, copied: &mut CopyIn) -> Result<Option<bytes::Bytes>, Failure> {
        loop {
            let wire = &mut self.wire;
            let next = copied.within(async { Ok(wire.next().await) });
            let message = tokio::select! {
                biased;
                _ = self.key.cancelled.changed() => return Err(cancelled().into()),
                message = next => message??,
            };
            return match message {
                Some(PgWireFrontendMessage::CopyData(data)) => Ok(Some(data.data)),
                Some(PgWireFrontendMessage::CopyDone(_)) => Ok(None),
                // Clients of the extended protocol send them before the data.
                Some(PgWireFrontendMessage::Flush(_) | PgWireFrontendMessage::Sync(_)) => continue,
                Some(PgWireFrontendMessage::CopyFail(fail)) => {
                    let message = format!("COPY from stdin failed: {}", fail.message);
                    Err(SqlError::new(Code::QueryCanceled, message).into())
                }
                Some(PgWireFrontendMessage::Terminate(_)) | None => {
                    let left = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                    Err(ConnectionError::Io(left).into())
                }
                Some(_) => {
                    let message = "unexpected message type during COPY from stdin";
                    Err(SqlError::new(Code::ProtocolViolation, message).into())
                }
            };
        }
    }
}

/// Returns the message that asks the client for the rows.
fn response(copied: &CopyIn) -> CopyInResponse {
    let format = match copied.options().format {
        CopyFormat::Text | CopyFormat::Csv => Format::Text,
        CopyFormat::Binary => Format::Binary,
    };
    let count = copied.columns().fields().len();
    CopyInResponse::new(
        i8::from(format == Format::Binary),
        i16::try_from(count).unwrap_or(i16::MAX),
        vec![format.code(); count],
    )
}
