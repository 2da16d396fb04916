//! `endSessions`, `refreshSessions`, `startSession`, `killSessions`, `killAllSessions`, `killAllSessionsByPattern`.
//!
//! The server stores no object for a session. It stores the session's id beside each of its open cursors and commands
//! in progress, and beside the outcomes of its last retryable write.

use std::collections::HashSet;

use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, RawDocument, rawdoc};

use crate::arguments::{Arguments, Known, invalid_bson, wrong_type};
use crate::command::User;
use crate::cursors::Owner;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::places::blocking;
use crate::request::Request;
use crate::retry::session_key;
use crate::sessions::{SessionId, session_id};

/// Fields of an entry of `killAllSessions`.
const USER: Known = Known::Only(&["user", "db"]);
/// Fields of an entry of `killAllSessionsByPattern`.
const PATTERN: Known = Known::Only(&["lsid", "uid", "users", "roles"]);
/// Minutes after which a driver must treat a session as expired.
const SESSION_TIMEOUT_MINUTES: i32 = 30;

/// `endSessions`: ends sessions and closes their cursors.
pub const END: Spec = Spec {
    name: "endSessions",
    help: "ends sessions and closes their cursors",
    known: Known::Only(&[]),
    effect: Effect::Reads,
    run: Run::Now(end),
};

/// `killSessions`: closes the cursors and stops the commands of the listed sessions of the client. An empty list means
/// all of the client's sessions.
pub const KILL: Spec = Spec {
    name: "killSessions",
    help: "stops the operations of some of the user's sessions",
    run: Run::Now(kill),
    ..END
};

/// `killAllSessions`: closes the cursors and stops the commands of all sessions, or of the sessions of some users.
pub const KILL_ALL: Spec = Spec {
    name: "killAllSessions",
    help: "stops the operations in the sessions of some or all users",
    run: Run::Now(kill_all),
    ..END
};

/// `killAllSessionsByPattern`: closes the cursors and stops the commands of all sessions, or of those that match a
/// pattern.
pub const KILL_BY_PATTERN: Spec = Spec {
    name: "killAllSessionsByPattern",
    help: "stops the operations in some or all sessions",
    run: Run::Now(kill_by_pattern),
    ..END
};

/// `refreshSessions`: does nothing, because sessions do not expire.
pub const REFRESH: Spec = Spec {
    name: "refreshSessions",
    help: "keeps sessions alive",
    known: Known::Only(&[]),
    effect: Effect::Reads,
    run: Run::Now(refresh),
};

/// `startSession`: returns a new session id.
pub const START: Spec = Spec {
    name: "startSession",
    help: "starts a session",
    known: Known::Only(&[]),
    effect: Effect::Reads,
    run: Run::Now(start),
};

/// Reads the entries of the command's array.
fn entries<'a, T>(
    request: &Request<'a>,
    read: impl Fn(&'a RawDocument) -> Result<T, CommandError>,
) -> Result<Vec<T>, CommandError> {
    let name = request.command.name.as_str();
    let array = request
        .arguments
        .array(name)?
        .ok_or_else(|| request.arguments.missing(name))?;
    let entry = |value: Result<RawBsonRef<'a>, _>| {
        let value = value.map_err(|error| invalid_bson(&error))?;
        let entry = value.as_document();
        read(entry.ok_or_else(|| wrong_type(name, value, "object"))?)
    };
    array.into_iter().map(entry).collect()
}

fn named_sessions(request: &Request<'_>) -> Result<HashSet<SessionId>, CommandError> {
    Ok(HashSet::from_iter(entries(request, session_id)?))
}

fn end(request: &Request<'_>) -> Reply {
    let sessions = named_sessions(request)?;
    let user = request.client.user.as_ref();
    request.documents.cursors().kill_sessions(user, &sessions);
    if let Some(writes) = request.documents.store().retryable_writes() {
        let keys = sessions.iter().map(|session| session_key(session, user));
        blocking(|| writes.end(&keys.collect::<Vec<_>>()))?;
    }
    Ok(rawdoc! { "ok": 1.0 })
}

fn kill(request: &Request<'_>) -> Reply {
    let sessions = named_sessions(request)?;
    let user = &request.client.user;
    stop(request, |owner| {
        let session = owner.session.as_ref();
        let named = session.is_some_and(|id| sessions.is_empty() || sessions.contains(id));
        owner.user == *user && named
    })
}

fn kill_all(request: &Request<'_>) -> Reply {
    let users: HashSet<User> = HashSet::from_iter(entries(request, |entry| {
        let arguments = Arguments::parse_nested("killAllSessions", entry, USER)?;
        Ok(User {
            name: arguments.required_string("user")?.to_owned(),
            db: arguments.required_string("db")?.to_owned(),
        })
    })?);
    stop(request, |owner| {
        let named = |user: &User| users.contains(user);
        owner.session.is_some() && (users.is_empty() || owner.user.as_ref().is_some_and(named))
    })
}

fn kill_by_pattern(request: &Request<'_>) -> Reply {
    let sessions: HashSet<SessionId> = HashSet::from_iter(entries(request, |entry| {
        let arguments = Arguments::parse_nested("killAllSessionsByPattern", entry, PATTERN)?;
        arguments.unsupported(&["uid", "users", "roles"])?;
        session_id(arguments.required_document("lsid")?)
    })?);
    stop(request, |owner| {
        let named = |id: &SessionId| sessions.is_empty() || sessions.contains(id);
        owner.session.as_ref().is_some_and(named)
    })
}

/// Closes the cursors of the owners for which `is_meant` returns true, and stops their commands, except this command.
fn stop(request: &Request<'_>, is_meant: impl Fn(&Owner) -> bool) -> Reply {
    request.documents.cursors().kill_owned(&is_meant);
    let operations = request.documents.operations();
    operations.kill_owned(&request.operation, &is_meant);
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
