//! Reads that a shadow answers, or makes narrower for the store.

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::Namespace;

use crate::shadow::kept::{Judgement, Kept, narrowed};
use crate::shadow::{Mirror, Shadow, first_batch, succeeded};

/// The most `_id`s that the store is asked for instead of a search of its own.
const IDS_MAX: usize = 1_000;

/// The most documents that are fetched one by one: stores that find a single `_id` by an index may scan for several.
const FETCHED_MAX: usize = 16;

/// Why the store answers what a shadow might have.
pub const FORWARDED: &str = "the cache cannot judge the command, or it finds too many documents";

/// Arguments that say nothing about what is found.
const HARMLESS: &[&str] = &["$db", "lsid", "maxTimeMS", "comment", "$clusterTime"];

/// What becomes of a read.
pub enum Answer {
    /// This is the reply, if the client may read the collection.
    Reply(RawDocumentBuf),
    /// These are the documents, in their order.
    Fetch(Vec<RawBson>),
    /// This goes to the store in its place.
    Narrowed(RawDocumentBuf),
    /// It goes to the store as it is.
    Forward,
}

/// Is this the name of a command that [`answer`] understands?
pub fn is_read(command: &str) -> bool {
    matches!(command, "find" | "count" | "distinct" | "aggregate")
}

/// What the shadow of a collection says to a read.
pub async fn answer(shadow: &Shadow, read: &Read<'_>) -> Answer {
    if read.is_whole() {
        let reply = shadow.run(&read.namespace.db, read.plain()).await;
        match open_cursor(&reply) {
            None if succeeded(&reply) => return Answer::Reply(reply),
            None => {}
            Some(cursor) => read.close(shadow, cursor).await,
        }
    }
    match read.ids(shadow).await {
        Some(ids) if read.is_fetch(ids.len()) => Answer::Fetch(ids),
        Some(ids) => Answer::Narrowed(read.narrowed(ids)),
        None => Answer::Forward,
    }
}

/// The refusal of a read that has to be strict, has a condition on a cached field, and would be the store's to answer.
pub fn refusal(shadow: &Shadow, mirror: &Mirror, body: &RawDocument) -> Option<RawDocumentBuf> {
    let word = body
        .get_document("comment")
        .and_then(|it| it.get_str("forebay"));
    let is_strict = shadow.is_strict() || word.is_ok_and(|it| it == "strict");
    let name = body.iter_elements().next()?.ok()?.key().as_str();
    let judgement = mirror.kept()?.judge(filter_of(name, body)?);
    let reason = mirror.reason().unwrap_or_else(|| FORWARDED.to_owned());
    (is_strict && judgement != Judgement::None).then(|| {
        let message = format!("strict: the search would fall back to the store: {reason}");
        rawdoc! { "ok": 0.0, "errmsg": message, "code": 2, "codeName": "BadValue" }
    })
}

fn filter_of<'a>(name: &str, body: &'a RawDocument) -> Option<&'a RawDocument> {
    match name {
        "find" => body.get_document("filter").ok(),
        "count" | "distinct" => body.get_document("query").ok(),
        _ => first_stage(body)?.get_document("$match").ok(),
    }
}

/// A read with a filter on cached fields.
pub struct Read<'a> {
    namespace: &'a Namespace,
    kept: &'a Kept,
    name: &'a str,
    body: &'a RawDocument,
    filter: &'a RawDocument,
    judgement: Judgement,
}

