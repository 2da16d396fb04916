//! Answers a `find` for which a replica found only a few documents. Queries each document by its `_id` alone, on the
//! client's own upstream connection, so that the upstream decides what the client may see. The proxy evaluates the rest
//! of the `find`, because an upstream might not use its index on `_id` for a query with further conditions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bson::{RawBson, RawDocument, RawDocumentBuf, cstr};
use forebay_wire_mongo::Flags;
use forebay_wire_mongo::limits::DOCUMENT_BYTES_MAX;

use super::cursors::renumbered;
use super::reads::{Fetch, is_neutral, plain, was_stopped};
use super::{Connection, FrameError, Next, Request};
use crate::replicas::{Replica, Replicas, first_batch, succeeded};

/// The result of querying documents by `_id`.
enum Fetched {
    /// All documents that still exist.
    Documents(Vec<RawDocumentBuf>),
    /// The upstream's error reply to one of the queries.
    Refused(RawDocumentBuf),
    /// The queries take too long, or the documents together are too large.
    GivenUp,
    /// The upstream or the client has closed its connection.
    Gone,
}

impl Connection {
    /// Answers a `find` whose documents a replica found: queries the documents at the upstream by `_id`.
    pub(super) async fn fetch(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Replica,
        fetch: Fetch,
        find: &RawDocument,
        request: Request,
    ) -> Result<Next, FrameError> {
        let namespace = &replica.namespace;
        let documents = match self.ask_for_each(replica, &fetch.ids, find).await? {
            Fetched::Documents(documents) => documents,
            Fetched::Refused(reply) => return self.respond(reply, &request).await,
            Fetched::Gone => return Ok(Next::Close),
            Fetched::GivenUp => {
                replicas.counters.slower.fetch_add(1, Ordering::Relaxed);
                return self.exchange(request, Flags::default()).await;
            }
        };
        let client = &self.client;
        let reply = replicas.find_among(client, &namespace.db, plain(find), documents);
        let reply = reply.await;
        // Further documents may match if the replica stopped at the limit. They are needed if some of the found
        // documents no longer match.
        let lacks = fetch.is_cut && first_batch(&reply).count() < fetch.ids.len();
        if was_stopped(&reply) || succeeded(&reply) && !lacks {
            return self.respond(renumbered(reply), &request).await;
        }
        self.exchange(request, Flags::default()).await
    }

    async fn ask_for_each(
        &mut self,
        replica: &Replica,
        ids: &[RawBson],
        find: &RawDocument,
    ) -> Result<Fetched, FrameError> {
        let begun = Instant::now();
        let (mut documents, mut bytes) = (Vec::with_capacity(ids.len()), 0);
        for (asked, id) in ids.iter().enumerate() {
            let pace = replica.measurement.pace();
            let left = ids.len() - asked;
            if pace.is_some_and(|pace| pace.is_too_slow(begun.elapsed(), left)) {
                return Ok(Fetched::GivenUp);
            }
            let sent = Instant::now();
            let Some(reply) = self.ask_as_client(query(find, id)).await? else {
                return Ok(Fetched::Gone);
            };
            replica.measurement.note_time(sent.elapsed());
            if !succeeded(&reply) {
                return Ok(Fetched::Refused(reply));
            }
            documents.extend(first_batch(&reply).map(RawDocument::to_owned));
            bytes += reply.as_bytes().len();
            if bytes > DOCUMENT_BYTES_MAX {
                return Ok(Fetched::GivenUp);
            }
        }
        Ok(Fetched::Documents(documents))
    }
}

/// Returns the query for one document.
fn query(find: &RawDocument, id: &RawBson) -> RawDocumentBuf {
    let mut query = RawDocumentBuf::new();
    let mut by_id = RawDocumentBuf::new();
    by_id.append(cstr!("_id"), id.clone());
    for (name, value) in find.into_iter().flatten() {
        match name.as_str() {
            "filter" => query.append(name, by_id.clone()),
            "find" => query.append(name, value),
            other if is_neutral(other) => query.append(name, value),
            _ => {}
        }
    }
    query.append(cstr!("limit"), 1);
    query.append(cstr!("singleBatch"), true);
    query
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn one_document_is_asked_for_by_its_id_alone() {
        let find = rawdoc! {
            "find": "c", "filter": { "name": "x", "_id": { "$gt": 1 } }, "projection": { "n": 1 }, "limit": 5, "sort": { "n": 1 },
            "$db": "d", "maxTimeMS": 100, "batchSize": 2,
        };
        let expected = rawdoc! {
            "find": "c", "filter": { "_id": 7 }, "$db": "d", "maxTimeMS": 100, "limit": 1, "singleBatch": true,
        };
        assert_eq!(query(&find, &RawBson::Int32(7)), expected);
    }
}
