//! Waiting until the change streams have brought what a command did.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_wire_mongo::Peek;
use tokio::time::timeout;

use super::{FrameError, writes};
use crate::replicas::{Replica, Replicas, operation_time};

/// How long a client that has written waits for the change stream; then the cache stops to answer instead.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);
/// The same while the cache does not answer yet: as long as writers wait, it need not follow ever later writes to
/// begin.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(100);

/// What the upstream has said, if it has.
pub(super) fn told(reply: &Result<Option<Bytes>, FrameError>) -> Option<Peek<'_>> {
    Peek::new(reply.as_ref().ok()?.as_ref()?)
}

/// Waits until the change streams have brought what a command did, as its reply tells, so that its client can read it.
pub(super) async fn caught_up(
    replicas: &Arc<Replicas>,
    written: &[Arc<Replica>],
    reply: &Result<Option<Bytes>, FrameError>,
) {
    let Some(reply) = told(reply).filter(|reply| !writes::is_refusal(reply.body)) else {
        return;
    };
    let Some(at) = operation_time(reply.body) else {
        for replica in written.iter().filter(|it| it.is_ready()) {
            replicas.reload(replica, "the upstream does not say when it wrote");
        }
        return;
    };
    for replica in written {
        if !replica.is_following() {
            replica.require_applied(at);
        }
        while replica.is_following() {
            let (answers, patience) = match replica.is_ready() {
                true => (true, STREAM_TIMEOUT),
                false => (false, CATCH_UP_TIMEOUT),
            };
            if timeout(patience, replica.wait_applied(at)).await.is_ok() {
                break;
            }
            if answers {
                replicas.reload(replica, "the change stream does not come along");
                break;
            }
            // Whoever begins to answer after this has to know of the write.
            replica.require_applied(at);
            if !replica.is_ready() {
                break;
            }
        }
    }
}
