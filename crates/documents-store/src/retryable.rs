//! Outcomes of retryable writes, kept for as long as clients may retry them. A retried statement returns its stored
//! outcome and is not applied again.
//!
//! Each batch with changes of a retryable write stores one part: the outcomes of the batch's statements.
//!
//! | key | value |
//! |---|---|
//! | the session, and the number of the part, four bytes in big-endian order | the number of the write, its time, and for each statement its id, the length of its outcome, its outcome |
//!
//! A part is committed in the same batch as the changes that it describes: after a kill, either both exist or neither
//! does. A session keeps only the outcomes of its last write.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bson::DateTime;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::engine::{Batch, Bytes, Direction, Engine, Entries, KeyRange, PartitionId};
use crate::error::{Result, StoreError};

/// Name of the engine partition that holds the outcomes of retryable writes.
pub(crate) const PARTITION: &str = "retryable-writes";

/// Milliseconds without a write in a session after which the session's outcomes are deleted. Equals the session timeout
/// that `hello` reports.
const LIFETIME_MS: i64 = 30 * 60 * 1_000;
/// Maximum number of sessions with outcomes.
const SESSIONS_MAX: usize = 200_000;
/// Maximum total bytes of outcomes. Beyond it, a statement is recorded as applied without the content of its outcome.
const BYTES_MAX: u64 = 256 << 20;
/// Maximum number of expired sessions whose outcomes are deleted when a write begins.
const FORGOTTEN_AT_ONCE: usize = 8;
/// Maximum number of stored parts that are removed, and of sessions that are looked up, before the lock is released.
/// The outcomes of one session may be stored in 100,000 parts, and all retryable writes need the lock.
const PARTS_AT_ONCE: usize = 256;
/// Bytes of a part's header: the number of the write and its time.
const HEAD_BYTES: usize = 16;
/// Bytes of a statement's header: its id and the length of its outcome.
const STATEMENT_BYTES: usize = 8;
/// Special value of the length: the statement was applied, but its outcome was too large to keep.
const NOT_KEPT: u32 = u32::MAX;

/// The bytes that identify a session.
pub type SessionKey = Arc<[u8]>;

/// Why a retryable write does not begin.
#[derive(Debug, thiserror::Error)]
pub enum NotBegun {
    /// The session has already begun a write with a higher number.
    #[error(
        "Retryable write with txnNumber {number} is prohibited because a newer retryable write with txnNumber {newest} has already started on this session"
    )]
    TooOld {
        /// The number of the refused write.
        number: i64,
        /// The number of the session's last write.
        newest: i64,
    },
    /// The number of sessions with stored outcomes is at its maximum.
    #[error(
        "too many sessions: {SESSIONS_MAX} sessions already have retryable writes that clients may retry"
    )]
    TooManySessions,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Outcome of a statement that was applied before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The outcome as first reported.
    Kept(Vec<u8>),
    /// The outcome was too large to keep.
    NotKept,
}

/// State of a session.
#[derive(Debug, Clone, Copy, Default)]
struct Session {
    /// The number of the session's last write.
    number: i64,
    /// Count of stored parts.
    parts: u32,
    /// The number of the write that the parts describe. Until the session's last write has applied a statement, this is
    /// the number of an earlier write.
    described: i64,
    /// Total bytes of the parts.
    bytes: u64,
    /// Start time of the last write, in milliseconds since 1970.
    used: i64,
    /// Whether a write of the session is in progress.
    busy: bool,
}

impl Session {
    /// Returns the session with only its first `parts` parts. Estimates the bytes of these parts.
    fn shortened(self, parts: u32) -> Session {
        let bytes = self.bytes * u64::from(parts) / u64::from(self.parts.max(1));
        Session {
            parts,
            bytes,
            ..self
        }
    }
}

#[derive(Debug, Default)]
struct Sessions {
    by_key: HashMap<SessionKey, Session>,
    /// The keys of `by_key`, ordered by the time of the session's last write, oldest first.
    by_use: BTreeSet<(i64, SessionKey)>,
    bytes: u64,
}

