//! Passes on commands about indexes and query plans, and adds the caches to the replies.

use std::sync::Arc;

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_wire_mongo::{OpMsg, Peek};

use super::cached::with_reply;
use super::commands::namespace;
use super::reads::{Answer, with_field};
use super::reasons;
use super::{Connection, FrameError, Next, Request};
use crate::replicas::pace::Wanted;
use crate::replicas::{Replica, ReplicaError, Replicas, fields, succeeded};

impl Connection {
    pub(super) async fn create_indexes(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        request: Request,
        body: &RawDocument,
    ) -> Result<Next, FrameError> {
        let indexes = body.get_array("indexes").into_iter().flatten().flatten();
        let indexes: Vec<_> = indexes
            .filter_map(|index| index.as_document().map(RawDocument::to_owned))
            .collect();
        let caches = indexes
            .iter()
            .filter(|index| fields::is_cache(index))
            .count();
        if caches < indexes.len() {
            let mixed = "one command cannot create both caches and ordinary indexes of the upstream; send two commands";
            return self.respond(cannot_create(mixed), &request).await;
        }
        if let Some(refusal) = self.prove_write(&replica.namespace).await? {
            return self.respond(refusal, &request).await;
        }
        if let Err(error) = self.wait_for(replicas.check_suitable(replica)).await? {
            return self.respond(refusal(&error), &request).await;
        }
        let create = rawdoc! {
            "createIndexes": replica.namespace.collection.as_str(), "indexes": RawArrayBuf::from_iter(indexes),
        };
        self.change_caches(replicas, replica, create, &request)
            .await
    }

    /// Runs a `dropIndexes`, which may name both caches and other indexes: drops the caches on the replica, and the
    /// other indexes at the upstream.
    pub(super) async fn drop_indexes(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let named = Named::of(&message.body, &replica.definitions());
        let Some(caches) = named.caches else {
            return self.exchange(request, message.flags).await;
        };
        let drop_caches =
            rawdoc! { "dropIndexes": replica.namespace.collection.as_str(), "index": caches };
        let Some(others) = named.others else {
            if let Some(refusal) = self.prove_write(&replica.namespace).await? {
                return self.respond(refusal, &request).await;
            }
            return self
                .change_caches(replicas, replica, drop_caches, &request)
                .await;
        };
        // The upstream's reply also tells whether the client may drop indexes. If the upstream refuses, the caches
        // stay.
        let body = with_field(&message.body, "index", |_| others.clone());
        let bytes = with_reply(OpMsg { body, ..message }).encode(request.id(), 0);
        let Some(reply) = self.ask_to_end(&bytes, request.id()).await? else {
            return Ok(Next::Close);
        };
        let Some(dropped) = Peek::new(&reply).filter(|reply| succeeded(reply.body)) else {
            return self.pass(reply, &request).await;
        };
        let lock = self.lock(replica).await?;
        let count = replica.definitions().len();
        let caches_dropped = replicas.change_caches(replica, drop_caches).await;
        drop(lock);
        match caches_dropped {
            Ok(reply) if !succeeded(&reply) => self.respond(reply, &request).await,
            Ok(_) => self.respond(counting(dropped.body, count), &request).await,
            Err(error) => self.respond(refusal(&error), &request).await,
        }
    }

    /// Runs a command that creates or drops caches.
    async fn change_caches(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        command: RawDocumentBuf,
        request: &Request,
    ) -> Result<Next, FrameError> {
        let lock = self.lock(replica).await?;
        let reply = replicas.change_caches(replica, command).await;
        drop(lock);
        let reply = reply.unwrap_or_else(|error| refusal(&error));
        self.respond(reply, request).await
    }

