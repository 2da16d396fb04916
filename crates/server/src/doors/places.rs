//! Limits open connections with permits, and selects the connection to close when none is free.
//!
//! If clients must authenticate, a client that has not authenticated (a stranger) is disconnected when a new client
//! needs its permit. There are two classes of strangers: those that have begun to log in, and the others. In each
//! class, the strangers of one network form a group. The oldest stranger of the largest group is disconnected. If the
//! largest groups of both classes have equal sizes, the stranger is taken from the class with more strangers. A client
//! with a valid password is a stranger only for a moment, so it can connect despite many strangers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Number of connections up to which all groups count as equally large. A normal driver needs a few: it monitors a
/// server over two connections that never authenticate, and logs in over others.
const GROUP_SIZE_MIN: usize = 4;

/// The permits for client connections.
#[derive(Debug)]
pub struct Places {
    max: usize,
    /// Whether clients must authenticate, so that there are strangers.
    auth_required: bool,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    /// Number of times that a client has joined a class of strangers. Each client that joins a class gets the next
    /// number, so that older members have lower numbers.
    joined: u64,
    strangers: Strangers,
    refused: u64,
    evicted: u64,
}

/// The unauthenticated clients.
#[derive(Debug, Default)]
struct Strangers {
    /// Those that have begun to log in.
    logging_in: Class,
    others: Class,
}

/// A class of unauthenticated clients, in groups by network.
#[derive(Debug, Default)]
struct Class {
    count: usize,
    /// The clients of each network. Clients with lower numbers are older (see [`Taken::joined`]).
    groups: HashMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
    /// The groups in the order in which they lose a client: by size, the largest first, then by the number of their
    /// oldest client.
    order: BTreeSet<(Reverse<usize>, u64, IpAddr)>,
}

/// A connection's permit, released on drop.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    network: IpAddr,
    evicted: Arc<Notify>,
    standing: Mutex<Standing>,
}

/// Whether the connection that holds a permit has authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Stranger { logs_in: bool, number: u64 },
    Known,
}

/// Counters of the connection permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Number of permits held now.
    pub taken: usize,
    /// Maximum number of permits.
    pub max: usize,
    /// Number of connections refused so far.
    pub refused: u64,
    /// Number of unauthenticated clients disconnected so far.
    pub evicted: u64,
}

impl Places {
    /// Creates `max` permits.
    pub fn new(max: usize, auth_required: bool) -> Arc<Places> {
        Arc::new(Places {
            max,
            auth_required,
            taken: Mutex::default(),
        })
    }

    /// Takes a permit for a client at `address`. If no permit is free, first disconnects an unauthenticated client.
    /// Returns `None` if there is none to disconnect.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock();
        if taken.count >= self.max {
            let Some(evicted) = taken.strangers.pop() else {
                taken.refused += 1;
                return None;
            };
            evicted.notify_one();
            taken.evicted += 1;
            taken.count -= 1;
        }
        taken.count += 1;
        let place = Place {
            places: self.clone(),
            network: network(address),
            evicted: Arc::default(),
            standing: Mutex::new(Standing::Known),
        };
        if self.auth_required {
            place.be_stranger(&mut taken, false);
        }
        Some(place)
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        let taken = self.taken.lock();
        Counts {
            taken: taken.count,
            max: self.max,
            refused: taken.refused,
            evicted: taken.evicted,
        }
    }
}

impl Strangers {
    fn class(&mut self, logs_in: bool) -> &mut Class {
        match logs_in {
            true => &mut self.logging_in,
            false => &mut self.others,
        }
    }

    /// Removes and returns the client to disconnect.
    fn pop(&mut self) -> Option<Arc<Notify>> {
        let rank = |class: &Class| (class.largest(), class.count);
        match rank(&self.logging_in) > rank(&self.others) {
            true => self.logging_in.pop(),
            false => self.others.pop(),
        }
    }
}

impl Class {
    /// Returns the size of the largest group, at least `GROUP_SIZE_MIN`; 0 if there is no group.
    fn largest(&self) -> usize {
        self.order.first().map_or(0, |(Reverse(size), ..)| *size)
    }

    fn add(&mut self, network: IpAddr, number: u64, evicted: Arc<Notify>) {
        self.change(network, |group| group.insert(number, evicted));
        self.count += 1;
    }

