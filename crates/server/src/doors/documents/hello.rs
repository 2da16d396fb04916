//! `hello` and its older names: the first command of drivers, which drivers repeat every ten seconds.
//!
//! The server describes itself as a standalone, or as the only member of a replica set. With a replica set, drivers
//! retry writes after a lost connection, and the server keeps outcomes of writes (decision 0018).
//!
//! Drivers that support `topologyVersion` send a hello whose reply may wait for the next topology change. The only such
//! change is the shutdown of the server, at which the server replies at once.

use std::time::Duration;

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_wire_mongo::hello::{WIRE_VERSION_MAX, append_compression};
pub use forebay_wire_mongo::hello::{is_hello, unsupported_query};
use forebay_wire_mongo::limits;

use super::sasl;
use super::session::Session;
use super::{Code, Door, Refusal, dispatch};

/// Timeout of an idle session.
const SESSION_TIMEOUT_MINUTES: i32 = 30;

/// Maximum time for which a reply is delayed.
const AWAIT_TIME_MAX: Duration = Duration::from_secs(60);

/// Returns how long the reply to this hello is delayed while nothing changes; `None` to reply at once.
///
/// # Errors
/// Code 31368 if only one of `topologyVersion` and `maxAwaitTimeMS` is set, 31373 or 31382 if a value is invalid.
pub fn await_time(door: &Door, body: &RawDocument) -> Result<Option<Duration>, Refusal> {
    let known = body.get_document("topologyVersion").ok();
    let max_await_ms = body.get("maxAwaitTimeMS").ok().flatten().and_then(integer);
    let (known, max_await_ms) = match (known, max_await_ms) {
        (None, None) => return Ok(None),
        (Some(known), Some(max_await_ms)) => (known, max_await_ms),
        _ => {
            let message = "topologyVersion and maxAwaitTimeMS must be used together";
            return Err(Refusal::new(Code::AwaitIncomplete, message));
        }
    };
    let max_await_ms = u64::try_from(max_await_ms).map_err(|_| {
        let message = "maxAwaitTimeMS must be a non-negative integer";
        Refusal::new(Code::AwaitNegative, message)
    })?;
    if known.get_object_id("processId").ok() != Some(door.run) {
        return Ok(None);
    }
    let (theirs, ours) = (known.get_i64("counter").unwrap_or(0), counter(door));
    if theirs > ours {
        let message = format!(
            "Received a topology version with counter: {theirs} which is greater than the server topology version \
             counter: {ours}"
        );
        return Err(Refusal::new(Code::TopologyAhead, message));
    }
    let await_time = Duration::from_millis(max_await_ms).min(AWAIT_TIME_MAX);
    Ok((theirs == ours).then_some(await_time))
}

/// Returns whether the client wants several replies to one hello.
pub fn is_stream(body: &RawDocument) -> bool {
    body.get_document("topologyVersion").is_ok()
}

/// Returns the next hello of a stream: a copy with the current `topologyVersion`.
pub fn next(body: &RawDocument, door: &Door) -> RawDocumentBuf {
    let mut next = RawDocumentBuf::new();
    for (name, value) in body.into_iter().flatten() {
        match name.as_str() {
            "topologyVersion" => next.append(name, topology_version(door)),
            _ => next.append(name, value),
        }
    }
    next
}

fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        RawBsonRef::Double(number) => Some(number as i64),
        _ => None,
    }
}

/// Returns the number of topology changes so far: 0, or 1 once the server is stopping.
fn counter(door: &Door) -> i64 {
    i64::from(door.documents.is_stopping())
}

fn topology_version(door: &Door) -> RawDocumentBuf {
    rawdoc! { "processId": door.run, "counter": counter(door) }
}

/// Returns the error reply for a hello while the server is stopping. A driver that receives it looks for another
/// server, or tries this one again.
fn stopping_reply(door: &Door) -> RawDocumentBuf {
    let message = "The server is in quiesce mode and will shut down";
    let mut reply = Refusal::new(Code::ShutdownInProgress, message).to_reply();
    reply.append(cstr!("topologyVersion"), topology_version(door));
    reply
}

/// Returns the reply to hello, including the first step of authentication if the client requests it.
pub fn reply(door: &Door, session: &mut Session, name: &str, body: &RawDocument) -> RawDocumentBuf {
    if door.documents.is_stopping() {
        return stopping_reply(door);
    }
    if let Ok(metadata) = body.get_document("client") {
        session.set_app_name(metadata);
    }
    let mut reply = RawDocumentBuf::new();
    if body.get_bool("helloOk").unwrap_or(false) {
        reply.append(cstr!("helloOk"), true);
    }
    match name {
        "hello" => reply.append(cstr!("isWritablePrimary"), true),
        _ => reply.append(cstr!("ismaster"), true),
    }
    reply.append(cstr!("topologyVersion"), topology_version(door));
    if let Some(replica_set) = &door.replica_set {
        replica_set.append_to(&mut reply, session);
    }
    append_limits(&mut reply, session);
    append_compression(&mut reply, body);
    append_mechanisms(&mut reply, body);
    append_speculation(&mut reply, door, session, body);
    reply.append(cstr!("ok"), 1.0);
    reply
}

fn append_limits(reply: &mut RawDocumentBuf, session: &Session) {
    reply.append(
        cstr!("maxBsonObjectSize"),
        limits::DOCUMENT_BYTES_MAX as i32,
    );
    reply.append(
        cstr!("maxMessageSizeBytes"),
        limits::MESSAGE_BYTES_MAX as i32,
    );
    reply.append(cstr!("maxWriteBatchSize"), limits::WRITE_BATCH_MAX as i32);
    reply.append(cstr!("localTime"), bson::DateTime::now());
    reply.append(
        cstr!("logicalSessionTimeoutMinutes"),
        SESSION_TIMEOUT_MINUTES,
    );
    reply.append(
        cstr!("connectionId"),
        i32::try_from(session.client.connection_id).unwrap_or(i32::MAX),
    );
    reply.append(cstr!("minWireVersion"), 0);
    reply.append(cstr!("maxWireVersion"), WIRE_VERSION_MAX);
    reply.append(cstr!("readOnly"), false);
}

/// Adds the authentication mechanisms if the client asks which ones a user has. The answer is the same for unknown
/// users, so that clients cannot find out which users exist.
fn append_mechanisms(reply: &mut RawDocumentBuf, body: &RawDocument) {
    if body.get_str("saslSupportedMechs").is_ok() {
        reply.append(
            cstr!("saslSupportedMechs"),
            RawArrayBuf::from_iter([sasl::MECHANISM]),
        );
    }
}

/// Runs the first step of authentication if the hello contains it. If the step succeeds, adds its reply to the reply to
/// the hello. Otherwise the client authenticates with separate commands.
fn append_speculation(
    reply: &mut RawDocumentBuf,
    door: &Door,
    session: &mut Session,
    body: &RawDocument,
) {
    let Ok(start) = body.get_document("speculativeAuthenticate") else {
        return;
    };
    let db = start.get_str("db").unwrap_or("admin");
    if let Ok(step) = sasl::start(&door.documents, &door.secret, db, start) {
        reply.append(
            cstr!("speculativeAuthenticate"),
            dispatch::apply_step(session, step),
        );
    }
}
