//! Waiting until the change streams have brought what a command did.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_wire_mongo::Peek;
use tokio::time::timeout;

use super::{FrameError, writes};
use crate::shadow::{Mirror, Shadow, operation_time};

/// How long a client that has written waits for the change stream; then the cache stops to answer instead.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);
/// The same while the cache does not answer yet: as long as writers wait, it need not follow ever later writes to
/// begin.
const CATCH_UP_PATIENCE: Duration = Duration::from_millis(100);

/// What the store has said, if it has.
pub(super) fn told(reply: &Result<Option<Bytes>, FrameError>) -> Option<Peek<'_>> {
    Peek::new(reply.as_ref().ok()?.as_ref()?)
}

/// Waits until the change streams have brought what a command did, as its reply tells, so that its client can read it.
pub(super) async fn caught_up(
    shadow: &Arc<Shadow>,
    mirrors: &[Arc<Mirror>],
    reply: &Result<Option<Bytes>, FrameError>,
) {
    let Some(reply) = told(reply).filter(|reply| !writes::is_refusal(reply.body)) else {
        return;
    };
    let Some(at) = operation_time(reply.body) else {
        for mirror in mirrors.iter().filter(|it| it.ready().is_some()) {
            shadow.reload(mirror, "the store does not say when it wrote");
        }
        return;
    };
    for mirror in mirrors {
        if !mirror.is_followed() {
            mirror.owes(at);
        }
        while mirror.is_followed() {
            let (answers, patience) = match mirror.ready() {
                Some(_) => (true, STREAM_PATIENCE),
                None => (false, CATCH_UP_PATIENCE),
            };
            if timeout(patience, mirror.follows(at)).await.is_ok() {
                break;
            }
            if answers {
                shadow.reload(mirror, "the change stream does not come along");
                break;
            }
            // Whoever begins to answer after this has to know of the write.
            mirror.owes(at);
            if mirror.ready().is_none() {
                break;
            }
        }
    }
}
