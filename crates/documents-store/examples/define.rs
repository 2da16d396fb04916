//! Measures creating, opening and dropping collections.
//!
//! ```sh
//! cargo run --release -p forebay-documents-store --example define -- [COUNT]
//! ```

use std::time::{Duration, Instant};

use forebay_documents_store::{CollectionOptions, Store, StoreOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u32 = std::env::args()
        .nth(1)
        .map_or(Ok(100), |count| count.parse())?;
    let directory = tempfile::tempdir()?;
    let store = Store::open(StoreOptions::directory(directory.path()))?;
    let creating = timed(count, |at| {
        store
            .create_collection("db", &at, CollectionOptions::default())
            .map(drop)
    })?;
    drop(store);
    let began = Instant::now();
    let store = Store::open(StoreOptions::directory(directory.path()))?;
    let opening = began.elapsed() / count;
    let dropping = timed(count, |at| store.drop_collection("db", &at).map(drop))?;
    println!("{count} collections: create {creating:?}, open {opening:?}, drop {dropping:?} each");
    Ok(())
}

fn timed(
    count: u32,
    step: impl Fn(String) -> forebay_documents_store::Result<()>,
) -> forebay_documents_store::Result<Duration> {
    let began = Instant::now();
    (0..count).try_for_each(|at| step(at.to_string()))?;
    Ok(began.elapsed() / count)
}
