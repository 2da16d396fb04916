//! Measures the matching of filters against documents: processor time per document, in the fastest of several rounds.
//!
//! `cargo run --release -p forebay-documents-query --example filter`

use bson::{Document, RawDocumentBuf, doc};
use forebay_documents_query::{Filter, Limits};

/// Number of documents in a round.
const DOCUMENTS: usize = 100_000;
const ROUNDS: usize = 9;

fn main() {
    let documents: Vec<RawDocumentBuf> = (0..DOCUMENTS).map(document).collect();
    let words: Vec<String> = (0..100).map(|n| format!("word{n}")).collect();
    for (name, filter) in [
        ("equality", doc! { "name": "package-7-webpack" }),
        ("range", doc! { "n": { "$gte": 10, "$lt": 20 } }),
        ("in", doc! { "name": { "$in": words } }),
        ("substring", doc! { "name": { "$regex": "99-web" } }),
        ("automaton", doc! { "name": { "$regex": "9.*[xyz].*q" } }),
        ("array", doc! { "tags": "tag3" }),
        (
            "elemMatch",
            doc! { "parts": { "$elemMatch": { "a": 3, "b": { "$gt": 1 } } } },
        ),
        ("not", doc! { "$nor": [{ "n": 3 }, { "n": 5 }] }),
    ] {
        let (found, seconds) = fastest(&filter, &documents);
        let nanoseconds = seconds * 1e9 / DOCUMENTS as f64;
        println!("{name:10} {found:7} found {nanoseconds:7.1} ns per document");
    }
}

fn document(number: usize) -> RawDocumentBuf {
    let number = number as i32;
    let parts: Vec<Document> = (0..4).map(|a| doc! { "a": a, "b": number % 3 }).collect();
    let document = doc! {
        "_id": number,
        "name": format!("package-{number}-webpack"),
        "n": number % 100,
        "tags": ["tag0", "tag1", "tag2"],
        "parts": parts,
    };
    RawDocumentBuf::try_from(&document).expect("names have no NUL")
}

/// Returns the number of matching documents, and the processor time of the fastest round in seconds.
fn fastest(filter: &Document, documents: &[RawDocumentBuf]) -> (usize, f64) {
    let filter = RawDocumentBuf::try_from(filter).expect("names have no NUL");
    let filter = Filter::parse(&filter, &Limits::default()).expect("a valid filter");
    let mut result = (0, f64::INFINITY);
    for _ in 0..ROUNDS {
        let started = processor_seconds();
        let matching = documents.iter().filter(|document| filter.matches(document));
        result = (
            matching.count(),
            result.1.min(processor_seconds() - started),
        );
    }
    result
}

/// Returns the processor time of this thread, in seconds.
fn processor_seconds() -> f64 {
    let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
    let time = nix::time::clock_gettime(clock)
        .expect("the system has a processor-time clock for each thread");
    std::time::Duration::from(time).as_secs_f64()
}
