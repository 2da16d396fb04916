//! The permits for reads or for writes, and the queue of commands that wait for a permit.
//!
//! A released permit goes to the waiting client that holds the fewest permits. Among this client's commands, the one
//! that has waited longest gets the permit. A client with many commands therefore does not delay other clients.
//!
//! A client may wait only while its own waiting commands are fewer than the free positions of the queue. One client
//! therefore takes at most half of the queue, the next one at most half of the rest, and so on. A client without
//! waiting commands therefore finds a free position.
//!
//! Sources: A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
//! IEEE/ACM Transactions on Networking 6(2), 1998.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use forebay_cancel::Stop;
use forebay_documents_query::Code;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::CommandError;
use crate::scope::{self, ClientKey};

/// Maximum length of a queue, in commands.
const WAITING_MAX: usize = 4_096;
/// Fraction of the permits that one client may hold (numerator, denominator), so that some remain for other clients.
const CLIENT_PART: (usize, usize) = (3, 4);
/// Interval at which a waiting command checks its cancellation token. For every [`CHECKS_TOGETHER_MAX`] waiting
/// commands, the interval grows by `CHECK_INTERVAL`.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
const CHECKS_TOGETHER_MAX: usize = 256;

/// A fixed number of permits, and the commands that wait for one.
#[derive(Debug)]
pub struct Places {
    count: usize,
    /// Maximum number of permits of one client.
    client_max: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    taken: usize,
    waiting: usize,
    next_ticket: u64,
    /// Clients that hold or wait for permits. The server itself has the key `None` and no limit.
    clients: HashMap<Option<ClientKey>, Client>,
}

#[derive(Debug, Default)]
struct Client {
    held: usize,
    /// Waiting commands, keyed by ticket, so that the oldest is first.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A permit, released on drop.
#[derive(Debug)]
pub struct Place<'a> {
    places: &'a Places,
    client: Option<ClientKey>,
}

/// A waiting command's position in the queue.
struct Turn<'a> {
    places: &'a Places,
    client: Option<ClientKey>,
    ticket: u64,
    granted: oneshot::Receiver<()>,
    /// Whether the position has been exchanged for a permit.
    is_over: bool,
}

impl Places {
    /// Returns `count` free permits.
    pub fn new(count: usize) -> Places {
        Places::shared(count, count)
    }

    /// Returns `count` free permits, of which one client may hold at most three quarters.
    pub fn fair(count: usize) -> Places {
        Places::shared(count, count / CLIENT_PART.1 * CLIENT_PART.0)
    }

    /// Returns `count` free permits, of which one client may hold at most `client_max`.
    fn shared(count: usize, client_max: usize) -> Places {
        Places {
            count,
            client_max,
            queue: Mutex::default(),
        }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// [`CommandError::Stopped`] if the command is stopped while waiting; `ExceededTimeLimit`, on which drivers retry,
    /// if too many commands wait.
    pub async fn enter(&self, stop: &Stop) -> Result<Place<'_>, CommandError> {
        let client = scope::client();
        let mut turn = match self.enter_or_wait(client)? {
            None => return Ok(self.place(client)),
            Some(turn) => turn,
        };
        loop {
            stop.check()?;
            let wait = tokio::time::timeout(self.check_interval(), &mut turn.granted);
            if wait.await.is_ok() {
                return Ok(turn.into_place());
            }
        }
    }

