//! Passes on commands about indexes and query plans, and adds the caches to the replies.

use std::sync::Arc;

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_wire_mongo::OpMsg;
use tokio::io::{AsyncRead, AsyncWrite};

use super::commands::namespace;
use super::reads::{Answer, with_field};
use super::reasons;
use super::{Connection, FrameError, Next, Request};
use crate::replicas::pace::Wanted;
use crate::replicas::{Replica, ReplicaError, Replicas, fields};

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
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
            let mixed = "caches and ordinary indexes of an upstream need separate commands";
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

    pub(super) async fn drop_indexes(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        request: Request,
        message: &OpMsg,
    ) -> Result<Next, FrameError> {
        let is_cache = match message.body.get("index") {
            Ok(Some(RawBsonRef::String(name))) => replica
                .definitions()
                .iter()
                .any(|definition| definition.get_str("name").is_ok_and(|it| it == name)),
            Ok(Some(RawBsonRef::Document(key))) => {
                fields::is_cache(&rawdoc! { "key": key.to_owned() })
            }
            _ => false,
        };
        if !is_cache {
            return self.exchange(request, message.flags).await;
        }
        if let Some(refusal) = self.prove_write(&replica.namespace).await? {
            return self.respond(refusal, &request).await;
        }
        let mut command = rawdoc! { "dropIndexes": replica.namespace.collection.as_str() };
        if let Ok(Some(index)) = message.body.get("index") {
            command.append(cstr!("index"), index);
        }
        self.change_caches(replicas, replica, command, &request)
            .await
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
