//! Determines the effects of writes to collections with caches. A write is sent to the upstream first, and then applied
//! to the replica. Then the client gets the reply.

use bson::oid::ObjectId;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::{Namespace, namespace};
use forebay_wire_mongo::{Flags, OpMsg, Sequence};

use super::reads::with_field;
use crate::replicas::fields::{document_of, elements};
use crate::replicas::{Effect, number, succeeded};

/// Maximum documents of a write that is applied to the replica. After a larger write, the replica is loaded again.
pub const TOUCHED_MAX: usize = 10_000;

/// Error codes which prove that an upstream changed nothing: Unauthorized, NamespaceNotFound, NamespaceExists,
/// CommandNotFound, InvalidNamespace, an unknown field (40415) and a missing field (40414). Other codes prove nothing:
/// FerretDB 1 may run the first statements of a command before it rejects a malformed one.
const REFUSALS: &[i32] = &[13, 26, 48, 59, 73, 40414, 40415];

/// Error codes of an invalid statement: BadValue, FailedToParse, TypeMismatch, IllegalOperation and NotImplemented.
const WRONG: &[i32] = &[2, 9, 14, 20, NOT_IMPLEMENTED];
const NOT_IMPLEMENTED: i32 = 238;

/// A write to be sent to the upstream, and what is known about its effect.
pub struct Write {
    /// The message to send: the client's message, changed so that more is known about the write's effect.
    pub message: OpMsg,
    plan: Plan,
    /// Does the command write at most one document? Then an error for an invalid statement means that the command wrote
    /// nothing.
    is_single: bool,
}

/// What is known about the effect of a write before the upstream's reply.
enum Plan {
    /// These documents are inserted, unless the reply reports an error.
    Insert(Vec<RawDocumentBuf>),
    /// Documents that may change: those with these `_id`s, those that match these queries, and those that the reply
    /// reports as upserted.
    Touch {
        ids: Vec<RawBson>,
        queries: Vec<RawDocumentBuf>,
        upserts: bool,
    },
    /// The effect is unknown.
    Unknown,
}

/// Returns whether [`Write`] handles a command of this name.
pub fn is_write(command: &str) -> bool {
    matches!(
        command,
        "insert" | "update" | "delete" | "findAndModify" | "findandmodify"
    )
}

/// Returns whether the upstream refused a command without changing anything.
pub fn is_refusal(reply: &RawDocument) -> bool {
    has_code(reply, REFUSALS)
}

/// Returns whether the upstream refused a command that [`Write`] does not handle, without changing anything.
pub fn is_refusal_of_all(command: &str, reply: &RawDocument) -> bool {
    let is_parsed_first = matches!(command, "create" | "collMod" | "renameCollection");
    is_refusal(reply)
        || has_code(reply, &[NOT_IMPLEMENTED])
        || is_parsed_first && has_failed_to_parse(reply)
}

/// Returns whether a reply reports a malformed command. MongoDB's parsers use the codes from 40,000 to 49,999.
fn has_failed_to_parse(reply: &RawDocument) -> bool {
    let code = reply.get_i32("code").unwrap_or(0);
    has_code(reply, WRONG) || !succeeded(reply) && (40_000..50_000).contains(&code)
}

/// Returns whether a reply reports an invalid statement.
fn is_wrong(reply: &RawDocument) -> bool {
    !matches!(reply.get("writeErrors"), Ok(None)) || has_code(reply, WRONG)
}

fn has_code(reply: &RawDocument, codes: &[i32]) -> bool {
    let code = reply.get_i32("code").unwrap_or(0);
    !succeeded(reply) && codes.contains(&code)
}

/// For a command that [`Write`] does not handle: returns the collections that the command changes, or `None` if they
/// are unknown.
pub fn targets(command: &str, body: &RawDocument) -> Option<Vec<Namespace>> {
    match command {
        "bulkWrite" => {
            let named = body.get_array("nsInfo").ok()?.into_iter();
            named
                .map(|info| namespace::parse(info.ok()?.as_document()?.get_str("ns").ok()?).ok())
                .collect()
        }
        "renameCollection" => {
            let names = [body.get_str("renameCollection"), body.get_str("to")];
            let named = names.into_iter();
            named
                .map(|name| namespace::parse(name.ok()?).ok())
                .collect()
        }
        "aggregate" => Some(vec![written_out(body)?]),
        "create" | "collMod" | "createIndexes" => Some(vec![super::commands::namespace(body)?]),
        _ => None,
    }
}

