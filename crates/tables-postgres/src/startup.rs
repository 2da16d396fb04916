//! The beginning of a connection: encryption, the session's settings, and the login.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use forebay_net::Stream;
use forebay_tables::{Code, Session, SqlError};
use pgwire::messages::PgWireFrontendMessage;
use pgwire::messages::startup::{
    Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey,
};

use crate::door::{Access, Door, Key};
use crate::reply;
use crate::wire::{ConnectionError, Wire};

const MECHANISM: &str = "SCRAM-SHA-256";
const SSL_REQUEST: i32 = 80_877_103;
const GSS_REQUEST: i32 = 80_877_104;
const CANCEL_REQUEST: i32 = 80_877_102;
/// Protocol 3.0, which all clients speak.
const PROTOCOL: i32 = 3 << 16;
/// The database, and a name that clients use that name none.
const DATABASE: &str = "forebay";
const DATABASE_ALIAS: &str = "postgres";

/// How a connection began.
pub(crate) enum Begun {
    /// The client only cancelled a statement, or left.
    Nothing,
    /// A session.
    Session(Box<Start>),
}

/// The parts of a connection that has begun.
pub(crate) struct Start {
    pub(crate) wire: Wire,
    pub(crate) session: Session,
    pub(crate) key: Key,
    /// `None` if clients need not log in.
    pub(crate) identity: Option<Identity>,
}

/// A logged-in user.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) user: String,
    pub(crate) credentials: String,
    /// Number of changes of users when the rights were read.
    pub(crate) changes: u64,
}

/// Serves the beginning of a connection.
///
/// # Errors
/// If the client breaks the protocol, or may not log in.
pub(crate) async fn begin(
    door: &Arc<Door>,
    mut wire: Wire,
    sender: IpAddr,
) -> Result<Begun, ConnectionError> {
    let mut is_encrypted = false;
    loop {
        let Some(mut packet) = wire.first_packet().await? else {
            return Ok(Begun::Nothing);
        };
        let code = packet.try_get_i32().unwrap_or(0);
        match code {
            SSL_REQUEST if door.tls.is_some() && !is_encrypted => {
                wire = encrypted(door, wire).await?;
                is_encrypted = true;
            }
            SSL_REQUEST | GSS_REQUEST => {
                wire.out.extend_from_slice(b"N");
                wire.flush().await?;
            }
            CANCEL_REQUEST => {
                if let (Ok(number), Ok(secret)) = (packet.try_get_i32(), packet.try_get_i32()) {
                    door.cancel(number, secret);
                }
                return Ok(Begun::Nothing);
            }
            version => {
                if !is_encrypted && door.tls.is_some() {
                    let message = "this server takes only encrypted connections";
                    let error = SqlError::new(Code::InvalidAuthorization, message);
                    return refuse(wire, error.with_hint("connect with sslmode=require")).await;
                }
                return start(door, wire, sender, version, packet).await;
            }
        }
    }
}

async fn encrypted(door: &Door, mut wire: Wire) -> Result<Wire, ConnectionError> {
    wire.out.extend_from_slice(b"S");
    wire.flush().await?;
    let stream = wire.into_stream()?;
    match &door.tls {
        Some(tls) => {
            let stream: Box<dyn Stream> = Box::new(tls.accept(stream).await?);
            Ok(Wire::new(stream, &door.settings))
        }
        None => Err(ConnectionError::Protocol("no TLS".to_owned())),
    }
}

/// Tells the client why it is refused, and ends the connection.
async fn refuse<T>(mut wire: Wire, error: SqlError) -> Result<T, ConnectionError> {
    wire.put(&reply::fatal(&error))?;
    wire.flush().await?;
    Err(ConnectionError::Refused(error.message))
}