/// The outcomes of a store's retryable writes.
pub struct RetryableWrites {
    engine: Arc<dyn Engine>,
    partition: PartitionId,
    sessions: Mutex<Sessions>,
    /// Notified when a session is no longer busy.
    freed: Notify,
}

impl RetryableWrites {
    /// Reads the sessions stored in `partition`.
    pub(crate) fn open(engine: Arc<dyn Engine>, partition: PartitionId) -> Result<Arc<Self>> {
        let mut sessions = Sessions::default();
        let range = KeyRange::all();
        for entry in Entries::new(Arc::clone(&engine), partition, range, Direction::Forward) {
            let (key, value) = entry?;
            sessions.load(&key, &value)?;
        }
        Ok(Arc::new(Self {
            engine,
            partition,
            sessions: Mutex::new(sessions),
            freed: Notify::new(),
        }))
    }

    /// Begins or resumes write `number` of a session. The caller must call [`RetryableWrite::load`] before it looks up
    /// or applies a statement. Waits while another write of the session is in progress.
    ///
    /// # Errors
    /// See [`NotBegun`].
    pub async fn begin(
        self: &Arc<Self>,
        session: &SessionKey,
        number: i64,
    ) -> Result<RetryableWrite, NotBegun> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Registers for notifications before the check below, so that no notification is missed between the check
            // and the wait.
            freed.as_mut().enable();
            if let Some(write) = self.try_begin(session, number)? {
                return Ok(write);
            }
            freed.await;
        }
    }

    /// Begins a write. Returns `None` while another write of the session is in progress.
    fn try_begin(
        self: &Arc<Self>,
        key: &SessionKey,
        number: i64,
    ) -> Result<Option<RetryableWrite>, NotBegun> {
        let now = DateTime::now().timestamp_millis();
        let mut sessions = self.sessions.lock();
        let expired = sessions.expired(now);
        self.forget(&mut sessions, &expired)?;
        let before = sessions.by_key.get(key).copied().unwrap_or_default();
        if before.busy {
            return Ok(None);
        }
        if number < before.number {
            let newest = before.number;
            return Err(NotBegun::TooOld { number, newest });
        }
        let is_known = sessions.by_key.contains_key(key);
        if !is_known && sessions.by_key.len() >= SESSIONS_MAX {
            return Err(NotBegun::TooManySessions);
        }
        let session = Session {
            number,
            used: now,
            busy: true,
            ..before
        };
        sessions.set(key, session);
        drop(sessions);
        let state = Mutex::new(Progress {
            session,
            // Parts of an earlier write are removed in the batch that stores this write's first part.
            obsolete: (before.described != number).then_some(before.parts),
        });
        Ok(Some(RetryableWrite {
            writes: Arc::clone(self),
            key: Arc::clone(key),
            number,
            done: HashMap::new(),
            state,
        }))
    }

    /// Deletes the outcomes of ended sessions. Skips sessions with a write in progress. Each session may occur only
    /// once in `keys`. Releases the lock after every `PARTS_AT_ONCE` parts, so that other sessions proceed meanwhile.
    ///
    /// # Errors
    /// Those of the engine. Outcomes already deleted stay deleted.
    pub fn end(&self, keys: &[SessionKey]) -> Result<()> {
        let mut left = keys;
        while !left.is_empty() {
            let mut sessions = self.sessions.lock();
            let forgotten = self.forget(&mut sessions, left)?;
            left = &left[forgotten..];
            MutexGuard::unlock_fair(sessions);
        }
        Ok(())
    }

    /// Returns the number of sessions with outcomes, and the total bytes of the outcomes.
    pub fn sizes(&self) -> (usize, u64) {
        let sessions = self.sessions.lock();
        (sessions.by_key.len(), sessions.bytes)
    }

    /// Deletes the outcomes of sessions in the order of `keys`. The outcomes are stored in parts; a call deletes at
    /// most [`PARTS_AT_ONCE`] parts. Skips sessions with a write in progress. Returns the number of leading keys whose
    /// sessions were skipped or have no parts left. Each session may occur only once in `keys`.
    ///
    /// Removes the last parts of a session first, so that a crash leaves parts numbered from 0 without a gap.
    fn forget(&self, sessions: &mut Sessions, keys: &[SessionKey]) -> Result<usize> {
        let mut batch = Batch::default();
        let mut shortened = Vec::new();
        let mut done = 0;
        for key in keys.iter().take(PARTS_AT_ONCE) {
            if let Some(session) = sessions.by_key.get(key).filter(|session| !session.busy) {
                let room = PARTS_AT_ONCE - batch.writes.len();
                let kept = session.parts.saturating_sub(room as u32);
                (kept..session.parts)
                    .for_each(|part| batch.remove(self.partition, part_key(key, part)));
                shortened.push((key, session.shortened(kept)));
                if kept > 0 {
                    break;
                }
            }
            done += 1;
        }
        if !batch.writes.is_empty() {
            self.engine.commit(batch)?;
        }
        for (key, session) in shortened {
            match session.parts {
                0 => sessions.remove(key),
                _ => sessions.set(key, session),
            }
        }
        Ok(done)
    }

    /// Reads the outcomes of all statements in the parts of a session.
    fn statements(&self, key: &SessionKey, parts: u32) -> Result<HashMap<i32, Outcome>> {
        let mut statements = HashMap::new();
        let range = KeyRange {
            start: part_key(key, 0),
            end: Some(part_key(key, parts)),
        };
        let (engine, partition) = (Arc::clone(&self.engine), self.partition);
        let mut found = 0;
        for entry in Entries::new(engine, partition, range, Direction::Forward) {
            let (stored, value) = entry?;
            // A longer key belongs to another session.
            if stored.len() == key.len() + size_of::<u32>() {
                read_statements(&value, &mut statements)?;
                found += 1;
            }
        }
        if found == parts {
            Ok(statements)
        } else {
            Err(malformed("a part is missing"))
        }
    }
}

