//! Sessions: only what retryable writes need, the last reply of each.
//!
//! A driver that loses its connection in the middle of a write sends the write again with the same `(lsid, txnNumber)`.
//! The reply is remembered so that the second copy is answered, not applied.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_query::Code;
use parking_lot::Mutex;

use crate::error::CommandError;

/// The most sessions whose last write is remembered; the one that wrote longest ago is forgotten first.
const SESSIONS_MAX: usize = 10_000;

/// A session's id: the bytes of its UUID, with the connection's user so that users cannot share one.
pub type SessionId = Vec<u8>;

/// Reads `lsid`.
///
/// # Errors
/// `TypeMismatch` if there is no UUID in it.
pub fn session_id(lsid: &RawDocument) -> Result<SessionId, CommandError> {
    match lsid.get("id") {
        Ok(Some(RawBsonRef::Binary(uuid))) if uuid.bytes.len() == 16 => Ok(uuid.bytes.to_vec()),
        _ => Err(CommandError::refused(
            Code::TypeMismatch,
            "BSON field 'lsid.id' must be a UUID",
        )),
    }
}

type Write = Arc<tokio::sync::Mutex<Option<RawDocumentBuf>>>;

#[derive(Debug, Default)]
struct Remembered {
    writes: HashMap<SessionId, (i64, Write)>,
    order: VecDeque<SessionId>,
}

/// The last retryable write of every session.
#[derive(Debug, Default)]
pub struct Sessions {
    remembered: Mutex<Remembered>,
}

impl Sessions {
    /// The slot for the reply of write `number` of a session: locked by the first copy while it is applied, and filled
    /// when it is done.
    ///
    /// # Errors
    /// `TransactionTooOld` when the session has already gone on to a later write.
    pub fn write(&self, session: SessionId, number: i64) -> Result<Write, CommandError> {
        let mut remembered = self.remembered.lock();
        match remembered.writes.get(&session) {
            Some((known, write)) if *known == number => return Ok(write.clone()),
            Some((known, _)) if *known > number => return Err(too_old(number, *known)),
            Some(_) => {}
            None => remembered.make_room(&session),
        }
        let write = Write::default();
        remembered.writes.insert(session, (number, write.clone()));
        Ok(write)
    }

    /// Forgets ended sessions.
    pub fn end(&self, sessions: &[SessionId]) {
        let mut remembered = self.remembered.lock();
        for session in sessions {
            if remembered.writes.remove(session).is_some() {
                remembered.order.retain(|known| known != session);
            }
        }
    }
}

impl Remembered {
    fn make_room(&mut self, newcomer: &SessionId) {
        if self.writes.len() >= SESSIONS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.writes.remove(&oldest);
        }
        self.order.push_back(newcomer.clone());
    }
}

fn too_old(number: i64, known: i64) -> CommandError {
    let message = format!(
        "Cannot apply write {number} of a session whose write {known} has already been applied"
    );
    CommandError::refused(Code::TransactionTooOld, message)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn the_same_write_finds_the_same_slot_and_an_older_one_is_refused() {
        let sessions = Sessions::default();
        let slot = sessions.write(vec![1], 5).unwrap();
        *slot.try_lock().unwrap() = Some(rawdoc! { "n": 1 });
        let again = sessions.write(vec![1], 5).unwrap();
        assert_eq!(again.try_lock().unwrap().clone(), Some(rawdoc! { "n": 1 }));
        assert!(
            sessions
                .write(vec![1], 6)
                .unwrap()
                .try_lock()
                .unwrap()
                .is_none()
        );
        assert!(sessions.write(vec![1], 5).is_err());
        assert!(
            sessions
                .write(vec![2], 5)
                .unwrap()
                .try_lock()
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn memory_is_bounded() {
        let sessions = Sessions::default();
        for number in 0..SESSIONS_MAX + 10 {
            sessions.write(number.to_le_bytes().to_vec(), 1).unwrap();
        }
        let remembered = sessions.remembered.lock();
        assert_eq!(remembered.writes.len(), SESSIONS_MAX);
        assert_eq!(remembered.order.len(), SESSIONS_MAX);
    }
}
