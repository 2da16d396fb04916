//! Reads that a replica answers, or for which it finds the `_id`s of the documents that the upstream returns.

use std::sync::Arc;

use bson::raw::CStr;
use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_documents::{ClientContext, Namespace};

use super::cursors;
use super::reasons::Reason;
use crate::replicas::fields::{Judgement, ReplicaFields, narrowed};
use crate::replicas::pace::{Pace, Strategy, Wanted};
use crate::replicas::{Replica, Replicas, first_batch, number, succeeded};

/// Maximum number of `_id`s in a query. If a replica finds more documents, the upstream runs the search itself.
pub const IDS_MAX: usize = 1_000;
/// Maximum documents that the upstream scans in a short search. A short search is passed on unchanged.
const EARLY_DOCUMENTS: u64 = 512;
/// If a replica cannot evaluate all conditions of a read with a `limit`, it searches for this number of additional
/// documents, because some of the found documents may not match.
const BEYOND_LIMIT: usize = 16;

/// Arguments that do not affect which documents are found.
const NEUTRAL: &[&str] = &["$db", "lsid", "maxTimeMS", "comment", "$clusterTime"];
/// Arguments that only the upstream needs: a replica has one version of the data for all read concerns and preferences,
/// and does not report comments.
const UPSTREAM_ONLY: &[&str] = &[
    "$db",
    "comment",
    "$clusterTime",
    "readConcern",
    "$readPreference",
];

/// Error codes of an interrupted search: MaxTimeMSExpired, InterruptedAtShutdown and Interrupted.
const STOPPED: &[i32] = &[50, 11600, 11601];

/// How a read is answered.
pub enum Answer {
    /// The replica has answered with this reply, which the client gets if it may read the collection. A cursor in the
    /// reply is the replica's.
    Reply(RawDocumentBuf),
    /// The proxy fetches each of these documents from the upstream by its `_id`.
    Fetch(Fetch, Wanted),
    /// The upstream runs this command, which is the client's command restricted to the `_id`s that the replica found.
    Narrowed(RawDocumentBuf, Wanted),
    /// The upstream runs the unchanged command.
    Forward(Reason),
}

/// Documents that a replica found for a `find`.
pub struct Fetch {
    /// The documents' `_id`s.
    pub ids: Vec<RawBson>,
    /// Whether the search stopped at the limit, so that further documents may match.
    pub is_cut: bool,
}

/// Returns whether this command name is a read that [`answer`] handles.
pub fn is_read(command: &str) -> bool {
    matches!(command, "find" | "count" | "distinct" | "aggregate")
}

/// Decides how to answer a client's read, and runs the read on the replica if the replica can answer.
pub async fn answer(
    replicas: &Arc<Replicas>,
    replica: &Arc<Replica>,
    client: &ClientContext,
    read: &Read<'_>,
) -> Answer {
    if read.is_whole() {
        let plain = plain(read.body);
        let reply = replicas.run_for(client, &read.namespace.db, plain).await;
        return if succeeded(&reply) || was_stopped(&reply) {
            Answer::Reply(cursors::renumbered(reply))
        } else {
            Answer::Forward(Reason::refused(&reply))
        };
    }
    let ids = match read.first_ids(replicas, replica, client).await {
        Ok(Some(ids)) => Ok(ids),
        Ok(None) => read.ids(replicas, client).await,
        Err(answer) => Err(answer),
    };
    match ids {
        Ok(ids) => read.by_id(replicas, replica, ids).await,
        Err(answer) => answer,
    }
}

/// Returns the error reply with which a strict read is refused instead of passed on. Returns `None` if the read is not
/// strict or has no condition on a cached field.
pub async fn refusal(
    replicas: &Replicas,
    client: &ClientContext,
    replica: &Replica,
    body: &RawDocument,
    reason: &Reason,
) -> Option<RawDocumentBuf> {
    let word = body
        .get_document("comment")
        .and_then(|it| it.get_str("forebay"));
    let is_strict = replicas.is_strict() || word.is_ok_and(|it| it == "strict");
    let name = body.iter_elements().next()?.ok()?.key().as_str();
    let judgement = replica.fields()?.judge(filter_of(name, body)?);
    if !is_strict || judgement == Judgement::None {
        return None;
    }
    let reason = reason.text(replicas, client, &replica.namespace).await;
    let message = format!(
        "strict mode refuses the search, because it would fall back to the upstream: {reason}"
    );
    Some(rawdoc! { "ok": 0.0, "errmsg": message, "code": 2, "codeName": "BadValue" })
}

