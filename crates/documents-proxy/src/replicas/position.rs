//! The position up to which a replica has followed its change stream. The store keeps it as the note of the replica's
//! collection, and writes it in one batch with the changes.
//!
//! A replica may resume only if the upstream still has the replica's documents. A resume token that names only a time
//! does not prove that, because an upstream that was restored from a backup accepts any time. One of two facts proves
//! it: the upstream still has the last event that the replica applied, or the primary that issued the token is still in
//! the same term.

use bson::oid::ObjectId;
use bson::{Document, RawBson, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::{ReplicaError, unreadable};

/// The term of a primary: the period for which a member of a replica set is its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Term {
    process: ObjectId,
    election: ObjectId,
}

impl Term {
    /// Reads the term from a primary's hello; `None` for a router, or for an upstream without elections.
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

/// The collection and replicated fields for which a position is valid.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Subject {
    /// The upstream's UUID of the collection.
    pub collection: Option<RawBson>,
    /// The fields that the replica holds.
    pub fields: Document,
}

/// A position in a change stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Position {
    /// Token after which the stream resumes.
    pub token: RawDocumentBuf,
    /// Token of the last event; `None` if there was no event since the load.
    pub event: Option<RawDocumentBuf>,
    /// Term of the primary that issued the tokens.
    pub term: Option<Term>,
}

impl Position {
    /// Returns the token with which the stream can be resumed in `term`. Returns `None` if no token can prove that the
    /// upstream still has the documents that the replica was loaded from.
    pub fn token_in(&self, term: Option<Term>) -> Option<&RawDocument> {
        if self.term == term {
            Some(&self.token)
        } else {
            self.event.as_deref()
        }
    }

    /// Encodes the position and its subject for the note of the replica's collection.
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

    /// Decodes the position in a note. Returns `None` if the note has another subject than `of`.
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

/// Returns the cluster time in a resume token: the 8 bytes after the type, in MongoDB since 4.0 and in Forebay.
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
            let note = position.to_note(&of).expect("the position can be encoded");
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