    fn place(&self, client: Option<ClientKey>) -> Place<'_> {
        Place {
            places: self,
            client,
        }
    }

    /// Takes a permit and returns `None`. If no permit is free for this client, takes a position in the queue and
    /// returns it.
    fn enter_or_wait(&self, client: Option<ClientKey>) -> Result<Option<Turn<'_>>, CommandError> {
        let mut queue = self.queue.lock();
        if queue.taken < self.count && self.may_take(client, queue.held(client)) {
            queue.take(client);
            return Ok(None);
        }
        let own = queue.waiting_of(client);
        if own >= WAITING_MAX.saturating_sub(queue.waiting) {
            return Err(too_many(own, queue.waiting));
        }
        let (grant, granted) = oneshot::channel();
        let ticket = queue.add(client, grant);
        Ok(Some(Turn {
            places: self,
            client,
            ticket,
            granted,
            is_over: false,
        }))
    }

    fn may_take(&self, client: Option<ClientKey>, held: usize) -> bool {
        client.is_none() || held < self.client_max
    }

    /// Returns the interval at which a waiting command checks its cancellation token.
    fn check_interval(&self) -> Duration {
        let waiting = self.queue.lock().waiting / CHECKS_TOGETHER_MAX;
        CHECK_INTERVAL * (1 + u32::try_from(waiting).unwrap_or(u32::MAX - 1))
    }

    /// Grants free permits to waiting commands.
    fn grant(&self, queue: &mut Queue) {
        while queue.taken < self.count {
            let waiting = queue.clients.iter().filter_map(|(client, of)| {
                let (ticket, _) = of.waiting.first_key_value()?;
                let may_take = self.may_take(*client, of.held);
                may_take.then_some((of.held, *ticket, *client))
            });
            let Some((_, ticket, client)) = waiting.min() else {
                return;
            };
            let grant = queue.remove(client, ticket);
            queue.take(client);
            // The command may stop waiting at this moment. It then finds its ticket gone from the queue, and releases
            // the permit.
            let _ = grant.map(|grant| grant.send(()));
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().waiting
    }
}

/// Returns the error for a client that already has too many waiting commands. `own` of the `waiting` commands are this
/// client's.
fn too_many(own: usize, waiting: usize) -> CommandError {
    let message = format!(
        "{waiting} commands already wait for slow commands to end, {own} of them from this client, and the queue \
         holds at most {WAITING_MAX} commands: try again"
    );
    CommandError::refused(Code::ExceededTimeLimit, message)
}

impl Queue {
    fn held(&self, client: Option<ClientKey>) -> usize {
        self.clients.get(&client).map_or(0, |of| of.held)
    }

    fn waiting_of(&self, client: Option<ClientKey>) -> usize {
        self.clients.get(&client).map_or(0, |of| of.waiting.len())
    }

    fn take(&mut self, client: Option<ClientKey>) {
        self.taken += 1;
        self.clients.entry(client).or_default().held += 1;
    }

    fn give_back(&mut self, client: Option<ClientKey>) {
        self.taken -= 1;
        if let Some(of) = self.clients.get_mut(&client) {
            of.held -= 1;
        }
        self.forget_idle(client);
    }

    fn add(&mut self, client: Option<ClientKey>, grant: oneshot::Sender<()>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let of = self.clients.entry(client).or_default();
        of.waiting.insert(ticket, grant);
        ticket
    }

    /// Removes a waiting command. Returns `None` if the command has been granted a permit.
    fn remove(&mut self, client: Option<ClientKey>, ticket: u64) -> Option<oneshot::Sender<()>> {
        let grant = self.clients.get_mut(&client)?.waiting.remove(&ticket)?;
        self.waiting -= 1;
        self.forget_idle(client);
        Some(grant)
    }