    /// Removes an unauthenticated client. Returns `None` if the client is not in the group.
    fn remove(&mut self, network: IpAddr, number: u64) -> Option<Arc<Notify>> {
        let removed = self.change(network, |group| group.remove(&number))?;
        self.count -= 1;
        Some(removed)
    }

    /// Removes and returns the oldest client of the largest group.
    fn pop(&mut self) -> Option<Arc<Notify>> {
        let (_, number, network) = *self.order.first()?;
        self.remove(network, number)
    }

    /// Changes the group of a network, and keeps the order of the groups up to date.
    fn change<T>(
        &mut self,
        network: IpAddr,
        change: impl FnOnce(&mut BTreeMap<u64, Arc<Notify>>) -> T,
    ) -> T {
        let group = self.groups.entry(network).or_default();
        let rank = |group: &BTreeMap<u64, _>| {
            let (oldest, _) = group.first_key_value()?;
            let size = group.len().max(GROUP_SIZE_MIN);
            Some((Reverse(size), *oldest, network))
        };
        rank(group).map(|before| self.order.remove(&before));
        let changed = change(group);
        match rank(group) {
            Some(after) => drop(self.order.insert(after)),
            None => drop(self.groups.remove(&network)),
        }
        changed
    }
}

/// Returns the network of an address. For IPv6, returns the first 64 bits, because one client may use all addresses
/// with the same first 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

impl Place {
    /// Waits until the permit is revoked. Only one caller may wait at a time.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Marks the client as authenticated, so that its permit is not revoked any more. Has no effect if the permit has
    /// been revoked already.
    pub fn keep(&self) {
        let mut taken = self.places.taken.lock();
        if self.leave_strangers(&mut taken) {
            *self.standing.lock() = Standing::Known;
        }
    }

    /// Records that an unauthenticated client has begun to log in: the client has sent its user name. Has no effect if
    /// the client did so before.
    pub fn begin_login(&self) {
        let mut taken = self.places.taken.lock();
        let logs_in = matches!(
            *self.standing.lock(),
            Standing::Stranger { logs_in: true, .. }
        );
        if !logs_in && self.leave_strangers(&mut taken) {
            self.be_stranger(&mut taken, true);
        }
    }

    /// Treats the client as unauthenticated again.
    pub fn forget(&self) {
        let mut taken = self.places.taken.lock();
        if self.places.auth_required && *self.standing.lock() == Standing::Known {
            self.be_stranger(&mut taken, false);
        }
    }

    fn be_stranger(&self, taken: &mut Taken, logs_in: bool) {
        taken.joined += 1;
        let number = taken.joined;
        let class = taken.strangers.class(logs_in);
        class.add(self.network, number, self.evicted.clone());
        *self.standing.lock() = Standing::Stranger { logs_in, number };
    }