impl Sessions {
    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (key, _) = key
            .split_last_chunk::<4>()
            .ok_or_else(|| malformed("a key is too short"))?;
        let key = SessionKey::from(key);
        let mut session = self.by_key.get(&key).copied().unwrap_or_default();
        session.number = number_at(value, 0)?;
        session.described = session.number;
        session.used = session.used.max(number_at(value, 8)?);
        session.parts += 1;
        session.bytes += value.len() as u64;
        self.set(&key, session);
        Ok(())
    }

    fn set(&mut self, key: &SessionKey, session: Session) {
        self.remove(key);
        self.bytes += session.bytes;
        self.by_use.insert((session.used, Arc::clone(key)));
        self.by_key.insert(Arc::clone(key), session);
    }

    fn remove(&mut self, key: &SessionKey) {
        if let Entry::Occupied(entry) = self.by_key.entry(Arc::clone(key)) {
            let session = entry.remove();
            self.bytes -= session.bytes;
            self.by_use.remove(&(session.used, Arc::clone(key)));
        }
    }

    /// Returns up to `FORGOTTEN_AT_ONCE` sessions that have timed out.
    fn expired(&self, now: i64) -> Vec<SessionKey> {
        let old = self.by_use.iter().take(FORGOTTEN_AT_ONCE);
        old.take_while(|(used, _)| used.saturating_add(LIFETIME_MS) < now)
            .filter(|(_, key)| self.by_key.get(key).is_some_and(|session| !session.busy))
            .map(|(_, key)| Arc::clone(key))
            .collect()
    }
}

/// A retryable write in progress. Other writes of its session wait until this value is dropped.
pub struct RetryableWrite {
    writes: Arc<RetryableWrites>,
    key: SessionKey,
    number: i64,
    done: HashMap<i32, Outcome>,
    state: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    session: Session,
    /// Number of stored parts that belong to an earlier write; `None` once they are removed.
    obsolete: Option<u32>,
}

/// Outcomes of the statements in one batch, one for each change.
#[derive(Clone, Copy)]
pub struct Outcomes<'a> {
    /// The write that the statements belong to.
    pub write: &'a RetryableWrite,
    /// The id of each statement, and the outcome to store if its change is made.
    pub statements: &'a [(i32, Vec<u8>)],
}