impl<'a> Read<'a> {
    /// None for a command with an argument that a shadow cannot obey, or without a condition on a cached field.
    pub fn parse(
        namespace: &'a Namespace,
        kept: &'a Kept,
        body: &'a RawDocument,
    ) -> Option<Read<'a>> {
        let name = body.iter_elements().next()?.ok()?.key().as_str();
        let filter = filter_of(name, body)?;
        let mut arguments = body.into_iter().flatten().skip(1);
        if !arguments.all(|(argument, value)| obeys(name, argument.as_str(), value)) {
            return None;
        }
        let judgement = kept.judge(filter);
        (judgement != Judgement::None).then_some(Read {
            namespace,
            kept,
            name,
            body,
            filter,
            judgement,
        })
    }

    /// Does the shadow hold all that the command needs?
    fn is_whole(&self) -> bool {
        self.judgement == Judgement::Whole
            && match self.name {
                "count" => true,
                "distinct" => self
                    .body
                    .get_str("key")
                    .is_ok_and(|key| self.kept.holds(key)),
                "find" => self.shows_kept_fields() && self.sorts_by_kept_fields(),
                _ => self.counts(),
            }
    }

    /// Is this a plain `find` of few documents, which the shadow has judged?
    fn is_fetch(&self, documents: usize) -> bool {
        let plain = |argument: &str| {
            HARMLESS.contains(&argument)
                || matches!(
                    argument,
                    "find" | "filter" | "projection" | "readConcern" | "$readPreference"
                )
        };
        let mut arguments = self.body.into_iter().flatten();
        self.name == "find"
            && self.judgement == Judgement::Whole
            && documents <= FETCHED_MAX
            && arguments.all(|(argument, _)| plain(argument.as_str()))
    }

    /// Does a `find` show nothing but fields that the shadow holds?
    fn shows_kept_fields(&self) -> bool {
        let Ok(projection) = self.body.get_document("projection") else {
            return false;
        };
        let mut fields = projection.into_iter().flatten().peekable();
        let shown = |value: RawBsonRef<'_>| {
            matches!(value, RawBsonRef::Int32(1) | RawBsonRef::Boolean(true))
        };
        let names_one = projection
            .into_iter()
            .flatten()
            .any(|(_, value)| shown(value));
        let hides_id = |name: &str, value| {
            name == "_id" && matches!(value, RawBsonRef::Int32(0) | RawBsonRef::Boolean(false))
        };
        fields.peek().is_some()
            && names_one
            && fields.all(|(name, value)| {
                hides_id(name.as_str(), value) || shown(value) && self.kept.holds(name.as_str())
            })
    }

    fn sorts_by_kept_fields(&self) -> bool {
        let sort = self
            .body
            .get_document("sort")
            .into_iter()
            .flatten()
            .flatten();
        sort.into_iter()
            .all(|(name, value)| self.kept.holds(name.as_str()) && value.as_document().is_none())
    }

    /// Does a pipeline end in numbers of documents, counted together or by a field that the shadow holds?
    fn counts(&self) -> bool {
        let mut ends = false;
        for stage in stages(self.body).skip(1) {
            let Some(Ok((name, value))) = stage.into_iter().next() else {
                return false;
            };
            ends |= match (name.as_str(), value) {
                ("$skip" | "$limit", _) => false,
                ("$count", _) => true,
                ("$group", RawBsonRef::Document(group)) if !ends => {
                    if !self.groups(group) {
                        return false;
                    }
                    true
                }
                _ => return false,
            };
        }
        ends
    }

    fn groups(&self, group: &RawDocument) -> bool {
        group
            .into_iter()
            .flatten()
            .all(|(name, value)| match (name.as_str(), value) {
                ("_id", RawBsonRef::String(path)) => path
                    .strip_prefix('$')
                    .is_some_and(|path| !path.starts_with('$') && self.kept.holds(path)),
                ("_id", RawBsonRef::Null | RawBsonRef::Int32(_)) => true,
                (_, RawBsonRef::Document(sum)) => {
                    matches!(sum.get("$sum"), Ok(Some(RawBsonRef::Int32(_))))
                }
                _ => false,
            })
    }

    /// The command for the shadow.
    fn plain(&self) -> RawDocumentBuf {
        let mut plain = RawDocumentBuf::new();
        for (name, value) in self.body.into_iter().flatten() {
            let local = HARMLESS.contains(&name.as_str()) && name.as_str() != "maxTimeMS";
            if !local && !matches!(name.as_str(), "readConcern" | "$readPreference") {
                plain.append(name, value);
            }
        }
        plain
    }

    /// The `_id`s of the documents that may match; none if they are too many to name.
    async fn ids(&self, shadow: &Shadow) -> Option<Vec<RawBson>> {
        let condition = match &self.judgement {
            Judgement::Part(condition) => condition,
            _ => self.filter,
        };
        let most = i64::try_from(IDS_MAX + 1).ok()?;
        let find = rawdoc! {
            "find": self.namespace.collection.as_str(), "filter": condition.to_owned(), "projection": { "_id": 1 },
            "limit": most, "batchSize": most, "singleBatch": true,
        };
        let reply = shadow.run(&self.namespace.db, find).await;
        if !succeeded(&reply) {
            return None;
        }
        let ids = first_batch(&reply).filter_map(|document| document.get("_id").ok().flatten());
        let ids: Vec<_> = ids.map(RawBson::from).collect();
        (ids.len() <= IDS_MAX).then_some(ids)
    }

    async fn close(&self, shadow: &Shadow, cursor: i64) {
        let cursors = RawArrayBuf::from_iter([cursor]);
        let kill =
            rawdoc! { "killCursors": self.namespace.collection.as_str(), "cursors": cursors };
        // A cursor that is gone already needs no closing.
        drop(shadow.run(&self.namespace.db, kill).await);
    }

    /// The command, asked of the documents with these `_id`s only. The store judges them by the whole filter.
    fn narrowed(&self, ids: Vec<RawBson>) -> RawDocumentBuf {
        let filter = narrowed(self.filter, RawArrayBuf::from_iter(ids));
        let mut command = RawDocumentBuf::new();
        for (name, value) in self.body.into_iter().flatten() {
            match name.as_str() {
                "filter" | "query" => command.append(name, filter.clone()),
                "pipeline" => {
                    let mut pipeline = RawArrayBuf::new();
                    pipeline.push(rawdoc! { "$match": filter.clone() });
                    stages(self.body)
                        .skip(1)
                        .for_each(|stage| pipeline.push(stage.to_owned()));
                    command.append(name, pipeline);
                }
                _ => command.append(name, value),
            }
        }
        command
    }
}

