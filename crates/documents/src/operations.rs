//! The operations in progress, which `currentOp` lists and `killOp` stops.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_cancel::Stop;
use forebay_documents_store::BuildProgress;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::command::{ClientContext, Command, User};
use crate::cursors::Owner;
use crate::search::CacheBuild;
use crate::sessions::session_id;

/// Maximum bytes of a command that `currentOp` shows in full.
const SHOWN_BYTES_MAX: usize = 16 * 1024;

/// Maximum time that a write continues after its client has disconnected. Waits in queues do not count. MongoDB lets
/// writes continue without limit; in this server, a write that never ends would hold its permit forever.
pub const DEPARTED_WRITE_TIME: Duration = Duration::from_secs(10);

/// One operation in progress.
#[derive(Debug)]
pub struct Operation {
    id: i32,
    description: Description,
    started: Instant,
    /// Maximum time that the operation continues after its client has disconnected.
    grace: Duration,
    departure: Mutex<Departure>,
    stop: Stop,
    killed: Notify,
}

/// How long an operation has continued without its client.
#[derive(Debug, Default)]
struct Departure {
    /// Whether the operation waits in a queue. Time in a queue does not count towards the grace period of a write.
    is_queued: bool,
    /// Time at which the client was first found disconnected. The end of a wait in a queue resets it.
    found: Option<Instant>,
}

/// An operation's wait in a queue. Dropping this value ends the wait.
#[derive(Debug)]
pub struct Wait<'a>(&'a Operation);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        *self.0.departure.lock() = Departure::default();
    }
}

/// A description of the operation, for `currentOp`.
#[derive(Debug)]
enum Description {
    Command {
        client: ClientContext,
        command: Arc<Command>,
    },
    Build {
        namespace: String,
        message: String,
        progress: Arc<BuildProgress>,
    },
}

impl Operation {
    /// Returns the cancellation token that every loop of the operation checks.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Waits until the operation is killed. Only one task may wait at a time.
    pub async fn killed(&self) {
        self.killed.notified().await;
    }

    fn user(&self) -> Option<&User> {
        match &self.description {
            Description::Command { client, .. } => client.user.as_ref(),
            Description::Build { .. } => None,
        }
    }

    /// Returns whether the operation belongs to `client`.
    pub fn is_of(&self, client: &ClientContext) -> bool {
        match &self.description {
            Description::Command { client: of, .. } => of.is_same(client),
            Description::Build { .. } => false,
        }
    }

    fn kill(&self) {
        self.stop.cancelled.store(true, Ordering::Relaxed);
        self.killed.notify_one();
        if let Description::Build { progress, .. } = &self.description {
            progress.cancel();
        }
    }

    /// Marks the operation as waiting in a queue. The grace period of a write begins after the wait. A client may
    /// therefore send writes and disconnect: they are applied even if they wait behind slow writes.
    pub fn wait_in_queue(&self) -> Wait<'_> {
        self.departure.lock().is_queued = true;
        Wait(self)
    }

    /// Returns whether the operation's `grace` has passed since its client was found disconnected.
    fn is_abandoned(&self, now: Instant) -> bool {
        let mut departure = self.departure.lock();
        if departure.is_queued && !self.grace.is_zero() {
            return false;
        }
        if departure.found.is_none() && self.is_client_gone() {
            departure.found = Some(now);
        }
        let found = departure.found;
        found.is_some_and(|found| now.saturating_duration_since(found) >= self.grace)
    }

    fn is_client_gone(&self) -> bool {
        match &self.description {
            Description::Command { client, .. } => {
                client.link.as_ref().is_some_and(|link| link.is_lost())
            }
            Description::Build { .. } => false,
        }
    }

    /// Returns the user or connection that the operation belongs to, or `None` if it is not a command.
    fn owner(&self) -> Option<Owner> {
        let Description::Command { client, command } = &self.description else {
            return None;
        };
        let lsid = command.body.get_document("lsid").ok();
        Some(Owner {
            user: client.user.clone(),
            session: lsid.and_then(|lsid| session_id(lsid).ok()),
        })
    }

    /// Returns the operation's entry in `currentOp`.
    fn report(&self) -> RawDocumentBuf {
        let running = self.started.elapsed();
        let mut report = rawdoc! {
            "type": "op",
            "active": true,
            "opid": self.id,
            "secs_running": running.as_secs() as i64,
            "microsecs_running": running.as_micros() as i64,
            "killPending": self.stop.cancelled.load(Ordering::Relaxed),
        };
        match &self.description {
            Description::Command {
                client, command, ..
            } => {
                append_client(&mut report, client);
                append_command(&mut report, command);
            }
            Description::Build {
                namespace,
                message,
                progress,
            } => append_build(&mut report, namespace, message, progress),
        }
        report
    }
}

