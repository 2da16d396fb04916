//! Whether the store was started again: it may have lost writes that it had acknowledged, and no stream tells of that.

use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{RawDocument, rawdoc};

use mongodb::error::ErrorKind;

use super::{Shadow, ShadowError, is_code, number};

/// By how much what a store tells of its start may differ, in milliseconds: it reads two clocks, one after the other.
const START_TOLERANCE_MS: u64 = 100;

/// What a store says whose user may not run a command, or that does not have it: Unauthorized, CommandNotFound,
/// CommandNotSupported and NotImplemented.
const REFUSALS: [i32; 4] = [13, 59, 115, 238];

/// How often the store is asked: a connection of ours may have been closed as the client's was, and another meanwhile.
const TRIES: usize = 4;

/// One run of the store's process, from its start to its end.
#[derive(Debug, Clone, Copy)]
pub(super) enum StoreRun {
    /// By the name that the process has given itself, as MongoDB's do from 4.4 on.
    Process(ObjectId),
    /// By the time when it began, in milliseconds since 1970.
    Since(i64),
}

impl StoreRun {
    /// As a hello, which everybody may send, tells it.
    fn of_hello(reply: &RawDocument) -> Option<StoreRun> {
        let version = reply.get_document("topologyVersion").ok()?;
        version.get_object_id("processId").ok().map(Self::Process)
    }

    /// As `serverStatus` tells it.
    fn of_status(reply: &RawDocument) -> Option<StoreRun> {
        let now = reply.get_datetime("localTime").ok()?;
        let uptime = number(reply, "uptimeMillis")?;
        Some(Self::Since(now.timestamp_millis() - uptime as i64))
    }

    fn is(self, other: StoreRun) -> bool {
        match (self, other) {
            (Self::Process(one), Self::Process(other)) => one == other,
            (Self::Since(one), Self::Since(other)) => one.abs_diff(other) <= START_TOLERANCE_MS,
            _ => false,
        }
    }
}

impl Shadow {
    /// Shadows that follow no stream are loaded anew if the store has been started again. If it does not tell, they are
    /// not: a log line says so once.
    pub(super) async fn check_run(self: &Arc<Self>) {
        if !self.exclusive || self.is_away() || self.declared().is_empty() {
            return;
        }
        let mut run = self.store_run().await;
        for _ in 1..TRIES {
            if !run.as_ref().is_err_and(is_disconnected) {
                break;
            }
            run = self.store_run().await;
        }
        match run {
            Ok(None) => {}
            Ok(Some(now)) => {
                let known = self.run.lock().replace(now);
                if !known.is_some_and(|known| known.is(now)) {
                    self.reload_all("the store was started again");
                }
            }
            Err(_) => self.lost(),
        }
    }

    /// Notes which run of the store is loaded from, if none is known.
    pub(super) async fn note_run(&self) {
        let is_known = self.run.lock().is_some();
        if !is_known && let Ok(Some(run)) = self.store_run().await {
            self.run.lock().get_or_insert(run);
        }
    }

    /// Which run of the store this is; none if it does not tell, or not the user of the connection string.
    pub(super) async fn store_run(&self) -> Result<Option<StoreRun>, ShadowError> {
        let hello = self.ask_store("admin", rawdoc! { "hello": 1 }).await?;
        if let Some(run) = StoreRun::of_hello(&hello) {
            return Ok(Some(run));
        }
        let status = rawdoc! { "serverStatus": 1 };
        let run = match self.ask_store("admin", status).await {
            Err(ShadowError::Store(error)) if is_refused(&error) => None,
            status => StoreRun::of_status(&status?),
        };
        if run.is_none() {
            self.untold.call_once(|| {
                tracing::warn!(
                    "the store does not tell when it was started: should it lose acknowledged writes in a crash, caches will \
                     not notice. Let the user of the connection string run serverStatus"
                );
            });
        }
        Ok(run)
    }
}

/// Whether the store was there, and its answer was not.
fn is_disconnected(error: &ShadowError) -> bool {
    matches!(error, ShadowError::Store(error) if !matches!(*error.kind, ErrorKind::ServerSelection { .. }))
}

fn is_refused(error: &mongodb::error::Error) -> bool {
    REFUSALS.iter().any(|&code| is_code(error, code))
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, RawDocumentBuf};

    use super::*;

    /// As MongoDB tells it.
    fn hello(process: ObjectId) -> RawDocumentBuf {
        let version = rawdoc! { "processId": process, "counter": 6i64 };
        rawdoc! { "isWritablePrimary": true, "topologyVersion": version, "ok": 1.0 }
    }

    fn status(now: i64, uptime: i64) -> RawDocumentBuf {
        let now = DateTime::from_millis(now);
        rawdoc! { "localTime": now, "uptimeMillis": uptime, "ok": 1.0 }
    }

    #[test]
    fn runs_are_told_apart() {
        let process = ObjectId::new();
        let run = StoreRun::of_hello(&hello(process)).unwrap();
        assert!(run.is(StoreRun::Process(process)));
        assert!(!run.is(StoreRun::Process(ObjectId::new())));

        let run = StoreRun::of_status(&status(1_000_000, 40_000)).unwrap();
        let later = StoreRun::of_status(&status(1_900_000, 939_950)).unwrap();
        let again = StoreRun::of_status(&status(1_900_000, 5_000)).unwrap();
        assert!(run.is(later));
        assert!(!run.is(again));
    }

    #[test]
    fn what_is_not_told_is_no_run() {
        assert!(StoreRun::of_hello(&rawdoc! { "ok": 1.0 }).is_none());
        assert!(StoreRun::of_status(&rawdoc! { "uptimeMillis": 5i64, "ok": 1.0 }).is_none());
    }
}
