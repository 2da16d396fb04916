//! Compares a percentage of the replicas' answers (`--upstream-compare-percent`) with the upstream's answers.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use bson::{Bson, RawBsonRef, RawDocument};
use forebay_documents::{Namespace, id_key};
use forebay_wire_mongo::OpMsg;

use crate::replicas::{Replicas, first_batch, number};

/// Maximum attempts before a comparison is reported as a difference or as undecided.
pub const TRIES: usize = 5;
/// Maximum length of a command or an answer in the log, in characters.
const LOGGED_CHARS: usize = 2_000;

/// Returns whether the current answer is to be compared.
pub fn is_due(replicas: &Replicas) -> bool {
    let answered = replicas.counters.answered.load(Ordering::Relaxed);
    // Spreads the comparisons evenly over each hundred answers.
    answered * u64::from(replicas.compare_percent) % 100 < u64::from(replicas.compare_percent)
}

/// The result of comparing a replica's answer with the upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The answers are equal, except for documents that were written between the two answers.
    Same,
    /// The answers differ.
    Different,
    /// The difference may be due to concurrent writes, or to the order in which documents were found.
    Undecided,
}

/// Compares the replica's reply to a read with the upstream's reply. `changed` has the `_id` keys of the documents that
/// were written between the two replies. Ignores the order of documents and of distinct values.
pub fn judge(
    asked: &RawDocument,
    cached: &RawDocument,
    direct: &RawDocument,
    changed: &HashSet<Vec<u8>>,
) -> Verdict {
    if content(cached, &[]) == content(direct, &[]) {
        return Verdict::Same;
    }
    if is_cut(asked, cached) && is_cut(asked, direct) {
        // Both replies may omit matching documents. The order of the search determines which documents they have.
        return Verdict::Undecided;
    }
    if changed.is_empty() {
        return Verdict::Different;
    }
    let explained = match (number(cached, "n"), number(direct, "n")) {
        (Some(cached), Some(direct)) => (cached - direct).abs() <= changed.len() as f64,
        _ if asked.get_str("find").is_ok() && has_ids(cached) && has_ids(direct) => {
            content(cached, changed) == content(direct, changed)
        }
        _ => return Verdict::Undecided,
    };
    if explained {
        Verdict::Same
    } else {
        Verdict::Different
    }
}

/// Returns whether the `limit` or `skip` of a `find` may have made its reply omit matching documents.
fn is_cut(asked: &RawDocument, reply: &RawDocument) -> bool {
    let limit = number(asked, "limit").map_or(0.0, f64::abs);
    let is_full = limit > 0.0 && first_batch(reply).count() as f64 >= limit;
    asked.get_str("find").is_ok() && (is_full || !matches!(asked.get("skip"), Ok(None)))
}

fn has_ids(reply: &RawDocument) -> bool {
    first_batch(reply).all(|document| matches!(document.get("_id"), Ok(Some(_))))
}

/// Returns each document and value of a reply as text, sorted. Omits documents whose `_id` keys are in `but`.
fn content<'a>(reply: &RawDocument, but: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<String> {
    let but: HashSet<&Vec<u8>> = but.into_iter().collect();
    let is_left = |document: &&RawDocument| {
        let id = document.get("_id").ok().flatten();
        but.is_empty() || id.is_none_or(|id| !but.contains(&id_key(id)))
    };
    let values = reply.get_array("values").into_iter().flatten().flatten();
    let mut content: Vec<String> = values.map(|value| format!("{value:?}")).collect();
    content.extend(first_batch(reply).filter(is_left).map(fields));
    content.sort_unstable();
    content.extend(number(reply, "n").map(|n| n.to_string()));
    content
}

/// Formats a document as text. Int32 and Int64 numbers with the same value have the same text.
fn fields(document: &RawDocument) -> String {
    let field = |(name, value): (&bson::raw::CStr, RawBsonRef<'_>)| match value {
        RawBsonRef::Int32(number) => format!("{name:?}: {number}"),
        RawBsonRef::Int64(number) => format!("{name:?}: {number}"),
        value => format!("{name:?}: {value:?}"),
    };
    let fields: Vec<String> = document.into_iter().flatten().map(field).collect();
    fields.join(", ")
}

