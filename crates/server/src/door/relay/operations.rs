//! Searches of shadows among the operations in progress. Their ids are names instead of numbers, so that none is taken
//! for an operation of the store.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_wire_mongo::OpMsg;
use tokio::io::{AsyncRead, AsyncWrite};

use super::indexes::{load_of, with_operations};
use super::reads::plain;
use super::{FrameError, Next, Relay, Request};
use crate::shadow::succeeded;

/// Prefix of the names. Those of a router begin with the name of a shard.
const PREFIX: &str = "forebay:";

impl<S: AsyncRead + AsyncWrite + Unpin> Relay<S> {
    /// Passes a `currentOp` on, and adds searches and loads of shadows.
    pub(super) async fn current_op(
        &mut self,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let declared = self.shadow.declared();
        let mut operations: Vec<_> = declared.iter().filter_map(|it| load_of(it)).collect();
        let asked = plain(&message.body);
        let reply = self
            .shadow
            .run_for(&self.session.client, "admin", asked)
            .await;
        let listed = reply.get_array("inprog").into_iter().flatten().flatten();
        let listed = listed.filter_map(|operation| operation.as_document());
        operations.extend(listed.filter(|it| is_search(it)).map(named));
        let amend = |reply: &mut _| with_operations(reply, &operations);
        self.amended(request, message, amend).await
    }

    /// Stops a search of a shadow, if the store lets the client list operations.
    pub(super) async fn kill_op(
        &mut self,
        request: Request,
        message: &OpMsg,
        number: i32,
    ) -> Result<Next, FrameError> {
        let db = message.body.get_str("$db").unwrap_or_default();
        let Some(seen) = self.ask_own(rawdoc! { "currentOp": 1, "$db": db }).await? else {
            return Ok(Next::Close);
        };
        if !succeeded(&seen) {
            return self.respond(seen, &request).await;
        }
        let kill = rawdoc! { "killOp": 1, "op": number };
        let reply = self.shadow.run_for(&self.session.client, db, kill).await;
        self.respond(reply, &request).await
    }
}

/// The number of the search of a shadow that a `killOp` names.
pub fn killed(body: &RawDocument) -> Option<i32> {
    body.get_str("op").ok()?.strip_prefix(PREFIX)?.parse().ok()
}

/// Is this what a client has a shadow do, other than to list operations?
fn is_search(operation: &RawDocument) -> bool {
    let command = operation.get_document("command");
    let lists = command.is_ok_and(|command| !matches!(command.get("currentOp"), Ok(None)));
    operation.get_i64("connectionId").is_ok_and(|id| id > 0) && !lists
}

fn named(operation: &RawDocument) -> RawDocumentBuf {
    let mut named = RawDocumentBuf::new();
    for (name, value) in operation.into_iter().flatten() {
        match value {
            RawBsonRef::Int32(number) if name.as_str() == "opid" => {
                named.append(name, format!("{PREFIX}{number}"));
            }
            value => named.append(name, value),
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_of_shadows_are_stopped_by_the_names_under_which_they_are_listed() {
        let operation = rawdoc! { "opid": 7, "connectionId": 3i64, "command": { "count": "c" } };
        assert!(is_search(&operation));
        let name = named(&operation);
        assert_eq!(name.get_str("opid").ok(), Some("forebay:7"));
        let kill = |op: &str| killed(&rawdoc! { "killOp": 1, "op": op });
        assert_eq!(kill("forebay:7"), Some(7));
        assert_eq!(kill("shard0:7"), None);
        assert_eq!(killed(&rawdoc! { "killOp": 1, "op": 7 }), None);
        assert!(!is_search(&rawdoc! { "connectionId": 0i64 }));
        assert!(!is_search(
            &rawdoc! { "connectionId": 3i64, "command": { "currentOp": 1 } }
        ));
    }
}
