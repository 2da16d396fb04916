//! Open cursors: streams that clients have not read to the end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_cancel::SharedStop;
use forebay_documents_query::Code;
use forebay_memory::Share;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::command::{Link, User};
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::scope::ClientKey;
use crate::searches::Search;
use crate::sessions::SessionId;
use crate::streams::{Row, Stream};

/// Maximum open cursors.
const CURSORS_MAX: usize = 100_000;
/// Maximum open cursors of one client (a user on a host). Only clients that leak cursors reach it.
const CURSORS_OF_CLIENT_MAX: usize = CURSORS_MAX / 4;
/// Number of sweeps for idle cursors during one cursor timeout.
const SWEEPS_PER_TIMEOUT: u32 = 10;

/// Minimum time between two searches for cursors of disconnected clients. A search asks the operating system about the
/// connection of every cursor.
const ORPHANS_INTERVAL: Duration = Duration::from_secs(1);

/// The owner of a cursor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// The user who opened the cursor.
    pub user: Option<User>,
    /// The session that opened the cursor.
    pub session: Option<SessionId>,
}

/// An open cursor. It is removed from the registry while a batch is made.
pub struct Cursor {
    /// The namespace of the collection.
    pub namespace: Namespace,
    /// The source of the documents.
    pub stream: Box<dyn Stream>,
    /// The search that found the documents, which is logged if a batch is slow.
    pub search: Option<Search>,
    /// A document that did not fit into the last batch, and the memory account's share for it.
    pub held: Option<(Row, Share)>,
    /// The owner.
    pub owner: Owner,
    /// The client (a user on a host) that opened the cursor. `None` if the server opened the cursor.
    pub client: Option<ClientKey>,
    /// Whether the cursor never times out.
    pub no_timeout: bool,
    /// Remaining time of the `maxTimeMS` of the command that opened the cursor.
    pub time_left: Option<Duration>,
    /// The cancellation token that the stream checks. It has the deadline and the cancellation of the command that
    /// currently reads the cursor.
    pub stop: Arc<SharedStop>,
    /// The connection to the client that requested the last batch.
    pub link: Option<Arc<dyn Link>>,
}

impl Cursor {
    fn is_orphan(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_lost())
    }
}

/// Records whether a cursor in use has been closed, and notifies the task that waits for this.
#[derive(Debug, Default)]
pub struct Killed {
    yes: AtomicBool,
    notify: Notify,
}

impl Killed {
    fn notify(&self) {
        self.yes.store(true, Ordering::Relaxed);
        self.notify.notify_one();
    }

    /// Waits until the cursor is closed. Only one task may wait at a time.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }
}

struct Entry {
    namespace: Namespace,
    owner: Owner,
    killed: Arc<Killed>,
    /// Whether the cursor stays open when its collection is dropped. A change stream stays open, to report the drop.
    outlives_collection: bool,
    last_used: Instant,
    no_timeout: bool,
    cursor: Option<Box<Cursor>>,
    /// Dropping this value lowers the client's number of open cursors.
    _counted: Option<Arc<()>>,
}

/// All open cursors, keyed by id.
pub struct Cursors {
    timeout: Duration,
    open: Mutex<HashMap<i64, Entry>>,
    /// Counts the cursors of each client: every cursor holds a clone of its client's `Arc`.
    clients: Mutex<HashMap<ClientKey, Arc<()>>>,
    swept: Mutex<Instant>,
    /// Time of the last search for cursors of disconnected clients.
    orphans_closed: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Cursors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursors")
            .field("open", &self.open.lock().len())
            .finish()
    }
}

impl Cursors {
    /// Returns a registry without cursors. Idle cursors expire after `timeout`.
    pub fn new(timeout: Duration) -> Cursors {
        Cursors {
            timeout,
            open: Mutex::default(),
            clients: Mutex::default(),
            swept: Mutex::new(Instant::now()),
            orphans_closed: Mutex::default(),
        }
    }

