//! Checks whether the server works properly, for `/health`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_documents_proxy::Upstream;
use tokio::sync::Mutex;

use super::Process;
use crate::doors::documents::Door;

/// Time for which a result is reused, so that frequent requests put no load on the disk and the upstream.
const REUSED_FOR: Duration = Duration::from_secs(1);
/// Timeout for connecting to the upstream.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// The last result and its time.
#[derive(Debug, Default)]
pub struct Health {
    last: Mutex<Option<(Instant, Vec<String>)>>,
}

impl Health {
    /// Returns the server's problems as sentences; empty if it works properly.
    pub async fn problems(&self, process: &Process, door: &Arc<Door>) -> Vec<String> {
        let mut last = self.last.lock().await;
        if let Some((seen, problems)) = last.as_ref()
            && seen.elapsed() < REUSED_FOR
        {
            return problems.clone();
        }
        let problems = look(process, door).await;
        *last = Some((Instant::now(), problems.clone()));
        problems
    }
}

async fn look(process: &Process, door: &Arc<Door>) -> Vec<String> {
    let documents = door.documents().clone();
    let looked = tokio::task::spawn_blocking(move || documents.problems()).await;
    let mut problems = looked.unwrap_or_else(|error| vec![error.to_string()]);
    problems.extend(process.problem());
    if let Some(proxy) = door.proxy() {
        problems.extend(unreachable(proxy.upstream()).await);
    }
    problems
}

async fn unreachable(upstream: &Upstream) -> Option<String> {
    let why = upstream.connect_within(CONNECT_TIME_MAX).await.err()?;
    Some(format!("the upstream {upstream} cannot be reached: {why}"))
}
