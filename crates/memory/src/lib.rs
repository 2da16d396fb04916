//! An account of the memory that clients can make the process hold.
//!
//! An [`Account`] has a limit in bytes. Each consumer of memory for a client (a message, a search, a cursor, a reply)
//! has a [`Share`] of the account, which grows with the consumer's memory and is released when dropped. An account may
//! have child accounts with smaller limits. Bytes of a child's shares count in its parent too. Code that counts what it
//! holds uses [`Held`], a count of bytes with the share that covers them.
//!
//! A fixed part of each account is reserved for small shares, so that small requests succeed while large ones are
//! refused. Shares that wait for free bytes (room) form a queue (see [`line`]), so that large shares find room too.
//!
//! The root account covers the whole process. Resident memory that is in no share ([`Account::look`]) reduces the root
//! account's room.
#![forbid(unsafe_code)]

mod held;
mod line;
mod outside;
mod system;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::line::{Line, Ticket};
use crate::outside::Outside;

pub use held::{FREE_BYTES, Held};
pub use system::{machine_bytes, resident_bytes, virtual_bytes};

/// Maximum bytes of a share that may use the reserve.
pub const SMALL_SHARE_BYTES_MAX: u64 = 64 << 10;
/// Divisor of an account's limit. The quotient is reserved for small shares.
const RESERVE_PART: u64 = 16;

/// Minimum bytes that, when released at once, stay taken until the next measurement. What they covered may still be
/// resident under another owner, such as the store's write buffers. If other shares took the bytes at once, the process
/// would hold both.
const SETTLING_BYTES_MIN: u64 = 1 << 20;

/// Increment in which [`Share::try_cover`] grows a share, in bytes.
const STEP_BYTES: usize = 16 << 10;

/// The account, or one of its ancestors, has too few free bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the server's memory for requests is full ({limit_bytes} bytes): try again when other requests are done, \
     request less at a time, or raise --memory-bytes-max"
)]
pub struct Full {
    /// Limit of the account that is full.
    pub limit_bytes: u64,
}

/// A limit in bytes, and the bytes held. A clone refers to the same account.
#[derive(Debug, Clone)]
pub struct Account {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    refused: AtomicU64,
    /// The queue of shares that wait for room.
    line: Line,
    /// Wakes waiting shares when bytes are released.
    given_back: Notify,
    /// Bytes that the process holds outside all shares; zero in a child account.
    outside: Outside,
    /// Bytes that were released, but stay taken until the next measurement.
    settling_bytes: AtomicU64,
    /// Whether resident memory is measured.
    is_measured: AtomicBool,
    above: Option<Account>,
}

/// A snapshot of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Maximum bytes that may be held.
    pub limit_bytes: u64,
    /// Bytes held now.
    pub used_bytes: u64,
    /// Peak of the bytes held.
    pub peak_bytes: u64,
    /// Bytes that the process holds outside all shares. They reduce the limit.
    pub outside_bytes: u64,
    /// Number of refused requests.
    pub refused: u64,
    /// Number of shares that wait for room.
    pub waiting: usize,
}

impl Default for Account {
    /// Returns an account without a limit.
    fn default() -> Account {
        Account::new(u64::MAX)
    }
}