    /// Adds a cursor to the registry. Returns its id, which is random and never zero.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if [`CURSORS_MAX`] cursors are open, or [`CURSORS_OF_CLIENT_MAX`] of this client.
    pub fn keep(&self, mut cursor: Box<Cursor>) -> Result<i64, CommandError> {
        self.sweep();
        cursor.stream.rest();
        let client = cursor.client;
        let is_full = || self.open.lock().len() >= CURSORS_MAX;
        if is_full() || client.is_some_and(|client| self.is_at_limit(client)) {
            self.close_orphans_at_intervals();
        }
        let counted = client.map(|client| self.count(client)).transpose()?;
        let mut open = self.open.lock();
        if open.len() >= CURSORS_MAX {
            return Err(too_many(format!("{CURSORS_MAX} cursors are open")));
        }
        let id = std::iter::repeat_with(|| fastrand::i64(1..))
            .find(|id| !open.contains_key(id))
            .expect("the range is unbounded");
        let entry = Entry {
            namespace: cursor.namespace.clone(),
            owner: cursor.owner.clone(),
            killed: Arc::default(),
            outlives_collection: cursor.stream.changes().is_some(),
            last_used: Instant::now(),
            no_timeout: cursor.no_timeout,
            cursor: Some(cursor),
            _counted: counted,
        };
        open.insert(id, entry);
        Ok(id)
    }

    fn close_orphans_at_intervals(&self) {
        let mut closed = self.orphans_closed.lock();
        if closed.is_none_or(|at| at.elapsed() >= ORPHANS_INTERVAL) {
            *closed = Some(Instant::now());
            self.close_orphans();
        }
    }

    fn is_at_limit(&self, client: ClientKey) -> bool {
        let clients = self.clients.lock();
        clients.get(&client).is_some_and(is_at_limit)
    }

    /// Adds one to a client's number of open cursors. Dropping the returned `Arc` subtracts one.
    fn count(&self, client: ClientKey) -> Result<Arc<()>, CommandError> {
        let mut clients = self.clients.lock();
        let counted = clients.entry(client).or_default();
        if is_at_limit(counted) {
            let message = format!("this client has {CURSORS_OF_CLIENT_MAX} cursors open");
            return Err(too_many(message));
        }
        Ok(counted.clone())
    }

    /// Takes a cursor from the registry for the next batch. [`Lease::give_back`] puts the cursor back; dropping the
    /// lease closes the cursor.
    ///
    /// # Errors
    /// - `CursorNotFound`.
    /// - `Unauthorized` for a cursor of another user, session or collection.
    /// - `CursorInUse`.
    pub fn take(
        self: &Arc<Self>,
        id: i64,
        namespace: &Namespace,
        owner: &Owner,
    ) -> Result<Lease, CommandError> {
        self.sweep();
        let mut open = self.open.lock();
        let entry = open.get_mut(&id).ok_or_else(|| not_found(id))?;
        check_namespace(id, entry, namespace)?;
        check_owner(id, entry, owner)?;
        let cursor = entry.cursor.take().ok_or_else(|| in_use(id))?;
        Ok(Lease {
            cursors: self.clone(),
            id,
            killed: entry.killed.clone(),
            cursor: Some(cursor),
        })
    }

    /// Closes a cursor.
    pub fn kill(&self, id: i64, namespace: &Namespace, owner: &Owner) -> Closed {
        let mut open = self.open.lock();
        match open.get(&id) {
            Some(entry) if entry.namespace == *namespace && entry.owner.user == owner.user => {
                entry.killed.notify();
                open.remove(&id);
                Closed::Yes
            }
            _ => Closed::NotFound,
        }
    }

    /// Closes all cursors over a collection that was dropped, except change streams.
    pub fn kill_namespace(&self, namespace: &Namespace) {
        self.kill_where(|entry| entry.namespace == *namespace && !entry.outlives_collection);
    }

