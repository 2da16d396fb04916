//! Delays the reply to a write until replicas have applied the write from their change streams.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_wire_mongo::Peek;
use tokio::time::timeout;

use super::{FrameError, writes};
use crate::replicas::{Replica, Replicas, operation_time};

/// Timeout of a write that waits for a replica that already answers reads. On timeout, the replica is loaded again.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a write that waits for a replica that does not answer reads yet. The wait slows writers down, so that the
/// replica can catch up with earlier writes.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(100);

/// Returns a view of the upstream's reply; `None` without a reply.
pub(super) fn peek(reply: &Result<Option<Bytes>, FrameError>) -> Option<Peek<'_>> {
    Peek::new(reply.as_ref().ok()?.as_ref()?)
}

/// Waits until replicas have applied all changes up to the operation time in the reply to a command. The client can
/// then read what the command wrote.
pub(super) async fn wait_until_applied(
    replicas: &Arc<Replicas>,
    written: &[Arc<Replica>],
    reply: &Result<Option<Bytes>, FrameError>,
) {
    let Some(reply) = peek(reply).filter(|reply| !writes::is_refusal(reply.body)) else {
        return;
    };
    let Some(at) = operation_time(reply.body) else {
        for replica in written.iter().filter(|it| it.is_ready()) {
            replicas.reload(replica, "the upstream's reply has no operation time");
        }
        return;
    };
    for replica in written {
        if !replica.is_following() {
            replica.require_applied(at);
        }
        while replica.is_following() {
            let (answers, limit) = if replica.is_ready() {
                (true, STREAM_TIMEOUT)
            } else {
                (false, CATCH_UP_TIMEOUT)
            };
            if timeout(limit, replica.wait_applied(at)).await.is_ok() {
                break;
            }
            if answers {
                replicas.reload(replica, "the change stream lags too far behind");
                break;
            }
            // A replica that does not answer reads yet will begin to answer only after it has applied the write. If the
            // replica has begun to answer meanwhile, the loop waits again.
            replica.require_applied(at);
            if !replica.is_ready() {
                break;
            }
        }
    }
}