    /// Explains a read. If the replica would answer the read, the replica explains it. Otherwise the upstream explains
    /// it, and the reason is added to the upstream's reply.
    pub(super) async fn explain(
        &mut self,
        replicas: &Arc<Replicas>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let flags = message.flags;
        let Ok(explained) = message.body.get_document("explain") else {
            return self.exchange(request, flags).await;
        };
        let mut body = explained.to_owned();
        body.append(
            cstr!("$db"),
            message.body.get_str("$db").unwrap_or_default(),
        );
        let Some(replica) = namespace(&body).and_then(|namespace| replicas.find(&namespace)) else {
            return self.exchange(request, flags).await;
        };
        let reason = match self.answer_of(replicas, &replica, &body).await? {
            Answer::Reply(answer) => {
                self.close(&replica.namespace, &answer).await;
                let mut command = rawdoc! { "explain": explained.to_owned() };
                if let Ok(Some(verbosity)) = message.body.get("verbosity") {
                    command.append(cstr!("verbosity"), verbosity);
                }
                let (client, db) = (&self.client, &replica.namespace.db);
                let reply = replicas.run_for(client, db, command).await;
                return self.respond(reply, &request).await;
            }
            Answer::Fetch(_, wanted) => reasons::by_id(wanted, replica.measurement.pace()),
            Answer::Narrowed(_, wanted) => {
                let one_by_one = None;
                let wanted = Wanted {
                    one_by_one,
                    ..wanted
                };
                reasons::by_id(wanted, replica.measurement.pace())
            }
            Answer::Forward(reason) => {
                let client = &self.client;
                reason.text(replicas, client, &replica.namespace).await
            }
        };
        self.amended(request, message, |reply| {
            reply.append(
                cstr!("forebay"),
                rawdoc! { "answeredBy": "upstream", "reason": reason },
            );
        })
        .await
    }
}

/// The indexes that a `dropIndexes` names, divided into caches and other indexes. Each of the two parts is a value for
/// the field `index` of a separate `dropIndexes`.
#[derive(Debug, PartialEq)]
struct Named {
    /// The caches to drop, as names or as a key; `None` if the command names no cache.
    caches: Option<RawBson>,
    /// The indexes that the upstream must drop; `None` if the command names only caches.
    others: Option<RawBson>,
}

impl Named {
    /// Divides the indexes that a command names into caches and other indexes. `definitions` lists all caches.
    fn of(command: &RawDocument, definitions: &[RawDocumentBuf]) -> Named {
        let is_cache = |name: RawBsonRef<'_>| {
            let mut names = definitions.iter().map(|it| it.get_str("name").ok());
            name.as_str().is_some() && names.any(|it| it == name.as_str())
        };
        let index = command.get("index").ok().flatten();
        let (caches, others) = match index {
            Some(RawBsonRef::String("*")) => (index, index),
            Some(RawBsonRef::String(_)) if index.is_some_and(is_cache) => (index, None),
            Some(RawBsonRef::Document(key))
                if fields::is_cache(&rawdoc! { "key": key.to_owned() }) =>
            {
                (index, None)
            }
            Some(RawBsonRef::Array(names)) => {
                let names = names.into_iter().flatten();
                let (caches, others): (Vec<_>, Vec<_>) = names.partition(|name| is_cache(*name));
                let some = |names: Vec<RawBsonRef<'_>>| {
                    let all = names.into_iter().map(RawBson::from);
                    Some(RawBson::Array(RawArrayBuf::from_iter(all)))
                };
                return Named {
                    others: if others.is_empty() {
                        None
                    } else {
                        some(others)
                    },
                    caches: if caches.is_empty() {
                        None
                    } else {
                        some(caches)
                    },
                };
            }
            _ => (None, index),
        };
        Named {
            caches: caches.map(RawBson::from),
            others: others.map(RawBson::from),
        }
    }
}

/// Returns the upstream's reply to a `dropIndexes`, with the caches added to the number of indexes (`nIndexesWas`).
fn counting(reply: &RawDocument, caches: usize) -> RawDocumentBuf {
    with_field(reply, "nIndexesWas", |count| match count {
        RawBsonRef::Int32(count) => RawBson::Int32(count.saturating_add(caches as i32)),
        count => count.into(),
    })
}