fn append_client(report: &mut RawDocumentBuf, client: &ClientContext) {
    report.append(cstr!("connectionId"), client.connection_id);
    report.append(cstr!("desc"), format!("conn{}", client.connection_id));
    report.append(cstr!("appName"), client.app_name.as_deref().unwrap_or(""));
    if let Some(peer) = client.peer {
        report.append(cstr!("client"), peer.to_string());
    }
    if let Some(user) = &client.user {
        let entry = rawdoc! { "user": user.name.as_str(), "db": user.db.as_str() };
        report.append(cstr!("effectiveUsers"), RawArrayBuf::from_iter([entry]));
    }
}

fn append_command(report: &mut RawDocumentBuf, command: &Command) {
    let subject = subject(&command.body).unwrap_or("$cmd");
    report.append(cstr!("op"), verb_of(&command.name));
    report.append(cstr!("ns"), format!("{}.{subject}", command.db));
    if command.body.as_bytes().len() <= SHOWN_BYTES_MAX {
        report.append(cstr!("command"), command.body.as_ref());
    } else {
        report.append(
            cstr!("command"),
            rawdoc! { "$truncated": command.name.as_str() },
        );
    }
}

fn subject(body: &RawDocument) -> Option<&str> {
    body.iter_elements().next()?.ok()?.value().ok()?.as_str()
}

fn append_build(
    report: &mut RawDocumentBuf,
    namespace: &str,
    message: &str,
    progress: &BuildProgress,
) {
    report.append(cstr!("op"), "command");
    report.append(cstr!("ns"), namespace);
    append_progress(report, message, progress.done(), progress.total());
}

fn append_progress(report: &mut RawDocumentBuf, message: &str, done: u64, total: u64) {
    let percent = (done * 100).checked_div(total).unwrap_or(0).min(100);
    report.append(
        cstr!("msg"),
        format!("{message}: {done}/{total} {percent}%"),
    );
    report.append(
        cstr!("progress"),
        rawdoc! { "done": done as i64, "total": total as i64 },
    );
}

/// Returns a cache build's entry in `currentOp`.
pub fn cache_build(build: &CacheBuild) -> RawDocumentBuf {
    let mut report = rawdoc! {
        "type": "op",
        "active": true,
        "desc": "cache build",
        "op": "command",
        "ns": build.namespace.as_str(),
        "command": { "createIndexes": build.namespace.as_str(), "indexes": build.indexes.iter().map(String::as_str).collect::<RawArrayBuf>() },
    };
    append_progress(&mut report, "Cache Build", build.done, build.total);
    report
}

fn verb_of(command: &str) -> &'static str {
    match command {
        "find" => "query",
        "getMore" => "getmore",
        "insert" => "insert",
        "update" => "update",
        "delete" => "remove",
        _ => "command",
    }
}

/// All operations in progress.
#[derive(Debug, Default)]
pub struct Operations {
    next_id: AtomicI32,
    running: Mutex<HashMap<i32, Arc<Operation>>>,
}

impl Operations {
    /// Registers a command. `currentOp` lists the command until the guard is dropped. If the client disconnects,
    /// [`kill_abandoned`](Operations::kill_abandoned) stops the command once a time of `grace` has passed.
    pub fn begin(
        self: &Arc<Self>,
        client: ClientContext,
        command: Arc<Command>,
        limit: Option<Duration>,
        grace: Duration,
    ) -> Running {
        let description = Description::Command { client, command };
        let deadline = limit.map(|limit| Instant::now() + limit);
        let stop = Stop {
            deadline,
            ..Stop::never()
        };
        self.add(description, stop, grace)
    }

    /// Registers a background build. `currentOp` lists the build until the guard is dropped.
    pub fn begin_build(
        self: &Arc<Self>,
        namespace: &str,
        message: &str,
        progress: Arc<BuildProgress>,
    ) -> Running {
        let description = Description::Build {
            namespace: namespace.to_owned(),
            message: message.to_owned(),
            progress,
        };
        self.add(description, Stop::never(), Duration::ZERO)
    }

    fn add(self: &Arc<Self>, description: Description, stop: Stop, grace: Duration) -> Running {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let operation = Arc::new(Operation {
            id,
            description,
            started: Instant::now(),
            grace,
            departure: Mutex::default(),
            stop,
            killed: Notify::new(),
        });
        self.running.lock().insert(id, operation.clone());
        Running {
            operations: self.clone(),
            operation,
        }
    }

