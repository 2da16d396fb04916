//! A `find` of few documents that the shadow has found: the store is asked for each of them by its `_id`, on the client's own
//! connection, so that it is the store that decides what the client may see.

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_documents::Namespace;
use forebay_wire_mongo::Flags;
use forebay_wire_mongo::limits::USER_DOCUMENT_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{FrameError, Next, Relay, Request};
use crate::shadow::{first_batch, succeeded};

impl<S: AsyncRead + AsyncWrite + Unpin> Relay<S> {
    /// Answers a `find` with what the store says to `queries`, if that fits into one batch.
    pub(super) async fn fetch(
        &mut self,
        namespace: &Namespace,
        queries: Vec<RawDocumentBuf>,
        request: Request,
    ) -> Result<Next, FrameError> {
        let mut batch = RawArrayBuf::new();
        for query in queries {
            let Some(reply) = self.ask_own(query).await? else {
                return Ok(Next::Close);
            };
            if !succeeded(&reply) {
                return self.respond(reply, &request).await;
            }
            first_batch(&reply).for_each(|document| batch.push(document.to_owned()));
            if batch.as_bytes().len() > USER_DOCUMENT_BYTES_MAX {
                return self.exchange(request, Flags::default()).await;
            }
        }
        let ns = namespace.to_string();
        let reply = rawdoc! { "cursor": { "firstBatch": batch, "id": 0i64, "ns": ns }, "ok": 1.0 };
        self.respond(reply, &request).await
    }
}

/// The command for each document.
pub fn queries(find: &RawDocument, ids: &[RawBson]) -> Vec<RawDocumentBuf> {
    ids.iter().map(|id| query(find, id)).collect()
}

fn query(find: &RawDocument, id: &RawBson) -> RawDocumentBuf {
    let mut query = RawDocumentBuf::new();
    for (name, value) in find.into_iter().flatten() {
        match value {
            RawBsonRef::Document(filter) if name.as_str() == "filter" => {
                query.append(name, of_one(filter, id));
            }
            _ => query.append(name, value),
        }
    }
    query.append(cstr!("limit"), 1);
    query.append(cstr!("singleBatch"), true);
    query
}

/// The filter, for one document: that may have changed since the shadow found it, and a projection may need the filter.
fn of_one(filter: &RawDocument, id: &RawBson) -> RawDocumentBuf {
    let mut one = RawDocumentBuf::new();
    one.append(cstr!("_id"), id.clone());
    if !matches!(filter.get("_id"), Ok(None)) {
        let both = RawArrayBuf::from_iter([one.clone(), filter.to_owned()]);
        return rawdoc! { "$and": both };
    }
    for (name, value) in filter.into_iter().flatten() {
        one.append(name, value);
    }
    one
}
