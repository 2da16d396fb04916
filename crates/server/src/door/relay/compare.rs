//! Cached answers beside the store's: with `compare-percent`, some of them are asked for twice.

use std::sync::atomic::Ordering;

use bson::{RawBsonRef, RawDocument};
use forebay_documents::Namespace;
use forebay_wire_mongo::OpMsg;

use crate::shadow::{Shadow, first_batch};

/// How often both are asked until a difference is one: writes come between.
pub const TRIES: usize = 5;
/// Most bytes of an answer in the log.
const LOGGED_BYTES: usize = 2_000;

/// Whether this answer is one of those that are compared.
pub fn is_due(shadow: &Shadow) -> bool {
    let answered = shadow.counters.answered.load(Ordering::Relaxed);
    // Evenly spread: so many of each hundred in a row.
    answered * u64::from(shadow.compare_percent) % 100 < u64::from(shadow.compare_percent)
}

/// Whether two replies to a read say the same; batches and distinct values may come in any order.
pub fn is_same(cached: &RawDocument, straight: &RawDocument) -> bool {
    content(cached) == content(straight)
}

/// What a reply says, as text in an order of its own.
fn content(reply: &RawDocument) -> Vec<String> {
    let told = |value: RawBsonRef<'_>| format!("{value:?}");
    let number = |value: RawBsonRef<'_>| {
        let number = value.as_i32().map(f64::from).or(value.as_f64());
        number.or(value.as_i64().map(|number| number as f64))
    };
    let values = reply.get_array("values").into_iter().flatten().flatten();
    let mut content: Vec<String> = values.map(told).collect();
    content.extend(first_batch(reply).map(fields));
    content.sort_unstable();
    let n = reply.get("n").ok().flatten().and_then(number);
    content.extend(n.map(|n| n.to_string()));
    content
}

/// A document as text; numbers of any type are equal if their values are.
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
    shadow: &Shadow,
    namespace: &Namespace,
    asked: &OpMsg,
    cached: &RawDocument,
    straight: &RawDocument,
) {
    shadow.counters.differed.fetch_add(1, Ordering::Relaxed);
    let cut = |document: &RawDocument| -> String {
        format!("{document:?}").chars().take(LOGGED_BYTES).collect()
    };
    tracing::error!(
        %namespace, command = cut(&asked.body), cached = cut(cached), store = cut(straight),
        "the cache and the store do not agree; the store's answer is given"
    );
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn the_order_of_a_batch_does_not_count_and_its_documents_do() {
        let batch = |first: i64, second: i64| {
            rawdoc! { "cursor": { "firstBatch": [{ "_id": first }, { "_id": second }], "id": 0i64 }, "ok": 1.0 }
        };
        assert!(is_same(&batch(1, 2), &batch(2, 1)));
        assert!(!is_same(&batch(1, 2), &batch(1, 3)));
        assert!(is_same(
            &rawdoc! { "n": 5, "ok": 1.0 },
            &rawdoc! { "n": 5i64, "ok": 1 }
        ));
        assert!(!is_same(&rawdoc! { "n": 5 }, &rawdoc! { "n": 6 }));
        let values = |last: &str| rawdoc! { "values": ["a", last], "ok": 1.0 };
        assert!(!is_same(&values("b"), &values("c")));
    }
}
