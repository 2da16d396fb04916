//! Declared caches are rebuilt after a restart, with the same answers.

use bson::{Document, doc};
use fastrand::Rng;
use forebay_documents::Location;

use crate::generate;
use crate::support::Door;

const NAME: &str = "names";
const SEED: u64 = 0x5EED;

/// Returns a server's answers to searches with `filters`.
async fn answers(door: &Door, filters: &[Document]) -> Vec<(i64, Vec<Document>)> {
    let mut answers = Vec::new();
    for filter in filters {
        let count = door.count(NAME, filter.clone()).await;
        let found = door
            .all(doc! { "find": NAME, "filter": filter.clone() })
            .await;
        assert_eq!(count, found.len() as i64, "seed {SEED}: {filter}");
        answers.push((count, found));
    }
    answers
}

async fn write(door: &Door, rng: &mut Rng) {
    let documents: Vec<Document> = (0..400).map(|id| generate::document(rng, id)).collect();
    door.run(doc! { "insert": NAME, "documents": documents })
        .await;
    for id in 0..60 {
        let update =
            doc! { "q": { "_id": id * 3 }, "u": { "$set": { "a": generate::string(rng) } } };
        door.run(doc! { "update": NAME, "updates": [update] }).await;
        let delete = doc! { "q": { "_id": id * 5 }, "limit": 1 };
        door.run(doc! { "delete": NAME, "deletes": [delete] }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_the_same_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let location = Location::Directory(directory.path().to_owned());
    let mut rng = Rng::with_seed(SEED);
    let filters: Vec<Document> = (0..30).map(|_| generate::filter(&mut rng, 2)).collect();

    let door = Door::open(location.clone(), 2, 64);
    door.cache(NAME, &["a"]).await;
    door.cache(NAME, &["b.c"]).await;
    write(&door, &mut rng).await;
    let before = answers(&door, &filters).await;
    door.documents.shutdown().expect("a clean shutdown");
    drop(door);

    let door = Door::open(location, 3, 32);
    let scanned = answers(&door, &filters).await;
    assert_eq!(
        before, scanned,
        "seed {SEED}: while the cache is being built"
    );
    door.built(NAME, &["a", "b.c"]).await;
    let after = answers(&door, &filters).await;
    assert_eq!(before, after, "seed {SEED}");
    door.documents.shutdown().expect("a clean shutdown");
}