/// Returns the collection that a pipeline writes to.
fn written_out(body: &RawDocument) -> Option<Namespace> {
    let stages = body.get_array("pipeline").ok()?.into_iter().flatten();
    let last = stages.last()?.as_document()?;
    let target = match last.get("$out").ok()? {
        Some(target) => target,
        None => match last.get("$merge").ok()?? {
            RawBsonRef::Document(merge) => merge.get("into").ok()??,
            target => target,
        },
    };
    let db = body.get_str("$db").ok()?;
    match target {
        RawBsonRef::String(collection) => namespace::checked(db, collection).ok(),
        RawBsonRef::Document(target) => {
            let db = target.get_str("db").unwrap_or(db);
            namespace::checked(db, target.get_str("coll").ok()?).ok()
        }
        _ => None,
    }
}

impl Write {
    /// Parses a write and determines its possible effect. Changes the message to request a reply, even if the client
    /// wants none.
    pub fn parse(name: &str, message: OpMsg) -> Write {
        let message = expecting_reply(message);
        match name {
            "insert" => Write::insert(message),
            "update" | "delete" => {
                let all = statements(
                    &message,
                    if name == "update" {
                        "updates"
                    } else {
                        "deletes"
                    },
                );
                Write::touch(message, &all, "q")
            }
            _ => {
                let all = [message.body.clone()];
                Write::touch(message, &all, "query")
            }
        }
    }

    /// Parses an `insert`. Adds an `_id` to documents without one, as MongoDB's router does.
    fn insert(message: OpMsg) -> Write {
        let documents: Vec<_> = statements(&message, "documents")
            .into_iter()
            .map(with_id)
            .collect();
        let message = with_statements(&message, "documents", &documents);
        Write {
            message,
            is_single: documents.len() == 1,
            plan: Plan::Insert(documents),
        }
    }

    /// Parses statements that have a query in the field `field`. The command can change only documents that match a
    /// statement before the command runs, and documents that it upserts: a later statement matches other documents only
    /// if an earlier statement changed or upserted them.
    fn touch(message: OpMsg, statements: &[RawDocumentBuf], field: &str) -> Write {
        let (mut ids, mut queries, mut upserts) = (Vec::new(), Vec::new(), false);
        // A `let` or a collation of the command applies to every statement, so it may change the meaning of any query.
        let mut is_plain = is_plain(&message.body);
        for statement in statements {
            is_plain &= self::is_plain(statement);
            upserts |= statement.get_bool("upsert").unwrap_or(false);
            match statement.get_document(field) {
                Ok(query) if is_fickle(query) => is_plain = false,
                Ok(query) => match id_in(query) {
                    Some(id) => ids.push(id),
                    None => queries.push(query.to_owned()),
                },
                Err(_) if field == "query" => queries.push(RawDocumentBuf::new()),
                Err(_) => is_plain = false,
            }
        }
        let is_one = |statement: &RawDocumentBuf| match statement.get("u") {
            Ok(Some(_)) => matches!(
                statement.get("multi"),
                Ok(None | Some(RawBsonRef::Boolean(false)))
            ),
            _ => number(statement, "limit") == Some(1.0),
        };
        let plan = if is_plain {
            Plan::Touch {
                ids,
                queries,
                upserts,
            }
        } else {
            Plan::Unknown
        };
        Write {
            message,
            plan,
            // False for a `findAndModify`, because it may fail after its write, while it builds its result.
            is_single: field == "q" && matches!(statements, [statement] if is_one(statement)),
        }
    }

    /// Returns the queries for the documents that the write may change. They have to run before the write. Returns
    /// `None` if the queries would not determine the effect.
    pub fn lookups(&self) -> Option<Vec<RawDocumentBuf>> {
        match &self.plan {
            Plan::Insert(_) => Some(Vec::new()),
            Plan::Touch { queries, .. } => Some(queries.clone()),
            Plan::Unknown => None,
        }
    }

    /// Adds the `_id`s of documents that the queries found.
    pub fn add_touched(&mut self, found: Vec<RawBson>) {
        if let Plan::Touch { ids, .. } = &mut self.plan {
            ids.extend(found);
        }
    }

    /// Records that the effect cannot be determined.
    pub fn set_unknown(&mut self) {
        self.plan = Plan::Unknown;
    }