impl Account {
    /// Returns an account of at most `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Account {
        Account::with(limit_bytes, None)
    }

    /// Returns a child account of at most `limit_bytes`. Its shares count in this account too.
    pub fn below(&self, limit_bytes: u64) -> Account {
        Account::with(limit_bytes, Some(self.clone()))
    }

    fn with(limit_bytes: u64, above: Option<Account>) -> Account {
        Account {
            inner: Arc::new(Inner {
                limit_bytes,
                used_bytes: AtomicU64::new(0),
                peak_bytes: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                line: Line::default(),
                given_back: Notify::new(),
                outside: Outside::default(),
                settling_bytes: AtomicU64::new(0),
                is_measured: AtomicBool::new(false),
                above,
            }),
        }
    }

    /// Returns an empty share.
    pub fn share(&self) -> Share {
        Share {
            account: self.clone(),
            bytes: AtomicU64::new(0),
        }
    }

    /// Returns a snapshot of the account.
    pub fn figures(&self) -> Figures {
        let inner = &self.inner;
        Figures {
            limit_bytes: inner.limit_bytes,
            used_bytes: inner.used_bytes.load(Ordering::Relaxed),
            peak_bytes: inner.peak_bytes.load(Ordering::Relaxed),
            outside_bytes: inner.outside.bytes(),
            refused: inner.refused.load(Ordering::Relaxed),
            waiting: inner.line.count(),
        }
    }

    /// Records the resident memory of the process. The part that is in no share reduces the room for shares. Must be
    /// called often, because only recent values count.
    pub fn look(&self, resident_bytes: u64) {
        let inner = &self.inner;
        inner.is_measured.store(true, Ordering::Relaxed);
        let settled_bytes = inner.settling_bytes.swap(0, Ordering::Relaxed);
        let used_bytes = inner.used_bytes.load(Ordering::Relaxed);
        let outside_bytes = resident_bytes.saturating_sub(used_bytes - settled_bytes);
        inner.outside.look(outside_bytes, Instant::now());
        // Notifies waiting shares, which may fit now.
        inner.give_back(settled_bytes);
    }

    /// Sets the minimum number of bytes that count as held outside the shares. The minimum accounts for caches and
    /// buffers that will fill, even if less memory is resident now.
    pub fn set_least_outside(&self, bytes: u64) {
        self.inner.outside.set_least(bytes);
    }

    /// Returns this account and its ancestors.
    fn chain(&self) -> impl Iterator<Item = &Inner> {
        std::iter::successors(Some(&*self.inner), |inner| {
            inner.above.as_ref().map(|above| &*above.inner)
        })
    }

    /// Takes the requested bytes from this account and all its ancestors, or from none of them.
    fn take(&self, wanted: Wanted) -> Result<(), Full> {
        for (taken, inner) in self.chain().enumerate() {
            if let Err(full) = inner.take(wanted) {
                self.chain()
                    .take(taken)
                    .for_each(|inner| inner.give_back(wanted.bytes));
                return Err(full);
            }
        }
        Ok(())
    }

    /// Checks that a share could hold `held` bytes if all other shares were empty.
    fn check_possible(&self, held: u64) -> Result<(), Full> {
        let mut chain = self.chain();
        match chain.find(|inner| held > inner.room_at_best(held)) {
            None => Ok(()),
            Some(inner) => Err(inner.full()),
        }
    }

    fn give_back(&self, bytes: u64) {
        for inner in self.chain() {
            let is_settling =
                bytes >= SETTLING_BYTES_MIN && inner.is_measured.load(Ordering::Relaxed);
            if is_settling {
                inner.settling_bytes.fetch_add(bytes, Ordering::Relaxed);
            } else {
                inner.give_back(bytes);
            }
        }
    }

    fn count_refusal(&self) {
        self.chain().for_each(|inner| {
            inner.refused.fetch_add(1, Ordering::Relaxed);
        });
    }
}

/// A share's request to an account.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Bytes to take.
    bytes: u64,
    /// Bytes that the share holds afterwards.
    held: u64,
    /// Whether the share has the claim (see [`line`]).
    has_claim: bool,
}

impl Inner {
    /// Returns the maximum bytes that all shares together may hold, if one of them takes bytes and then holds `held`
    /// bytes. Small shares may use the reserve. The process holds `outside_bytes` outside all shares.
    fn room(&self, held: u64, outside_bytes: u64) -> u64 {
        let reserve = self.limit_bytes / RESERVE_PART;
        let room = self.limit_bytes.saturating_sub(outside_bytes);
        // The reserve for small shares remains even if the process holds much memory outside the shares.
        if held <= SMALL_SHARE_BYTES_MAX {
            room.max(reserve)
        } else {
            room.saturating_sub(reserve)
        }
    }

    /// Like `room`, but assumes that the process holds only the minimum number of bytes outside all shares.
    fn room_at_best(&self, held: u64) -> u64 {
        self.room(held, self.outside.least_bytes())
    }

    fn full(&self) -> Full {
        Full {
            limit_bytes: self.limit_bytes,
        }
    }

    fn take(&self, wanted: Wanted) -> Result<(), Full> {
        let Wanted { bytes, held, .. } = wanted;
        let left = if wanted.has_claim || held <= SMALL_SHARE_BYTES_MAX {
            0
        } else {
            self.line.left_to_claim(bytes, held)
        };
        let room = self.room(held, self.outside.bytes()).saturating_sub(left);
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= room);
        let before = self
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .map_err(|_| self.full())?;
        self.peak_bytes.fetch_max(before + bytes, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        // A waiting share first increments the count of waiting shares, and then checks for room. Sequential
        // consistency ensures that this thread sees the new count, or that the share sees the released bytes.
        self.used_bytes.fetch_sub(bytes, Ordering::SeqCst);
        if self.line.count() > 0 {
            self.given_back.notify_waiters();
        }
    }
}

/// Bytes taken from an account. Dropping the share releases them.
#[derive(Debug)]
pub struct Share {
    account: Account,
    bytes: AtomicU64,
}

impl Default for Share {
    /// Returns a share of an account without a limit.
    fn default() -> Share {
        Account::default().share()
    }
}

impl Share {
    /// Returns whether the share is one of `account`.
    pub fn is_of(&self, account: &Account) -> bool {
        Arc::ptr_eq(&self.account.inner, &account.inner)
    }