    /// Removes the client from the unauthenticated clients. Returns false if the client has authenticated or its permit
    /// was revoked.
    fn leave_strangers(&self, taken: &mut Taken) -> bool {
        let Standing::Stranger { logs_in, number } = *self.standing.lock() else {
            return false;
        };
        let class = taken.strangers.class(logs_in);
        class.remove(self.network, number).is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        let was_stranger = self.leave_strangers(&mut taken);
        // If the client is neither a stranger nor authenticated, its permit was revoked, and `enter` has already
        // decremented the count.
        if was_stranger || *self.standing.lock() == Standing::Known {
            taken.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use futures_util::FutureExt;

    use super::*;

    fn host(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_evicted(place: &Place) -> bool {
        place.evicted().now_or_never().is_some()
    }

    #[test]
    fn without_authentication_the_first_come_stay() {
        let places = Places::new(2, false);
        let enter = || places.enter(host(1));
        let (first, _second) = (enter().expect("room"), enter().expect("room"));
        assert!(enter().is_none());
        first.forget();
        assert!(enter().is_none() && !is_evicted(&first));
        drop(first);
        let third = enter();
        assert!(third.is_some());
        let counts = places.counts();
        assert_eq!((counts.taken, counts.max, counts.refused), (2, 2, 2));
    }

    #[test]
    fn the_stranger_that_came_first_makes_room() {
        let places = Places::new(2, true);
        let enter = || places.enter(host(1)).expect("room");
        let (first, second) = (enter(), enter());
        let third = enter();
        assert!(is_evicted(&first) && !is_evicted(&second));
        assert_eq!(places.counts().taken, 2);
        drop(first);
        let counts = places.counts();
        assert_eq!(
            (counts.taken, counts.evicted),
            (2, 1),
            "dropping a revoked permit frees nothing"
        );
        drop((second, third));
        assert_eq!(places.counts().taken, 0);
    }

    #[test]
    fn clients_that_have_authenticated_stay() {
        let places = Places::new(2, true);
        let enter = || places.enter(host(1)).expect("room");
        let (ada, bob, eve) = (enter(), enter(), enter());
        ada.keep();
        assert!(is_evicted(&ada), "the permit was revoked before the login");
        drop(ada);
        assert_eq!(places.counts().taken, 2);
        eve.keep();
        bob.keep();
        assert!(places.enter(host(1)).is_none() && !is_evicted(&eve) && !is_evicted(&bob));
        bob.forget();
        let _carol = enter();
        assert!(is_evicted(&bob) && !is_evicted(&eve));
    }

    /// Opens connections from these hosts, none of which begins to log in.
    fn storm(places: &Arc<Places>, hosts: impl IntoIterator<Item = u8>) -> Vec<Place> {
        let entered = hosts.into_iter().map(|last| places.enter(host(last)));
        entered.map(|place| place.expect("room")).collect()
    }

    #[test]
    fn a_storm_from_one_network_evicts_no_stranger_from_another() {
        let places = Places::new(8, true);
        let ada = places.enter(host(1)).expect("room");
        let _storm = storm(&places, [2; 20]);
        assert!(!is_evicted(&ada));
        ada.keep();
        let _later = storm(&places, [2; 20]);
        assert!(!is_evicted(&ada));
        let prefix = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 1, 2, 3, host]);
        assert_eq!(network(prefix(1)), network(prefix(2)));
        assert_ne!(network(host(1)), network(host(2)));
    }

    #[test]
    fn the_monitors_of_a_driver_do_not_make_its_network_the_largest() {
        let places = Places::new(8, true);
        let _many = storm(&places, 2..20);
        let monitors = storm(&places, [1; 3]);
        let _more = storm(&places, 20..25);
        assert!(monitors.iter().all(|monitor| !is_evicted(monitor)));
        let _fourth_and_fifth = storm(&places, [1; 2]);
        let _next = storm(&places, [30]);
        assert!(is_evicted(&monitors[0]));
    }

    #[test]
    fn a_login_outlasts_as_many_others_in_each_step() {
        let places = Places::new(8, true);
        let mut strangers = Vec::new();
        let mut log_in = |hosts: Range<u8>| {
            for stranger in hosts {
                let stranger = places.enter(host(stranger)).expect("room");
                stranger.begin_login();
                stranger.begin_login();
                strangers.push(stranger);
            }
        };
        log_in(10..50);
        let ada = places.enter(host(1)).expect("room");
        log_in(50..90);
        assert!(!is_evicted(&ada), "all others have begun to log in");
        ada.begin_login();
        log_in(90..97);
        assert!(!is_evicted(&ada), "seven others are not older");
        log_in(97..98);
        assert!(is_evicted(&ada), "the oldest makes room");
        assert_eq!(places.counts().taken, 8);
    }

    #[test]
    fn a_login_outlasts_a_storm_from_its_own_network() {
        let places = Places::new(8, true);
        let mut ada = storm(&places, [1]);
        ada[0].begin_login();
        let silent = storm(&places, [1; 20]);
        assert!(!is_evicted(&ada[0]));
        // Many networks with one silent client each.
        let many = storm(&places, 2..200);
        assert!(!is_evicted(&ada[0]));
        ada[0].keep();
        // Many logins that never finish do not evict clients that have not begun to log in yet.
        let logins = storm(&places, [1; 20]);
        for login in &logins {
            login.begin_login();
        }
        let bob = storm(&places, [1]);
        let later = storm(&places, [1]);
        assert!(!is_evicted(&bob[0]) && !is_evicted(&later[0]));
        drop((silent, many, logins, bob, later));
        assert_eq!(places.counts().taken, 1);
        drop(ada.pop());
        assert_eq!(places.counts().taken, 0);
    }
}