async fn start(
    door: &Arc<Door>,
    mut wire: Wire,
    sender: IpAddr,
    version: i32,
    packet: BytesMut,
) -> Result<Begun, ConnectionError> {
    if version >> 16 != PROTOCOL >> 16 {
        let message = format!(
            "unsupported frontend protocol {}.{}",
            version >> 16,
            version & 0xffff
        );
        return refuse(wire, SqlError::new(Code::FeatureNotSupported, message)).await;
    }
    let parameters = match parameters(&packet) {
        Some(parameters) => parameters,
        None => {
            return Err(ConnectionError::Protocol(
                "the startup packet is malformed".to_owned(),
            ));
        }
    };
    let extensions = parameters.keys().filter(|name| name.starts_with("_pq_."));
    let extensions: Vec<String> = extensions.cloned().collect();
    if version != PROTOCOL || !extensions.is_empty() {
        wire.put(&NegotiateProtocolVersion::new(PROTOCOL, extensions))?;
    }
    let Some(user) = parameters.get("user").filter(|user| !user.is_empty()) else {
        let message = "no PostgreSQL user name specified in startup packet";
        return refuse(wire, SqlError::new(Code::InvalidAuthorization, message)).await;
    };
    let (mut access, mut identity) = (Access::Write, None);
    if door.users.are_required() {
        let logged_in;
        (wire, logged_in, access) = log_in(door, wire, user, sender).await?;
        identity = Some(logged_in);
    }
    let mut session = door.tables.session(user);
    session.set_read_only(access == Access::Read);
    if let Err(error) = set_up(&mut session, user, &parameters) {
        return refuse(wire, error).await;
    }
    wire.allow_large_messages();
    let key = door.register();
    session.set_process(key.number);
    wire.put(&Authentication::Ok)?;
    session.take_changed();
    for (name, value) in session.reported() {
        wire.put(&ParameterStatus::new(name.to_owned(), value))?;
    }
    wire.put(&BackendKeyData::new(key.number, SecretKey::I32(key.secret)))?;
    reply::put_ready(&mut wire, &session)?;
    Ok(Begun::Session(Box::new(Start {
        wire,
        session,
        key,
        identity,
    })))
}

/// Returns the names and values of a startup packet; `None` if it is malformed.
fn parameters(packet: &[u8]) -> Option<BTreeMap<String, String>> {
    let mut texts = packet.split(|byte| *byte == 0);
    let mut parameters = BTreeMap::new();
    loop {
        let name = std::str::from_utf8(texts.next()?).ok()?;
        if name.is_empty() {
            return Some(parameters);
        }
        let value = std::str::from_utf8(texts.next()?).ok()?;
        parameters.insert(name.to_owned(), value.to_owned());
    }
}

/// Sets what the client's startup packet asks for.
fn set_up(
    session: &mut Session,
    user: &str,
    parameters: &BTreeMap<String, String>,
) -> Result<(), SqlError> {
    let database = parameters.get("database").map_or(user, String::as_str);
    if ![DATABASE, DATABASE_ALIAS, user].contains(&database) {
        let message = format!("database \"{database}\" does not exist");
        return Err(SqlError::new(Code::InvalidCatalogName, message)
            .with_hint(format!("connect to the database {DATABASE}")));
    }
    if parameters
        .get("replication")
        .is_some_and(|value| !matches!(&**value, "false" | "off" | "0"))
    {
        return Err(SqlError::unsupported("replication"));
    }
    for (name, value) in parameters {
        match name.as_str() {
            "user" | "database" | "replication" => {}
            "options" => {
                for (name, value) in options(value)? {
                    session.set(&name, Some(&value))?;
                }
            }
            name if name.starts_with("_pq_.") => {}
            name => session.set(name, Some(value))?,
        }
    }
    Ok(())
}

