//! The queue of shares that wait for room.
//!
//! Any share may take bytes that are released, so that small shares do not wait behind large ones. To let large shares
//! find room too, the oldest waiting share gets a claim: other shares leave room for the bytes that it waits for.
//!
//! A claim ends when its share stops waiting, at the latest after [`CLAIM_TIME`]. A longer claim could block other
//! shares for minutes, because memory may be held that long. After a claim that ended without success, no share has a
//! claim for [`PAUSE`]. Shares of at most [`OVERTAKING_BYTES_MAX`] may overtake a claim. All shares together may
//! overtake a claim by at most a fixed part of the account.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum duration of a claim.
pub(crate) const CLAIM_TIME: Duration = Duration::from_secs(3);
/// Minimum time between a claim that ended without success and the next claim.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);
/// Maximum bytes of a share that may overtake a claim.
pub(crate) const OVERTAKING_BYTES_MAX: u64 = 1 << 20;
/// Divisor of the account's limit. The quotient is the maximum number of bytes that all shares together may take ahead
/// of one claim.
const OVERTAKING_PART: u64 = 8;

/// Identifies a waiting share: a lower ticket has waited longer.
pub(crate) type Ticket = u64;

/// The queue of shares that wait for room in an account, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Bytes that the share with the claim waits for; 0 if no share has a claim.
    claimed_bytes: AtomicU64,
    /// Remaining bytes that other shares may take ahead of the claim.
    overtaking_bytes: AtomicU64,
    /// Number of waiting shares, including those of child accounts, which have no tickets.
    count: AtomicUsize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: Ticket,
    shares: BTreeMap<Ticket, Waiter>,
    claim: Option<Claim>,
    paused_until: Option<Instant>,
}

#[derive(Debug)]
struct Waiter {
    bytes: u64,
    /// Whether the share had a claim that expired.
    has_had_claim: bool,
}

#[derive(Debug, Clone, Copy)]
struct Claim {
    ticket: Ticket,
    until: Instant,
}

impl Line {
    /// Returns the number of waiting shares.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    pub(crate) fn enter(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn leave(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Adds a share that waits for `bytes`.
    pub(crate) fn add(&self, bytes: u64) -> Ticket {
        let mut waiting = self.waiting.lock();
        let ticket = waiting.next;
        waiting.next += 1;
        let waiter = Waiter {
            bytes,
            has_had_claim: false,
        };
        waiting.shares.insert(ticket, waiter);
        ticket
    }

    /// Removes a share and its claim.
    pub(crate) fn remove(&self, ticket: Ticket) {
        let mut waiting = self.waiting.lock();
        waiting.shares.remove(&ticket);
        if waiting.claim.is_some_and(|claim| claim.ticket == ticket) {
            waiting.claim = None;
            self.claimed_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether the share with this ticket has the claim, and the time at which the claim may change. If no
    /// share has the claim and no pause is in progress, the claim goes to the oldest share that has not had a claim and
    /// that waits for at most `room` bytes.
    pub(crate) fn turn(
        &self,
        ticket: Ticket,
        room: u64,
        limit: u64,
        now: Instant,
    ) -> (bool, Option<Instant>) {
        let mut waiting = self.waiting.lock();
        if waiting.claim.is_some_and(|claim| claim.until <= now) {
            waiting.end_claim(now);
            self.claimed_bytes.store(0, Ordering::Relaxed);
        }
        waiting.paused_until = waiting.paused_until.filter(|until| *until > now);
        if waiting.claim.is_none() && waiting.paused_until.is_none() {
            waiting.claim = waiting.next_claim(room, now);
            let claimed = waiting.claim.map_or(0, |claim| waiting.bytes(claim.ticket));
            let overtaking = limit / OVERTAKING_PART;
            self.overtaking_bytes.store(overtaking, Ordering::Relaxed);
            self.claimed_bytes.store(claimed, Ordering::Relaxed);
        }
        let changes = waiting.claim.map(|claim| claim.until);
        (
            waiting.claim.is_some_and(|claim| claim.ticket == ticket),
            changes.or(waiting.paused_until),
        )
    }

    /// Returns the bytes that the requesting share must leave free for the share with the claim. The requesting share
    /// takes `bytes`, and would hold `held` bytes in total.
    pub(crate) fn left_to_claim(&self, bytes: u64, held: u64) -> u64 {
        let claimed = self.claimed_bytes.load(Ordering::Relaxed);
        if claimed == 0 || held > OVERTAKING_BYTES_MAX {
            return claimed;
        }
        let less = |left: u64| left.checked_sub(bytes);
        let overtakes =
            self.overtaking_bytes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if overtakes.is_ok() { 0 } else { claimed }
    }
}

impl Waiting {
    fn bytes(&self, ticket: Ticket) -> u64 {
        self.shares.get(&ticket).map_or(0, |waiter| waiter.bytes)
    }

    fn end_claim(&mut self, now: Instant) {
        if let Some(claim) = self.claim.take()
            && let Some(waiter) = self.shares.get_mut(&claim.ticket)
        {
            waiter.has_had_claim = true;
            self.paused_until = Some(now + PAUSE);
        }
    }

    fn next_claim(&self, room: u64, now: Instant) -> Option<Claim> {
        let can_claim = |waiter: &Waiter| !waiter.has_had_claim && waiter.bytes <= room;
        let mut shares = self.shares.iter();
        let (ticket, _) = shares.find(|(_, waiter)| can_claim(waiter))?;
        Some(Claim {
            ticket: *ticket,
            until: now + CLAIM_TIME,
        })
    }
}