/// Returns whether an argument affects neither the found documents nor the form of the result.
pub fn is_neutral(argument: &str) -> bool {
    NEUTRAL.contains(&argument) || UPSTREAM_ONLY.contains(&argument)
}

/// Returns whether a reply reports that its command was interrupted.
pub fn was_stopped(reply: &RawDocument) -> bool {
    STOPPED.contains(&reply.get_i32("code").unwrap_or(0))
}

/// Returns a client's command without the arguments that only the upstream needs.
pub fn plain(body: &RawDocument) -> RawDocumentBuf {
    without(body, UPSTREAM_ONLY)
}

/// Returns the document without the named fields.
pub fn without(document: &RawDocument, names: &[&str]) -> RawDocumentBuf {
    let mut rest = RawDocumentBuf::new();
    for (name, value) in document.into_iter().flatten() {
        if !names.contains(&name.as_str()) {
            rest.append(name, value);
        }
    }
    rest
}

/// Returns the document with another value in the named field, if the document has that field.
pub fn with_field(
    document: &RawDocument,
    name: &str,
    change: impl Fn(RawBsonRef<'_>) -> RawBson,
) -> RawDocumentBuf {
    let mut changed = RawDocumentBuf::new();
    for (field, value) in document.into_iter().flatten() {
        if field.as_str() == name {
            changed.append(field, change(value));
        } else {
            changed.append(field, value);
        }
    }
    changed
}

fn filter_of<'a>(name: &str, body: &'a RawDocument) -> Option<&'a RawDocument> {
    match name {
        "find" => body.get_document("filter").ok(),
        "count" | "distinct" => body.get_document("query").ok(),
        _ => match stages(body)?.first()? {
            ("$match", RawBsonRef::Document(filter)) => Some(filter),
            _ => None,
        },
    }
}

/// A read with a filter on cached fields.
pub struct Read<'a> {
    namespace: &'a Namespace,
    fields: &'a ReplicaFields,
    name: &'a str,
    body: &'a RawDocument,
    filter: &'a RawDocument,
    judgement: Judgement,
}