    /// Stops the operation `id`, if it is in progress and `may` returns true for it. Returns whether it was stopped.
    pub fn kill(&self, id: i32, may: impl Fn(&Operation) -> bool) -> bool {
        let running = self.running.lock();
        let found = running.get(&id).filter(|operation| may(operation));
        if let Some(operation) = found {
            operation.kill();
        }
        found.is_some()
    }

    /// Stops the operations of a user.
    pub fn kill_user(&self, user: &User) {
        let running = self.running.lock();
        let theirs = running
            .values()
            .filter(|operation| operation.user() == Some(user));
        theirs.for_each(|operation| operation.kill());
    }

    /// Stops the commands of the owners for which `is_meant` returns true, except `spared`.
    pub fn kill_owned(&self, spared: &Operation, is_meant: impl Fn(&Owner) -> bool) {
        let running = self.running.lock();
        let meant = running
            .values()
            .filter(|operation| operation.id != spared.id)
            .filter(|operation| operation.owner().is_some_and(|owner| is_meant(&owner)));
        meant.for_each(|operation| operation.kill());
    }

    /// Stops each operation whose client was found disconnected, if the operation's `grace` has passed since then.
    pub fn kill_abandoned(&self, now: Instant) {
        let running = self.running.lock();
        let abandoned = running
            .values()
            .filter(|operation| operation.is_abandoned(now));
        abandoned.for_each(|operation| operation.kill());
    }

    /// Stops all operations, for shutdown.
    pub fn kill_all(&self) {
        self.running
            .lock()
            .values()
            .for_each(|operation| operation.kill());
    }

    /// Returns the entries of `currentOp` for the operations for which `wanted` returns true, sorted by id.
    pub fn report(&self, wanted: impl Fn(&Operation) -> bool) -> Vec<RawDocumentBuf> {
        let mut all: Vec<Arc<Operation>> = self.running.lock().values().cloned().collect();
        all.retain(|operation| wanted(operation));
        all.sort_by_key(|operation| operation.id);
        all.iter().map(|operation| operation.report()).collect()
    }
}

/// A guard for an operation in progress. Dropping the guard removes the operation from the list.
#[derive(Debug)]
pub struct Running {
    operations: Arc<Operations>,
    operation: Arc<Operation>,
}

impl std::ops::Deref for Running {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        &self.operation
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.operations.running.lock().remove(&self.operation.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::command::Link;

    /// A connection that a test can disconnect.
    #[derive(Debug, Default)]
    struct Leaving(AtomicBool);

    impl Link for Leaving {
        fn is_lost(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_command_ends_when_its_grace_after_a_disconnect_is_over() {
        const SECOND: Duration = Duration::from_secs(1);
        let operations = Arc::new(Operations::default());
        let link = Arc::new(Leaving::default());
        let client = ClientContext {
            link: Some(link.clone()),
            ..ClientContext::default()
        };
        let command = Arc::new(Command::from_body(rawdoc! { "find": "c" }));
        let begin = |client: &ClientContext, grace| {
            operations.begin(client.clone(), command.clone(), None, grace)
        };
        let (read, write) = (begin(&client, Duration::ZERO), begin(&client, SECOND));
        let local = begin(&ClientContext::default(), Duration::ZERO);
        let running = |operation: &Running| operation.stop().check().is_ok();
        let start = Instant::now();
        operations.kill_abandoned(start + 9 * SECOND);
        assert!(running(&read) && running(&write));
        link.0.store(true, Ordering::Relaxed);
        operations.kill_abandoned(start + 10 * SECOND);
        assert!(!running(&read) && running(&write));
        // The grace period of each command begins when its client is first found disconnected.
        let later = begin(&client, SECOND);
        operations.kill_abandoned(start + 11 * SECOND);
        assert!(!running(&write) && running(&later));
        operations.kill_abandoned(start + 12 * SECOND);
        assert!(!running(&later) && running(&local));
        // Time in a queue does not count towards the grace period of a write, but it does for a read.
        let (queued, read) = (begin(&client, SECOND), begin(&client, Duration::ZERO));
        let waits = (queued.wait_in_queue(), read.wait_in_queue());
        operations.kill_abandoned(start + 20 * SECOND);
        operations.kill_abandoned(start + 30 * SECOND);
        assert!(running(&queued) && !running(&read));
        drop(waits);
        operations.kill_abandoned(start + 31 * SECOND);
        assert!(running(&queued));
        operations.kill_abandoned(start + 32 * SECOND);
        assert!(!running(&queued));
    }
}
