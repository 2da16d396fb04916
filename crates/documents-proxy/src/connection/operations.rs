//! Lists replicas' searches among the operations in progress, and stops them. The operation ids of replicas' searches
//! are strings instead of numbers, to distinguish them from the upstream's operations. Also lists devices and buckets.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_wire_mongo::{OpMsg, Peek};

use super::indexes::{load_of, with_first_batch, with_operations};
use super::reads::{plain, with_field};
use super::writes::first_key;
use super::{Connection, FrameError, Next, Request};
use crate::replicas::{Replicas, first_batch, succeeded};

/// Prefix of the operation ids of replicas' searches. A router's operation ids are strings too, but begin with the name
/// of a shard.
const PREFIX: &str = "forebay:";
/// Stages that process each document independently of the others.
const ONE_BY_ONE: &[&str] = &["$match", "$addFields", "$set"];

impl Connection {
    /// Passes a `currentOp` on, and adds the replicas' searches and loads to the reply.
    pub(super) async fn current_op(
        &mut self,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let declared = self.replicas.declared();
        let mut operations: Vec<_> = declared.iter().filter_map(|it| load_of(it)).collect();
        let asked = plain(&message.body);
        let reply = self.replicas.run_for(&self.client, "admin", asked).await;
        let listed = reply.get_array("inprog").into_iter().flatten().flatten();
        let listed = listed.filter_map(|operation| operation.as_document());
        operations.extend(listed.filter(|it| is_search(it)).map(named));
        let amend = |reply: &mut _| with_operations(reply, &operations);
        self.amended(request, message, amend).await
    }

    /// Passes on an aggregation over operations. Adds the replicas' searches to the reply if each stage after
    /// `$currentOp` processes each operation independently of the others.
    pub(super) async fn aggregate_operations(
        &mut self,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let asked = plain(&message.body);
        let client = &self.client;
        let reply = self.replicas.run_for(client, "admin", asked).await;
        let operations: Vec<_> = first_batch(&reply)
            .filter(|it| is_search(it))
            .map(named)
            .collect();
        let amend = |reply: &mut _| with_first_batch(reply, &operations);
        self.amended(request, message, amend).await
    }

    /// Passes on a command that stops operations of sessions. If the upstream succeeds, runs the command on replicas
    /// too. Replicas know session ids but no users, so a command that names users stops nothing on replicas.
    pub(super) async fn kill_sessions(
        &mut self,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let asked = plain(&message.body);
        let Some(reply) = self.ask(&message, request.id()).await? else {
            return Ok(Next::Close);
        };
        if Peek::new(&reply).is_some_and(|reply| succeeded(reply.body)) {
            // Ignores an error of the replicas: the upstream has run the command, and its reply is passed on.
            drop(self.replicas.run_for(&self.client, "admin", asked).await);
        }
        self.pass(reply, &request).await
    }

    /// Lists the devices of this server, even while the upstream is away. Adding and removing devices needs rights on
    /// this server, which clients of an upstream do not have.
    pub(super) async fn devices(
        &mut self,
        request: &Request,
        body: &RawDocument,
    ) -> Result<Next, FrameError> {
        let client = &self.client;
        let reply = self.replicas.run_for(client, "admin", plain(body)).await;
        self.respond(reply, request).await
    }

    /// Lists the buckets of a replica's cached field, if the client may read the collection.
    pub(super) async fn buckets(
        &mut self,
        replicas: &Replicas,
        request: Request,
        message: &OpMsg,
    ) -> Result<Next, FrameError> {
        let field = message.body.get_str("forebayBuckets").unwrap_or_default();
        let mut declared = replicas.declared().into_iter();
        match declared.find(|replica| replica.has_cache(field)) {
            Some(replica) if self.prove_read(&replica).await? => {
                let asked = plain(&message.body);
                let reply = replicas.run_for(&self.client, "admin", asked).await;
                self.respond(reply, &request).await
            }
            _ => self.exchange(request, message.flags).await,
        }
    }

    /// Stops a replica's search, if the upstream allows the client to list operations.
    pub(super) async fn kill_op(
        &mut self,
        request: Request,
        message: &OpMsg,
        number: i32,
    ) -> Result<Next, FrameError> {
        let db = message.body.get_str("$db").unwrap_or_default();
        let Some(seen) = self
            .ask_as_client(rawdoc! { "currentOp": 1, "$db": db })
            .await?
        else {
            return Ok(Next::Close);
        };
        if !succeeded(&seen) {
            return self.respond(seen, &request).await;
        }
        let kill = rawdoc! { "killOp": 1, "op": number };
        let reply = self.replicas.run_for(&self.client, db, kill).await;
        self.respond(reply, &request).await
    }
}

/// Returns the operation number if a `killOp` names a replica's search.
pub fn killed(body: &RawDocument) -> Option<i32> {
    body.get_str("op").ok()?.strip_prefix(PREFIX)?.parse().ok()
}

/// Returns whether a `forebayDevices` only lists devices.
pub fn lists_devices(body: &RawDocument) -> bool {
    ["add", "remove"]
        .iter()
        .all(|name| matches!(body.get(name), Ok(None)))
}

/// Returns whether an aggregation lists operations and processes each operation independently of the others.
pub fn lists_operations(body: &RawDocument) -> bool {
    let stages = body.get_array("pipeline").into_iter().flatten().flatten();
    let stages = stages.map(|stage| stage.as_document().map_or("", first_key));
    let names: Vec<&str> = stages.collect();
    match names.as_slice() {
        ["$currentOp", others @ ..] => others.iter().all(|name| ONE_BY_ONE.contains(name)),
        _ => false,
    }
}

/// Returns whether `operation` is a client's command on a replica, other than a command that lists operations. Returns
/// false if the pipeline has removed the fields that show this.
fn is_search(operation: &RawDocument) -> bool {
    let command = operation.get_document("command");
    let lists = command.is_ok_and(|command| {
        !matches!(command.get("currentOp"), Ok(None)) || lists_operations(command)
    });
    operation.get_i64("connectionId").is_ok_and(|id| id > 0) && !lists
}

fn named(operation: &RawDocument) -> RawDocumentBuf {
    with_field(operation, "opid", |opid| match opid {
        RawBsonRef::Int32(number) => format!("{PREFIX}{number}").into(),
        opid => opid.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_of_replicas_are_stopped_by_their_listed_names() {
        let operation = rawdoc! { "opid": 7, "connectionId": 3i64, "command": { "count": "c" } };
        assert!(is_search(&operation));
        let name = named(&operation);
        assert_eq!(name.get_str("opid").ok(), Some("forebay:7"));
        let kill = |op: &str| killed(&rawdoc! { "killOp": 1, "op": op });
        assert_eq!(kill("forebay:7"), Some(7));
        assert_eq!(kill("shard0:7"), None);
        assert_eq!(killed(&rawdoc! { "killOp": 1, "op": 7 }), None);
        assert!(!is_search(&rawdoc! { "connectionId": 0i64 }));
        let listing =
            rawdoc! { "aggregate": 1, "pipeline": [{ "$currentOp": {} }, { "$match": {} }] };
        let counting =
            rawdoc! { "aggregate": 1, "pipeline": [{ "$currentOp": {} }, { "$count": "n" }] };
        assert!(lists_operations(&listing) && !lists_operations(&counting));
        assert!(!is_search(
            &rawdoc! { "connectionId": 3i64, "command": listing }
        ));
        assert!(!is_search(
            &rawdoc! { "connectionId": 3i64, "command": { "currentOp": 1 } }
        ));
    }
}