/// Counts and logs a difference.
pub fn report(
    replicas: &Replicas,
    namespace: &Namespace,
    asked: &OpMsg,
    cached: &RawDocument,
    direct: &RawDocument,
) {
    replicas.counters.differed.fetch_add(1, Ordering::Relaxed);
    tracing::error!(
        %namespace, command = logged(&asked.body), cached = logged(cached), store = logged(direct),
        "the answers of the cache and of the upstream differ; the client gets the upstream's"
    );
}

/// Formats a document for the log, as extended JSON.
fn logged(document: &RawDocument) -> String {
    let text = match bson::Document::try_from(document) {
        Ok(document) => Bson::from(document).into_relaxed_extjson().to_string(),
        Err(error) => format!("unreadable: {error}"),
    };
    match text.char_indices().nth(LOGGED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawBsonRef, RawDocumentBuf, rawdoc};

    use super::*;

    fn verdict(cached: &RawDocument, direct: &RawDocument, changed: &[i32]) -> Verdict {
        let changed = changed.iter().map(|id| id_key(RawBsonRef::Int32(*id)));
        judge(&rawdoc! { "find": "c" }, cached, direct, &changed.collect())
    }

    fn batch(first: i64, second: i64) -> RawDocumentBuf {
        rawdoc! { "cursor": { "firstBatch": [{ "_id": first }, { "_id": second }], "id": 0i64 }, "ok": 1.0 }
    }

    #[test]
    fn the_order_of_a_batch_does_not_count_and_its_documents_do() {
        assert_eq!(verdict(&batch(1, 2), &batch(2, 1), &[]), Verdict::Same);
        assert_eq!(verdict(&batch(1, 2), &batch(1, 3), &[]), Verdict::Different);
        let (five, six) = (rawdoc! { "n": 5, "ok": 1.0 }, rawdoc! { "n": 6 });
        assert_eq!(
            verdict(&five, &rawdoc! { "n": 5i64, "ok": 1 }, &[]),
            Verdict::Same
        );
        assert_eq!(verdict(&five, &six, &[]), Verdict::Different);
        let values = |last: &str| rawdoc! { "values": ["a", last], "ok": 1.0 };
        assert_eq!(verdict(&values("b"), &values("c"), &[]), Verdict::Different);
        let (asked, changed) = (rawdoc! { "distinct": "c" }, [vec![1]].into());
        let distinct = judge(&asked, &values("b"), &values("c"), &changed);
        assert_eq!(distinct, Verdict::Undecided);
    }

    #[test]
    fn what_was_written_meanwhile_may_differ_and_nothing_else() {
        assert_eq!(verdict(&batch(1, 2), &batch(1, 3), &[2, 3]), Verdict::Same);
        assert_eq!(
            verdict(&batch(1, 2), &batch(1, 3), &[2]),
            Verdict::Different
        );
        let n = |n: i32| rawdoc! { "n": n, "ok": 1.0 };
        assert_eq!(verdict(&n(5), &n(7), &[1, 2]), Verdict::Same);
        assert_eq!(verdict(&n(5), &n(8), &[1, 2]), Verdict::Different);
        let asked = rawdoc! { "find": "c", "limit": 2 };
        let changed = [id_key(RawBsonRef::Int32(9))].into();
        assert_eq!(
            judge(&asked, &batch(1, 2), &batch(1, 3), &changed),
            Verdict::Undecided
        );
        let none = HashSet::new();
        let judged = judge(&asked, &batch(1, 2), &batch(1, 3), &none);
        assert_eq!(judged, Verdict::Undecided);
        let one = rawdoc! { "cursor": { "firstBatch": [{ "_id": 1 }], "id": 0i64 }, "ok": 1.0 };
        assert_eq!(judge(&asked, &batch(1, 2), &one, &none), Verdict::Different);
    }

    #[test]
    fn the_log_has_extended_json_of_limited_length() {
        let failed = rawdoc! { "ok": 0.0, "errmsg": "no such pattern", "at": bson::oid::ObjectId::from_bytes([1; 12]) };
        assert_eq!(
            logged(&failed),
            r#"{"ok":0.0,"errmsg":"no such pattern","at":{"$oid":"010101010101010101010101"}}"#
        );
        let long = logged(&rawdoc! { "a": "ä".repeat(LOGGED_CHARS) });
        assert_eq!(long.chars().count(), LOGGED_CHARS + 1);
        assert!(
            long.starts_with(r#"{"a":"ä"#) && long.ends_with("ä…"),
            "{long}"
        );
    }
}
