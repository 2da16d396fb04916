//! Limits open connections with permits, and selects the connection to close when none is free.
//!
//! If clients must authenticate, half of the permits are reserved for authenticated clients. Unauthenticated clients
//! (strangers) share the other half. When strangers hold all of their half, the oldest stranger is disconnected. A
//! client with a valid password is a stranger only for a moment, so it can connect despite many strangers.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The connection permits of a door.
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
    /// Number of permits granted so far, which orders them by age.
    next: u64,
    strangers: BTreeMap<u64, Arc<Notify>>,
    refused: u64,
    evicted: u64,
}

/// A connection's permit, released on drop.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    evicted: Arc<Notify>,
    standing: Mutex<Standing>,
}

/// Whether the connection that holds a permit has authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Stranger,
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

    /// Takes a permit. If all permits, or all that unauthenticated clients may hold, are taken, disconnects the oldest
    /// unauthenticated client and takes its permit. Returns `None` if no client can be disconnected.
    pub fn enter(self: &Arc<Self>) -> Option<Place> {
        let mut taken = self.taken.lock();
        if let Some(strangers_max) = self.strangers_max
            && (taken.count >= self.max || taken.strangers.len() >= strangers_max)
            && let Some((_, evicted)) = taken.strangers.pop_first()
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
            evicted: Arc::default(),
            standing: Mutex::new(Standing::Known),
        };
        if self.strangers_max.is_some() {
            place.be_stranger(&mut taken);
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

impl Place {
    /// Waits until the permit is revoked. Only one caller may wait at a time.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Reserves the permit for a client that has authenticated. Has no effect if the permit was revoked before.
    pub fn keep(&self) {
        let mut taken = self.places.taken.lock();
        if taken.strangers.remove(&self.number).is_some() {
            *self.standing.lock() = Standing::Known;
        }
    }

    /// Treats the client as unauthenticated again.
    pub fn forget(&self) {
        let mut taken = self.places.taken.lock();
        if self.places.strangers_max.is_some() && *self.standing.lock() == Standing::Known {
            self.be_stranger(&mut taken);
        }
    }

    fn be_stranger(&self, taken: &mut Taken) {
        taken.strangers.insert(self.number, self.evicted.clone());
        *self.standing.lock() = Standing::Stranger;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        let was_stranger = taken.strangers.remove(&self.number).is_some();
        // If neither holds, the permit was revoked, and `enter` has already decremented the count.
        if was_stranger || *self.standing.lock() == Standing::Known {
            taken.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_evicted(place: &Place) -> bool {
        place.evicted().now_or_never().is_some()
    }

    #[test]
    fn without_authentication_the_first_come_stay() {
        let places = Places::new(2, false);
        let (first, _second) = (places.enter().expect("room"), places.enter().expect("room"));
        assert!(places.enter().is_none());
        first.forget();
        assert!(places.enter().is_none() && !is_evicted(&first));
        drop(first);
        let third = places.enter();
        assert!(third.is_some());
        let counts = places.counts();
        assert_eq!((counts.taken, counts.max, counts.refused), (2, 2, 2));
    }

    #[test]
    fn the_stranger_that_came_first_makes_room() {
        let places = Places::new(4, true);
        let enter = || places.enter().expect("room");
        let (first, second) = (enter(), enter());
        let third = enter();
        assert!(is_evicted(&first) && !is_evicted(&second));
        assert_eq!(places.counts().taken, 2);
        drop(first);
        let counts = places.counts();
        assert_eq!(
            (counts.taken, counts.evicted),
            (2, 1),
            "its place was another's"
        );
        drop((second, third));
        assert_eq!(places.counts().taken, 0);
    }

    #[test]
    fn clients_that_have_authenticated_stay() {
        let places = Places::new(2, true);
        let enter = || places.enter().expect("room");
        let (ada, eve) = (enter(), {
            let stranger = enter();
            assert_eq!(places.counts().taken, 1);
            stranger
        });
        ada.keep();
        assert!(is_evicted(&ada), "it was too late for her");
        drop(ada);
        eve.keep();
        let bob = enter();
        bob.keep();
        assert!(places.enter().is_none() && !is_evicted(&eve) && !is_evicted(&bob));
        bob.forget();
        let _carol = enter();
        assert!(is_evicted(&bob) && !is_evicted(&eve));
    }
}