/// Proof that the outcomes were added to a batch. Holds the session's state after that batch.
pub(crate) struct Part {
    session: Session,
}

impl RetryableWrite {
    /// Returns the number of bytes that [`load`](Self::load) reads: 0 if no statement was applied before.
    pub fn stored_bytes(&self) -> u64 {
        let state = self.state.lock();
        match state.obsolete {
            None => state.session.bytes,
            Some(_) => 0,
        }
    }

    /// Reads the outcomes of the statements that earlier attempts applied. May take long, because the outcome of each
    /// statement may be stored separately.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn load(&mut self) -> Result<()> {
        let parts = match self.state.get_mut() {
            Progress {
                session,
                obsolete: None,
            } => session.parts,
            _ => 0,
        };
        self.done = self.writes.statements(&self.key, parts)?;
        Ok(())
    }

    /// Returns the outcome of a statement if an earlier attempt of this write applied it.
    pub fn outcome(&self, statement: i32) -> Option<&Outcome> {
        self.done.get(&statement)
    }

    /// Adds the outcomes to the batch of the changes that they describe.
    pub(crate) fn put_part<'a>(
        &self,
        batch: &mut Batch,
        statements: impl Iterator<Item = &'a (i32, Vec<u8>)>,
    ) -> Part {
        let state = self.state.lock();
        let mut session = state.session;
        if let Some(parts) = state.obsolete {
            let obsolete = (1..parts).map(|part| part_key(&self.key, part));
            obsolete.for_each(|key| batch.remove(self.writes.partition, key));
            (session.parts, session.bytes) = (0, 0);
        }
        let room = BYTES_MAX.saturating_sub(self.writes.sessions.lock().bytes);
        let value = part_value(self.number, session.used, statements, room);
        let key = part_key(&self.key, session.parts);
        session.parts += 1;
        session.described = self.number;
        session.bytes += value.len() as u64;
        batch.put(self.writes.partition, key, value);
        Part { session }
    }

    /// Updates the session after the batch with the part was committed.
    pub(crate) fn committed(&self, part: &Part) {
        let mut state = self.state.lock();
        *state = Progress {
            session: part.session,
            obsolete: None,
        };
        self.writes.sessions.lock().set(&self.key, part.session);
    }
}

impl Drop for RetryableWrite {
    fn drop(&mut self) {
        let session = self.state.get_mut().session;
        let idle = Session {
            busy: false,
            ..session
        };
        self.writes.sessions.lock().set(&self.key, idle);
        self.writes.freed.notify_waiters();
    }
}

fn part_key(session: &[u8], part: u32) -> Vec<u8> {
    [session, &part.to_be_bytes()].concat()
}

/// Encodes a part. Omits the content of outcomes that do not fit into `room` bytes.
fn part_value<'a>(
    number: i64,
    used: i64,
    statements: impl Iterator<Item = &'a (i32, Vec<u8>)>,
    room: u64,
) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD_BYTES + 64);
    value.extend_from_slice(&number.to_be_bytes());
    value.extend_from_slice(&used.to_be_bytes());
    for (id, outcome) in statements {
        value.extend_from_slice(&id.to_be_bytes());
        let fits = (value.len() + outcome.len()) as u64 <= room;
        let bytes = u32::try_from(outcome.len()).ok().filter(|_| fits);
        value.extend_from_slice(&bytes.unwrap_or(NOT_KEPT).to_be_bytes());
        if bytes.is_some() {
            value.extend_from_slice(outcome);
        }
    }
    value
}

fn read_statements(value: &Bytes, statements: &mut HashMap<i32, Outcome>) -> Result<()> {
    let mut rest = value
        .get(HEAD_BYTES..)
        .ok_or_else(|| malformed("a stored part is too short"))?;
    while !rest.is_empty() {
        let (id, outcome, behind) = split_statement(rest)
            .ok_or_else(|| malformed("a stored part ends within a statement"))?;
        statements.insert(id, outcome);
        rest = behind;
    }
    Ok(())
}