    /// Determines the effect from the upstream's reply; `None` means no reply.
    pub fn effect(self, reply: Option<&RawDocument>) -> Effect {
        let Some(reply) = reply else {
            return Effect::Unfinished;
        };
        if is_refusal(reply) || (self.is_single && is_wrong(reply)) {
            return Effect::Nothing;
        }
        // The upstream has repeated its reply to an earlier attempt of a retried write. The queries may have found
        // other documents than those that the earlier attempt changed.
        if !matches!(reply.get("retriedStmtIds"), Ok(None)) {
            return Effect::Unknown;
        }
        match self.plan {
            Plan::Unknown => Effect::Unknown,
            Plan::Insert(documents) if inserted_all(reply, documents.len()) => {
                Effect::Inserted(documents)
            }
            Plan::Insert(documents) => {
                let ids = documents.iter().filter_map(|it| it.get("_id").ok()?);
                Effect::Touched(ids.map(Into::into).collect())
            }
            // A reply with errors may omit upserts that preceded the errors, as FerretDB 1's replies do.
            Plan::Touch { upserts: true, .. } if has_failed(reply) => Effect::Unknown,
            Plan::Touch { mut ids, .. } => {
                ids.extend(upserted(reply));
                Effect::Touched(ids)
            }
        }
    }
}

/// Returns whether a reply reports any error.
fn has_failed(reply: &RawDocument) -> bool {
    !succeeded(reply) || !matches!(reply.get("writeErrors"), Ok(None))
}

/// Changes a message to request a reply.
pub fn expecting_reply(message: OpMsg) -> OpMsg {
    OpMsg {
        flags: Flags(message.flags.0 & !Flags::MORE_TO_COME.0),
        body: acknowledged(&message.body),
        ..message
    }
}

/// Returns the command with write concern `w: 1` if it has `w: 0`, so that the upstream sends a reply.
fn acknowledged(body: &RawDocument) -> RawDocumentBuf {
    with_field(body, "writeConcern", |concern| match concern {
        RawBsonRef::Document(silent) if number(silent, "w") == Some(0.0) => {
            rawdoc! { "w": 1 }.into()
        }
        concern => concern.into(),
    })
}

/// Returns whether a query may match other documents later although nothing was written.
fn is_fickle(query: &RawDocument) -> bool {
    let operators: [&[u8]; 3] = [b"$expr\0", b"$where\0", b"$sampleRate\0"];
    let bytes = query.as_bytes();
    operators.iter().any(|operator| {
        let mut parts = bytes.windows(operator.len());
        parts.any(|part| part == *operator)
    })
}

/// Returns whether the meaning of a query is independent of other fields of its command or statement.
fn is_plain(command: &RawDocument) -> bool {
    let has = |name| !matches!(command.get(name), Ok(None));
    !has("collation") && !has("let") && !has("c")
}

/// Returns the `_id` that a query requires, ignoring other conditions.
fn id_in(query: &RawDocument) -> Option<RawBson> {
    let value = query.get("_id").ok()??;
    match value {
        RawBsonRef::RegularExpression(_) | RawBsonRef::Array(_) => None,
        RawBsonRef::Document(document) if first_key(document).starts_with('$') => None,
        value => Some(value.into()),
    }
}

pub fn first_key(document: &RawDocument) -> &str {
    let first = document.iter_elements().next().and_then(Result::ok);
    first.map_or("", |element| element.key().as_str())
}

fn with_id(document: RawDocumentBuf) -> RawDocumentBuf {
    if !matches!(document.get("_id"), Ok(None)) {
        return document;
    }
    let id = rawdoc! { "_id": ObjectId::new() };
    document_of(&[elements(&id), elements(&document)])
}

/// Returns the statements of a command, from its document sequence or from an array in its body.
fn statements(message: &OpMsg, name: &str) -> Vec<RawDocumentBuf> {
    let sequence = message
        .sequences
        .iter()
        .find(|sequence| sequence.identifier == name);
    if let Some(sequence) = sequence {
        return sequence.to_documents();
    }
    let array = message.body.get_array(name).into_iter().flatten().flatten();
    array
        .filter_map(|value| value.as_document().map(RawDocument::to_owned))
        .collect()
}

