//! Memory pools against a model: random tenants take memory, release it, and reclaim it from each other.

use std::sync::Arc;

use forebay_device::{
    Device, DeviceOptions, Devices, MemoryPool, PoolOptions, Reclaim, Reservation,
};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;

const BUDGET_BYTES: u64 = 1000;

/// How a tenant responds to a request to release memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    /// Drops its latest reservations until it has released the requested bytes or is down to its minimum.
    GivesBack,
    /// Releases nothing.
    Refuses,
    /// Has no callback.
    CannotBeAsked,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Open { min: u64, max: u64, manner: Manner },
    Close { tenant: usize },
    Reserve { tenant: usize, bytes: u64 },
    Drop { tenant: usize, index: usize },
    MakeRoom { tenant: usize, bytes: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    use Manner::*;
    let manner = prop_oneof![Just(GivesBack), Just(Refuses), Just(CannotBeAsked)];
    let (tenant, bytes) = (0..6_usize, 0..400_u64);
    prop_oneof![
        2 => (0..300_u64, 0..1200_u64, manner).prop_map(|(min, max, manner)| Step::Open { min, max, manner }),
        1 => tenant.clone().prop_map(|tenant| Step::Close { tenant }),
        8 => (tenant.clone(), bytes.clone()).prop_map(|(tenant, bytes)| Step::Reserve { tenant, bytes }),
        3 => (tenant.clone(), 0..100_usize).prop_map(|(tenant, index)| Step::Drop { tenant, index }),
        4 => (tenant, bytes).prop_map(|(tenant, bytes)| Step::MakeRoom { tenant, bytes }),
    ]
}

/// The reservations of a tenant, and the requests to release some.
#[derive(Default)]
struct Holdings {
    taken: Vec<Reservation>,
    /// For each request to release memory: the bytes requested, and by how much the tenant exceeded its minimum when
    /// the request came.
    asked: Vec<(u64, u64)>,
}

impl Holdings {
    fn bytes(&self) -> u64 {
        self.taken.iter().map(Reservation::bytes).sum()
    }
}

/// A tenant. If its pool was closed, `pool` is `None`, and its reservations stay valid.
struct Tenant {
    pool: Option<Arc<MemoryPool>>,
    min: u64,
    max: u64,
    manner: Manner,
    holdings: Arc<Mutex<Holdings>>,
}

impl Tenant {
    fn used(&self) -> u64 {
        self.holdings.lock().bytes()
    }

    fn excess(&self) -> u64 {
        self.used().saturating_sub(self.min)
    }

    /// Returns the number of bytes that other tenants cannot take.
    fn held(&self) -> u64 {
        let min = self.pool.as_ref().map_or(0, |_| self.min);
        self.used().max(min)
    }
}

/// Returns the reclaim callback of a tenant.
fn reclaim(holdings: &Arc<Mutex<Holdings>>, min: u64, manner: Manner) -> Option<Reclaim> {
    let holdings = Arc::clone(holdings);
    let callback = move |bytes: u64| {
        let mut holdings = holdings.lock();
        let mut excess = holdings.bytes().saturating_sub(min);
        holdings.asked.push((bytes, excess));
        let mut freed = 0;
        while manner == Manner::GivesBack && freed < bytes {
            let fits = |taken: &Reservation| taken.bytes() > 0 && taken.bytes() <= excess;
            let Some(index) = holdings.taken.iter().rposition(fits) else {
                break;
            };
            let given = holdings.taken.remove(index).bytes();
            freed += given;
            excess -= given;
        }
    };
    (manner != Manner::CannotBeAsked).then(|| Box::new(callback) as Reclaim)
}

struct Model {
    device: Arc<Device>,
    tenants: Vec<Tenant>,
}

impl Model {
    fn new() -> Model {
        let options = DeviceOptions {
            memory_budget_bytes: BUDGET_BYTES,
            ..DeviceOptions::default()
        };
        let devices = Devices::new(&"host:1".parse().expect("valid"), options);
        Model {
            device: devices.expect("a thread").list().remove(0),
            tenants: Vec::new(),
        }
    }

    fn held(&self) -> u64 {
        self.tenants.iter().map(Tenant::held).sum()
    }