fn split_statement(bytes: &[u8]) -> Option<(i32, Outcome, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<STATEMENT_BYTES>()?;
    let id = i32::from_be_bytes(head[..4].try_into().ok()?);
    match u32::from_be_bytes(head[4..].try_into().ok()?) {
        NOT_KEPT => Some((id, Outcome::NotKept, rest)),
        length => {
            let (outcome, rest) = rest.split_at_checked(length as usize)?;
            Some((id, Outcome::Kept(outcome.to_vec()), rest))
        }
    }
}

fn number_at(value: &[u8], at: usize) -> Result<i64> {
    let bytes = value.get(at..at + 8).and_then(|it| it.try_into().ok());
    bytes
        .map(i64::from_be_bytes)
        .ok_or_else(|| malformed("a stored part is too short"))
}

fn malformed(why: &str) -> StoreError {
    StoreError::InvalidDocument {
        why: format!("malformed outcomes of retryable writes: {why}"),
    }
}

impl std::fmt::Debug for RetryableWrites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sessions, bytes) = self.sizes();
        f.debug_struct("RetryableWrites")
            .field("sessions", &sessions)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PartitionKind;
    use crate::engine::fault::{Fault, FaultEngine};
    use crate::engine::memory::MemoryEngine;

    fn writes() -> Arc<RetryableWrites> {
        let engine = Arc::new(MemoryEngine::default());
        let partition = engine.open_partition(PARTITION, PartitionKind::Index);
        RetryableWrites::open(engine, partition.expect("opens").id).expect("opens")
    }

    fn begin(writes: &Arc<RetryableWrites>, session: &[u8], number: i64) -> RetryableWrite {
        let begun = writes.try_begin(&SessionKey::from(session), number);
        let mut write = begun.expect("begins").expect("no other is in progress");
        write.load().expect("loads");
        write
    }

    /// Applies statements. Each is passed as its id and the number of bytes of its outcome.
    fn apply(write: &RetryableWrite, statements: &[(i32, usize)]) {
        let statements: Vec<_> = statements
            .iter()
            .map(|(id, bytes)| (*id, vec![7; *bytes]))
            .collect();
        let mut batch = Batch::default();
        let part = write.put_part(&mut batch, statements.iter());
        write.writes.engine.commit(batch).expect("commits");
        write.committed(&part);
    }

    fn stored(writes: &RetryableWrites) -> usize {
        let range = KeyRange::all();
        let engine = Arc::clone(&writes.engine);
        Entries::new(engine, writes.partition, range, Direction::Forward).count()
    }

    #[test]
    fn a_write_that_is_repeated_knows_its_statements_also_after_opening_again() {
        let writes = writes();
        let first = begin(&writes, b"a", 1);
        apply(&first, &[(0, 3), (1, 0)]);
        apply(&first, &[(2, 1)]);
        drop(first);
        let engine = Arc::clone(&writes.engine);
        let again = RetryableWrites::open(engine, writes.partition).expect("opens");
        for writes in [writes, again] {
            let repeated = begin(&writes, b"a", 1);
            assert_eq!(repeated.outcome(0), Some(&Outcome::Kept(vec![7; 3])));
            assert_eq!(repeated.outcome(1), Some(&Outcome::Kept(vec![])));
            assert_eq!(repeated.outcome(2), Some(&Outcome::Kept(vec![7])));
            assert_eq!(repeated.outcome(3), None);
            assert!(begin(&writes, b"b", 1).outcome(0).is_none());
        }
    }

    #[test]
    fn a_later_write_takes_the_place_of_an_earlier_one_which_is_then_too_old() {
        let writes = writes();
        let first = begin(&writes, b"a", 1);
        (0..3).for_each(|id| apply(&first, &[(id, 9)]));
        drop(first);
        assert_eq!(stored(&writes), 3);
        let second = begin(&writes, b"a", 2);
        assert_eq!(second.outcome(0), None);
        apply(&second, &[(0, 1)]);
        drop(second);
        assert_eq!(stored(&writes), 1);
        let old = writes.try_begin(&SessionKey::from(&b"a"[..]), 1);
        assert!(matches!(old, Err(NotBegun::TooOld { newest: 2, .. })));
        assert_eq!(
            begin(&writes, b"a", 2).outcome(0),
            Some(&Outcome::Kept(vec![7]))
        );
    }

    #[test]
    fn a_write_that_has_applied_nothing_is_not_taken_for_the_one_before() {
        let writes = writes();
        let first = begin(&writes, b"a", 1);
        (0..3).for_each(|id| apply(&first, &[(id, 9)]));
        drop(first);
        drop(begin(&writes, b"a", 2));
        let repeated = begin(&writes, b"a", 2);
        assert_eq!((repeated.outcome(0), repeated.stored_bytes()), (None, 0));
        apply(&repeated, &[(0, 1)]);
        drop(repeated);
        assert_eq!(stored(&writes), 1);
        let again = begin(&writes, b"a", 2);
        assert_eq!(again.outcome(0), Some(&Outcome::Kept(vec![7])));
    }

    #[test]
    fn one_write_of_a_session_at_a_time_and_ended_sessions_leave_nothing() {
        let writes = writes();
        let key = SessionKey::from(&b"a"[..]);
        let first = begin(&writes, &key, 1);
        apply(&first, &[(0, 9)]);
        assert!(writes.try_begin(&key, 1).expect("no error").is_none());
        writes.end(std::slice::from_ref(&key)).expect("ends");
        assert_eq!(writes.sizes().0, 1, "the session has a write in progress");
        drop(first);
        writes.end(&[key]).expect("ends");
        assert_eq!((writes.sizes(), stored(&writes)), ((0, 0), 0));
    }

    #[test]
    fn sessions_expire_some_at_a_time_and_outcomes_beyond_the_limit_lose_their_content() {
        let writes = writes();
        for session in 0..20_u8 {
            apply(&begin(&writes, &[session], 1), &[(0, 1)]);
        }
        let later = DateTime::now().timestamp_millis() + LIFETIME_MS + 1;
        let mut sessions = writes.sessions.lock();
        assert!(sessions.expired(later - LIFETIME_MS).is_empty());
        let expired = sessions.expired(later);
        writes.forget(&mut sessions, &expired).expect("forgets");
        assert_eq!(sessions.by_key.len(), 20 - FORGOTTEN_AT_ONCE);
        sessions.bytes += BYTES_MAX;
        drop(sessions);
        apply(&begin(&writes, b"full", 1), &[(4, 1)]);
        assert_eq!(
            begin(&writes, b"full", 1).outcome(4),
            Some(&Outcome::NotKept)
        );
    }

    #[test]
    fn a_long_session_is_forgotten_in_pieces_of_which_each_leaves_its_first_parts() {
        let inner = Arc::new(MemoryEngine::default());
        let engine = Arc::new(FaultEngine::new(inner));
        let partition = engine.open_partition(PARTITION, PartitionKind::Index);
        let partition = partition.expect("opens").id;
        let writes = RetryableWrites::open(engine.clone(), partition).expect("opens");
        let parts = PARTS_AT_ONCE * 5 / 2;
        let key = SessionKey::from(&b"long"[..]);
        let write = begin(&writes, &key, 1);
        (0..parts as i32).for_each(|id| apply(&write, &[(id, 1)]));
        drop(write);
        engine.fail_commit(2, Fault::DiskFull);
        let keys = [SessionKey::from(&b"unknown"[..]), key.clone()];
        writes.end(&keys).expect_err("the third piece fails");
        let left = parts - 2 * PARTS_AT_ONCE;
        assert_eq!(stored(&writes), left);
        let again = RetryableWrites::open(engine, partition).expect("opens");
        for writes in [&writes, &again] {
            let repeated = begin(writes, &key, 1);
            assert!(repeated.outcome(left as i32 - 1).is_some());
            assert!(repeated.outcome(left as i32).is_none());
        }
        writes.end(&keys).expect("ends");
        assert_eq!((writes.sizes(), stored(&writes)), ((0, 0), 0));
    }
}
