//! Compares a collection with cached fields to one without. Both get the same documents, writes and queries.

use bson::{Bson, Document, doc};
use fastrand::Rng;
use forebay_device::Fault;

use crate::generate;
use crate::support::Door;

const CACHED: &str = "cached";
const PLAIN: &str = "plain";

/// One test run: a server with both collections, and the random generator.
struct Run {
    door: Door,
    rng: Rng,
    seed: u64,
    next_id: i32,
}

impl Run {
    async fn begin(seed: u64, documents: usize) -> Run {
        let mut run = Run {
            door: Door::memory(2),
            rng: Rng::with_seed(seed),
            seed,
            next_id: 0,
        };
        run.insert(documents / 2).await;
        run.door.cache(CACHED, &["a"]).await;
        run.door.cache(CACHED, &["b.c"]).await;
        run.insert(documents - documents / 2).await;
        run
    }

    /// Runs a command on both collections, and checks that the replies agree.
    async fn both(&self, command: impl Fn(&str) -> Document) {
        let cached = self.door.ask(command(CACHED)).await;
        let plain = self.door.ask(command(PLAIN)).await;
        let strip = |reply: &Document| {
            let mut reply = reply.clone();
            reply.remove("errmsg");
            reply
        };
        let same = strip(&cached) == strip(&plain)
            || cached.get_f64("ok").ok() != Some(1.0) && cached.get("code") == plain.get("code");
        assert!(
            same,
            "seed {}: {}\ncached {cached}\nplain  {plain}",
            self.seed,
            command(CACHED)
        );
    }

    async fn insert(&mut self, count: usize) {
        let documents: Vec<Document> = (0..count).map(|_| self.document()).collect();
        for batch in documents.chunks(200) {
            self.both(|collection| doc! { "insert": collection, "documents": batch.to_vec() })
                .await;
        }
    }

    fn document(&mut self) -> Document {
        self.next_id += 1;
        generate::document(&mut self.rng, self.next_id)
    }

    async fn write(&mut self) {
        let filter = generate::filter(&mut self.rng, 1);
        let id = self.rng.i32(0..=self.next_id);
        let number = self.rng.i32(0..20);
        match self.rng.u8(..12) {
            0..3 => {
                let count = self.rng.usize(1..20);
                self.insert(count).await;
            }
            3..5 => self.update(doc! { "_id": id }, false).await,
            5 => self.update(filter, false).await,
            6 => {
                let filter = doc! { "n": number, "u": { "$exists": true } };
                self.update(filter, true).await;
            }
            7 => self.replace(id).await,
            8 => self.delete(doc! { "_id": id }, 1).await,
            9 => {
                let filter = doc! { "$and": [filter, { "n": number }] };
                self.delete(filter, number % 2).await;
            }
            10 => self.find_and_modify(filter).await,
            _ => self.upsert(id).await,
        }
    }

    async fn update(&mut self, filter: Document, multi: bool) {
        let change = generate::change(&mut self.rng);
        let update = doc! { "q": filter, "u": without_time(change), "multi": multi };
        self.both(|collection| doc! { "update": collection, "updates": [update.clone()] })
            .await;
    }

    async fn replace(&mut self, id: i32) {
        let replacement = generate::document(&mut self.rng, id);
        let update = doc! { "q": { "_id": id }, "u": replacement };
        self.both(|collection| doc! { "update": collection, "updates": [update.clone()] })
            .await;
    }

    async fn upsert(&mut self, id: i32) {
        let change = without_time(generate::change(&mut self.rng));
        let update = doc! { "q": { "_id": id }, "u": change, "upsert": true };
        self.both(|collection| doc! { "update": collection, "updates": [update.clone()] })
            .await;
    }

    async fn delete(&mut self, filter: Document, limit: i32) {
        let delete = doc! { "q": filter, "limit": limit };
        self.both(|collection| doc! { "delete": collection, "deletes": [delete.clone()] })
            .await;
    }

    async fn find_and_modify(&mut self, filter: Document) {
        let change = without_time(generate::change(&mut self.rng));
        let command = |collection: &str| {
            doc! { "findAndModify": collection, "query": filter.clone(), "update": change.clone(), "new": true, "sort": { "_id": 1 } }
        };
        self.both(command).await;
    }

    /// Runs all kinds of queries with one random filter on both collections, and compares the results.
    async fn question(&mut self) {
        let filter = generate::filter(&mut self.rng, 3);
        self.both(|collection| doc! { "count": collection, "query": filter.clone() })
            .await;
        self.find(&filter).await;
        for field in ["a", "b.c", "n"] {
            self.distinct(&filter, field).await;
            self.group(&filter, field).await;
        }
        for counting in [
            doc! { "$count": "all" },
            doc! { "$group": { "_id": null, "n": { "$sum": 1 } } },
        ] {
            self.same_lists(|collection| doc! { "aggregate": collection, "pipeline": [{ "$match": filter.clone() }, counting.clone()] })
                .await;
        }
    }

