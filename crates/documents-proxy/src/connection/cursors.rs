//! Runs commands on cursors that belong to replicas.
//!
//! Clients see negative ids for replicas' cursors, to distinguish them from the upstream's cursors: MongoDB, FerretDB
//! and Forebay use positive cursor ids. A router may use negative ids too. A command with a negative id that no replica
//! knows is therefore passed on.

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_documents::{Namespace, namespace};
use forebay_wire_mongo::{Flags, Peek};

use super::commands::decode;
use super::reads::{plain, with_field};
use super::{Connection, FrameError, Next, Request};
use crate::replicas::succeeded;

/// Error code CursorNotFound.
const CURSOR_NOT_FOUND: i32 = 43;

impl Connection {
    /// Runs a command for which [`concerns_replicas`] returns true.
    pub(super) async fn cursor_command(&mut self, request: Request) -> Result<Next, FrameError> {
        let Some(message) = decode(&request.bytes) else {
            return self.exchange_if_there(request).await;
        };
        let body = &message.body;
        let name = body.iter_elements().next().and_then(Result::ok);
        match name.map_or("", |name| name.key().as_str()) {
            "getMore" => self.get_more(request, body).await,
            "killCursors" => self.kill_cursors(request, body).await,
            _ => {
                self.run_on_replica(body, plain(body)).await;
                self.exchange_if_there(request).await
            }
        }
    }

    /// Answers with the next batch, if the client may read the collection.
    async fn get_more(&mut self, request: Request, body: &RawDocument) -> Result<Next, FrameError> {
        let db = body.get_str("$db").unwrap_or_default();
        let collection = body.get_str("collection").unwrap_or_default();
        let namespace = namespace::checked(db, collection).ok();
        let may_read = match namespace.and_then(|namespace| self.replicas.find(&namespace)) {
            Some(replica) => self.prove_read(&replica).await?,
            None => false,
        };
        if may_read {
            let id = first_number(body).unwrap_or(0).wrapping_neg();
            let mut more = rawdoc! { "getMore": id };
            for (name, value) in plain(body).into_iter().flatten().skip(1) {
                more.append(name, value);
            }
            let reply = self.run_on_replica(body, more).await;
            if reply.get_i32("code").unwrap_or(0) != CURSOR_NOT_FOUND {
                return self.respond(renumbered(reply), &request).await;
            }
        }
        self.exchange_if_there(request).await
    }

    /// Closes replicas' cursors, and makes the upstream close the others. Needs no proof of rights, because cursor ids
    /// cannot be guessed.
    async fn kill_cursors(
        &mut self,
        request: Request,
        body: &RawDocument,
    ) -> Result<Next, FrameError> {
        let own = numbers(body).filter(|id| is_of_replica(*id));
        let kill = with_cursors(&plain(body), own.map(i64::wrapping_neg));
        let reply = self.run_on_replica(body, kill).await;
        let killed = reply.get_array("cursorsKilled").into_iter().flatten();
        let killed: Vec<i64> = killed
            .filter_map(|id| Some(id.ok()?.as_i64()?.wrapping_neg()))
            .collect();
        let others: Vec<i64> = numbers(body).filter(|id| !killed.contains(id)).collect();
        let reply_of_others = if others.is_empty() || self.is_cut_off {
            let none = RawArrayBuf::new;
            rawdoc! {
                "cursorsKilled": none(), "cursorsNotFound": RawArrayBuf::from_iter(others), "cursorsAlive": none(),
                "cursorsUnknown": none(), "ok": 1.0,
            }
        } else {
            let kill = with_cursors(body, others.into_iter());
            match self.ask_as_client(kill).await? {
                Some(reply_of_others) => reply_of_others,
                None => return Ok(Next::Close),
            }
        };
        self.respond(with_killed(&reply_of_others, killed), &request)
            .await
    }

    /// Closes the cursor of a reply that is not sent to the client.
    pub(super) async fn close(&self, namespace: &Namespace, reply: &RawDocument) {
        if let Some(id) = open_cursor(reply) {
            let cursors = RawArrayBuf::from_iter([id.wrapping_neg()]);
            let kill = rawdoc! { "killCursors": namespace.collection.as_str(), "cursors": cursors };
            // Ignores an error: the cursor may already be closed.
            let run = self.replicas.run_for(&self.client, &namespace.db, kill);
            drop(run.await);
        }
    }

    /// Runs `command` for the client on a replica, in the database of the client's command `asked`.
    async fn run_on_replica(&self, asked: &RawDocument, command: RawDocumentBuf) -> RawDocumentBuf {
        let db = asked.get_str("$db").unwrap_or_default();
        let client = &self.client;
        self.replicas.run_for(client, db, command).await
    }

