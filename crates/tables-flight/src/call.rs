//! A call: who makes it, and the memory and time that its request may take.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_memory::Share;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::door::Settings;
use crate::error::exhausted;
use crate::login::Identity;

/// Maximum bytes of the message of a request, and of all messages of one that has several.
pub(crate) const REQUEST_BYTES_MAX: usize = 16 << 20;
/// Bytes of a request around its messages.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// A call, as long as it or something that came with it is kept.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) identity: Arc<Identity>,
    /// The memory of the request.
    share: Share,
    message_timeout: Duration,
}

impl Call {
    pub(crate) fn new(identity: Arc<Identity>, settings: &Settings) -> Call {
        Call {
            identity,
            share: settings.memory.share(),
            message_timeout: settings.message_timeout,
        }
    }

    /// Returns the call of a request.
    ///
    /// # Errors
    /// Never, as each request has one.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Result<Arc<Call>, Status> {
        let call = request.extensions().get::<Arc<Call>>();
        call.cloned()
            .ok_or_else(|| Status::internal("a request without its call"))
    }
}

/// The body of a request. Its bytes are taken from the account; each part must come in time.
pub(crate) struct Metered {
    body: Incoming,
    call: Arc<Call>,
    bytes: usize,
    /// Ends the wait for the next part.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Metered {
    pub(crate) fn new(body: Incoming, call: &Arc<Call>) -> Metered {
        Metered {
            body,
            call: Arc::clone(call),
            bytes: 0,
            timer: None,
        }
    }

    /// Takes memory for more bytes, once for the received ones and once for what is made of them.
    fn take(&mut self, bytes: usize) -> Result<(), Status> {
        self.bytes += bytes;
        if self.bytes > REQUEST_BYTES_MAX + FRAME_BYTES_MAX {
            let message = format!("a request has more than {REQUEST_BYTES_MAX} bytes");
            return Err(Status::resource_exhausted(message));
        }
        let grown = self.call.share.try_grow(bytes.saturating_mul(2));
        grown.map_err(|_| exhausted("a request"))
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(part) = Pin::new(&mut self.body).poll_frame(context) {
            self.timer = None;
            return Poll::Ready(part.map(|part| {
                let frame = part.map_err(|error| Status::cancelled(error.to_string()))?;
                self.take(frame.data_ref().map_or(0, Bytes::len))?;
                Ok(frame)
            }));
        }
        let limit = self.call.message_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(context));
        let message = "the client did not send the rest of its request in time";
        Poll::Ready(Some(Err(Status::deadline_exceeded(message))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
