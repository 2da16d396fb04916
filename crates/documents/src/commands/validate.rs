//! `validate`: checks that each document has its index entries, and that each index entry has its document.

use bson::raw::CString;
use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use crate::arguments::Known;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::places::{Kind, all_aside, blocking};
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "validate",
    help: "checks the indexes of a collection against its documents",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    let collection = request.documents.collections().existing(&namespace)?;
    let stop = request.stop();
    // Writers of the collection wait until the check ends. The permit limits how many checks run at the same time.
    let verified = all_aside(Kind::Build, stop, async {
        blocking(|| Ok(collection.store.verify(stop)?))
    });
    let report = verified.await?;
    let indexes = collection.store.indexes();
    let mut errors = RawArrayBuf::new();
    if !report.is_clean() {
        errors.push(format!("{report:?}"));
    }
    let mut keys = RawDocumentBuf::new();
    for index in &indexes {
        let name = CString::try_from(index.spec.name.as_str())
            .expect("names with NUL are refused at creation");
        keys.append(name, rawdoc! { "valid": report.is_clean() });
    }
    Ok(rawdoc! {
        "ns": namespace.to_string(),
        "nInvalidDocuments": 0,
        "nrecords": collection.store.document_count() as i64,
        "nIndexes": indexes.len() as i32,
        "indexDetails": keys,
        "valid": report.is_clean(),
        "repaired": false,
        "warnings": RawArrayBuf::new(),
        "errors": errors,
        "ok": 1.0,
    })
}
