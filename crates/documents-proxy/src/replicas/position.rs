//! How far a change stream has been followed: kept as the note of the replica, in one batch with the changes up to
//! there.
//!
//! An upstream that was restored from an older copy of its files goes on behind any cluster time, so a token that names
//! a time alone proves nothing to it. What proves that the upstream is what it was: it still has the last event, or it
//! has been the primary without a break.

use bson::oid::ObjectId;
use bson::{Document, RawBson, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::{ReplicaError, unreadable};

/// How long one member of a replica set is its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Term {
    process: ObjectId,
    election: ObjectId,
}

impl Term {
    /// As a primary tells it in its hello; none of a router, or an upstream that has no elections.
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

/// What a stream is of, and what the replica holds of it: of anything else, no place counts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Subject {
    /// What the upstream calls the collection, whatever its name.
    pub collection: Option<RawBson>,
    /// The fields that the replica holds.
    pub fields: Document,
}

/// A place in a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Position {
    /// The stream goes on behind this.
    pub token: RawDocumentBuf,
    /// The token of the last event; `None` without an event since the load.
    pub event: Option<RawDocumentBuf>,
    /// The term of the primary that gave the tokens.
    pub term: Option<Term>,
}

impl Position {
    /// The token to resume the stream with in a term. Returns `None` if no token can show that the upstream still has
    /// the documents that the replica was made of.
    pub fn token_in(&self, term: Option<Term>) -> Option<&RawDocument> {
        match self.term == term {
            true => Some(&self.token),
            false => self.event.as_deref(),
        }
    }

    /// As it is kept.
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

    /// The place that a note keeps. Returns `None` if the note is not about `of`.
    pub fn of_note(note: &RawDocument, of: &Subject) -> Result<Option<Position>, ReplicaError> {
        let collection = note.get("collection").map_err(unreadable)?;
        let fields = note.get_document("fields").map_err(unreadable)?;
        let fields = Document::try_from(fields).map_err(unreadable)?;
        let kept = Subject {
            collection: collection.map(RawBson::from),
            fields,
        };
        if kept != *of {
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

/// The cluster time in a resume token: the first eight bytes behind the type, in MongoDB since 4.0 and in Forebay.
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

    fn place(term: Option<Term>) -> Position {
        Position {
            token: rawdoc! { "_data": "82000000050000000700" },
            event: Some(rawdoc! { "_data": "82000000050000000101" }),
            term,
        }
    }

    #[test]
    fn a_place_is_read_as_it_was_kept_and_of_nothing_else() {
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
        for place in [
            place(term()),
            place(None),
            Position {
                event: None,
                ..place(term())
            },
        ] {
            let note = place.to_note(&of).expect("it can be kept");
            assert_eq!(Position::of_note(&note, &of).expect("read"), Some(place));
            for other in &others {
                assert_eq!(Position::of_note(&note, other).expect("read"), None);
            }
        }
    }

    #[test]
    fn a_new_primary_has_to_have_the_last_event() {
        let (one, other) = (term(), term());
        let place = place(one);
        assert_eq!(place.token_in(one), Some(&*place.token));
        assert_eq!(place.token_in(other), place.event.as_deref());
        assert_eq!(place.token_in(None), place.event.as_deref());
        let quiet = Position {
            event: None,
            ..place
        };
        assert_eq!(quiet.token_in(other), None);
        assert!(quiet.token_in(one).is_some());
    }

    #[test]
    fn a_primary_tells_its_term() {
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
