//! Memory pools against a model: random tenants take memory, release it, and reclaim or claim it from each other.

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
    /// Drops its latest reservations until it has released the requested bytes or is down to what it keeps.
    GivesBack,
    /// Releases nothing.
    Refuses,
    /// Has no callback.
    CannotBeAsked,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Minimum, share and maximum.
    Open {
        limits: [u64; 3],
        manner: Manner,
    },
    Close {
        tenant: usize,
    },
    Reserve {
        tenant: usize,
        bytes: u64,
    },
    Drop {
        tenant: usize,
        index: usize,
    },
    MakeRoom {
        tenant: usize,
        bytes: u64,
    },
    Claim {
        tenant: usize,
        bytes: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    use Manner::*;
    let manner = prop_oneof![Just(GivesBack), Just(Refuses), Just(CannotBeAsked)];
    let (tenant, bytes) = (0..6_usize, 0..400_u64);
    prop_oneof![
        2 => (0..300_u64, 0..600_u64, 0..1200_u64, manner)
            .prop_map(|(min, share, max, manner)| Step::Open { limits: [min, share, max], manner }),
        1 => tenant.clone().prop_map(|tenant| Step::Close { tenant }),
        8 => (tenant.clone(), bytes.clone()).prop_map(|(tenant, bytes)| Step::Reserve { tenant, bytes }),
        3 => (tenant.clone(), 0..100_usize).prop_map(|(tenant, index)| Step::Drop { tenant, index }),
        3 => (tenant.clone(), bytes.clone()).prop_map(|(tenant, bytes)| Step::MakeRoom { tenant, bytes }),
        4 => (tenant, bytes).prop_map(|(tenant, bytes)| Step::Claim { tenant, bytes }),
    ]
}

/// The reservations of a tenant, and the requests to release some.
#[derive(Default)]
struct Holdings {
    taken: Vec<Reservation>,
    /// For each request to release memory: the bytes requested, and by how much the tenant exceeded what it keeps when
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
    /// What it keeps: the larger one of its share and its minimum.
    kept: u64,
    max: u64,
    manner: Manner,
    holdings: Arc<Mutex<Holdings>>,
}

impl Tenant {
    fn used(&self) -> u64 {
        self.holdings.lock().bytes()
    }

    fn excess(&self) -> u64 {
        self.used().saturating_sub(self.kept)
    }

    /// Returns the number of bytes that other tenants cannot take.
    fn held(&self) -> u64 {
        let min = self.pool.as_ref().map_or(0, |_| self.min);
        self.used().max(min)
    }
}

