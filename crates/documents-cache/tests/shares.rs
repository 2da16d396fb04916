//! Shares of a device's memory: the cache's, and that of another tenant.

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;

use common::{Pair, Value, leaf, options, regex, small_settings};
use forebay_device::{Device, MemoryPool, PoolOptions, Reservation, Step};
use forebay_documents_cache::{CacheSettings, Want};
use parking_lot::Mutex;

const ROWS: u32 = 2000;

/// A tenant beside the cache, and what it has taken.
struct Other {
    pool: Arc<MemoryPool>,
    taken: Arc<Mutex<Vec<Reservation>>>,
    /// Bytes of each reservation.
    part: u64,
}

impl Other {
    /// Opens the tenant, with what the cache's share leaves as its share.
    fn open(device: &Device, cache_percent: u8) -> Other {
        let taken = Arc::<Mutex<Vec<Reservation>>>::default();
        let options = PoolOptions {
            name: "tables".to_owned(),
            min_bytes: 0,
            share_bytes: device.part_of_memory(100 - cache_percent),
            max_bytes: u64::MAX,
        };
        let of_callback = Arc::clone(&taken);
        let reclaim = move |bytes: u64| {
            let mut freed = 0;
            while freed < bytes
                && let Some(part) = of_callback.lock().pop()
            {
                freed += part.bytes();
            }
        };
        let pool = device.open_pool(options, Some(Box::new(reclaim)));
        Other {
            pool: pool.expect("no minimum"),
            taken,
            part: device.part_of_memory(1),
        }
    }

    /// Takes memory until there is none. What is taken is not locked while more is claimed.
    fn take_all(&self) {
        while let Ok(part) = self.pool.reserve_or_claim(self.part) {
            self.taken.lock().push(part);
        }
    }
}

/// Returns the bytes that a cache of all rows takes.
fn whole_bytes() -> u64 {
    let mut pair = pair(u64::MAX, 100);
    fill(&mut pair, 0);
    device(&pair).memory_used_bytes()
}

fn pair(memory_budget_bytes: u64, device_share_percent: u8) -> Pair {
    let settings = CacheSettings {
        device_share_percent,
        ..small_settings()
    };
    Pair::new(1, options(memory_budget_bytes), settings, 1)
}

/// Inserts documents with numbers from `first` on.
fn fill(pair: &mut Pair, first: u32) {
    for number in first..first + ROWS {
        let value = format!("{:04}", number * 7919 % 10_000);
        pair.insert(number, vec![Value::String(value)]);
    }
    pair.collection.flush();
}

fn device(pair: &Pair) -> Arc<Device> {
    pair.cache.devices().list().remove(0)
}

/// Checks answers, and returns how many buckets the host searched. A search replies before its job on the device lets
/// go of the buckets: waits for a job behind it.
fn buckets_on_host(pair: &Pair) -> usize {
    pair.check_all_wants(&leaf(0, regex("^5")));
    let answer = pair.check(&leaf(0, regex("9$")), Want::Count);
    let (ran, runs) = channel();
    let job = move |_: &mut _| {
        ran.send(()).expect("the test waits");
        Ok(Step::Done)
    };
    let submitted = device(pair).submit(Box::new(job));
    submitted.expect("room in the queue");
    runs.recv().expect("the job runs");
    answer.report.host.buckets
}

#[test]
fn the_cache_claims_its_share() {
    let mut pair = pair(8 * whole_bytes(), 50);
    let device = device(&pair);
    let other = Other::open(&device, 50);
    other.take_all();
    assert!(device.memory_budget_bytes() - other.pool.used_bytes() < other.part);
    fill(&mut pair, 0);
    assert_eq!(buckets_on_host(&pair), 0);
    let share = device.part_of_memory(50);
    assert!(other.pool.used_bytes() > share - other.part);
}

#[test]
fn the_cache_gives_back_what_it_has_above_its_share() {
    let percent = 15;
    let mut pair = pair(4 * whole_bytes(), percent);
    let device = device(&pair);
    fill(&mut pair, 0);
    assert_eq!(buckets_on_host(&pair), 0, "nothing else needs the memory");
    let own_share = device.part_of_memory(percent);
    assert!(device.memory_used_bytes() > own_share);
    let other = Other::open(&device, percent);
    other.take_all();
    let share = device.part_of_memory(100 - percent);
    assert!(other.pool.used_bytes() > share - other.part);
    let on_host = buckets_on_host(&pair);
    let stats = pair.collection.stats(0).expect("a field");
    assert!(on_host > 0 && on_host < stats.buckets.len(), "{on_host}");
    // It does not take from the other one's share to get them back.
    fill(&mut pair, ROWS);
    assert!(other.pool.used_bytes() > share - other.part);
    assert!(buckets_on_host(&pair) > 0);
}

#[test]
fn the_cache_and_another_tenant_claim_at_the_same_time() {
    let mut pair = pair(2 * whole_bytes(), 50);
    let other = Other::open(&device(&pair), 50);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                other.take_all();
                other.taken.lock().clear();
            }
        });
        for round in 0..4 {
            fill(&mut pair, round * ROWS);
            buckets_on_host(&pair);
        }
    });
    assert_eq!(other.pool.used_bytes(), 0);
}
