//! Replies: errors, notices, settings, columns and rows.

use bytes::BytesMut;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use forebay_tables::{Code, Session, SqlError, TransactionStatus};
use pgwire::messages::data::{FieldDescription, RowDescription};
use pgwire::messages::response::{
    CommandComplete, ErrorResponse, NoticeResponse, ReadyForQuery, TransactionStatus as WireStatus,
};
use pgwire::messages::startup::ParameterStatus;

use crate::encode::{Format, RowEncoder, TextSettings};
use crate::types;
use crate::wire::{ConnectionError, Wire};

/// Returns the error of a statement, with the position in the client's text.
pub(crate) fn error(error: &SqlError, text: &str) -> ErrorResponse {
    ErrorResponse::new(fields("ERROR", error, error.position(text)))
}

/// Returns an error after which the connection ends.
pub(crate) fn fatal(error: &SqlError) -> ErrorResponse {
    ErrorResponse::new(fields("FATAL", error, None))
}

fn notice(warning: &SqlError) -> NoticeResponse {
    NoticeResponse::new(fields("NOTICE", warning, None))
}

fn fields(severity: &str, error: &SqlError, position: Option<usize>) -> Vec<(u8, String)> {
    let mut fields = vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', error.code.sqlstate().to_owned()),
        (b'M', without_nul(&error.message)),
    ];
    fields.extend(error.hint.as_deref().map(|hint| (b'H', without_nul(hint))));
    fields.extend(position.map(|position| (b'P', position.to_string())));
    fields
}

/// Texts of the protocol end at their first NUL.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\\0")
}

/// Adds the notices and the changed settings of a session.
pub(crate) fn put_news(wire: &mut Wire, session: &mut Session) -> Result<(), ConnectionError> {
    for warning in session.take_notices() {
        wire.put(&notice(&warning))?;
    }
    for (name, value) in session.take_changed() {
        wire.put(&ParameterStatus::new(name.to_owned(), without_nul(&value)))?;
    }
    Ok(())
}

/// Adds the tag of a statement that is done.
pub(crate) fn put_done(wire: &mut Wire, tag: &str) -> Result<(), ConnectionError> {
    wire.put(&CommandComplete::new(tag.to_owned()))
}

/// Adds the message that tells the client to go on.
pub(crate) fn put_ready(wire: &mut Wire, session: &Session) -> Result<(), ConnectionError> {
    let status = match session.transaction_status() {
        TransactionStatus::Idle => WireStatus::Idle,
        TransactionStatus::Active => WireStatus::Transaction,
        TransactionStatus::Failed => WireStatus::Error,
    };
    wire.put(&ReadyForQuery::new(status))
}

/// Returns the description of columns.
pub(crate) fn description(columns: &Schema, formats: &[Format]) -> RowDescription {
    let fields = columns.fields().iter().zip(formats);
    let described = fields.map(|(field, format)| {
        let data_type = types::pg_type(field.data_type());
        FieldDescription::new(
            without_nul(field.name()),
            0,
            0,
            data_type.oid(),
            types::size(&data_type),
            types::modifier(field.data_type()),
            format.code(),
        )
    });
    RowDescription::new(described.collect())
}

/// Encodes the rows of batches as they were described.
#[derive(Debug)]
pub(crate) struct Encoder {
    columns: SchemaRef,
    formats: Vec<Format>,
    settings: TextSettings,
    /// The batch in progress, and its next row.
    batch: Option<(RowEncoder, usize)>,
}

impl Encoder {
    pub(crate) fn new(columns: SchemaRef, formats: Vec<Format>, session: &Session) -> Encoder {
        let zone = session.setting("TimeZone");
        let zone = zone.and_then(|zone| zone.parse().ok());
        let settings = TextSettings {
            time_zone: zone.unwrap_or_else(|| "UTC".parse::<Tz>().expect("UTC is a time zone")),
        };
        Encoder {
            columns,
            formats,
            settings,
            batch: None,
        }
    }

    pub(crate) fn columns(&self) -> &SchemaRef {
        &self.columns
    }

    pub(crate) fn formats(&self) -> &[Format] {
        &self.formats
    }

    /// Returns whether a batch is in progress.
    pub(crate) fn has_rows(&self) -> bool {
        self.batch.is_some()
    }

    /// Begins a batch.
    pub(crate) fn begin(&mut self, batch: RecordBatch) -> Result<(), SqlError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let batch = self.as_described(batch)?;
        let encoder = RowEncoder::new(&batch, &self.formats, &self.settings)?;
        self.batch = Some((encoder, 0));
        Ok(())
    }

    /// Casts columns whose types differ from what the client was told.
    fn as_described(&self, batch: RecordBatch) -> Result<RecordBatch, SqlError> {
        let described = self.columns.fields().iter().map(|field| field.data_type());
        let is_same = batch
            .columns()
            .iter()
            .zip(described.clone())
            .all(|(column, described)| {
                types::pg_type(column.data_type()) == types::pg_type(described)
            });
        if is_same {
            return Ok(batch);
        }
        let internal = |error: &dyn std::fmt::Display| {
            SqlError::new(
                Code::InternalError,
                format!("a column is not as described: {error}"),
            )
        };
        let columns = batch.columns().iter().zip(described);
        let columns = columns.map(|(column, described)| cast(column, described));
        let columns = columns
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| internal(&error))?;
        RecordBatch::try_new(self.columns.clone(), columns).map_err(|error| internal(&error))
    }

    /// Adds rows of the batch in progress until `out` has `bytes`, or there are `rows`. Returns their number.
    pub(crate) fn put(
        &mut self,
        out: &mut BytesMut,
        bytes: usize,
        rows: u64,
    ) -> Result<u64, SqlError> {
        let Some((encoder, next)) = &mut self.batch else {
            return Ok(0);
        };
        let mut count = 0;
        while *next < encoder.row_count() && count < rows && out.len() < bytes {
            encoder.encode(*next, out)?;
            *next += 1;
            count += 1;
        }
        if *next == encoder.row_count() {
            self.batch = None;
        }
        Ok(count)
    }
}
