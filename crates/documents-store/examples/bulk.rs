//! Measures bulk inserts into a store in a temporary directory: documents of about 60 bytes, 1,000 in each call. Prints
//! microseconds per document.
//!
//! ```sh
//! cargo run --release -p forebay-documents-store --example bulk -- [DOCUMENTS] [int|random|object] [INDEXES]
//! ```

use std::time::Instant;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents_store::{CollectionOptions, IndexSpec, Store, StoreOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let documents: usize = arguments
        .first()
        .map_or(Ok(2_000_000), |count| count.parse())?;
    let ids = arguments.get(1).map_or("int", String::as_str);
    let indexes: usize = arguments.get(2).map_or(Ok(0), |count| count.parse())?;

    let directory = tempfile::tempdir()?;
    let store = Store::open(StoreOptions::directory(directory.path()))?;
    let collection = store.create_collection("bench", "bulk", CollectionOptions::default())?;
    for at in 0..indexes {
        collection.create_index(IndexSpec::ascending(&format!("f{at}")), Default::default())?;
    }
    let mut random = fastrand::Rng::with_seed(1);
    let mut inserting = std::time::Duration::ZERO;
    for start in (0..documents).step_by(1_000) {
        let batch: Vec<RawDocumentBuf> = (start..start + 1_000)
            .map(|at| document(at, ids, indexes, &mut random))
            .collect();
        let batch: Vec<&RawDocument> = batch.iter().map(|document| document.as_ref()).collect();
        let began = Instant::now();
        for answer in collection.insert_many(&batch, true) {
            answer?;
        }
        inserting += began.elapsed();
    }
    let began = Instant::now();
    store.sync()?;
    let syncing = began.elapsed();
    let began = Instant::now();
    let bytes: usize = collection
        .scan(0)
        .map(|record| record.map(|(_, document)| document.len_bytes()))
        .sum::<Result<_, _>>()?;
    let scanning = began.elapsed();
    let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / documents as f64;
    println!(
        "{documents} documents of {} bytes, {ids} ids, {indexes} indexes: insert {:.2} us, scan {:.2} us per document; last sync {syncing:?}; {:?}",
        bytes / documents,
        each(inserting),
        each(scanning),
        store.sizes(),
    );
    Ok(())
}

fn document(at: usize, ids: &str, indexes: usize, random: &mut fastrand::Rng) -> RawDocumentBuf {
    let name: String = std::iter::repeat_with(|| random.lowercase())
        .take(20)
        .collect();
    let mut document = match ids {
        "object" => rawdoc! { "_id": bson::oid::ObjectId::new() },
        "random" => rawdoc! { "_id": random.i64(i64::MIN..) },
        _ => rawdoc! { "_id": at as i64 },
    };
    document.append(bson::cstr!("name"), name);
    for field in 0..indexes {
        let path = bson::raw::CString::try_from(format!("f{field}")).expect("no zero byte");
        document.append(path, random.i32(i32::MIN..));
    }
    document
}