    /// Returns the number of bytes that a tenant can take now.
    fn available(&self, tenant: &Tenant) -> u64 {
        let others = self.held() - tenant.held();
        let max = tenant.max.max(tenant.min).min(BUDGET_BYTES - others);
        max.saturating_sub(tenant.used())
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Open { min, max, manner } => self.open(min, max, manner),
            Step::Close { tenant } => {
                if let Some(tenant) = self.tenants.get_mut(tenant) {
                    tenant.pool = None;
                }
            }
            Step::Reserve { tenant, bytes } => self.reserve(tenant, bytes),
            Step::Drop { tenant, index } => {
                if let Some(tenant) = self.tenants.get(tenant) {
                    let taken = &mut tenant.holdings.lock().taken;
                    let index = index % taken.len().max(1);
                    drop((index < taken.len()).then(|| taken.remove(index)));
                }
            }
            Step::MakeRoom { tenant, bytes } => self.make_room(tenant, bytes),
        }
        self.check();
    }

    fn open(&mut self, min: u64, max: u64, manner: Manner) {
        let holdings = Arc::<Mutex<Holdings>>::default();
        let options = PoolOptions {
            name: format!("tenant {}", self.tenants.len()),
            min_bytes: min,
            max_bytes: max,
        };
        let pool = self
            .device
            .open_pool(options, reclaim(&holdings, min, manner));
        let fits = self.held() + min <= BUDGET_BYTES;
        assert_eq!(pool.is_ok(), fits, "a minimum of {min}");
        if let Ok(pool) = pool {
            self.tenants.push(Tenant {
                pool: Some(pool),
                min,
                max,
                manner,
                holdings,
            });
        }
    }

    fn reserve(&self, tenant: usize, bytes: u64) {
        let Some(tenant) = self.tenants.get(tenant) else {
            return;
        };
        let Some(pool) = &tenant.pool else {
            return;
        };
        let available = self.available(tenant);
        match pool.reserve(bytes) {
            Ok(reservation) => {
                assert!(bytes <= available, "{bytes} of {available}");
                assert_eq!(reservation.bytes(), bytes);
                tenant.holdings.lock().taken.push(reservation);
            }
            Err(refused) => {
                assert!(bytes > available, "{bytes} of {available}");
                assert_eq!(refused.free_bytes, available);
            }
        }
    }

    fn make_room(&self, index: usize, bytes: u64) {
        let Some(tenant) = self.tenants.get(index) else {
            return;
        };
        let Some(pool) = &tenant.pool else {
            return;
        };
        let before: Vec<u64> = self.tenants.iter().map(Tenant::used).collect();
        let had_room = bytes <= self.available(tenant);
        let may_use = tenant.used() + bytes <= tenant.max.max(tenant.min).min(BUDGET_BYTES);
        let has_room = pool.make_room(bytes);
        assert_eq!(has_room, bytes <= self.available(tenant));
        for (other, (tenant, before)) in self.tenants.iter().zip(before).enumerate() {
            let asked = std::mem::take(&mut tenant.holdings.lock().asked);
            let can_be_asked = other != index && may_use && !had_room && tenant.pool.is_some();
            assert!(asked.is_empty() || can_be_asked, "{other} was asked");
            for (asked, excess) in asked {
                assert!((1..=excess).contains(&asked), "{asked} of {excess}");
            }
            let gives = tenant.manner == Manner::GivesBack && can_be_asked;
            assert!(gives || tenant.used() == before, "{other} keeps its memory");
            // If there was no room, every tenant has released all that it could.
            let smallest = |holdings: &Holdings| {
                let sizes = holdings.taken.iter().map(Reservation::bytes);
                sizes.filter(|bytes| *bytes > 0).min()
            };
            if gives && !has_room {
                let left = smallest(&tenant.holdings.lock());
                let excess = tenant.excess();
                assert!(
                    left.is_none_or(|bytes| bytes > excess),
                    "{other} keeps more"
                );
            }
        }
    }

    /// Asserts the invariants after each step: the counts agree, and every tenant can have its minimum.
    fn check(&self) {
        let used: u64 = self.tenants.iter().map(Tenant::used).sum();
        assert_eq!(self.device.memory_used_bytes(), used);
        assert!(self.held() <= BUDGET_BYTES);
        for tenant in &self.tenants {
            if let Some(pool) = &tenant.pool {
                assert_eq!(pool.used_bytes(), tenant.used());
                let rest = tenant.min.saturating_sub(tenant.used());
                assert!(
                    self.available(tenant) >= rest,
                    "the tenant's minimum is available"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn pools_agree_with_the_model(steps in vec(step(), 0..80)) {
        let mut model = Model::new();
        for step in steps {
            model.play(step);
        }
        let device = Arc::clone(&model.device);
        drop(model);
        prop_assert_eq!(device.memory_used_bytes(), 0);
    }
}

#[test]
fn a_tenant_that_refuses_keeps_its_memory_and_another_gives_more() {
    let model = Model::new();
    let open = |name: &str, reclaim| {
        let options = PoolOptions {
            name: name.to_owned(),
            min_bytes: 0,
            max_bytes: u64::MAX,
        };
        model
            .device
            .open_pool(options, reclaim)
            .expect("no minimum")
    };
    let (firm, kind) = (
        Arc::<Mutex<Holdings>>::default(),
        Arc::<Mutex<Holdings>>::default(),
    );
    let first = open("firm", reclaim(&firm, 0, Manner::Refuses));
    let second = open("kind", reclaim(&kind, 0, Manner::GivesBack));
    let third = open("third", None);
    firm.lock().taken.push(first.reserve(600).expect("free"));
    for _ in 0..4 {
        kind.lock().taken.push(second.reserve(100).expect("free"));
    }
    assert!(
        third.reserve(150).is_err(),
        "a request does not reclaim memory"
    );
    assert!(third.make_room(150));
    assert_eq!((firm.lock().bytes(), kind.lock().bytes()), (600, 200));
    assert_eq!(
        firm.lock().asked,
        [(150, 600)],
        "the tenant with the largest excess is asked first"
    );
    let taken = third.reserve(150).expect("there is room");
    assert!(!third.make_room(600), "tenants cannot release 600 bytes");
    assert_eq!(
        (first.used_bytes(), second.used_bytes(), taken.bytes()),
        (600, 0, 150)
    );
}

#[test]
fn the_memory_of_each_tenant_is_told() {
    let model = Model::new();
    let open = |name: &str, max_bytes| {
        let options = PoolOptions {
            name: name.to_owned(),
            min_bytes: 0,
            max_bytes,
        };
        model.device.open_pool(options, None).expect("no minimum")
    };
    let told = || {
        let pools = model.device.pools().into_iter();
        let told = pools.map(|it| (it.name, it.used_bytes, it.max_bytes));
        told.collect::<Vec<_>>()
    };
    let of = |name: &str, used, max| (name.to_owned(), used, max);
    assert_eq!(told(), [of("other", 0, BUDGET_BYTES)]);
    let tables = open("tables", 400);
    let documents = open("documents", u64::MAX);
    let _held = (tables.reserve(300), documents.reserve(50));
    let wanted = [
        of("documents", 50, BUDGET_BYTES),
        of("tables", 300, 400),
        of("other", 0, BUDGET_BYTES),
    ];
    assert_eq!(told(), wanted);
    // Memory that outlives its pool is in no pool.
    drop(tables);
    assert_eq!(told()[1], of("other", 300, BUDGET_BYTES));
}

#[test]
fn the_memory_of_a_closed_pool_stays_valid_and_its_minimum_is_free() {
    let model = Model::new();
    let options = |min_bytes| PoolOptions {
        name: "short".to_owned(),
        min_bytes,
        max_bytes: u64::MAX,
    };
    let pool = model
        .device
        .open_pool(options(900), None)
        .expect("all is free");
    assert!(model.device.open_pool(options(101), None).is_err());
    let kept = pool.reserve(300).expect("the tenant's minimum");
    drop(pool);
    assert_eq!(model.device.memory_used_bytes(), 300);
    let next = model
        .device
        .open_pool(options(700), None)
        .expect("the memory that is left");
    assert!(next.reserve(701).is_err());
    drop(kept);
    assert!(next.reserve(701).is_ok());
}
