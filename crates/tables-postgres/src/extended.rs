//! The extended query protocol: prepared statements and portals.

use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::datatypes::{DECIMAL_DEFAULT_SCALE, DECIMAL128_MAX_PRECISION, DataType};
use datafusion::scalar::ScalarValue;
use forebay_tables::{Code, Outcome, Parsed, Prepared, Rows, SqlError, TransactionStatus};
use pgwire::api::Type;
use pgwire::messages::PgWireFrontendMessage;
use pgwire::messages::data::{NoData, ParameterDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete,
    PortalSuspended, TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::EmptyQueryResponse;

use crate::connection::{Connection, Failure, guarded};
use crate::encode::Format;
use crate::reply::{self, Encoder};
use crate::{decode, types};

/// Maximum number of portals of a connection.
const PORTALS_MAX: usize = 10_000;

/// A prepared statement with its parameters, which runs step by step.
#[derive(Debug)]
pub(crate) struct Portal {
    prepared: Prepared,
    parameters: Vec<ScalarValue>,
    formats: Vec<i16>,
    /// The rows in progress.
    running: Option<(Rows, Encoder)>,
    is_done: bool,
}

impl Portal {
    fn formats(&self, columns: usize) -> Result<Vec<Format>, SqlError> {
        Format::of_codes(&self.formats, columns)
    }
}

impl Connection {
    /// Answers a message of the extended protocol.
    pub(crate) async fn extended(&mut self, message: PgWireFrontendMessage) -> Result<(), Failure> {
        match message {
            PgWireFrontendMessage::Parse(parse) => self.parse(parse).await,
            PgWireFrontendMessage::Bind(bind) => self.bind(bind),
            PgWireFrontendMessage::Describe(describe) => self.describe(&describe),
            PgWireFrontendMessage::Execute(execute) => self.execute(execute).await,
            PgWireFrontendMessage::Close(close) => self.close(&close),
            PgWireFrontendMessage::Flush(_) => Ok(self.wire.flush().await?),
            // Messages of a COPY that failed.
            PgWireFrontendMessage::CopyData(_)
            | PgWireFrontendMessage::CopyDone(_)
            | PgWireFrontendMessage::CopyFail(_) => Ok(()),
            _ => {
                let message = "a message that is not expected here";
                Err(SqlError::new(Code::ProtocolViolation, message).into())
            }
        }
    }

    /// Returns the text in which an error of this message has its position.
    pub(crate) fn text_of(&self, message: &PgWireFrontendMessage) -> String {
        match message {
            PgWireFrontendMessage::Parse(parse) => parse.query.clone(),
            _ => String::new(),
        }
    }

    async fn parse(&mut self, message: Parse) -> Result<(), Failure> {
        let name = message.name.unwrap_or_default();
        let tables = std::sync::Arc::clone(&self.door.tables);
        let parsing = tables.parse(&message.query);
        let mut statements = guarded(&mut self.wire, &mut self.key, parsing).await?;
        if statements.len() > 1 {
            let text = "cannot insert multiple commands into a prepared statement";
            return Err(SqlError::new(Code::SyntaxError, text).into());
        }
        let declared: Vec<Option<Type>> = message.type_oids.iter().map(declared).collect();
        let prepared = match statements.pop() {
            None => Prepared::empty(),
            Some(statement) => {
                let known: Vec<_> = declared
                    .iter()
                    .map(|declared| declared.as_ref().and_then(planned))
                    .collect();
                let prepare = self.session.prepare(statement, &known);
                guarded(&mut self.wire, &mut self.key, prepare).await?
            }
        };
        let types = prepared
            .parameters()
            .iter()
            .enumerate()
            .map(|(index, inferred)| {
                let declared = declared.get(index).cloned().flatten();
                declared
                    .or_else(|| inferred.as_ref().map(types::pg_type))
                    .unwrap_or(Type::TEXT)
            });
        let types: Vec<Type> = types.collect();
        if let Some(unknown) = types.iter().find(|known| !types::is_parameter(known)) {
            return Err(SqlError::unsupported(format!("a parameter of type {unknown}")).into());
        }
        self.session.add_statement(&name, prepared)?;
        self.types.insert(name, types);
        Ok(self.wire.put(&ParseComplete::new())?)
    }

    fn bind(&mut self, message: Bind) -> Result<(), Failure> {
        let statement = message.statement_name.unwrap_or_default();
        let name = message.portal_name.unwrap_or_default();
        let prepared = self.session.statement(&statement)?.clone();
        if !name.is_empty() && self.portals.contains_key(&name) {
            let text = format!("cursor \"{name}\" already exists");
            return Err(SqlError::new(Code::DuplicateCursor, text).into());
        }
        if self.portals.len() >= PORTALS_MAX {
            let text = format!("the connection has {PORTALS_MAX} portals already");
            return Err(SqlError::new(Code::LimitExceeded, text).into());
        }
        let wanted = self.types.get(&statement).map_or(&[][..], Vec::as_slice);
        if message.parameters.len() != wanted.len() {
            let text = format!(
                "bind message supplies {} parameters, but prepared statement \"{statement}\" requires {}",
                message.parameters.len(),
                wanted.len(),
            );
            return Err(SqlError::new(Code::ProtocolViolation, text).into());
        }
        let formats = Format::of_codes(&message.parameter_format_codes, wanted.len())?;
        let zone = self
            .session
            .setting("TimeZone")
            .and_then(|zone| zone.parse::<Tz>().ok());
        let values = message.parameters.iter().zip(wanted).zip(formats);
        let values = values.map(|((bytes, data_type), format)| {
            let is_binary = format == Format::Binary;
            let bytes = bytes.as_deref();
            match zone {
                Some(zone) => decode::parameter_in_zone(data_type, is_binary, bytes, zone),
                None => decode::parameter(data_type, is_binary, bytes),
            }
        });
        let parameters = values.collect::<Result<Vec<_>, _>>()?;
        let portal = Portal {
            prepared,
            parameters,
            formats: message.result_column_format_codes,
            running: None,
            is_done: false,
        };
        if let Some(columns) = portal.prepared.columns() {
            portal.formats(columns.fields().len())?;
        }
        self.portals.insert(name, portal);
        Ok(self.wire.put(&BindComplete::new())?)
    }

    fn describe(&mut self, message: &Describe) -> Result<(), Failure> {
        let name = message.name.as_deref().unwrap_or_default();
        let (prepared, formats) = match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => {
                let prepared = self.session.statement(name)?.clone();
                let types = self.types.get(name).map_or(&[][..], Vec::as_slice);
                let oids = types.iter().map(Type::oid).collect();
                self.wire.put(&ParameterDescription::new(oids))?;
                (prepared, Vec::new())
            }
            TARGET_TYPE_BYTE_PORTAL => {
                // In PostgreSQL, a cursor is a portal.
                if let Some(columns) = self.session.cursor_columns(name) {
                    let formats = vec![Format::Text; columns.fields().len()];
                    let description = reply::description(columns, &formats);
                    return Ok(self.wire.put(&description)?);
                }
                let portal = self.portals.get(name).ok_or_else(|| no_portal(name))?;
                (portal.prepared.clone(), portal.formats.clone())
            }
            _ => {
                let text = "Describe names neither a statement nor a portal";
                return Err(SqlError::new(Code::ProtocolViolation, text).into());
            }
        };
        match prepared.columns() {
            Some(columns) => {
                let formats = Format::of_codes(&formats, columns.fields().len())?;
                Ok(self.wire.put(&reply::description(columns, &formats))?)
            }
            None => Ok(self.wire.put(&NoData::new())?),
        }
    }

    async fn execute(&mut self, message: Execute) -> Result<(), Failure> {
        let name = message.name.unwrap_or_default();
        // The portal is put back unless it fails.
        let mut portal = self.portals.remove(&name).ok_or_else(|| no_portal(&name))?;
        let limit = u64::try_from(message.max_rows)
            .ok()
            .filter(|rows| *rows > 0);
        self.run_portal(&mut portal, limit.unwrap_or(u64::MAX))
            .await?;
        self.portals.insert(name, portal);
        Ok(())
    }

    async fn run_portal(&mut self, portal: &mut Portal, limit: u64) -> Result<(), Failure> {
        if portal.prepared.is_empty() {
            return Ok(self.wire.put(&EmptyQueryResponse::new())?);
        }
        if portal.is_done {
            return Ok(reply::put_done(&mut self.wire, "SELECT 0")?);
        }
        if portal.running.is_none() {
            self.start_portal(portal).await?;
        }
        let Some((rows, encoder)) = &mut portal.running else {
            return Ok(());
        };
        let (count, is_last) = self.send(encoder, rows, limit).await?;
        if !is_last {
            return Ok(self.wire.put(&PortalSuspended::new())?);
        }
        let tag = rows.tag(count);
        portal.running = None;
        portal.is_done = true;
        Ok(reply::put_done(&mut self.wire, &tag)?)
    }

    /// Starts the statement of a portal. What returns no rows is done then.
    async fn start_portal(&mut self, portal: &mut Portal) -> Result<(), Failure> {
        let execute = self
            .session
            .execute(&portal.prepared, portal.parameters.clone());
        let outcome = guarded(&mut self.wire, &mut self.key, execute).await?;
        reply::put_news(&mut self.wire, &mut self.session)?;
        match outcome {
            Outcome::Done(tag) => {
                portal.is_done = true;
                Ok(reply::put_done(&mut self.wire, &tag)?)
            }
            Outcome::CopyIn(copied) => {
                portal.is_done = true;
                self.receive_copy(copied).await
            }
            Outcome::Rows(rows) => {
                if let Some(encoder) = Encoder::of_copy(&rows, &self.session)? {
                    portal.is_done = true;
                    return self.send_copy(encoder, rows).await;
                }
                let columns = portal.prepared.columns().unwrap_or(rows.schema()).clone();
                let formats = portal.formats(columns.fields().len())?;
                let encoder = Encoder::new(columns, formats, &self.session);
                portal.running = Some((rows, encoder));
                Ok(())
            }
        }
    }

    /// Answers a `MOVE` that names a portal of this protocol, as drivers send it to skip rows. Returns whether it was
    /// one.
    pub(crate) async fn move_portal(&mut self, statement: &Parsed) -> Result<bool, Failure> {
        let Some((name, count)) = statement.moved() else {
            return Ok(false);
        };
        // In a transaction that failed, the session tells the error.
        let is_usable = self.session.transaction_status() == TransactionStatus::Active
            && self
                .portals
                .get(name)
                .is_some_and(|portal| portal.prepared.columns().is_some());
        if !is_usable {
            return Ok(false);
        }
        // The portal is put back unless it fails.
        let name = name.to_owned();
        let mut portal = self.portals.remove(&name).ok_or_else(|| no_portal(&name))?;
        if portal.running.is_none() && !portal.is_done {
            self.start_portal(&mut portal).await?;
        }
        let mut passed = 0;
        if let Some((rows, encoder)) = &mut portal.running {
            passed = self.pass(encoder, rows, count).await?;
        }
        self.portals.insert(name, portal);
        reply::put_done(&mut self.wire, &format!("MOVE {passed}"))?;
        Ok(true)
    }

    /// Passes at most `limit` rows by. Returns their number.
    async fn pass(
        &mut self,
        encoder: &mut Encoder,
        rows: &mut Rows,
        limit: u64,
    ) -> Result<u64, Failure> {
        let mut count = 0;
        while count < limit {
            if encoder.has_rows() {
                count += encoder.pass(limit - count);
                continue;
            }
            match guarded(&mut self.wire, &mut self.key, rows.next()).await? {
                Some(batch) => encoder.begin(batch)?,
                None => break,
            }
        }
        Ok(count)
    }

    fn close(&mut self, message: &Close) -> Result<(), Failure> {
        let name = message.name.as_deref().unwrap_or_default();
        match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => {
                self.session.remove_statement(name);
                self.types.remove(name);
            }
            _ => {
                self.portals.remove(name);
            }
        }
        Ok(self.wire.put(&CloseComplete::new())?)
    }

    /// Ends a sequence of messages. Outside a transaction, portals end with it.
    pub(crate) fn end_of_extended(&mut self) {
        if self.session.transaction_status() == TransactionStatus::Idle {
            self.portals.clear();
        }
        if self.types.len() > PORTALS_MAX {
            // Statements that DEALLOCATE forgot.
            let session = &self.session;
            self.types.retain(|name, _| session.statement(name).is_ok());
        }
    }
}

/// Returns the type that a client declares; `None` if it leaves the choice to the server.
fn declared(oid: &u32) -> Option<Type> {
    Type::from_oid(*oid).filter(|declared| *declared != Type::UNKNOWN)
}

/// Returns the type with which a parameter is planned. The value of a `numeric` tells its precision and scale.
fn planned(declared: &Type) -> Option<DataType> {
    let numeric = DataType::Decimal128(DECIMAL128_MAX_PRECISION, DECIMAL_DEFAULT_SCALE);
    match *declared {
        Type::NUMERIC => Some(numeric),
        Type::NUMERIC_ARRAY => Some(DataType::new_list(numeric, true)),
        _ => types::arrow_type(declared),
    }
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new(
        Code::InvalidCursorName,
        format!("portal \"{name}\" does not exist"),
    )
}