impl<'a> Read<'a> {
    /// Parses a read. If the read has no condition on a cached field, or has an argument that a replica does not
    /// support, returns the reason to pass it on.
    pub fn parse(
        namespace: &'a Namespace,
        fields: &'a ReplicaFields,
        body: &'a RawDocument,
    ) -> Result<Read<'a>, Reason> {
        let name = body.iter_elements().next().and_then(Result::ok);
        let name = name.map_or("", |element| element.key().as_str());
        let filter = filter_of(name, body).ok_or(Reason::NoCondition)?;
        let mut arguments = body.into_iter().flatten().skip(1);
        if let Some((argument, _)) =
            arguments.find(|(argument, value)| !supports(name, argument.as_str(), *value))
        {
            return Err(Reason::Argument(argument.as_str().to_owned()));
        }
        match fields.judge(filter) {
            Judgement::None => Err(Reason::NoCondition),
            judgement => Ok(Read {
                namespace,
                fields,
                name,
                body,
                filter,
                judgement,
            }),
        }
    }

    /// Returns whether the replica holds everything that the command needs.
    fn is_whole(&self) -> bool {
        self.judgement == Judgement::Whole
            && match self.name {
                "count" => true,
                "distinct" => self
                    .body
                    .get_str("key")
                    .is_ok_and(|key| self.fields.holds(key)),
                "find" => self.shows_kept_fields() && self.sorts_by_kept_fields(),
                _ => self.counts(),
            }
    }

    /// Decides how to answer a read for which the replica found `_id`s, based on the upstream's measured latencies.
    async fn by_id(
        &self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        mut ids: Vec<RawBson>,
    ) -> Answer {
        let first = self.limit().map_or(ids.len(), |limit| limit.min(ids.len()));
        let wanted = Wanted {
            one_by_one: self.can_be_judged_here().then_some(first),
            together: ids.len(),
        };
        let strategy = if ids.is_empty() {
            let one_by_one = wanted.one_by_one.map(|_| Strategy::OneByOne);
            one_by_one.unwrap_or(Strategy::Together)
        } else if replicas.is_away() {
            let why = "the upstream cannot be reached".to_owned();
            return Answer::Forward(Reason::NotReady(why));
        } else {
            match self.strategy(replicas, replica, &ids, wanted).await {
                Ok(strategy) => strategy,
                Err(reason) => return Answer::Forward(reason),
            }
        };
        if strategy == Strategy::Together {
            return Answer::Narrowed(self.narrowed(ids), wanted);
        }
        let is_cut = self.limit() == Some(first);
        ids.truncate(first);
        Answer::Fetch(Fetch { ids, is_cut }, wanted)
    }

    /// Decides how to fetch the found documents from the upstream. If the upstream should search by itself, the `Err`
    /// says why.
    async fn strategy(
        &self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        ids: &[RawBson],
        wanted: Wanted,
    ) -> Result<Strategy, Reason> {
        let share = self.share(replicas, ids);
        let pace = replicas.pace(replica, ids, wanted, share, self.filter.to_owned());
        let pace = pace.await;
        let count = wanted.one_by_one.unwrap_or(wanted.together);
        match pace.and_then(|pace| Some((pace, pace.strategy(wanted, share)?))) {
            None => Err(Reason::Unmeasured { count }),
            Some((pace, (Strategy::Search, search))) => Err(Reason::Slower {
                count,
                by_id: pace.by_id(wanted).1,
                search,
            }),
            Some((_, (strategy, _))) => Ok(strategy),
        }
    }

    /// Returns whether this is a `find` whose filter, sort and projection have the same result in the proxy as on every
    /// upstream.
    fn can_be_judged_here(&self) -> bool {
        let document = |name| self.body.get_document(name).into_iter().flatten().flatten();
        // Which documents `skip` omits depends on an order that only the upstream knows.
        let skips = !matches!(self.body.get("skip"), Ok(None));
        self.name == "find"
            && !skips
            && number(self.body, "limit").is_none_or(|limit| limit >= 0.0)
            && document("sort").all(is_switch)
            && document("projection").all(is_switch)
    }

    /// Returns the `limit` of a `find` without a sort, if the replica can evaluate all conditions.
    fn limit(&self) -> Option<usize> {
        self.any_limit()
            .filter(|_| self.judgement == Judgement::Whole)
    }

    /// Returns the `limit` of a `find` without a sort.
    fn any_limit(&self) -> Option<usize> {
        let limit = number(self.body, "limit").filter(|limit| *limit > 0.0)?;
        let sort = self.body.get_document("sort");
        let is_free = sort.map_or(true, RawDocument::is_empty);
        (self.name == "find" && is_free).then_some(limit as usize)
    }

    /// Returns the fraction of the collection that the upstream's search reads until it has found enough documents.
    fn share(&self, replicas: &Replicas, ids: &[RawBson]) -> f64 {
        // The `_id`s are in collection order.
        let last = self
            .limit()
            .and_then(|limit| ids.get(limit.checked_sub(1)?));
        let place = last.and_then(|id| {
            let documents = &replicas.documents;
            documents.place_of(self.namespace, id.as_raw_bson_ref())
        });
        place.unwrap_or(1.0)
    }

    /// Searches the replica for only as many `_id`s as the `limit` needs. They may suffice to decide how to answer the
    /// read: if the upstream's search ends early, it may be faster than a complete search of the replica.
    ///
    /// Returns the `_id`s if they are all that match, and `None` if the caller has to search for more. In all other
    /// cases, the `Err` says how to answer the read.
    async fn first_ids(
        &self,
        replicas: &Replicas,
        replica: &Replica,
        client: &ClientContext,
    ) -> Result<Option<Vec<RawBson>>, Answer> {
        let is_whole = self.judgement == Judgement::Whole;
        let Some(limit) = self.any_limit() else {
            return Ok(None);
        };
        let few = limit.saturating_add(if is_whole { 0 } else { BEYOND_LIMIT });
        if few > IDS_MAX {
            return Ok(None);
        }
        let wanted = Wanted {
            one_by_one: self.can_be_judged_here().then_some(few),
            together: few,
        };
        let pace = replica.measurement.pace();
        let early = || self.early(replicas, limit, wanted, pace);
        // With a pattern, `early` runs before the replica's search. Without a pattern, `early` runs after the replica's
        // search, because the replica finds an exact value faster than `early` scans documents.
        let has_pattern = has_pattern(self.filter);
        if let Some(early) = has_pattern.then(early).flatten() {
            return Err(Answer::Forward(early));
        }
        let ids = self.search(replicas, client, few).await?;
        if ids.len() < few {
            return Ok(Some(ids));
        }
        if let Some(early) = (!has_pattern).then(early).flatten() {
            return Err(Answer::Forward(early));
        }
        let is_fast = pace.is_some_and(|pace| pace.is_fast_one_by_one(wanted));
        if is_whole && is_fast && !replicas.is_away() {
            let is_cut = true;
            return Err(Answer::Fetch(Fetch { ids, is_cut }, wanted));
        }
        Ok(None)
    }

    /// Returns [`Reason::Early`] if the read should be passed on: the upstream's own search would end after few
    /// documents, and is not known to be slower than queries by `_id`. Otherwise returns `None`.
    fn early(
        &self,
        replicas: &Replicas,
        limit: usize,
        wanted: Wanted,
        pace: Option<Pace>,
    ) -> Option<Reason> {
        let (condition, few) = (self.condition(), wanted.together);
        let (namespace, most) = (self.namespace, EARLY_DOCUMENTS);
        let documents = &replicas.documents;
        let scanned = documents.scanned_until(namespace, &condition, few, most)?;
        let share = scanned as f64 / documents.scanned_in_all(namespace)? as f64;
        let is_left = pace.is_none_or(|pace| pace.prefers_search(wanted, share));
        is_left.then_some(Reason::Early { limit, scanned })
    }

    /// Returns whether a `find` returns only fields that the replica holds.
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
                hides_id(name.as_str(), value) || shown(value) && self.fields.holds(name.as_str())
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
            .all(|(name, value)| self.fields.holds(name.as_str()) && value.as_document().is_none())
    }

    /// Returns whether a pipeline ends by counting documents: all of them together, or separately for each value of one
    /// field, which the replica must hold.
    fn counts(&self) -> bool {
        let mut ends = false;
        for (name, value) in stages(self.body).into_iter().flatten().skip(1) {
            ends |= match (name, value) {
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
                    .is_some_and(|path| !path.starts_with('$') && self.fields.holds(path)),
                ("_id", RawBsonRef::Null | RawBsonRef::Int32(_)) => true,
                (_, RawBsonRef::Document(sum)) => {
                    matches!(sum.get("$sum"), Ok(Some(RawBsonRef::Int32(_))))
                }
                _ => false,
            })
    }

    /// Returns the part of the filter that the replica can evaluate.
    fn condition(&self) -> RawDocumentBuf {
        match &self.judgement {
            Judgement::Part(condition) => condition.clone(),
            _ => self.filter.to_owned(),
        }
    }

    /// Searches for the `_id`s of the documents that may match. If there are too many, or if the search fails or is
    /// interrupted, the `Err` says how to answer the read instead.
    async fn ids(
        &self,
        replicas: &Replicas,
        client: &ClientContext,
    ) -> Result<Vec<RawBson>, Answer> {
        let ids = self.search(replicas, client, IDS_MAX + 1).await?;
        if ids.len() <= IDS_MAX {
            Ok(ids)
        } else {
            Err(Answer::Forward(Reason::TooMany {
                condition: self.condition(),
                is_whole: self.judgement == Judgement::Whole,
            }))
        }
    }

    /// Searches for the `_id`s of documents that may match, in collection order, at most `most` of them. If the search
    /// fails or is interrupted, the `Err` says how to answer the read instead.
    async fn search(
        &self,
        replicas: &Replicas,
        client: &ClientContext,
        most: usize,
    ) -> Result<Vec<RawBson>, Answer> {
        let most = most as i64;
        let mut find = rawdoc! {
            "find": self.namespace.collection.as_str(), "filter": self.condition(), "projection": { "_id": 1 },
            "limit": most, "batchSize": most, "singleBatch": true,
        };
        if let Ok(Some(limit)) = self.body.get("maxTimeMS") {
            find.append(cstr!("maxTimeMS"), limit);
        }
        let reply = replicas.run_for(client, &self.namespace.db, find).await;
        if was_stopped(&reply) {
            return Err(Answer::Reply(reply));
        }
        if !succeeded(&reply) {
            return Err(Answer::Forward(Reason::refused(&reply)));
        }
        let ids = first_batch(&reply).filter_map(|document| document.get("_id").ok().flatten());
        Ok(ids.map(RawBson::from).collect())
    }

    /// Returns the command with the additional condition that `_id` is in `ids`. The upstream evaluates the complete
    /// filter for these documents.
    fn narrowed(&self, ids: Vec<RawBson>) -> RawDocumentBuf {
        let filter = narrowed(self.filter, RawArrayBuf::from_iter(ids));
        let mut command = RawDocumentBuf::new();
        for (name, value) in self.body.into_iter().flatten() {
            match name.as_str() {
                "filter" | "query" => command.append(name, filter.clone()),
                "pipeline" => {
                    let mut pipeline = RawArrayBuf::new();
                    pipeline.push(rawdoc! { "$match": filter.clone() });
                    for stage in value.as_array().into_iter().flatten().flatten().skip(1) {
                        pipeline.push(stage);
                    }
                    command.append(name, pipeline);
                }
                _ => command.append(name, value),
            }
        }
        command
    }
}

