//! Concurrent writers, each of which checks its searches against its own model, while devices join, leave and fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::{Document, doc};
use fastrand::Rng;
use forebay_device::Fault;

use crate::support::Door;

const NAME: &str = "storm";
const TASKS: usize = 4;
const ROUNDS: usize = 120;
const SEED: u64 = 0x5_7012;

/// Tests a value against a filter.
type Matches<'a> = dyn Fn(&str) -> bool + Sync + 'a;

/// A writer. The values of its documents begin with its own tag, so that other writers do not affect its searches.
struct Writer {
    door: Arc<Door>,
    tag: String,
    first_id: i32,
    next_id: i32,
    rng: Rng,
    model: HashMap<i32, Option<String>>,
}

impl Writer {
    fn new(door: Arc<Door>, task: usize) -> Writer {
        let first_id = task as i32 * 1_000_000;
        Writer {
            door,
            tag: format!("t{task}-"),
            first_id,
            next_id: first_id,
            rng: Rng::with_seed(SEED + task as u64),
            model: HashMap::new(),
        }
    }

    fn value(&mut self) -> Option<String> {
        let number = self.rng.u32(..500);
        (self.rng.u8(..10) > 0).then(|| {
            format!(
                "{}{}-{number}",
                self.tag,
                ["red", "green", "blue"][self.rng.usize(..3)]
            )
        })
    }

    fn document(&self, id: i32, value: &Option<String>) -> Document {
        let mut document = doc! { "_id": id, "who": self.tag.as_str() };
        if let Some(value) = value {
            document.insert("v", value.as_str());
        }
        document
    }

    async fn insert(&mut self) {
        let mut documents = Vec::new();
        for _ in 0..self.rng.usize(1..40) {
            let (id, value) = (self.next_id, self.value());
            self.next_id += 1;
            documents.push(self.document(id, &value));
            self.model.insert(id, value);
        }
        self.door
            .run(doc! { "insert": NAME, "documents": documents })
            .await;
    }

    fn any_id(&mut self) -> i32 {
        self.rng.i32(self.first_id..=self.next_id)
    }

    async fn replace(&mut self) {
        let (id, value) = (self.any_id(), self.value());
        let update = doc! { "q": { "_id": id }, "u": self.document(id, &value) };
        self.door
            .run(doc! { "update": NAME, "updates": [update] })
            .await;
        self.model.entry(id).and_modify(|held| *held = value);
    }

    async fn recolour(&mut self) {
        let value = format!("{}pink-{}", self.tag, self.rng.u32(..500));
        let filter = doc! { "v": { "$regex": format!("^{}red-.*7$", self.tag) } };
        let update = doc! { "q": filter, "u": { "$set": { "v": &value } }, "multi": true };
        self.door
            .run(doc! { "update": NAME, "updates": [update] })
            .await;
        let red = format!("{}red-", self.tag);
        for held in self.model.values_mut().flatten() {
            if held.starts_with(&red) && held.ends_with('7') {
                held.clone_from(&value);
            }
        }
    }

    async fn delete(&mut self) {
        let id = self.any_id();
        let delete = doc! { "q": { "_id": id }, "limit": 1 };
        self.door
            .run(doc! { "delete": NAME, "deletes": [delete] })
            .await;
        self.model.remove(&id);
    }

    async fn write(&mut self) {
        match self.rng.u8(..10) {
            0..4 => self.insert().await,
            4..7 => self.replace().await,
            7 => self.recolour().await,
            _ => self.delete().await,
        }
    }

    /// Checks that a search finds exactly the documents written so far.
    async fn check(&mut self) {
        let digit = self.rng.u8(..10).to_string();
        let tag = &self.tag;
        let questions: [(Document, &Matches<'_>); 4] = [
            (doc! { "v": { "$regex": format!("^{tag}") } }, &|_| true),
            (
                doc! { "v": { "$regex": format!("{tag}(red|blue)-[0-9]*{digit}$") } },
                &|value| {
                    !value.contains("green") && !value.contains("pink") && value.ends_with(&digit)
                },
            ),
            (
                doc! { "v": { "$regex": format!("^{tag}.*een-{digit}") } },
                &|value| value.contains(&format!("green-{digit}")),
            ),
            (
                doc! { "v": { "$in": [format!("{tag}red-1{digit}"), format!("{tag}blue-{digit}")] } },
                &|value| {
                    value.ends_with(&format!("red-1{digit}"))
                        || value.ends_with(&format!("blue-{digit}"))
                },
            ),
        ];
        for (filter, matches) in questions {
            self.compare(filter, matches).await;
        }
        let without = self.model.values().filter(|value| value.is_none()).count() as i64;
        let filter = doc! { "v": null, "who": tag.as_str() };
        assert_eq!(
            self.door.count(NAME, filter).await,
            without,
            "seed {SEED}: {tag} without a value"
        );
    }

    async fn compare(&self, filter: Document, matches: &Matches<'_>) {
        let held = self
            .model
            .iter()
            .filter(|(_, value)| value.as_deref().is_some_and(matches));
        let mut expected: Vec<i32> = held.map(|(id, _)| *id).collect();
        expected.sort_unstable();
        let count = self.door.count(NAME, filter.clone()).await;
        assert_eq!(count, expected.len() as i64, "seed {SEED}: {filter}");
        let found = self
            .door
            .all(doc! { "find": NAME, "filter": filter.clone(), "projection": { "_id": 1 } })
            .await;
        let mut found: Vec<i32> = found
            .iter()
            .map(|document| document.get_i32("_id").expect("ids"))
            .collect();
        found.sort_unstable();
        assert_eq!(found, expected, "seed {SEED}: {filter}");
    }

    async fn run(mut self, left: Arc<AtomicUsize>) {
        for _ in 0..ROUNDS {
            self.write().await;
            self.check().await;
        }
        left.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets devices join, leave and fail, and flushes the delta, until no writer remains.
async fn disturb(door: Arc<Door>, left: Arc<AtomicUsize>) {
    let mut rng = Rng::with_seed(SEED);
    while left.load(Ordering::SeqCst) > 0 {
        let devices = door.documents.devices().list();
        let chosen = &devices[rng.usize(..devices.len())];
        match rng.u8(..6) {
            0 | 1 if devices.len() < 4 => {
                door.admin(doc! { "forebayDevices": 1, "add": "host:1" })
                    .await;
            }
            2 if devices.len() > 2 => {
                door.admin(doc! { "forebayDevices": 1, "remove": i64::from(chosen.id().0) })
                    .await;
            }
            3 => chosen.inject(if rng.bool() {
                Fault::Fail
            } else {
                Fault::OutOfMemory
            }),
            _ => tokio::task::block_in_place(|| door.flush(NAME)),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_read_their_own_writes_while_devices_change() {
    let door = Arc::new(Door::memory(2));
    door.run(doc! { "create": NAME }).await;
    door.cache(NAME, &["v"]).await;
    let left = Arc::new(AtomicUsize::new(TASKS));
    let writers: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(Writer::new(Arc::clone(&door), task).run(Arc::clone(&left))))
        .collect();
    let disturber = tokio::spawn(disturb(Arc::clone(&door), Arc::clone(&left)));
    for writer in writers {
        if let Err(failed) = writer.await {
            left.store(0, Ordering::SeqCst);
            std::panic::resume_unwind(failed.into_panic());
        }
    }
    disturber
        .await
        .expect("the disturber ends with the writers");
}