    /// Returns an empty share of the same account.
    pub fn another(&self) -> Share {
        self.account.share()
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes` more bytes.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the share is unchanged.
    pub fn try_grow(&self, bytes: usize) -> Result<(), Full> {
        self.grow(bytes as u64, false)
            .inspect_err(|_| self.account.count_refusal())
    }

    /// Takes `bytes` more bytes if there is room. Returns whether it did. A lack of room does not count as a refusal,
    /// because the caller can do without the bytes.
    pub fn grow_if_room(&self, bytes: usize) -> bool {
        self.grow(bytes as u64, false).is_ok()
    }

    /// Takes `bytes` more bytes, even if there is no room, for memory that is allocated already.
    pub fn grow_anyway(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.account.chain().for_each(|inner| {
            let before = inner.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            inner
                .peak_bytes
                .fetch_max(before + bytes, Ordering::Relaxed);
        });
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` more bytes, and waits at most `limit` for room.
    ///
    /// Small shares never wait for large ones. Other shares cannot overtake a large one forever; see [`line`].
    ///
    /// # Errors
    /// [`Full`] if there was no room within `limit`, or if there can never be enough. The share is then unchanged.
    pub async fn grow_within(&self, bytes: usize, limit: Duration) -> Result<(), Full> {
        let bytes = bytes as u64;
        if self.grow(bytes, false).is_ok() {
            return Ok(());
        }
        let possible = self
            .account
            .check_possible(self.bytes().saturating_add(bytes));
        let grown = match possible {
            Ok(()) => self.wait_to_grow(bytes, Instant::now() + limit).await,
            Err(full) => Err(full),
        };
        grown.inspect_err(|_| self.account.count_refusal())
    }

    async fn wait_to_grow(&self, bytes: u64, until: Instant) -> Result<(), Full> {
        let waiting = Waiting::new(&self.account, bytes);
        loop {
            // Bytes released in an account are also released in its ancestors, so the root account notifies on each
            // release.
            let mut given_back = pin!(waiting.top().given_back.notified());
            given_back.as_mut().enable();
            let (has_claim, look_again) = waiting.turn();
            let full = match self.grow(bytes, has_claim) {
                Ok(()) => return Ok(()),
                Err(full) => full,
            };
            let look_again = look_again.map_or(until, |at| at.min(until));
            if timeout_at(look_again, given_back).await.is_err() && Instant::now() >= until {
                return Err(full);
            }
        }
    }

    /// Releases `bytes`, or all bytes if the share holds fewer.
    pub fn shrink(&self, bytes: usize) {
        let less = |held: u64| Some(held.saturating_sub(bytes as u64));
        let before = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .unwrap_or_else(|held| held);
        self.account.give_back(before.min(bytes as u64));
    }

    /// Shrinks the share to at most `bytes`.
    pub fn shrink_to(&self, bytes: usize) {
        self.shrink((self.bytes() as usize).saturating_sub(bytes));
    }

    /// Grows or shrinks the share to exactly `bytes`.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the share is unchanged.
    pub fn try_resize(&mut self, bytes: usize) -> Result<(), Full> {
        match (bytes as u64).checked_sub(self.bytes()) {
            Some(more) => self.try_grow(more as usize),
            None => {
                self.shrink_to(bytes);
                Ok(())
            }
        }
    }

    /// Grows the share to at least `bytes`. It grows in steps, so that gradual growth rarely accesses the account.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the share is unchanged.
    pub fn try_cover(&self, bytes: usize) -> Result<(), Full> {
        match (bytes as u64).saturating_sub(self.bytes()) {
            0 => Ok(()),
            more => self.try_grow((more as usize).next_multiple_of(STEP_BYTES)),
        }
    }

    fn grow(&self, bytes: u64, has_claim: bool) -> Result<(), Full> {
        self.account.take(Wanted {
            bytes,
            held: self.bytes().saturating_add(bytes),
            has_claim,
        })?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.give_back(self.bytes());
    }
}

/// A waiting share's entry in the queue, removed on drop.
struct Waiting<'a> {
    account: &'a Account,
    /// `None` in a child account, whose shares get no claim: the child's smaller limit is no reason to make other
    /// shares wait.
    ticket: Option<Ticket>,
}

impl Waiting<'_> {
    fn new(account: &Account, bytes: u64) -> Waiting<'_> {
        account.chain().for_each(|inner| inner.line.enter());
        let is_top = account.inner.above.is_none();
        Waiting {
            account,
            ticket: is_top.then(|| account.inner.line.add(bytes)),
        }
    }

    fn top(&self) -> &Inner {
        let top = self.account.chain().last();
        top.unwrap_or(&self.account.inner)
    }

    /// Returns whether this share has the claim, and the time at which this may change even if no memory is released.
    fn turn(&self) -> (bool, Option<Instant>) {
        let Some(ticket) = self.ticket else {
            return (false, None);
        };
        let inner = &self.account.inner;
        let room = inner.room(u64::MAX, inner.outside.bytes());
        inner
            .line
            .turn(ticket, room, inner.limit_bytes, Instant::now())
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.account.chain().for_each(|inner| inner.line.leave());
        if let Some(ticket) = self.ticket {
            let inner = &self.account.inner;
            inner.line.remove(ticket);
            // The next share may have the claim now.
            inner.given_back.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