fn with_statements(message: &OpMsg, name: &str, statements: &[RawDocumentBuf]) -> OpMsg {
    let mut body = RawDocumentBuf::new();
    for (field, value) in message.body.into_iter().flatten() {
        if field.as_str() != name {
            body.append(field, value);
        }
    }
    let others = message
        .sequences
        .iter()
        .filter(|sequence| sequence.identifier != name);
    let mut sequences: Vec<_> = others.cloned().collect();
    sequences.push(Sequence::new(name, statements.iter().map(|it| &**it)));
    OpMsg {
        flags: message.flags,
        body,
        sequences,
    }
}

fn inserted_all(reply: &RawDocument, count: usize) -> bool {
    !has_failed(reply) && number(reply, "n") == Some(count as f64)
}

/// Returns the `_id`s of documents that an update or a `findAndModify` upserted.
fn upserted(reply: &RawDocument) -> Vec<RawBson> {
    let mut ids = Vec::new();
    for entry in reply.get_array("upserted").into_iter().flatten().flatten() {
        let id = entry
            .as_document()
            .and_then(|entry| entry.get("_id").ok().flatten());
        ids.extend(id.map(RawBson::from));
    }
    let last = reply.get_document("lastErrorObject");
    ids.extend(
        last.ok()
            .and_then(|last| last.get("upserted").ok().flatten())
            .map(RawBson::from),
    );
    ids
}

#[cfg(test)]
mod tests {
    use bson::RawArrayBuf;

    use super::*;

    #[test]
    fn a_query_by_id_names_its_document() {
        assert_eq!(
            id_in(&rawdoc! { "_id": 5, "n": 1 }),
            Some(RawBson::Int32(5))
        );
        for wide in [
            rawdoc! { "_id": { "$gt": 5 } },
            rawdoc! { "n": 1 },
            rawdoc! { "_id": [1] },
        ] {
            assert_eq!(id_in(&wide), None, "{wide:?}");
        }
    }

    #[test]
    fn documents_get_an_id_in_front() {
        let message =
            OpMsg::new(rawdoc! { "insert": "c", "documents": [{ "n": 1 }, { "_id": 2 }] });
        let documents: Vec<_> = statements(&message, "documents")
            .into_iter()
            .map(with_id)
            .collect();
        assert_eq!(first_key(&documents[0]), "_id");
        let message = with_statements(&message, "documents", &documents);
        assert_eq!(message.body, rawdoc! { "insert": "c" });
        assert_eq!(statements(&message, "documents"), documents);
    }

    #[test]
    fn a_partial_insert_is_no_full_one() {
        assert!(inserted_all(&rawdoc! { "n": 2, "ok": 1.0 }, 2));
        assert!(!inserted_all(&rawdoc! { "n": 1, "ok": 1.0 }, 2));
        assert!(!inserted_all(
            &rawdoc! { "n": 2, "writeErrors": [], "ok": 1.0 },
            2
        ));
        let reply = rawdoc! { "upserted": [{ "index": 0, "_id": 7 }], "ok": 1.0 };
        assert_eq!(upserted(&reply), [RawBson::Int32(7)]);
    }

    fn update(updates: RawArrayBuf) -> Write {
        let body = rawdoc! { "update": "c", "updates": updates, "writeConcern": { "w": 0 } };
        Write::parse("update", OpMsg::new(body))
    }

    #[test]
    fn updates_are_looked_up_where_they_name_no_id() {
        let by_id = rawdoc! { "q": { "_id": 1 }, "u": { "$set": { "n": 1 } } };
        let by_field = rawdoc! { "q": { "n": 1 }, "u": { "$set": { "n": 2 } }, "upsert": true };
        let mut write = update(RawArrayBuf::from_iter([by_id, by_field.clone()]));
        let concern = write.message.body.get_document("writeConcern");
        assert_eq!(concern.expect("a write concern"), &*rawdoc! { "w": 1 });
        assert_eq!(write.lookups(), Some(vec![rawdoc! { "n": 1 }]));
        write.add_touched(vec![RawBson::Int32(7)]);
        let reply = rawdoc! { "n": 2, "upserted": [{ "index": 1, "_id": 9 }], "ok": 1.0 };
        let Effect::Touched(ids) = write.effect(Some(&reply)) else {
            panic!("the effect is known");
        };
        assert_eq!(ids, [1, 7, 9].map(RawBson::Int32));
        let refused = rawdoc! { "ok": 0.0, "code": 13 };
        let lost = rawdoc! { "ok": 0.0, "code": 50 };
        let again = || update(RawArrayBuf::from_iter([by_field.clone()]));
        assert!(matches!(again().effect(Some(&refused)), Effect::Nothing));
        assert!(matches!(again().effect(Some(&lost)), Effect::Unknown));
        assert!(matches!(again().effect(None), Effect::Unfinished));
    }