/// Returns whether a filter has a regular expression.
fn has_pattern(filter: &RawDocument) -> bool {
    filter
        .into_iter()
        .flatten()
        .any(|(name, value)| match value {
            RawBsonRef::RegularExpression(_) => true,
            RawBsonRef::Document(document) => name.as_str() == "$not" || has_pattern(document),
            RawBsonRef::Array(array) => array.into_iter().flatten().any(|value| match value {
                RawBsonRef::RegularExpression(_) => true,
                value => value.as_document().is_some_and(has_pattern),
            }),
            _ => name.as_str() == "$regex",
        })
}

/// Returns whether a field of a sort or projection is a plain flag, such as 1, -1 or true, not an expression.
fn is_switch((name, value): (&CStr, RawBsonRef<'_>)) -> bool {
    let value = matches!(
        value,
        RawBsonRef::Boolean(_)
            | RawBsonRef::Int32(_)
            | RawBsonRef::Int64(_)
            | RawBsonRef::Double(_)
    );
    value && !name.as_str().contains('$')
}

/// Returns the stages of a pipeline by name, each with its argument. Returns `None` if a stage is not a document with
/// exactly one field; the upstream then reports the error.
fn stages(body: &RawDocument) -> Option<Vec<(&str, RawBsonRef<'_>)>> {
    let stages = body.get_array("pipeline").ok()?.into_iter();
    stages.map(|stage| only_field(stage.ok()?)).collect()
}

/// Returns the only field of a document; `None` if the document has no field or several.
fn only_field(document: RawBsonRef<'_>) -> Option<(&str, RawBsonRef<'_>)> {
    let mut fields = document.as_document()?.into_iter();
    let (name, value) = fields.next()?.ok()?;
    fields.next().is_none().then_some((name.as_str(), value))
}

/// Returns whether a replica supports this argument. Transactions, collations, hints and others are supported only by
/// the upstream.
fn supports(command: &str, argument: &str, value: RawBsonRef<'_>) -> bool {
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
        (argument, _) if NEUTRAL.contains(&argument) => true,
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

#[cfg(test)]
mod tests {
    use forebay_documents::namespace;

    use super::*;

    #[test]
    fn pipelines_with_malformed_stages_are_passed_on() {
        let (namespace, fields) = (
            namespace::checked("d", "c").expect("a name"),
            ReplicaFields::new(vec!["name".to_owned()]),
        );
        let filter = || rawdoc! { "$match": { "name": "x" } };
        let is_read = |stages: Vec<RawBson>| {
            let pipeline = RawArrayBuf::from_iter(stages);
            let body = rawdoc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} };
            Read::parse(&namespace, &fields, &body).is_ok()
        };
        let group = || rawdoc! { "$group": { "_id": "$n" } };
        assert!(is_read(vec![filter().into(), group().into()]));
        let mut two = filter();
        two.append(cstr!("$limit"), 1);
        assert!(!is_read(vec![two.into(), group().into()]));
        assert!(!is_read(vec![filter().into(), RawBson::Int32(5)]));
        let empty = RawDocumentBuf::new();
        assert!(!is_read(vec![filter().into(), empty.into()]));
    }

    #[test]
    fn a_narrowed_pipeline_has_all_stages_but_its_first() {
        let namespace = namespace::checked("d", "c").expect("a name");
        let fields = ReplicaFields::new(vec!["name".to_owned()]);
        let group = rawdoc! { "$group": { "_id": "$n" } };
        let pipeline = [rawdoc! { "$match": { "name": "x" } }, group.clone()];
        let body = rawdoc! { "aggregate": "c", "pipeline": RawArrayBuf::from_iter(pipeline), "cursor": {} };
        let read = Read::parse(&namespace, &fields, &body)
            .expect("the filter has a condition on a cached field");
        let narrowed = read.narrowed(vec![RawBson::Int32(1)]);
        let stages = narrowed.get_array("pipeline").expect("an array of stages");
        let stages: Vec<_> = stages.into_iter().flatten().collect();
        assert_eq!(stages.len(), 2);
        assert_eq!(stages[1].as_document(), Some(&*group));
    }
}
