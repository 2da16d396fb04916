//! Detects restarts of the upstream. A restart may lose acknowledged writes, and no change stream reports the loss.

use std::io;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{RawDocument, rawdoc};
use mongodb::error::ErrorKind;

use super::{ReplicaError, Replicas, is_code, number};

/// Two computed start times of the upstream count as equal if they differ by at most this number of milliseconds. Each
/// is computed from two clocks, which the upstream reads one after the other.
const START_TOLERANCE_MS: u64 = 100;

/// Error codes for a command that the user may not run or that the upstream does not have: Unauthorized,
/// CommandNotFound, CommandNotSupported and NotImplemented.
const REFUSALS: [i32; 4] = [13, 59, 115, 238];

/// Maximum attempts to ask the upstream for its incarnation. One attempt may not be enough, because the upstream may
/// have closed the proxy's own connections together with the client's connection.
const TRIES: usize = 4;

/// One lifetime of the upstream's process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Incarnation {
    /// Identified by MongoDB's `processId` (since 4.4).
    Process(ObjectId),
    /// Identified by its start time, in milliseconds since 1970.
    Since(i64),
}

impl Incarnation {
    /// Reads the incarnation from the reply to a `hello`, which every client may send.
    fn of_hello(reply: &RawDocument) -> Option<Incarnation> {
        let version = reply.get_document("topologyVersion").ok()?;
        version.get_object_id("processId").ok().map(Self::Process)
    }

    /// Reads the incarnation from the reply to a `serverStatus`.
    fn of_status(reply: &RawDocument) -> Option<Incarnation> {
        let now = reply.get_datetime("localTime").ok()?;
        let uptime = number(reply, "uptimeMillis")?;
        Some(Self::Since(now.timestamp_millis() - uptime as i64))
    }

    fn is(self, other: Incarnation) -> bool {
        match (self, other) {
            (Self::Process(one), Self::Process(other)) => one == other,
            (Self::Since(one), Self::Since(other)) => one.abs_diff(other) <= START_TOLERANCE_MS,
            _ => false,
        }
    }
}

impl Replicas {
    /// Reloads all replicas if the upstream was restarted and all writes come through the proxy. Does not reload if the
    /// upstream does not report its start time; the log says so once.
    pub(super) async fn check_incarnation(self: &Arc<Self>) {
        if !self.exclusive || self.is_away() || self.declared().is_empty() {
            return;
        }
        let mut run = self.ask_incarnation().await;
        for _ in 1..TRIES {
            if !run.as_ref().is_err_and(is_disconnected) {
                break;
            }
            run = self.ask_incarnation().await;
        }
        match run {
            Ok(None) => {}
            Ok(Some(now)) => {
                let known = self.incarnation.lock().replace(now);
                if !known.is_some_and(|known| known.is(now)) {
                    self.reload_all("the upstream was restarted");
                }
            }
            Err(error) => self.mark_away(&error),
        }
    }

    /// Asks for the upstream's incarnation and records it, unless an incarnation is already recorded. Called before
    /// replicas are loaded.
    pub(super) async fn note_incarnation(&self) {
        let is_known = self.incarnation.lock().is_some();
        if !is_known && let Ok(Some(run)) = self.ask_incarnation().await {
            self.incarnation.lock().get_or_insert(run);
        }
    }

    /// Asks for the upstream's incarnation; `None` if the upstream does not report it to the user of the connection
    /// string.
    pub(super) async fn ask_incarnation(&self) -> Result<Option<Incarnation>, ReplicaError> {
        let hello = self.ask_upstream("admin", rawdoc! { "hello": 1 }).await?;
        if let Some(run) = Incarnation::of_hello(&hello) {
            return Ok(Some(run));
        }
        let status = rawdoc! { "serverStatus": 1 };
        let run = match self.ask_upstream("admin", status).await {
            Err(ReplicaError::Upstream(error)) if is_refused(&error) => None,
            status => Incarnation::of_status(&status?),
        };
        if run.is_none() {
            self.said_no_start.call_once(|| {
                tracing::warn!(
                    "the upstream does not report its start time: if it loses acknowledged writes in a crash, the \
                     caches still hold them. Allow the user named in the connection string to run serverStatus"
                );
            });
        }
        Ok(run)
    }
}

/// Returns whether the upstream was reached, but the connection broke before the reply.
fn is_disconnected(error: &ReplicaError) -> bool {
    match error {
        ReplicaError::Upstream(error) => match &*error.kind {
            ErrorKind::ServerSelection { .. } => false,
            ErrorKind::Io(error) => error.kind() != io::ErrorKind::TimedOut,
            _ => true,
        },
        _ => false,
    }
}

fn is_refused(error: &mongodb::error::Error) -> bool {
    REFUSALS.iter().any(|&code| is_code(error, code))
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, RawDocumentBuf};

    use super::*;

    /// Returns a hello reply as MongoDB sends it.
    fn hello(process: ObjectId) -> RawDocumentBuf {
        let version = rawdoc! { "processId": process, "counter": 6i64 };
        rawdoc! { "isWritablePrimary": true, "topologyVersion": version, "ok": 1.0 }
    }

    fn status(now: i64, uptime: i64) -> RawDocumentBuf {
        let now = DateTime::from_millis(now);
        rawdoc! { "localTime": now, "uptimeMillis": uptime, "ok": 1.0 }
    }

    #[test]
    fn incarnations_are_distinguished() {
        let process = ObjectId::new();
        let run = Incarnation::of_hello(&hello(process)).unwrap();
        assert!(run.is(Incarnation::Process(process)));
        assert!(!run.is(Incarnation::Process(ObjectId::new())));

        let run = Incarnation::of_status(&status(1_000_000, 40_000)).unwrap();
        let later = Incarnation::of_status(&status(1_900_000, 939_950)).unwrap();
        let again = Incarnation::of_status(&status(1_900_000, 5_000)).unwrap();
        assert!(run.is(later));
        assert!(!run.is(again));
    }

    #[test]
    fn a_reply_without_a_start_is_no_incarnation() {
        assert!(Incarnation::of_hello(&rawdoc! { "ok": 1.0 }).is_none());
        assert!(Incarnation::of_status(&rawdoc! { "uptimeMillis": 5i64, "ok": 1.0 }).is_none());
    }
}
