//! Asks the upstream whether a client may read a collection or write to it. A permission to read is valid for a while.

use std::io;
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::Namespace;

use super::{Connection, FrameError};
use crate::replicas::{Replica, succeeded};

/// Time for which a client's permission to read a collection stays valid after the upstream has given it.
const LIFE: Duration = Duration::from_secs(60);
/// Error code `Unauthorized`.
const UNAUTHORIZED: i32 = 13;

impl Connection {
    /// Returns whether the upstream lets the client read the collection. Asks the upstream, unless an earlier
    /// permission is still valid.
    pub(super) async fn prove_read(&mut self, replica: &Replica) -> Result<bool, FrameError> {
        let namespace = &replica.namespace;
        let proven = self.proven.get(namespace);
        if self.is_cut_off {
            return Ok(self.was_proven_in_time(proven.copied(), replica));
        }
        if is_valid(proven.copied(), Instant::now()) {
            return Ok(true);
        }
        let probe = rawdoc! {
            "find": namespace.collection.as_str(), "projection": { "_id": 1 }, "limit": 1, "singleBatch": true,
            "$db": namespace.db.as_str(),
        };
        let Some(reply) = self.ask_as_client(probe).await? else {
            return Ok(false);
        };
        // Checks the namespace too, in case this is the reply to another command, which the client sent.
        let of = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_str("ns"));
        let proven = succeeded(&reply) && of.is_ok_and(|of| of == namespace.to_string());
        let at = proven.then(Instant::now);
        match at {
            Some(at) => drop(self.proven.insert(namespace.clone(), at)),
            None => drop(self.proven.remove(namespace)),
        }
        if !self.may_be_authenticated {
            replica.set_public(at);
        }
        Ok(proven)
    }

    /// Returns whether a permission to read the collection was valid when the upstream was lost. The upstream may have
    /// given the permission to this client or to all unauthenticated clients.
    fn was_proven_in_time(&self, proven: Option<Instant>, replica: &Replica) -> bool {
        let Some(lost_at) = self.replicas.lost_at() else {
            return false;
        };
        [proven, replica.public_at()]
            .into_iter()
            .any(|given| is_valid(given, lost_at))
    }

    /// Checks whether the upstream lets the client write to the collection, by updating a document that does not
    /// exist. Returns the upstream's error reply if the client may not write.
    pub(super) async fn prove_write(
        &mut self,
        namespace: &Namespace,
    ) -> Result<Option<RawDocumentBuf>, FrameError> {
        let update = rawdoc! { "q": { "_id": ObjectId::new() }, "u": { "$set": { "forebay": 1 } } };
        let probe = rawdoc! {
            "update": namespace.collection.as_str(), "updates": [update], "$db": namespace.db.as_str(),
        };
        let Some(reply) = self.ask_as_client(probe).await? else {
            return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
        };
        let none = matches!(reply.get("writeErrors"), Ok(None));
        Ok((!succeeded(&reply) || !none).then_some(reply))
    }
}

/// Returns whether a permission that the upstream gave at time `given` is valid at time `at`.
pub fn is_valid(given: Option<Instant>, at: Instant) -> bool {
    given.is_some_and(|given| at.saturating_duration_since(given) < LIFE)
}

/// Returns whether a reply refuses a command as unauthorized. Then the client's rights may have changed.
pub fn is_revocation(reply: &RawDocument) -> bool {
    reply.get_i32("code").is_ok_and(|code| code == UNAUTHORIZED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_is_valid_for_a_while() {
        let given = Instant::now();
        assert!(is_valid(Some(given), given));
        assert!(is_valid(Some(given), given + LIFE / 2));
        assert!(!is_valid(Some(given), given + LIFE));
        assert!(!is_valid(None, given));
        // A permission is also valid if it was given after the upstream was lost: a server that was about to
        // stop gave it.
        assert!(is_valid(Some(given + LIFE), given));
    }

    #[test]
    fn a_refusal_revokes_it() {
        assert!(is_revocation(&rawdoc! { "ok": 0.0, "code": 13 }));
        assert!(!is_revocation(&rawdoc! { "ok": 0.0, "code": 26 }));
        assert!(!is_revocation(&rawdoc! { "ok": 1.0 }));
    }
}