    /// Closes all cursors of a user's sessions. Sessions of different users are different, even with the same id.
    pub fn kill_sessions(&self, user: Option<&User>, sessions: &HashSet<SessionId>) {
        self.kill_where(|entry| {
            let session = entry.owner.session.as_ref();
            entry.owner.user.as_ref() == user
                && session.is_some_and(|session| sessions.contains(session))
        });
    }

    /// Closes all cursors of a user.
    pub fn kill_user(&self, user: &User) {
        self.kill_where(|entry| entry.owner.user.as_ref() == Some(user));
    }

    /// Closes the cursors of the owners for which `is_meant` returns true.
    pub fn kill_owned(&self, is_meant: impl Fn(&Owner) -> bool) {
        self.kill_where(|entry| is_meant(&entry.owner));
    }

    /// Closes the cursors of disconnected clients. Callers do so only when memory is short or a limit of cursors is
    /// reached, because another connection of the same session may still read these cursors.
    pub fn close_orphans(&self) {
        self.kill_where(|entry| entry.cursor.as_deref().is_some_and(Cursor::is_orphan));
    }

    fn kill_where(&self, condition: impl Fn(&Entry) -> bool) {
        self.open.lock().retain(|_, entry| {
            let keep = !condition(entry);
            if !keep {
                entry.killed.notify();
            }
            keep
        });
    }

    /// Closes cursors that have been idle too long. Most calls do nothing, because there are only a few sweeps per
    /// timeout.
    fn sweep(&self) {
        let mut swept = self.swept.lock();
        if swept.elapsed() >= self.timeout / SWEEPS_PER_TIMEOUT {
            *swept = Instant::now();
            drop_idle(&mut self.open.lock(), self.timeout);
            let mut clients = self.clients.lock();
            clients.retain(|_, counted| Arc::strong_count(counted) > 1);
        }
    }

    /// Returns the number of open cursors, and the number of those that never time out.
    pub fn counts(&self) -> (usize, usize) {
        let open = self.open.lock();
        (
            open.len(),
            open.values().filter(|entry| entry.no_timeout).count(),
        )
    }
}

/// The outcome of closing a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The cursor is closed.
    Yes,
    /// No cursor has that id, or this client may not see it.
    NotFound,
}

/// A cursor in use.
pub struct Lease {
    cursors: Arc<Cursors>,
    id: i64,
    killed: Arc<Killed>,
    cursor: Option<Box<Cursor>>,
}

impl Lease {
    /// Returns the value that records whether the cursor has been closed. A task can wait on it until the cursor is
    /// closed.
    pub fn killed(&self) -> Arc<Killed> {
        self.killed.clone()
    }

    /// Returns the cursor.
    pub fn cursor(&mut self) -> &mut Cursor {
        self.cursor
            .as_mut()
            .expect("only give_back takes the cursor, and give_back consumes the lease")
    }

