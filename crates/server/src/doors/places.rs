//! Limits open connections with permits, and selects the connection to close when none is free.
//!
//! If clients must authenticate, half of the permits are reserved for authenticated clients. Unauthenticated clients
//! (strangers) share the other half. When strangers hold all of their half, the oldest stranger of the largest group is
//! disconnected. The strangers of one network form two groups: those that have begun to log in, and the others. A
//! client with a valid password is a stranger only for a moment, so it can connect despite many strangers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The permits for client connections.
#[derive(Debug)]
pub struct Places {
    max: usize,
    /// Maximum permits held by unauthenticated clients; `None` if clients need not authenticate.
    strangers_max: Option<usize>,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    /// Number of permits granted so far, which becomes the number of the next permit. The number tells which of two
    /// permits is older.
    next: u64,
    strangers: Strangers,
    refused: u64,
    evicted: u64,
}

/// The unauthenticated clients, by group and permit number.
#[derive(Debug, Default)]
struct Strangers {
    count: usize,
    groups: HashMap<Group, BTreeMap<u64, Arc<Notify>>>,
}

/// A group of unauthenticated clients: those of one network that have begun to log in, or the others of that network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Group {
    network: IpAddr,
    /// Whether the clients have begun to log in.
    logs_in: bool,
}

/// A connection's permit, released on drop.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    network: IpAddr,
    evicted: Arc<Notify>,
    standing: Mutex<Standing>,
}

/// Whether the connection that holds a permit has authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Stranger { logs_in: bool },
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
    /// Creates `max` permits. If clients must authenticate, reserves half of them for authenticated clients.
    pub fn new(max: usize, auth_required: bool) -> Arc<Places> {
        Arc::new(Places {
            max,
            strangers_max: auth_required.then_some((max / 2).max(1)),
            taken: Mutex::default(),
        })
    }

    /// Takes a permit for a client at `address`. If no permit is free, or if unauthenticated clients hold as many
    /// permits as they may, first disconnects an unauthenticated client. Returns `None` if there is no permit even so.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock();
        if let Some(strangers_max) = self.strangers_max
            && (taken.count >= self.max || taken.strangers.count >= strangers_max)
            && let Some(evicted) = taken.strangers.pop()
        {
            evicted.notify_one();
            taken.evicted += 1;
            taken.count -= 1;
        }
        if taken.count >= self.max {
            taken.refused += 1;
            return None;
        }
        taken.count += 1;
        taken.next += 1;
        let place = Place {
            places: self.clone(),
            number: taken.next,
            network: network(address),
            evicted: Arc::default(),
            standing: Mutex::new(Standing::Known),
        };
        if self.strangers_max.is_some() {
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
    fn add(&mut self, group: Group, number: u64, evicted: Arc<Notify>) {
        self.count += 1;
        let of = self.groups.entry(group).or_default();
        of.insert(number, evicted);
    }

    /// Removes an unauthenticated client. Returns `None` if the client is not in the group.
    fn remove(&mut self, group: Group, number: u64) -> Option<Arc<Notify>> {
        let of = self.groups.get_mut(&group)?;
        let removed = of.remove(&number)?;
        if of.is_empty() {
            self.groups.remove(&group);
        }
        self.count -= 1;
        Some(removed)
    }

    /// Removes and returns the client to disconnect: the oldest of the largest group. Among groups of equal size,
    /// prefers a group that has not begun to log in, then the oldest client.
    fn pop(&mut self) -> Option<Arc<Notify>> {
        let oldest = self.groups.iter().filter_map(|(group, of)| {
            let (number, _) = of.first_key_value()?;
            Some((Reverse(of.len()), group.logs_in, *number, *group))
        });
        let (_, _, number, group) =
            oldest.min_by_key(|(size, logs_in, number, _)| (*size, *logs_in, *number))?;
        self.remove(group, number)
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

    /// Records that an unauthenticated client has begun to log in: the client has sent its user name.
    pub fn begin_login(&self) {
        let mut taken = self.places.taken.lock();
        if self.leave_strangers(&mut taken) {
            self.be_stranger(&mut taken, true);
        }
    }

    /// Treats the client as unauthenticated again.
    pub fn forget(&self) {
        let mut taken = self.places.taken.lock();
        if self.places.strangers_max.is_some() && *self.standing.lock() == Standing::Known {
            self.be_stranger(&mut taken, false);
        }
    }

    fn be_stranger(&self, taken: &mut Taken, logs_in: bool) {
        let (group, evicted) = (self.group(logs_in), self.evicted.clone());
        taken.strangers.add(group, self.number, evicted);
        *self.standing.lock() = Standing::Stranger { logs_in };
    }

    fn group(&self, logs_in: bool) -> Group {
        Group {
            network: self.network,
            logs_in,
        }
    }

    /// Removes the client from the unauthenticated clients. Returns false if the client has authenticated or its permit
    /// was revoked.
    fn leave_strangers(&self, taken: &mut Taken) -> bool {
        let Standing::Stranger { logs_in } = *self.standing.lock() else {
            return false;
        };
        let removed = taken.strangers.remove(self.group(logs_in), self.number);
        removed.is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        let was_stranger = self.leave_strangers(&mut taken);
        // If neither is the case, the permit was revoked, and `enter` has already decremented the count.
        if was_stranger || *self.standing.lock() == Standing::Known {
            taken.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
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
        let places = Places::new(4, true);
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
        let (ada, eve) = (enter(), {
            let stranger = enter();
            assert_eq!(places.counts().taken, 1);
            stranger
        });
        ada.keep();
        assert!(is_evicted(&ada), "the permit was revoked before the login");
        drop(ada);
        eve.keep();
        let bob = enter();
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