    async fn find(&mut self, filter: &Document) {
        let (skip, limit) = (self.rng.i32(0..5), self.rng.i32(1..20));
        let base = |collection: &str| doc! { "find": collection, "filter": filter.clone() };
        let with = |collection: &str, more: Document| {
            let mut command = base(collection);
            command.extend(more);
            command
        };
        self.same_lists(base).await;
        self.same_lists(|c| with(c, doc! { "batchSize": 7, "projection": { "a": 1 } }))
            .await;
        self.same_lists(|c| with(c, doc! { "skip": skip, "limit": limit }))
            .await;
        self.same_lists(|c| {
            with(
                c,
                doc! { "skip": skip, "limit": limit, "sort": { "n": -1, "_id": 1 } },
            )
        })
        .await;
    }

    async fn same_lists(&self, command: impl Fn(&str) -> Document) {
        let cached = self.door.all(command(CACHED)).await;
        let plain = self.door.all(command(PLAIN)).await;
        let explained = if cached == plain {
            doc! {}
        } else {
            self.door.explain(command(CACHED)).await
        };
        assert!(
            cached == plain,
            "seed {}: {}\ncached {cached:?}\nplain  {plain:?}\n{explained}",
            self.seed,
            command(CACHED)
        );
    }

    async fn distinct(&self, filter: &Document, field: &str) {
        let ask = async |collection: &str| {
            let reply = self
                .door
                .run(doc! { "distinct": collection, "key": field, "query": filter.clone() })
                .await;
            let values = reply.get_array("values").expect("values");
            values.iter().map(shown).collect::<Vec<_>>()
        };
        let (cached, plain) = (ask(CACHED).await, ask(PLAIN).await);
        assert_eq!(
            cached, plain,
            "seed {}: distinct {field} of {filter}",
            self.seed
        );
    }

    async fn group(&self, filter: &Document, field: &str) {
        let stages = [
            doc! { "$group": { "_id": format!("${field}"), "n": { "$sum": 1 } } },
            doc! { "$sortByCount": format!("${field}") },
        ];
        for stage in stages {
            let ask = async |collection: &str| {
                let pipeline = vec![doc! { "$match": filter.clone() }, stage.clone()];
                let groups = self
                    .door
                    .all(doc! { "aggregate": collection, "pipeline": pipeline })
                    .await;
                sorted(groups.iter().map(|group| {
                    let id = group.get("_id").expect("a group has an _id");
                    format!("{} {:?}", shown(id), group.values().nth(1))
                }))
            };
            let (cached, plain) = (ask(CACHED).await, ask(PLAIN).await);
            assert_eq!(cached, plain, "seed {}: {stage} of {filter}", self.seed);
        }
    }

    /// Lets a random device join, leave or fail.
    async fn disturb(&mut self) {
        let devices = self.door.documents.devices().list();
        let chosen = &devices[self.rng.usize(..devices.len())];
        match self.rng.u8(..3) {
            0 if devices.len() < 5 => {
                self.door
                    .admin(doc! { "forebayDevices": 1, "add": "host:1" })
                    .await;
            }
            1 if devices.len() > 1 => {
                self.door
                    .admin(doc! { "forebayDevices": 1, "remove": i64::from(chosen.id().0) })
                    .await;
            }
            _ => chosen.inject(if self.rng.bool() {
                Fault::Fail
            } else {
                Fault::OutOfMemory
            }),
        }
    }
}

/// Returns the update without `$currentDate`, because the two collections are written at different times.
fn without_time(mut change: Document) -> Document {
    change.remove("$currentDate");
    if change.is_empty() {
        doc! { "$inc": { "n": 1 } }
    } else {
        change
    }
}

/// Returns a value as text. A symbol and a string with the same text are equal, so they have the same form.
fn shown(value: &Bson) -> String {
    match value {
        Bson::Symbol(text) => Bson::from(text.as_str()).to_string(),
        other => other.to_string(),
    }
}

fn sorted(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut values: Vec<String> = values.collect();
    values.sort();
    values
}

async fn run(seed: u64, rounds: usize) {
    let mut run = Run::begin(seed, 600).await;
    for round in 0..rounds {
        for _ in 0..6 {
            run.write().await;
        }
        run.question().await;
        if round % 5 == 1 {
            run.door.flush(CACHED);
        }
        if round % 7 == 3 {
            run.disturb().await;
        }
    }
}

/// Returns the seed of a failed run from the environment, or the default seeds.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        Some(seed) => vec![seed],
        None => (0..count).map(|offset| 0x00F0_4EBA + offset).collect(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_and_plain_collections_answer_alike() {
    for seed in seeds(4) {
        run(seed, 40).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_can_be_dropped_and_declared_again() {
    let mut run = Run::begin(7, 300).await;
    for round in 0..6 {
        let index = if round % 2 == 0 {
            "a_cache"
        } else {
            "b.c_cache"
        };
        run.door
            .run(doc! { "dropIndexes": CACHED, "index": index })
            .await;
        run.question().await;
        run.write().await;
        run.door
            .cache(CACHED, &[index.trim_end_matches("_cache")])
            .await;
        run.write().await;
        run.question().await;
    }
    for collection in [CACHED, PLAIN] {
        run.door.run(doc! { "drop": collection }).await;
    }
    run.question().await;
    run.insert(50).await;
    run.door.cache(CACHED, &["a", "b.c"]).await;
    run.question().await;
}