/// Returns the reclaim callback of a tenant.
fn reclaim(holdings: &Arc<Mutex<Holdings>>, kept: u64, manner: Manner) -> Option<Reclaim> {
    let holdings = Arc::clone(holdings);
    let callback = move |bytes: u64| {
        let mut holdings = holdings.lock();
        let mut excess = holdings.bytes().saturating_sub(kept);
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
            Step::Open { limits, manner } => self.open(limits, manner),
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
            Step::MakeRoom { tenant, bytes } => self.make_room(tenant, bytes, false),
            Step::Claim { tenant, bytes } => self.make_room(tenant, bytes, true),
        }
        self.check();
    }

    fn open(&mut self, [min, share, max]: [u64; 3], manner: Manner) {
        let holdings = Arc::<Mutex<Holdings>>::default();
        let kept = share.max(min);
        let options = PoolOptions {
            name: format!("tenant {}", self.tenants.len()),
            min_bytes: min,
            share_bytes: share,
            max_bytes: max,
        };
        let pool = self
            .device
            .open_pool(options, reclaim(&holdings, kept, manner));
        let fits = self.held() + min <= BUDGET_BYTES;
        assert_eq!(pool.is_ok(), fits, "a minimum of {min}");
        if let Ok(pool) = pool {
            self.tenants.push(Tenant {
                pool: Some(pool),
                min,
                kept,
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

    fn make_room(&self, index: usize, bytes: u64, is_claim: bool) {
        let Some(tenant) = self.tenants.get(index) else {
            return;
        };
        let Some(pool) = &tenant.pool else {
            return;
        };
        let before: Vec<u64> = self.tenants.iter().map(Tenant::used).collect();
        let had_room = bytes <= self.available(tenant);
        let most = tenant.max.max(tenant.min).min(BUDGET_BYTES);
        let is_kept = tenant.used() + bytes <= tenant.kept;
        let may_use = tenant.used() + bytes <= most && (is_kept || !is_claim);
        let has_room = match is_claim {
            true => pool.claim(bytes),
            false => pool.make_room(bytes),
        };
        let is_refused = is_claim && !is_kept;
        assert_eq!(has_room, bytes <= self.available(tenant) && !is_refused);
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
            share_bytes: 0,
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

/// Opens a tenant that gives back what it has above its share.
fn with_share(model: &Model, share: u64) -> (Arc<MemoryPool>, Arc<Mutex<Holdings>>) {
    let holdings = Arc::<Mutex<Holdings>>::default();
    let options = PoolOptions {
        name: format!("share of {share}"),
        min_bytes: 0,
        share_bytes: share,
        max_bytes: u64::MAX,
    };
    let reclaim = reclaim(&holdings, share, Manner::GivesBack);
    let pool = model.device.open_pool(options, reclaim);
    (pool.expect("no minimum"), holdings)
}

#[test]
fn tenants_lend_their_shares_and_claim_them() {
    let model = Model::new();
    let ((one, of_one), (other, of_other)) = (with_share(&model, 600), with_share(&model, 400));
    for ((lender, of_lender), (borrower, of_borrower), share) in [
        ((&one, &of_one), (&other, &of_other), 600),
        ((&other, &of_other), (&one, &of_one), 400),
    ] {
        for _ in 0..10 {
            let lent = borrower.reserve(100).expect("the lender does not need it");
            of_borrower.lock().taken.push(lent);
        }
        assert!(lender.reserve(100).is_err(), "a request does not claim");
        assert!(!borrower.claim(1), "it has more than its share");
        for _ in 0..share / 100 {
            let own = lender.reserve_or_claim(100).expect("of its share");
            of_lender.lock().taken.push(own);
        }
        let used = (lender.used_bytes(), borrower.used_bytes());
        assert_eq!(used, (share, BUDGET_BYTES - share));
        assert!(
            lender.reserve_or_claim(1).is_err(),
            "the other one's share stays"
        );
        of_one.lock().taken.clear();
        of_other.lock().taken.clear();
    }
}

#[test]
fn tenants_claim_their_shares_at_the_same_time() {
    for _ in 0..50 {
        let model = Model::new();
        let (guest, of_guest) = with_share(&model, 0);
        let owners = [600, 400].map(|share| (with_share(&model, share), share));
        for _ in 0..100 {
            let lent = guest.reserve(10).expect("the others do not need it");
            of_guest.lock().taken.push(lent);
        }
        // What an owner has taken is not locked while it claims more.
        let take = |pool: &MemoryPool, holdings: &Mutex<Holdings>, share| {
            while pool.used_bytes() < share {
                match pool.reserve_or_claim(10) {
                    Ok(own) => holdings.lock().taken.push(own),
                    // Another thread had the bytes that were released.
                    Err(_) => std::thread::yield_now(),
                }
            }
        };
        std::thread::scope(|scope| {
            for ((pool, holdings), share) in &owners {
                scope.spawn(move || take(pool, holdings, *share));
            }
        });
        let used = owners.each_ref().map(|((pool, _), _)| pool.used_bytes());
        assert_eq!((used, guest.used_bytes()), ([600, 400], 0));
    }
}

#[test]
fn the_memory_of_each_tenant_is_told() {
    let model = Model::new();
    let open = |name: &str, max_bytes| {
        let options = PoolOptions {
            name: name.to_owned(),
            min_bytes: 0,
            share_bytes: 0,
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
        share_bytes: 0,
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