    /// Puts the cursor back for the next batch.
    ///
    /// # Errors
    /// `CursorKilled` if the cursor was closed while in use.
    pub fn give_back(mut self) -> Result<(), CommandError> {
        if self.killed.yes.load(Ordering::Relaxed) {
            return Err(CommandError::refused(
                Code::CursorKilled,
                format!("cursor id {} was killed", self.id),
            ));
        }
        if let Some(cursor) = &mut self.cursor {
            cursor.stream.rest();
        }
        let mut open = self.cursors.open.lock();
        if let Some(entry) = open.get_mut(&self.id) {
            entry.last_used = Instant::now();
            entry.cursor = self.cursor.take();
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.cursor.is_some() {
            self.cursors.open.lock().remove(&self.id);
        }
    }
}

fn drop_idle(open: &mut HashMap<i64, Entry>, timeout: Duration) {
    open.retain(|_, entry| {
        entry.no_timeout || entry.cursor.is_none() || entry.last_used.elapsed() < timeout
    });
}

/// Returns whether a client has the maximum number of cursors. Each of its cursors holds a clone of `counted`.
fn is_at_limit(counted: &Arc<()>) -> bool {
    Arc::strong_count(counted) > CURSORS_OF_CLIENT_MAX
}

fn too_many(message: String) -> CommandError {
    CommandError::refused(Code::ExceededMemoryLimit, message)
}

fn not_found(id: i64) -> CommandError {
    CommandError::refused(Code::CursorNotFound, format!("cursor id {id} not found"))
}

fn in_use(id: i64) -> CommandError {
    CommandError::refused(
        Code::CursorInUse,
        format!("cursor id {id} is already in use"),
    )
}

fn check_namespace(id: i64, entry: &Entry, namespace: &Namespace) -> Result<(), CommandError> {
    if entry.namespace == *namespace {
        return Ok(());
    }
    let message = format!(
        "Requested getMore on namespace '{namespace}', but cursor {id} belongs to a different namespace {}",
        entry.namespace
    );
    Err(CommandError::refused(Code::Unauthorized, message))
}

fn check_owner(id: i64, entry: &Entry, owner: &Owner) -> Result<(), CommandError> {
    if entry.owner.user != owner.user {
        return Err(CommandError::refused(
            Code::Unauthorized,
            format!("cursor id {id} was not created by the authenticated user"),
        ));
    }
    if entry.owner.session != owner.session {
        let message =
            format!("Cannot run getMore on cursor {id}, which was not created in this session");
        return Err(CommandError::refused(Code::Location50738, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ClientContext;
    use crate::streams::List;

    fn cursor(client: Option<ClientKey>) -> Box<Cursor> {
        Box::new(Cursor {
            namespace: Namespace {
                db: "d".to_owned(),
                collection: "c".to_owned(),
            },
            stream: Box::new(List::default()),
            search: None,
            held: None,
            owner: Owner::default(),
            client,
            no_timeout: false,
            time_left: None,
            stop: Arc::default(),
            link: None,
        })
    }

    #[derive(Debug)]
    struct Lost;

    impl Link for Lost {
        fn is_lost(&self) -> bool {
            true
        }
    }

    fn client(host: u8) -> Option<ClientKey> {
        ClientKey::of(&ClientContext {
            peer: Some(([10, 0, 0, host], 1).into()),
            ..ClientContext::default()
        })
    }

    #[test]
    fn a_client_leaves_cursors_to_others() {
        let cursors = Arc::new(Cursors::new(Duration::from_secs(600)));
        let keep = |host| cursors.keep(cursor(client(host)));
        let kept = (0..CURSORS_OF_CLIENT_MAX).map(|_| keep(1));
        let kept: Vec<i64> = kept.collect::<Result<_, _>>().expect("within its share");
        let refused = keep(1).expect_err("one too many");
        assert_eq!(refused.code(), Code::ExceededMemoryLimit);
        keep(2).expect("another client has its own");
        cursors.keep(cursor(None)).expect("the server itself");
        let namespace = &cursor(None).namespace;
        cursors.kill(kept[0], namespace, &Owner::default());
        keep(1).expect("one was closed");
        let lease = cursors.take(kept[1], namespace, &Owner::default());
        keep(1).expect_err("one in use counts");
        drop(lease.expect("the cursor is open"));
        keep(1).expect("a cursor was closed");
    }

    #[test]
    fn cursors_of_clients_that_left_make_room() {
        let cursors = Arc::new(Cursors::new(Duration::from_secs(600)));
        for _ in 0..CURSORS_OF_CLIENT_MAX {
            let mut left = cursor(client(1));
            left.link = Some(Arc::new(Lost));
            cursors.keep(left).expect("within its share");
        }
        cursors
            .keep(cursor(client(1)))
            .expect("the others were left");
        assert_eq!(cursors.counts(), (1, 0));
    }
}
