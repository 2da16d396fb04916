//! How far a change stream has been followed: the note of the replica, in one batch with the changes up to there.
//!
//! An upstream that was restored from an older copy of its files continues after any cluster time, so a token that only
//! names a time proves nothing to it. It is the same as before if it still has the last event, or if it has been the
//! primary without interruption.

use bson::oid::ObjectId;
use bson::{Document, RawBson, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::{ReplicaError, unreadable};

/// The time in which one member of a replica set is its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Term {
    process: ObjectId,
    election: ObjectId,
}

impl Term {
    /// Reads a primary's hello; `None` for a router, or an upstream without elections.
    pub fn of_hello(hello: &RawDocument) -> Option<Term> {
        let version = hello.get_document("topologyVersion").ok()?;
        Some(Term {
            process: version.get_object_id("processId").ok()?,
            election: hello.get_object_id("electionId").ok()?,
        })
    }

    fn of_note(note: &RawDocument) -> Option<Term> {
        Some(Term {
            process: note.get_object_id("process").ok()?,
            election: note.get_object_id("election").ok()?,
        })
    }
}

/// What a position is about: the collection, and what the replica holds of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Subject {
    /// What the upstream calls the collection, whatever its name.
    pub collection: Option<RawBson>,
    /// The fields that the replica holds.
    pub fields: Document,
}

/// A position in a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Position {
    /// The token after which the stream resumes.
    pub token: RawDocumentBuf,
    /// The token of the last event; `None` if there was no event since the load.
    pub event: Option<RawDocumentBuf>,
    /// The term of the primary that gave the tokens.
    pub term: Option<Term>,
}

impl Position {
    /// The token to resume the stream with in a term. Returns `None` if no token can show that the upstream still has
    /// the documents that the replica was made of.
    pub fn token_in(&self, term: Option<Term>) -> Option<&RawDocument> {
        if self.term == term {
            Some(&self.token)
        } else {
            self.event.as_deref()
        }
    }

    /// Returns the note of this position.
    pub fn to_note(&self, of: &Subject) -> Result<RawDocumentBuf, ReplicaError> {
        let fields = RawDocumentBuf::try_from(&of.fields).map_err(unreadable)?;
        let mut note = rawdoc! { "token": self.token.clone(), "fields": fields };
        if let Some(collection) = &of.collection {
            note.append(cstr!("collection"), collection.clone());
        }
        if let Some(event) = &self.event {
            note.append(cstr!("event"), event.clone());
        }
        if let Some(Term { process, election }) = self.term {
            note.append(cstr!("process"), process);
            note.append(cstr!("election"), election);
        }
        Ok(note)
    }

    /// Reads a note. Returns `None` if it is not about `of`.
    pub fn of_note(note: &RawDocument, of: &Subject) -> Result<Option<Position>, ReplicaError> {
        let collection = note.get("collection").map_err(unreadable)?;
        let fields = note.get_document("fields").map_err(unreadable)?;
        let fields = Document::try_from(fields).map_err(unreadable)?;
        let subject = Subject {
            collection: collection.map(RawBson::from),
            fields,
        };
        if subject != *of {
            return Ok(None);
        }
        let token = note.get_document("token").map_err(unreadable)?;
        let event = note.get_document("event").ok();
        Ok(Some(Position {
            token: token.to_owned(),
            event: event.map(RawDocument::to_owned),
            term: Term::of_note(note),
        }))
    }
}

/// Returns the cluster time in a resume token: the first eight bytes after the type, in MongoDB since 4.0 and in
/// Forebay.
pub(super) fn time_of(token: &RawDocument) -> Option<u64> {
    let time = token.get_str("_data").ok()?.strip_prefix("82")?.get(..16)?;
    u64::from_str_radix(time, 16).ok()
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn term() -> Option<Term> {
        Some(Term {
            process: ObjectId::new(),
            election: ObjectId::new(),
        })
    }

    fn position(term: Option<Term>) -> Position {
        Position {
            token: rawdoc! { "_data": "82000000050000000700" },
            event: Some(rawdoc! { "_data": "82000000050000000101" }),
            term,
        }
    }

    #[test]
    fn a_position_is_read_as_it_was_noted_and_of_nothing_else() {
        let of = Subject {
            collection: Some(RawBson::Int32(5)),
            fields: doc! { "_id": 1, "name": 1 },
        };
        let others = [
            Subject {
                collection: None,
                ..of.clone()
            },
            Subject {
                fields: doc! { "_id": 1, "other": 1 },
                ..of.clone()
            },
        ];
        for position in [
            position(term()),
            position(None),
            Position {
                event: None,
                ..position(term())
            },
        ] {
            let note = position.to_note(&of).expect("it can be noted");
            assert_eq!(Position::of_note(&note, &of).expect("read"), Some(position));
            for other in &others {
                assert_eq!(Position::of_note(&note, other).expect("read"), None);
            }
        }
    }

    #[test]
    fn a_new_primary_has_to_have_the_last_event() {
        let (one, other) = (term(), term());
        let position = position(one);
        assert_eq!(position.token_in(one), Some(&*position.token));
        assert_eq!(position.token_in(other), position.event.as_deref());
        assert_eq!(position.token_in(None), position.event.as_deref());
        let quiet = Position {
            event: None,
            ..position
        };
        assert_eq!(quiet.token_in(other), None);
        assert!(quiet.token_in(one).is_some());
    }

    #[test]
    fn a_primary_reports_its_term() {
        let (process, election) = (ObjectId::new(), ObjectId::new());
        let version = rawdoc! { "processId": process, "counter": 6i64 };
        let router = rawdoc! { "msg": "isdbgrid", "topologyVersion": version.clone() };
        let primary =
            rawdoc! { "setName": "rs", "topologyVersion": version, "electionId": election };
        assert_eq!(Term::of_hello(&primary), Some(Term { process, election }));
        assert_eq!(Term::of_hello(&router), None);
    }

    #[test]
    fn the_time_of_a_token_is_read() {
        assert_eq!(
            time_of(&rawdoc! { "_data": "82000000050000000101" }),
            Some(5 << 32 | 1)
        );
        assert_eq!(time_of(&rawdoc! { "_data": "83" }), None);
    }
}
