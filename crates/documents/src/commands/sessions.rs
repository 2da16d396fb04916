//! `endSessions`, `refreshSessions`, `killSessions`, `startSession`: a session is only its id here, so little is to do.

use bson::spec::BinarySubtype;
use bson::{Binary, rawdoc};

use crate::arguments::{Known, invalid_bson, wrong_type};
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::request::Request;
use crate::sessions::{SessionId, session_id};

/// Minutes after which a driver has to take a session for dead.
const SESSION_TIMEOUT_MINUTES: i32 = 30;

/// `endSessions`: forgets sessions and closes their cursors.
pub const END: Spec = Spec {
    name: "endSessions",
    help: "forgets sessions",
    known: Known::Only(&[]),
    effect: Effect::Reads,
    run: Run::Now(end),
};

/// `killSessions`: the same.
pub const KILL: Spec = Spec {
    name: "killSessions",
    help: "forgets sessions",
    ..END
};

/// `refreshSessions`: sessions do not expire.
pub const REFRESH: Spec = Spec {
    name: "refreshSessions",
    help: "keeps sessions alive",
    known: Known::Only(&[]),
    effect: Effect::Reads,
    run: Run::Now(refresh),
};

/// `startSession`: gives a new id.
pub const START: Spec = Spec {
    name: "startSession",
    help: "starts a session",
    known: Known::Only(&[]),
    effect: Effect::Reads,
    run: Run::Now(start),
};

fn named_sessions(request: &Request<'_>) -> Result<Vec<SessionId>, CommandError> {
    let name = request.command.name.as_str();
    let array = request
        .arguments
        .array(name)?
        .ok_or_else(|| request.arguments.missing(name))?;
    let mut sessions = Vec::new();
    for value in array {
        let value = value.map_err(|error| invalid_bson(&error))?;
        let lsid = value
            .as_document()
            .ok_or_else(|| wrong_type(name, value, "object"))?;
        sessions.push(session_id(lsid)?);
    }
    Ok(sessions)
}

fn end(request: &Request<'_>) -> Reply {
    let sessions = named_sessions(request)?;
    let user = request.client.user.as_ref();
    request.documents.cursors().kill_sessions(user, &sessions);
    Ok(rawdoc! { "ok": 1.0 })
}

fn refresh(request: &Request<'_>) -> Reply {
    named_sessions(request)?;
    Ok(rawdoc! { "ok": 1.0 })
}

fn start(_: &Request<'_>) -> Reply {
    let mut bytes = fastrand::u128(..).to_be_bytes();
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    let id = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: bytes.to_vec(),
    };
    Ok(rawdoc! { "id": { "id": id }, "timeoutMinutes": SESSION_TIMEOUT_MINUTES, "ok": 1.0 })
}