fn stages(body: &RawDocument) -> impl Iterator<Item = &RawDocument> {
    let pipeline = body.get_array("pipeline").into_iter().flatten().flatten();
    pipeline.filter_map(|stage| stage.as_document())
}

fn first_stage(body: &RawDocument) -> Option<&RawDocument> {
    stages(body).next()
}

/// Can a shadow do what this argument asks? What is not known is the store's: transactions, collations, hints, ...
fn obeys(command: &str, argument: &str, value: RawBsonRef<'_>) -> bool {
    match (argument, value) {
        ("readConcern", RawBsonRef::Document(concern)) => {
            concern.into_iter().flatten().all(|(name, value)| {
                name.as_str() == "level"
                    && matches!(value, RawBsonRef::String("local" | "available"))
            })
        }
        ("$readPreference", RawBsonRef::Document(preference)) => {
            matches!(
                preference.get_str("mode"),
                Ok("primary" | "primaryPreferred")
            )
        }
        (argument, _) if HARMLESS.contains(&argument) => true,
        (argument, _) => match command {
            "find" => matches!(
                argument,
                "filter" | "projection" | "sort" | "skip" | "limit" | "batchSize" | "singleBatch"
            ),
            "count" => matches!(argument, "query" | "skip" | "limit"),
            "distinct" => matches!(argument, "key" | "query"),
            _ => matches!(argument, "pipeline" | "cursor"),
        },
    }
}

/// The cursor of a reply that is not all: the store could not go on with it.
fn open_cursor(reply: &RawDocument) -> Option<i64> {
    let cursor = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_i64("id"));
    cursor.ok().filter(|id| *id != 0)
}
