//! Delays the replies to failed logins, and logs some of the failures. The delay grows with each failed login of a
//! sender.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_documents::User;
use parking_lot::Mutex;

/// Time after a sender's last wrong password until its count is reset.
const MEMORY: Duration = Duration::from_secs(60);
/// Maximum number of senders with a count. While that many senders have one, every other sender gets the longest delay.
const SENDERS_MAX: usize = 4096;
/// Delay of the reply to the first wrong password. It doubles with each further wrong password.
const DELAY_MIN: Duration = Duration::from_millis(100);
/// Maximum delay of a reply.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Maximum bytes of a user's name in the log.
const NAME_BYTES_MAX: usize = 64;

/// Counts of recent wrong passwords, by sender (IP address).
#[derive(Debug, Default)]
pub struct Guesses {
    total: AtomicU64,
    senders: Mutex<HashMap<IpAddr, Failures>>,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Guesses {
    /// Records a wrong password and returns the delay of its reply. Logs a sender's first, second, fourth, eighth, ...
    /// wrong password.
    pub fn record(&self, sender: Option<IpAddr>, user: Option<&User>) -> Duration {
        self.total.fetch_add(1, Ordering::Relaxed);
        let count = sender.map_or(1, |sender| self.count(sender, Instant::now()));
        if count.is_power_of_two() {
            let name = user.map(|user| shortened(&user.name));
            let db = user.map(|user| shortened(&user.db));
            let sender = sender.map(tracing::field::display);
            tracing::warn!(user = name, db, sender, count, "authentication failed");
        }
        delay(count)
    }

    /// Returns the number of wrong passwords of all senders so far.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Records a wrong password at time `now`. Returns the sender's number of recent wrong passwords, including this
    /// one.
    fn count(&self, sender: IpAddr, now: Instant) -> u32 {
        let mut senders = self.senders.lock();
        let is_recent = |failures: &Failures| now.duration_since(failures.last) < MEMORY;
        if senders.len() >= SENDERS_MAX {
            senders.retain(|_, failures| is_recent(failures));
        }
        if senders.len() >= SENDERS_MAX && !senders.contains_key(&sender) {
            return u32::MAX;
        }
        let failures = senders.entry(sender).or_insert(Failures {
            count: 0,
            last: now,
        });
        failures.count = if is_recent(failures) {
            failures.count.saturating_add(1)
        } else {
            1
        };
        failures.last = now;
        failures.count
    }
}

fn delay(count: u32) -> Duration {
    let doublings = count.saturating_sub(1).min(16);
    (DELAY_MIN * (1 << doublings)).min(DELAY_MAX)
}

/// Cuts a text to the maximum length in the log.
fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(NAME_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_password_of_a_sender_takes_longer() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let sender = IpAddr::from([127, 0, 0, 1]);
        let delays = [(); 7].map(|()| delay(guesses.count(sender, now)).as_millis());
        assert_eq!(delays, [100, 200, 400, 800, 1600, 2000, 2000]);
        let other = IpAddr::from([127, 0, 0, 2]);
        assert_eq!(guesses.count(other, now), 1);
        assert_eq!(
            guesses.count(sender, now + MEMORY),
            1,
            "earlier wrong passwords no longer count"
        );
    }

    #[test]
    fn senders_beyond_the_limit_are_not_remembered() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        for number in 0..SENDERS_MAX as u32 {
            guesses.count(IpAddr::from(number.to_be_bytes()), now);
        }
        let one_more = IpAddr::from([255, 255, 255, 255]);
        assert_eq!(delay(guesses.count(one_more, now)), DELAY_MAX);
        assert_eq!(guesses.senders.lock().len(), SENDERS_MAX);
        assert_eq!(
            guesses.count(one_more, now + MEMORY),
            1,
            "there is room again"
        );
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        assert_eq!(shortened("ada"), "ada");
        assert_eq!(shortened(&"é".repeat(100)), "é".repeat(32));
        assert_eq!(shortened(&format!("x{}", "é".repeat(100))).len(), 63);
    }
}