    /// Passes a command on, or refuses it if the client is cut off from the upstream.
    async fn exchange_if_there(&mut self, request: Request) -> Result<Next, FrameError> {
        if self.is_cut_off {
            self.refuse_away(&request).await
        } else {
            self.exchange(request, Flags::default()).await
        }
    }
}

/// Returns whether a command is about cursors or sessions that may belong to replicas.
pub fn concerns_replicas(asked: &Peek<'_>) -> bool {
    if asked.flags.has(Flags::MORE_TO_COME) {
        return false;
    }
    match asked.command() {
        "getMore" => first_number(asked.body).is_some_and(is_of_replica),
        "killCursors" => numbers(asked.body).any(is_of_replica),
        // An empty list means all sessions of the client. Only the upstream knows which sessions those are.
        "endSessions" | "killSessions" => names_some(asked.body),
        _ => false,
    }
}

/// Returns a replica's reply with the cursor id that the client sees.
pub fn renumbered(reply: RawDocumentBuf) -> RawDocumentBuf {
    let Some(id) = open_cursor(&reply) else {
        return reply;
    };
    with_field(&reply, "cursor", |cursor| match cursor {
        RawBsonRef::Document(cursor) => {
            with_field(cursor, "id", |_| RawBson::Int64(id.wrapping_neg())).into()
        }
        cursor => cursor.into(),
    })
}

/// Returns the cursor id of a reply, if more batches follow.
pub fn open_cursor(reply: &RawDocument) -> Option<i64> {
    let cursor = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_i64("id"));
    cursor.ok().filter(|id| *id != 0)
}

fn is_of_replica(id: i64) -> bool {
    id < 0
}

fn first_number(body: &RawDocument) -> Option<i64> {
    body.into_iter().next()?.ok()?.1.as_i64()
}

/// Returns whether a command names at least one session.
fn names_some(body: &RawDocument) -> bool {
    let sessions = body.into_iter().next().and_then(Result::ok);
    let sessions = sessions.and_then(|(_, value)| value.as_array());
    sessions.is_some_and(|sessions| !sessions.is_empty())
}

/// Returns the cursor ids in a `killCursors`.
fn numbers(body: &RawDocument) -> impl Iterator<Item = i64> {
    let cursors = body.get_array("cursors").into_iter().flatten();
    cursors.filter_map(|id| id.ok()?.as_i64())
}

/// Returns the `killCursors` with `cursors` in place of its own cursor ids.
fn with_cursors(body: &RawDocument, cursors: impl Iterator<Item = i64>) -> RawDocumentBuf {
    let mut changed = RawDocumentBuf::new();
    let others = body.into_iter().flatten();
    for (name, value) in others.filter(|(name, _)| name.as_str() != "cursors") {
        changed.append(name, value);
    }
    changed.append(cstr!("cursors"), RawArrayBuf::from_iter(cursors));
    changed
}

/// Returns the reply to a `killCursors` with the closed cursors `more` added.
fn with_killed(reply: &RawDocument, more: Vec<i64>) -> RawDocumentBuf {
    if !succeeded(reply) {
        return reply.to_owned();
    }
    let mut changed = RawDocumentBuf::new();
    for (name, value) in reply.into_iter().flatten() {
        match value {
            RawBsonRef::Array(killed) if name.as_str() == "cursorsKilled" => {
                let mut all: RawArrayBuf = killed.into_iter().flatten().collect();
                more.iter().for_each(|id| all.push(*id));
                changed.append(name, all);
            }
            value => changed.append(name, value),
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_of_replicas_have_negative_numbers_for_clients() {
        let reply = |id: i64| rawdoc! { "cursor": { "firstBatch": [{ "_id": 1 }], "id": id, "ns": "d.c" }, "ok": 1.0 };
        assert_eq!(renumbered(reply(0)), reply(0));
        assert_eq!(renumbered(reply(7)), reply(-7));
        assert_eq!(open_cursor(&reply(-7)), Some(-7));
        let killed = rawdoc! { "cursorsKilled": [5i64], "ok": 1.0 };
        let all = rawdoc! { "cursorsKilled": [5i64, -7i64], "ok": 1.0 };
        assert_eq!(with_killed(&killed, vec![-7]), all);
        let kill = rawdoc! { "killCursors": "c", "cursors": [5i64, -7i64], "$db": "d" };
        assert_eq!(
            numbers(&kill)
                .filter(|id| is_of_replica(*id))
                .collect::<Vec<_>>(),
            [-7]
        );
    }
}
