//! Replies: errors, notices, settings, columns and rows.

use bytes::BytesMut;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use forebay_tables::{Code, Rows, Session, SqlError, TransactionStatus};
use pgwire::messages::copy::CopyDone;
use pgwire::messages::data::{FieldDescription, RowDescription};
use pgwire::messages::response::{
    CommandComplete, ErrorResponse, NoticeResponse, ReadyForQuery, TransactionStatus as WireStatus,
};
use pgwire::messages::startup::ParameterStatus;

use crate::connection::Failure;
use crate::copy::CopyWriter;
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
    let severity = match warning.code {
        Code::Warning => "WARNING",
        _ => "NOTICE",
    };
    NoticeResponse::new(fields(severity, warning, None))
}

fn fields(severity: &str, error: &SqlError, position: Option<usize>) -> Vec<(u8, String)> {
    let mut fields = vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', error.code.sqlstate().to_owned()),
        (b'M', without_nul(&error.message)),
    ];
    fields.extend(error.hint.as_deref().map(|hint| (b'H', without_nul(hint))));
    fields.extend(
        error
            .context
            .as_deref()
            .map(|context| (b'W', without_nul(context))),
    );
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
    /// Writes the rows, if they are those of `COPY`.
    copy: Option<CopyWriter>,
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
            copy: None,
            batch: None,
        }
    }

    /// Returns the encoder of the rows of a `COPY`; `None` if they are not.
    ///
    /// # Errors
    /// If the options of the `COPY` do not fit the columns.
    pub(crate) fn of_copy(rows: &Rows, session: &Session) -> Result<Option<Encoder>, SqlError> {
        let Some(options) = rows.copy_options() else {
            return Ok(None);
        };
        let columns = rows.schema().clone();
        let writer = CopyWriter::new(options.clone(), &columns)?;
        let formats = vec![writer.format(); columns.fields().len()];
        let mut encoder = Encoder::new(columns, formats, session);
        encoder.copy = Some(writer);
        Ok(Some(encoder))
    }

    /// Adds what begins the rows of a `COPY`.
    pub(crate) fn put_begin(&mut self, wire: &mut Wire) -> Result<(), Failure> {
        if let Some(writer) = &mut self.copy {
            wire.put(&writer.response())?;
            writer.put_head(&self.columns, &mut wire.out)?;
        }
        Ok(())
    }

    /// Adds what ends the rows of a `COPY`.
    pub(crate) fn put_end(&mut self, wire: &mut Wire) -> Result<(), Failure> {
        if let Some(writer) = &mut self.copy {
            writer.put_end(&mut wire.out)?;
            wire.put(&CopyDone::new())?;
        }
        Ok(())
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
    ///
    /// # Errors
    /// If the columns are others, as those of a table that changed since then.
    fn as_described(&self, batch: RecordBatch) -> Result<RecordBatch, SqlError> {
        if batch.num_columns() != self.columns.fields().len() {
            let message = "cached plan must not change result type";
            return Err(SqlError::new(Code::FeatureNotSupported, message));
        }
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
        let changed = |error: ArrowError| {
            SqlError::new(
                Code::FeatureNotSupported,
                format!("cached plan must not change result type: {error}"),
            )
        };
        // A value that does not fit is an error, not null.
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let columns = batch.columns().iter().zip(described);
        let columns =
            columns.map(|(column, described)| cast_with_options(column, described, &options));
        let columns = columns.collect::<Result<Vec<_>, _>>().map_err(changed)?;
        RecordBatch::try_new(self.columns.clone(), columns).map_err(changed)
    }

    /// Passes at most `rows` rows of the batch in progress by. Returns their number.
    pub(crate) fn pass(&mut self, rows: u64) -> u64 {
        let Some((encoder, next)) = &mut self.batch else {
            return 0;
        };
        let left = encoder.row_count() - *next;
        let count = usize::try_from(rows).unwrap_or(usize::MAX).min(left);
        *next += count;
        if count == left {
            self.batch = None;
        }
        count as u64
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
            match &mut self.copy {
                Some(writer) => writer.put_row(encoder, *next, out)?,
                None => encoder.encode(*next, out)?,
            }
            *next += 1;
            count += 1;
        }
        if *next == encoder.row_count() {
            self.batch = None;
        }
        Ok(count)
    }
}
