//! A stress test: many tasks search and write while devices join, leave and fail, and buckets split and merge.
//!
//! Each answer is checked exactly. Some documents never change, so searches for these have one right answer. Others
//! change all the time, but at any moment each of them meets exactly one of two conditions, so the number of documents
//! that meet either condition is known.
//!
//! `FOREBAY_STORM_DOCUMENTS` sets the number of documents; with `FOREBAY_TEST_FULL` it is ten million.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use common::{leaf, options, regex};
use fastrand::Rng;
use forebay_cancel::Stop;
use forebay_device::Fault;
use forebay_documents_cache::{
    Cache, CacheSettings, CollectionCache, Expr, FieldValue, Predicate, SearchAnswer,
    SearchRequest, Want,
};
use forebay_text::Program;

/// One of every `MOVING` documents changes all the time.
const MOVING: u32 = 16;
/// Rounds of each search task.
const ROUNDS: usize = 12;
/// Number of search tasks.
const SEARCHERS: usize = 6;

struct Storm {
    cache: Arc<Cache>,
    collection: Arc<CollectionCache>,
    documents: u32,
    ended: AtomicBool,
    searches: AtomicU64,
    writes: AtomicU64,
}

/// Returns the value of a document that never changes. The scattered first letters make buckets split.
fn fixed_value(number: u32) -> String {
    let scattered = number.wrapping_mul(2_654_435_761);
    format!("{:06x} fixed {}", scattered >> 8, number % 10)
}

/// Returns the value of a changing document, which contains either "left" or "right".
fn moving_value(number: u32, round: u32) -> String {
    let side = if (number + round).is_multiple_of(2) {
        "left"
    } else {
        "right"
    };
    format!(
        "{:05x} moving {side}",
        (number ^ round).wrapping_mul(2_654_435_761) >> 12
    )
}

fn value(number: u32) -> String {
    if number.is_multiple_of(MOVING) {
        moving_value(number, 0)
    } else {
        fixed_value(number)
    }
}

impl Storm {
    fn new(documents: u32) -> Arc<Storm> {
        let devices = common::start_devices("host:3", options(u64::MAX));
        let settings = CacheSettings {
            bucket_values_max: (documents as usize / 100).clamp(1000, 131_072),
            delta_values_max: (documents as usize / 50).clamp(1000, 262_144),
            chunk_values_max: 1024,
            flush_after: std::time::Duration::from_millis(20),
            ..CacheSettings::default()
        };
        let cache = Cache::new(Arc::new(devices), settings);
        let collection = cache.declare("db.storm", &["value"]);
        let storm = Storm {
            cache,
            collection,
            documents,
            ended: AtomicBool::new(false),
            searches: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        };
        storm.fill();
        Arc::new(storm)
    }

    fn fill(&self) {
        let all: Vec<u32> = (0..self.documents).collect();
        for numbers in all.chunks(1000) {
            let mut batch = self.collection.batch(numbers.len());
            for number in numbers {
                batch.push(&[FieldValue::String(value(*number).as_bytes())]);
            }
            self.collection
                .insert_batch(numbers, &batch)
                .expect("new numbers");
        }
    }

    fn moving(&self) -> u64 {
        u64::from(self.documents.div_ceil(MOVING))
    }

    /// Returns how many of the unchanging documents have a document number that ends in `digit`.
    fn fixed(&self, digit: u32) -> u64 {
        (0..self.documents)
            .filter(|n| n % 10 == digit && !n.is_multiple_of(MOVING))
            .count() as u64
    }

    async fn search(&self, expr: Expr, want: Want) -> SearchAnswer {
        let request = SearchRequest {
            expr,
            want,
            stop: Stop::never(),
        };
        self.searches.fetch_add(1, Ordering::Relaxed);
        self.collection
            .search(request)
            .await
            .expect("no search fails")
    }

    async fn search_all_the_time(self: Arc<Self>, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        for round in 0..ROUNDS {
            let digit = rng.u32(..10);
            let answer = self
                .search(leaf(0, regex(&format!("fixed {digit}$"))), Want::Count)
                .await;
            assert_eq!(answer.count, self.fixed(digit), "{:?}", answer.report);
            let sides =
                [regex("moving l[e]ft$"), regex("moving (r)ight$")].map(|side| leaf(0, side));
            let answer = self.search(Expr::Or(sides.to_vec()), Want::Count).await;
            assert_eq!(
                answer.count,
                self.moving(),
                "round {round} {:?}",
                answer.report
            );
            let answer = self
                .search(Expr::And(sides.to_vec()), Want::Numbers { limit: None })
                .await;
            assert_eq!(
                answer.count, 0,
                "no document is on both sides: {:?}",
                answer.report
            );
            let fixed = Expr::Not(Box::new(leaf(0, substring("moving"))));
            let both = Expr::And(vec![fixed, leaf(0, substring("passing"))]);
            let neither = Expr::Or(vec![both, leaf(0, regex("^[0-7].*fixed"))]);
            drop(
                self.search(neither, Want::Numbers { limit: Some(10) })
                    .await,
            );
            self.look_up(&mut rng).await;
        }
    }