/// Returns the settings of options such as `-c statement_timeout=5s --work_mem=4MB`. A backslash quotes a blank.
fn options(text: &str) -> Result<Vec<(String, String)>, SqlError> {
    let mut words = words(text).into_iter();
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        let setting = if word == "-c" {
            words.next().unwrap_or_default()
        } else {
            let long = word.strip_prefix("--").or_else(|| word.strip_prefix("-c"));
            long.unwrap_or_default().to_owned()
        };
        let Some((name, value)) = setting.split_once('=') else {
            let message = format!("the option \"{word}\" is not of the form -c NAME=VALUE");
            return Err(SqlError::new(Code::SyntaxError, message));
        };
        settings.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(settings)
}

fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let word = words.last_mut().expect("there is always a word");
        match letter {
            '\\' => word.extend(letters.next()),
            letter if letter.is_whitespace() => words.push(String::new()),
            letter => word.push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Runs SCRAM-SHA-256.
async fn log_in(
    door: &Door,
    mut wire: Wire,
    user: &str,
    sender: IpAddr,
) -> Result<(Wire, Identity, Access), ConnectionError> {
    let failed = || {
        let message = format!("password authentication failed for user \"{user}\"");
        SqlError::new(Code::InvalidPassword, message)
    };
    wire.put(&Authentication::SASL(vec![MECHANISM.to_owned()]))?;
    wire.flush().await?;
    let Some(PgWireFrontendMessage::PasswordMessageFamily(message)) = wire.next().await? else {
        return Err(ConnectionError::Protocol("no SASL message".to_owned()));
    };
    let first = message.into_sasl_initial_response()?;
    if first.auth_method != MECHANISM {
        let error = SqlError::unsupported(format!("the mechanism {}", first.auth_method));
        return refuse(wire, error).await;
    }
    let first = first.data.unwrap_or_default();
    let started = tokio::task::block_in_place(|| door.users.login(user, &first));
    let (login, message) = match started {
        Ok(started) => started,
        Err(message) => {
            return refuse(wire, SqlError::new(Code::InvalidAuthorization, message)).await;
        }
    };
    wire.put(&Authentication::SASLContinue(Bytes::from(message)))?;
    wire.flush().await?;
    let Some(PgWireFrontendMessage::PasswordMessageFamily(message)) = wire.next().await? else {
        return Err(ConnectionError::Protocol("no SASL message".to_owned()));
    };
    let last = message.into_sasl_response()?;
    let Some(proof) = login.finish(&last.data) else {
        let delay = door.users.wrong_password(user, sender);
        tokio::time::sleep(delay).await;
        return refuse(wire, failed()).await;
    };
    wire.put(&Authentication::SASLFinal(Bytes::from(proof.message)))?;
    let identity = Identity {
        user: user.to_owned(),
        credentials: proof.credentials,
        changes: door.users.changes(),
    };
    let access = tokio::task::block_in_place(|| door.users.access(user, &identity.credentials));
    match access {
        Some(access) => Ok((wire, identity, access)),
        None => {
            let message = format!("the user \"{user}\" has no role for tables");
            let error = SqlError::new(Code::InsufficientPrivilege, message);
            refuse(
                wire,
                error.with_hint("give it a role of all databases, such as readAnyDatabase"),
            )
            .await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_packets_have_names_and_values() {
        let found = parameters(b"user\0ada\0database\0forebay\0\0").expect("well formed");
        assert_eq!(found.get("user").map(String::as_str), Some("ada"));
        assert_eq!(found.len(), 2);
        for malformed in [&b""[..], b"user", b"user\0", b"user\0ada", b"\xff\0a\0\0"] {
            let found = parameters(malformed);
            assert!(
                found.is_none() || malformed.is_empty(),
                "{malformed:?}: {found:?}"
            );
        }
    }

    #[test]
    fn options_are_settings() {
        let found =
            options("-c statement_timeout=5s --work-mem=4MB -cx=a\\ b").expect("well formed");
        let found: Vec<String> = found
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(found, ["statement_timeout=5s", "work_mem=4MB", "x=a b"]);
        options("-x").expect_err("no setting");
    }
}