fn cannot_create(why: &str) -> RawDocumentBuf {
    rawdoc! { "ok": 0.0, "errmsg": why, "code": 67, "codeName": "CannotCreateIndex" }
}

fn refusal(error: &ReplicaError) -> RawDocumentBuf {
    cannot_create(&error.to_string())
}

/// Returns the `currentOp` document of a replica's load, if one is in progress.
pub fn load_of(replica: &Replica) -> Option<RawDocumentBuf> {
    let (done, total) = replica.progress()?;
    Some(rawdoc! {
        "type": "op", "op": "command", "ns": replica.namespace.to_string(), "desc": "cache load",
        "msg": format!("cache load: {done} of {total} documents"),
        "progress": { "done": done as i64, "total": total as i64 },
    })
}

/// Adds the operations `more` to the reply to a `currentOp`.
pub fn with_operations(reply: &mut RawDocumentBuf, more: &[RawDocumentBuf]) {
    *reply = with_field(reply, "inprog", |operations| appended(operations, more));
}

/// Adds the documents `more` to the first batch of a reply.
pub fn with_first_batch(reply: &mut RawDocumentBuf, more: &[RawDocumentBuf]) {
    *reply = with_field(reply, "cursor", |cursor| match cursor {
        RawBsonRef::Document(cursor) => {
            with_field(cursor, "firstBatch", |batch| appended(batch, more)).into()
        }
        cursor => cursor.into(),
    });
}

fn appended(array: RawBsonRef<'_>, more: &[RawDocumentBuf]) -> RawBson {
    let RawBsonRef::Array(array) = array else {
        return array.into();
    };
    let mut all: RawArrayBuf = array.into_iter().flatten().collect();
    more.iter().for_each(|document| all.push(document.clone()));
    all.into()
}

/// Adds the cache indexes to the reply to a `listIndexes`, unless more batches follow.
pub fn with_definitions(reply: &mut RawDocumentBuf, definitions: &[RawDocumentBuf]) {
    let Ok(cursor) = reply.get_document("cursor") else {
        return;
    };
    if cursor.get_i64("id").unwrap_or(0) != 0 {
        return;
    }
    let ns = cursor.get_str("ns").unwrap_or_default().to_owned();
    let listed = cursor
        .get_array("firstBatch")
        .into_iter()
        .flatten()
        .flatten();
    let mut batch: RawArrayBuf = listed.collect();
    definitions
        .iter()
        .for_each(|definition| batch.push(definition.clone()));
    *reply = rawdoc! { "cursor": { "firstBatch": batch, "id": 0i64, "ns": ns }, "ok": 1.0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_and_other_indexes_of_a_drop_are_told_apart() {
        let caches = [rawdoc! { "key": { "a": "cache" }, "name": "a_cache" }];
        let named = |index: RawBson| {
            let command = rawdoc! { "dropIndexes": "c", "index": index };
            let Named { caches, others } = Named::of(&command, &caches);
            (caches, others)
        };
        let text = |name: &str| RawBson::from(name);
        let list = |names: &[&str]| RawBson::Array(names.iter().copied().collect());
        assert_eq!(named(text("*")), (Some(text("*")), Some(text("*"))));
        assert_eq!(named(text("a_cache")), (Some(text("a_cache")), None));
        assert_eq!(named(text("b_1")), (None, Some(text("b_1"))));
        let key: RawBson = rawdoc! { "a": "cache" }.into();
        assert_eq!(named(key.clone()), (Some(key), None));
        let both = named(list(&["b_1", "a_cache", "c_1"]));
        assert_eq!(
            both,
            (Some(list(&["a_cache"])), Some(list(&["b_1", "c_1"])))
        );
        assert_eq!(named(list(&["a_cache"])), (Some(list(&["a_cache"])), None));
        assert_eq!(named(list(&["b_1"])), (None, Some(list(&["b_1"]))));
        assert_eq!(named(RawBson::Int32(1)), (None, Some(RawBson::Int32(1))));
    }
}