    /// Runs exact and prefix searches for documents that never change.
    async fn look_up(&self, rng: &mut Rng) {
        for _ in 0..20 {
            let number = rng.u32(..self.documents);
            if number.is_multiple_of(MOVING) {
                continue;
            }
            let value = fixed_value(number);
            let equals = leaf(0, Predicate::Equals(value.clone().into_bytes()));
            let answer = self.search(equals, Want::Numbers { limit: None }).await;
            assert!(
                answer.numbers.contains(number),
                "{value}: {:?}",
                answer.report
            );
            let prefix = Predicate::Program(Arc::new(Program::prefix(&value[..9])));
            let answer = self
                .search(leaf(0, prefix), Want::Numbers { limit: None })
                .await;
            assert!(
                answer.numbers.contains(number),
                "{value}: {:?}",
                answer.report
            );
        }
    }

    /// Changes every changing document from "left" to "right" or back, again and again.
    fn move_documents(&self) {
        let mut round = 0;
        while !self.is_ended() {
            for number in (0..self.documents).step_by(MOVING as usize) {
                let (old, new) = (moving_value(number, round), moving_value(number, round + 1));
                let [old, new] = [&old, &new].map(|value| [FieldValue::String(value.as_bytes())]);
                self.collection
                    .update(number, &old, &new)
                    .expect("the old value");
                self.writes.fetch_add(1, Ordering::Relaxed);
                if self.is_ended() {
                    return;
                }
            }
            round += 1;
        }
    }

    /// Adds documents and removes them again, until the test ends.
    fn pass_documents(&self) {
        let mut rng = Rng::with_seed(7);
        while !self.is_ended() {
            let numbers: Vec<u32> = (self.documents..).take(rng.usize(1..3000)).collect();
            let text =
                |number: u32| format!("{:04x} passing", number.wrapping_mul(40_503) & 0xffff);
            let texts: Vec<String> = numbers.iter().map(|number| text(*number)).collect();
            let values: Vec<_> = texts
                .iter()
                .map(|text| FieldValue::String(text.as_bytes()))
                .collect();
            let mut batch = self.collection.batch(values.len());
            values
                .iter()
                .for_each(|value| batch.push(std::slice::from_ref(value)));
            self.collection
                .insert_batch(&numbers, &batch)
                .expect("new numbers");
            for (number, value) in numbers.iter().zip(&values) {
                self.collection
                    .remove(*number, std::slice::from_ref(value))
                    .expect("the old value");
            }
            self.writes
                .fetch_add(2 * numbers.len() as u64, Ordering::Relaxed);
        }
    }

    /// Makes devices join, leave and fail. Returns the number of changes.
    fn change_devices(&self) -> usize {
        let mut rng = Rng::with_seed(9);
        let devices = self.cache.devices();
        let mut changes = 0;
        while !self.is_ended() {
            let members = devices.list();
            let chosen = &members[rng.usize(..members.len())];
            if members.len() < 5 && rng.bool() {
                common::join_device(&self.cache);
            } else if members.len() > 1 {
                if rng.bool() {
                    chosen.inject(Fault::FailAfter {
                        checks: rng.u32(..50),
                    });
                }
                devices.remove(chosen.id()).expect("a member");
                self.cache.wait_for_moves(chosen.id());
            }
            changes += 1;
        }
        changes
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Runs all tasks until the searches are done. Returns the number of device changes.
    async fn blow(self: &Arc<Self>) -> usize {
        let writers: Vec<_> = [Storm::move_documents, Storm::pass_documents]
            .map(|write| {
                let storm = Arc::clone(self);
                tokio::task::spawn_blocking(move || write(&storm))
            })
            .into();
        let storm = Arc::clone(self);
        let changer = tokio::task::spawn_blocking(move || storm.change_devices());
        let searchers: Vec<_> = (0..SEARCHERS)
            .map(|seed| tokio::spawn(Arc::clone(self).search_all_the_time(seed as u64)))
            .collect();
        for searcher in searchers {
            searcher.await.expect("every answer is right");
        }
        self.ended.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.expect("every write succeeds");
        }
        changer.await.expect("devices come and go")
    }
}

fn substring(text: &str) -> Predicate {
    Predicate::Program(Arc::new(Program::substring(text)))
}

/// Returns the peak memory of this process in MiB.
fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn document_count() -> u32 {
    let given = std::env::var("FOREBAY_STORM_DOCUMENTS").ok();
    let full = std::env::var_os("FOREBAY_TEST_FULL").is_some();
    let usual = if full { 10_000_000 } else { 200_000 };
    given.map_or(usual, |count| {
        count.parse().expect("FOREBAY_STORM_DOCUMENTS is a number")
    })
}

#[test]
fn every_answer_is_right_in_a_storm() {
    let began = Instant::now();
    let storm = Storm::new(document_count());
    println!(
        "filled with {} documents in {:.1?}",
        storm.documents,
        began.elapsed()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build();
    let began = Instant::now();
    let changes = runtime.expect("a runtime").block_on(storm.blow());
    let stats = storm.collection.stats(0).expect("a field");
    println!(
        "{} searches, {} writes, {changes} device changes in {:.1?}; {} buckets; peak memory {} MiB",
        storm.searches.load(Ordering::Relaxed),
        storm.writes.load(Ordering::Relaxed),
        began.elapsed(),
        stats.buckets.len(),
        peak_memory_mib()
    );
    assert!(changes > 0 && stats.buckets.len() > 1);
    assert_eq!(stats.rows, u64::from(storm.documents));
}
