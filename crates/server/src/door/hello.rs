//! `hello` and its elder names: what drivers ask first, and then every ten seconds.
//!
//! The server describes itself as a standalone. It does not pose as a router, which would make drivers repeat writes
//! on their own after a lost connection: what is needed to recognise a repeated write does not outlive the process, so
//! after a crash the write would be applied twice. `topologyVersion` is left out so that drivers poll.

use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_wire_mongo::{Compressor, limits};

use super::Door;
use super::dispatch;
use super::session::Session;
use crate::auth::sasl;

/// The newest wire version: MongoDB 7.0.
pub const WIRE_VERSION_MAX: i32 = 21;
/// How long a session without commands lives.
const SESSION_TIMEOUT_MINUTES: i32 = 30;

/// The names of the command.
pub const NAMES: [&str; 3] = ["hello", "isMaster", "ismaster"];

/// True for the names of the command.
pub fn is_hello(command: &str) -> bool {
    NAMES.contains(&command)
}

/// Answers hello; authentication may ride along.
pub fn reply(door: &Door, session: &mut Session, name: &str, body: &RawDocument) -> RawDocumentBuf {
    if let Ok(metadata) = body.get_document("client") {
        session.remember(metadata);
    }
    let mut reply = RawDocumentBuf::new();
    if body.get_bool("helloOk").unwrap_or(false) {
        reply.append(cstr!("helloOk"), true);
    }
    match name {
        "hello" => reply.append(cstr!("isWritablePrimary"), true),
        _ => reply.append(cstr!("ismaster"), true),
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
        limits::USER_DOCUMENT_BYTES_MAX as i32,
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

/// The compressors that both sides know, in the client's order; no field if there are none.
pub fn append_compression(reply: &mut RawDocumentBuf, body: &RawDocument) {
    let Ok(asked) = body.get_array("compression") else {
        return;
    };
    let mut common = RawArrayBuf::new();
    for name in asked.into_iter().flatten().filter_map(|name| name.as_str()) {
        if let Some(compressor) = Compressor::from_name(name) {
            common.push(compressor.name());
        }
    }
    if !common.is_empty() {
        reply.append(cstr!("compression"), common);
    }
}

/// Users that are not there have the same mechanisms, so that nobody learns names here.
fn append_mechanisms(reply: &mut RawDocumentBuf, body: &RawDocument) {
    if body.get_str("saslSupportedMechs").is_ok() {
        reply.append(
            cstr!("saslSupportedMechs"),
            RawArrayBuf::from_iter([sasl::MECHANISM]),
        );
    }
}

/// The first step of authentication, if the client guessed the mechanism right; otherwise it starts anew.
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
            dispatch::adopt(session, step),
        );
    }
}

/// What a client that is not a driver reads in an error to `OP_QUERY`.
pub fn unsupported_query(name: &str) -> RawDocumentBuf {
    let message = format!(
        "Unsupported OP_QUERY command: {name}. The client driver may require an upgrade. For more details see \
         https://dochub.mongodb.org/core/legacy-opcode-removal"
    );
    let (code, code_name) = super::Code::UnsupportedOpQueryCommand.number_and_name();
    rawdoc! { "ok": 0.0, "errmsg": message, "code": code, "codeName": code_name }
}
