//! Tracks whether the upstream can be reached, and reloads replicas when it comes back.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mongodb::error::{Error, ErrorKind};
use tokio::time::timeout;

use super::{ReplicaError, Replicas};

/// Interval of attempts to reach an upstream that is away, and of pings with `--upstream-serve-stale`.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a ping of the upstream. An upstream that does not answer in time is considered hung: it may hold
/// connections open forever.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Guard: while it exists, one client counts as connected to the upstream.
#[derive(Debug)]
pub struct Registered(#[expect(dead_code, reason = "held only to be counted")] Arc<()>);

impl Replicas {
    /// Returns whether the upstream is known to be unreachable.
    pub fn is_away(&self) -> bool {
        self.lost_at().is_some()
    }

    /// Returns when the upstream was lost; `None` unless the upstream is known to be unreachable.
    pub fn lost_at(&self) -> Option<Instant> {
        *self.lost_at.borrow()
    }

    /// Waits until the upstream is known to be unreachable.
    pub async fn wait_away(&self) {
        // Never an error: `self` owns the sender.
        let _ = self
            .lost_at
            .subscribe()
            .wait_for(|lost_at| lost_at.is_some())
            .await;
    }

    /// Starts a task that pings the upstream until the replicas are dropped. If the upstream hangs, its connections
    /// stay open, and a command would wait forever. The pings detect the hang, and the upstream then counts as away.
    pub(super) fn start_pings(self: &Arc<Self>) {
        let replicas = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(replicas) = replicas.upgrade() {
                if !replicas.is_away() && !replicas.answers_ping().await {
                    replicas.mark_away(&"the upstream does not answer a ping");
                }
                drop(replicas);
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        });
    }

    /// Waits until the upstream hangs.
    pub async fn wait_hung(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            if self.is_hung().await {
                return;
            }
        }
    }

    /// Waits for `waiting`, however long it takes, unless the upstream hangs.
    ///
    /// # Errors
    /// If the upstream hangs.
    pub(super) async fn unless_hung<T>(
        &self,
        waiting: impl Future<Output = T>,
    ) -> Result<T, ReplicaError> {
        tokio::select! {
            done = waiting => Ok(done),
            () = self.wait_hung() => Err(Error::from(io::Error::from(io::ErrorKind::TimedOut)).into()),
        }
    }

    /// Checks whether the upstream hangs. Uses the result of another caller's check if that check ended after this call
    /// began.
    async fn is_hung(&self) -> bool {
        let asked = Instant::now();
        let mut checked = self.checked.lock().await;
        if let Some((ended, is_hung)) = *checked
            && ended >= asked
        {
            return is_hung;
        }
        let is_hung = self.upstream.hangs().await;
        *checked = Some((Instant::now(), is_hung));
        is_hung
    }

    async fn answers_ping(&self) -> bool {
        match timeout(PING_TIMEOUT, self.upstream_time()).await {
            // An error reply to the ping is also an answer.
            Ok(Err(ReplicaError::Upstream(error))) => matches!(*error.kind, ErrorKind::Command(_)),
            Ok(answered) => answered.is_ok(),
            Err(_) => false,
        }
    }

    /// Checks in the background whether the upstream can be reached. Called when the proxy starts, so that the log has
    /// a warning before the first client connects.
    pub(super) fn warn_if_away(self: &Arc<Self>) {
        let replicas = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = replicas.upstream.connect().await {
                replicas.mark_away(&error);
            }
        });
    }

    /// Marks the upstream as away, logs why, and retries until it can be reached. Then reloads all replicas that do not
    /// follow change streams, because the upstream's documents may have changed.
    pub fn mark_away(self: &Arc<Self>, why: &dyn Display) {
        let is_new = self.lost_at.send_if_modified(|lost_at| {
            let is_new = lost_at.is_none();
            lost_at.get_or_insert_with(Instant::now);
            is_new
        });
        if !is_new {
            return;
        }
        tracing::warn!(upstream = %self.upstream, %why, "the upstream cannot be reached");
        let replicas = Arc::clone(self);
        tokio::spawn(async move {
            while !replicas.is_back().await {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            tracing::info!("the upstream can be reached again");
            replicas.forget_public();
            if replicas.exclusive {
                let incarnation = replicas.ask_incarnation().await.unwrap_or(None);
                *replicas.incarnation.lock() = incarnation;
                replicas.reload_all("the upstream was away");
            }
            replicas.lost_at.send_replace(None);
        });
    }

    /// Returns whether the upstream answers both on a new connection and on a connection of the proxy's driver.
    async fn is_back(&self) -> bool {
        let pinged = || timeout(PING_TIMEOUT, self.upstream_time());
        self.upstream.is_there().await && pinged().await.is_ok_and(|time| time.is_ok())
    }

    /// Forgets which collections the upstream lets unauthenticated clients read: its access rules may have changed.
    fn forget_public(&self) {
        for replica in self.replicas.lock().values() {
            replica.set_public(None);
        }
    }

    /// Starts a background task that checks whether the upstream was restarted. Called after the upstream closed a
    /// connection.
    pub fn check_after_close(self: &Arc<Self>) {
        let concerns = self.exclusive || self.serve_stale;
        if concerns && !self.is_checking.swap(true, Ordering::AcqRel) {
            let replicas = Arc::clone(self);
            tokio::spawn(async move {
                if replicas.serve_stale && replicas.upstream.is_there().await {
                    replicas.forget_public();
                }
                replicas.check_incarnation().await;
                replicas.is_checking.store(false, Ordering::Release);
            });
        }
    }

    /// Registers a client that has a connection to the upstream. If no other client is connected, first checks whether
    /// the upstream was restarted, because no other client could have noticed a restart.
    pub async fn register_client(self: &Arc<Self>) -> Registered {
        let clients = self.clients.lock().await;
        // No other client is connected if only `self.clients` holds a reference.
        if Arc::strong_count(&clients) == 1 {
            self.forget_public();
            tokio::select! {
                () = self.check_incarnation() => {}
                // The upstream hangs, so the check would not end.
                () = self.wait_away() => {}
            }
        }
        Registered(Arc::clone(&clients))
    }

    /// Reloads all replicas. If the upstream goes away again before the reloads end, complete older copies may still
    /// answer.
    pub(super) fn reload_all(self: &Arc<Self>, why: &str) {
        for replica in self.declared() {
            self.reload_keeping_copy(&replica, why);
        }
    }
}
