//! Shares of a device's memory: that of columns, and that of another tenant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_device::{Device, DeviceOptions, Devices, MemoryPool, PoolOptions, Reservation};
use parking_lot::Mutex;

use super::data::Sizes;
use super::emulated;
use super::sessions::{Fixture, ON, rows};

const QUERIES: [&str; 3] = [
    "SELECT flag, sum(quantity), sum(price), count(*) FROM t GROUP BY flag",
    "SELECT sum(a), min(b), max(day) FROM t WHERE discount > 0.02",
    "SELECT day, count(*) FROM t GROUP BY day",
];

/// The columns of a fixture and another tenant, on a device whose budget both share.
struct Tenants {
    columns: Arc<MemoryPool>,
    other: Arc<MemoryPool>,
    /// What the other tenant has taken.
    taken: Arc<Mutex<Vec<Reservation>>>,
    device: Arc<Device>,
}

impl Tenants {
    /// Opens the tenants. The share of columns is `percent` of the budget, and the rest is the other one's.
    fn open(fixture: &Fixture, budget_bytes: u64, percent: u8) -> Tenants {
        let options = DeviceOptions {
            memory_budget_bytes: budget_bytes,
            ..DeviceOptions::default()
        };
        let devices = Devices::new(&"host:1".parse().expect("a device"), options);
        let device = devices.expect("a thread").list().remove(0);
        let options = |name: &str, percent| PoolOptions {
            name: name.to_owned(),
            min_bytes: 0,
            share_bytes: device.part_of_memory(percent),
            max_bytes: u64::MAX,
        };
        let freeing = fixture.freeing.clone();
        let reclaim = move |bytes| freeing.free(0, bytes);
        let columns = device.open_pool(options("tables", percent), Some(Box::new(reclaim)));
        let columns = columns.expect("no minimum");
        *fixture.emulated.pool.lock() = Some(Arc::clone(&columns));
        let taken = Arc::<Mutex<Vec<Reservation>>>::default();
        let of_callback = Arc::clone(&taken);
        let reclaim = move |bytes: u64| {
            let mut freed = 0;
            while freed < bytes
                && let Some(part) = of_callback.lock().pop()
            {
                freed += part.bytes();
            }
        };
        let other = device.open_pool(options("other", 100 - percent), Some(Box::new(reclaim)));
        Tenants {
            columns,
            other: other.expect("no minimum"),
            taken,
            device,
        }
    }

    /// Returns the bytes that the other tenant takes at once.
    fn part(&self) -> u64 {
        self.device.part_of_memory(1).max(1)
    }

    /// Lets the other tenant take memory until there is none. What it has is not locked while it claims more.
    fn take_all(&self) {
        while let Ok(part) = self.other.reserve_or_claim(self.part()) {
            self.taken.lock().push(part);
        }
    }

    /// Lets the other tenant take its share. Memory that a query has just read may be released a moment later.
    fn take_share(&self, percent: u8) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.has_share(percent) {
            assert!(Instant::now() < deadline, "{}", self.other.used_bytes());
            self.take_all();
            std::thread::yield_now();
        }
    }

    /// Returns whether the other tenant has its share.
    fn has_share(&self, percent: u8) -> bool {
        self.other.used_bytes() + self.part() > self.device.part_of_memory(percent)
    }
}

type Answers = Vec<Result<Vec<String>, String>>;

/// Returns the answers of a session with these settings.
async fn answers(fixture: &Fixture, settings: &str) -> Answers {
    let mut session = fixture.session(settings).await;
    let mut answers = Vec::new();
    for query in QUERIES {
        answers.push(rows(&mut session, query).await);
    }
    answers
}

/// Returns a fixture, its answers, and the bytes of the columns of all queries.
async fn measured() -> (Fixture, Answers, u64) {
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let wanted = answers(&fixture, "SET forebay.gpu = off").await;
    assert!(wanted.iter().all(Result::is_ok), "{wanted:?}");
    let alone = Tenants::open(&fixture, 1 << 30, 100);
    assert_eq!(answers(&fixture, ON).await, wanted);
    let bytes = alone.columns.used_bytes();
    assert!(bytes > 0);
    (Fixture::new(Sizes(&[700, 1])), wanted, bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_claim_their_share() {
    if !emulated::has_compiler() {
        return;
    }
    let (fixture, wanted, bytes) = measured().await;
    let tenants = Tenants::open(&fixture, bytes, 50);
    tenants.take_all();
    assert!(tenants.has_share(99) && tenants.columns.used_bytes() == 0);
    assert_eq!(answers(&fixture, ON).await, wanted);
    assert!(tenants.columns.used_bytes() > 0);
    assert!(tenants.has_share(50));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_above_their_share_are_given_back() {
    if !emulated::has_compiler() {
        return;
    }
    let (fixture, wanted, bytes) = measured().await;
    let tenants = Tenants::open(&fixture, 2 * bytes, 25);
    assert_eq!(answers(&fixture, ON).await, wanted);
    let before = tenants.columns.used_bytes();
    assert!(
        before > tenants.device.part_of_memory(25),
        "the rest is free"
    );
    tenants.take_share(75);
    assert!(tenants.columns.used_bytes() < before);
    assert_eq!(answers(&fixture, ON).await, wanted);
    assert!(tenants.has_share(75), "columns do not take it back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_and_another_tenant_claim_at_the_same_time() {
    if !emulated::has_compiler() {
        return;
    }
    let (fixture, wanted, bytes) = measured().await;
    let tenants = Arc::new(Tenants::open(&fixture, bytes, 50));
    let of_thread = Arc::clone(&tenants);
    let other = std::thread::spawn(move || {
        for _ in 0..500 {
            of_thread.take_all();
            of_thread.taken.lock().clear();
        }
    });
    for _ in 0..10 {
        assert_eq!(answers(&fixture, ON).await, wanted);
    }
    other.join().expect("the thread of the other tenant");
    assert_eq!(tenants.other.used_bytes(), 0);
}