    fn forget_idle(&mut self, client: Option<ClientKey>) {
        let of = self.clients.get(&client);
        if of.is_some_and(|of| of.held == 0 && of.waiting.is_empty()) {
            self.clients.remove(&client);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queue = self.places.queue.lock();
        queue.give_back(self.client);
        self.places.grant(&mut queue);
    }
}

impl<'a> Turn<'a> {
    /// Returns the permit that was granted.
    fn into_place(mut self) -> Place<'a> {
        self.is_over = true;
        self.places.place(self.client)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut queue = self.places.queue.lock();
        if queue.remove(self.client, self.ticket).is_none() {
            queue.give_back(self.client);
            self.places.grant(&mut queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use forebay_cancel::StopReason;
    use tokio::runtime::Builder;

    use super::*;
    use crate::command::ClientContext;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn client(host: u8) -> Option<ClientKey> {
        let client = ClientContext {
            peer: Some(([10, 0, 0, host], 1).into()),
            ..ClientContext::default()
        };
        ClientKey::of(&client)
    }

    #[test]
    fn a_place_is_waited_for_and_the_queue_can_be_left() {
        run(async {
            let places = Places::new(1);
            let taken = places
                .enter(&Stop::never())
                .await
                .expect("the permit is free");
            let stop = Stop {
                cancelled: Arc::new(AtomicBool::new(false)),
                ..Stop::default()
            };
            let (left, ()) = tokio::join!(places.enter(&stop), async {
                assert_eq!(places.waiting(), 1);
                stop.cancelled.store(true, Ordering::Relaxed);
            });
            let left = left.map(drop).expect_err("cancelled");
            assert!(matches!(left, CommandError::Stopped(StopReason::Cancelled)));
            assert_eq!(places.waiting(), 0);
            let never = Stop::never();
            let (next, ()) = tokio::join!(places.enter(&never), async { drop(taken) });
            next.map(drop).expect("the permit is free again");
            let queue = places.queue.lock();
            assert!(queue.clients.is_empty() && queue.taken == 0);
        });
    }

    #[test]
    fn a_client_waits_only_while_more_positions_are_left_than_it_has() {
        let places = Places::new(0);
        let fill = |host: u8| {
            let mut turns = Vec::new();
            loop {
                match places.enter_or_wait(client(host)) {
                    Ok(turn) => turns.push(turn.expect("there is no place")),
                    Err(refused) => {
                        assert_eq!(refused.code(), Code::ExceededTimeLimit);
                        return turns;
                    }
                }
            }
        };
        let greedy = fill(1);
        assert_eq!(greedy.len(), WAITING_MAX / 2);
        let others = [2, 3].map(fill);
        assert_eq!(others.each_ref().map(Vec::len), [1024, 512]);
        assert_eq!(places.waiting(), WAITING_MAX / 8 * 7);
        drop((greedy, others));
        assert_eq!(places.waiting(), 0);
    }

    /// Takes a permit if one is free, and otherwise a position in the queue.
    fn enter(places: &Places, host: u8) -> Result<Place<'_>, Turn<'_>> {
        let client = client(host);
        match places.enter_or_wait(client).expect("not too many") {
            None => Ok(places.place(client)),
            Some(turn) => Err(turn),
        }
    }

    fn is_granted(turn: &mut Turn<'_>) -> bool {
        turn.granted.try_recv().is_ok()
    }

    #[test]
    fn one_client_leaves_places_to_others() {
        let places = Places::shared(4, 3);
        let greedy = Vec::from_iter((0..3).map(|_| enter(&places, 1).ok().expect("free")));
        let mut waits = enter(&places, 1).expect_err("three of four");
        let other = enter(&places, 2).ok().expect("the fourth");
        drop(other);
        assert!(!is_granted(&mut waits));
        drop(greedy);
        assert!(is_granted(&mut waits));
        drop(waits.into_place());
        let queue = places.queue.lock();
        assert!(queue.clients.is_empty() && queue.taken == 0 && queue.waiting == 0);
    }

    #[test]
    fn a_free_place_goes_to_the_client_that_has_the_fewest() {
        let places = Places::new(2);
        let mut first = Vec::from_iter((0..2).map(|_| enter(&places, 1).ok().expect("free")));
        let mut waiting = [1, 1, 2].map(|host| enter(&places, host).expect_err("full"));
        let mut granted = || waiting.each_mut().map(is_granted);
        drop(first.pop());
        assert_eq!(granted(), [false, false, true]);
        drop(first.pop());
        assert_eq!(granted(), [true, false, false]);
    }

    #[test]
    fn a_place_that_was_granted_to_a_command_that_ended_is_given_on() {
        let places = Places::new(1);
        let taken = enter(&places, 1).ok().expect("free");
        let ended = enter(&places, 1).expect_err("full");
        let mut next = enter(&places, 1).expect_err("full");
        drop(taken);
        assert!(!is_granted(&mut next));
        drop(ended);
        assert!(is_granted(&mut next));
    }
}