    #[test]
    fn what_a_query_means_by_a_collation_is_not_looked_up() {
        let folded = rawdoc! { "q": { "_id": "a" }, "u": {}, "collation": { "locale": "en", "strength": 2 } };
        assert!(update(RawArrayBuf::from_iter([folded])).lookups().is_none());
    }

    #[test]
    fn an_error_is_the_effect_of_one_statement_and_not_of_several() {
        let one = rawdoc! { "q": { "_id": 1 }, "u": { "$inc": { "name": 1 } }, "upsert": true };
        let many = rawdoc! { "q": { "_id": 2 }, "u": { "$set": { "n": 1 } }, "multi": true };
        let effect = |updates: &[&RawDocumentBuf], reply: RawDocumentBuf| {
            let updates = updates.iter().map(|it| (*it).clone());
            update(RawArrayBuf::from_iter(updates)).effect(Some(&reply))
        };
        let partly = || rawdoc! { "writeErrors": [{ "index": 0 }], "ok": 1.0 };
        let failed = || rawdoc! { "ok": 0.0, "code": 2 };
        assert!(matches!(effect(&[&one], partly()), Effect::Nothing));
        assert!(matches!(effect(&[&one], failed()), Effect::Nothing));
        assert!(matches!(effect(&[&one, &many], partly()), Effect::Unknown));
        assert!(matches!(effect(&[&many], failed()), Effect::Touched(_)));
        let delete = |limit: f64| rawdoc! { "q": { "_id": 2 }, "limit": limit };
        assert!(matches!(
            effect(&[&delete(0.0)], failed()),
            Effect::Touched(_)
        ));
        assert!(matches!(effect(&[&delete(1.0)], failed()), Effect::Nothing));
        let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
        let insert = Write::parse("insert", OpMsg::new(insert));
        assert!(matches!(insert.effect(Some(&failed())), Effect::Nothing));
        let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }] };
        let insert = Write::parse("insert", OpMsg::new(insert));
        assert!(matches!(insert.effect(Some(&failed())), Effect::Touched(_)));
    }

    #[test]
    fn a_command_that_cannot_be_parsed_changes_nothing() {
        for code in [2, 9, 14, 40_414, 40_999] {
            let refused = rawdoc! { "ok": 0.0, "code": code };
            for command in ["create", "collMod", "renameCollection"] {
                assert!(is_refusal_of_all(command, &refused), "{command}, {code}");
            }
        }
        let wrong = rawdoc! { "ok": 0.0, "code": 14 };
        assert!(!is_refusal_of_all("bulkWrite", &wrong));
        for reply in [rawdoc! { "ok": 1.0 }, rawdoc! { "ok": 0.0, "code": 11601 }] {
            assert!(!is_refusal_of_all("create", &reply), "{reply:?}");
        }
    }

    #[test]
    fn a_reply_has_the_time_of_the_write() {
        let time = bson::Timestamp {
            time: 1,
            increment: 2,
        };
        let reply = rawdoc! { "ok": 1.0, "operationTime": time };
        assert_eq!(crate::replicas::operation_time(&reply), Some(1 << 32 | 2));
    }

    #[test]
    fn targets_are_what_is_written() {
        let names = |command: &str, body: RawDocumentBuf| {
            let targets = targets(command, &body)?;
            Some(targets.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let out =
            rawdoc! { "aggregate": "a", "pipeline": [{ "$merge": { "into": "b" } }], "$db": "d" };
        assert_eq!(names("aggregate", out), Some(vec!["d.b".to_owned()]));
        let short = rawdoc! { "aggregate": "a", "pipeline": [{ "$merge": "b" }], "$db": "d" };
        assert_eq!(names("aggregate", short), Some(vec!["d.b".to_owned()]));
        let rename = rawdoc! { "renameCollection": "d.a", "to": "e.b.c" };
        let both = vec!["d.a".to_owned(), "e.b.c".to_owned()];
        assert_eq!(names("renameCollection", rename), Some(both));
        assert_eq!(names("applyOps", rawdoc! { "applyOps": [] }), None);
    }
}
