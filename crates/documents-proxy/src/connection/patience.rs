//! How long a connection waits for the upstream: until the time of the command is over, or the client has left and the
//! upstream hangs. A client that stays and names no time waits as long as it would without the proxy.

use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use bytes::Bytes;
use forebay_documents::Link;
use forebay_memory::Account;
use forebay_net::frames::{self, Frame, FrameError, FrameReader};
use forebay_wire_mongo::{OpMsg, hello};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Connection, Next, REPLY_LIMITS, answers};
use crate::replicas::{Replicas, number};

/// Time that the upstream has beyond a command's `maxTimeMS`. It normally answers first.
const GRACE: Duration = Duration::from_secs(1);
/// Interval of checking for a client that has left behind messages that are not read yet.
const LINK_INTERVAL: Duration = Duration::from_secs(1);
/// Commands of a handshake after the hello.
const LOGIN: &[&str] = &["saslStart", "saslContinue", "authenticate"];

/// The command in progress, as far as it concerns waiting.
#[derive(Debug, Default, Clone, Copy)]
pub struct Asked {
    request_id: i32,
    /// When it is answered without the upstream.
    deadline: Option<Instant>,
    /// Is it a part of the handshake, for which every upstream is fast enough?
    is_handshake: bool,
    /// Has the client been told that the time is over, and does the connection only follow a write to its end?
    is_dismissed: bool,
}

/// What a departure of the client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The wait for a reply, unless the client has sent more messages.
    EndsWait,
    /// Nothing, as long as the upstream does not hang.
    EndsNothing,
}

impl Asked {
    /// Reads a command that expects a reply. An upstream has `handshake` to answer a part of the handshake.
    pub fn new(request_id: i32, name: &str, body: &RawDocument, handshake: Duration) -> Asked {
        let limit = if is_handshake(name) {
            // A hello may wait for a change.
            Some(handshake + milliseconds(body, "maxAwaitTimeMS").unwrap_or_default())
        } else {
            limit(name, body)
        };
        Asked {
            request_id,
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            is_handshake: is_handshake(name),
            is_dismissed: false,
        }
    }

    /// Waits until the command's time is over.
    async fn expired(self) {
        match self.deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Receives the upstream's reply to the message of this number; `None` if the upstream has closed its connection,
    /// or the client's departure ends the wait.
    ///
    /// Replies that no command waits for are dropped: FerretDB 1 sends one to a write that expects none.
    ///
    /// # Errors
    /// Those of a malformed reply, [`FrameError::Expired`] and [`FrameError::Abandoned`].
    pub(super) async fn receive_until(
        &mut self,
        request_id: i32,
        memory: &Account,
        departure: Departure,
    ) -> Result<Option<Bytes>, FrameError> {
        loop {
            let link = self.client.link.as_deref();
            let late = late(
                &mut self.reader,
                link,
                &self.replicas,
                self.asked,
                departure,
            );
            let frame = tokio::select! {
                frame = self.upstream_reader.next(&REPLY_LIMITS, memory) => {
                    if !matches!(frame, Ok(Some(_))) {
                        // It may have been started again.
                        self.replicas.check_after_close();
                    }
                    frame?
                }
                late = late => match late {
                    Some(late) => return Err(late),
                    None => None,
                },
                // It may hang, with the connection open.
                () = self.replicas.wait_away(), if self.may_be_cut_off => None,
            };
            match frame {
                Some(frame) if !answers(&frame, request_id) => {}
                frame => return Ok(frame.map(|frame| self.keep(frame))),
            }
        }
    }

    /// Returns the bytes of a reply, and keeps its share of memory until it is passed on.
    fn keep(&mut self, reply: Frame) -> Bytes {
        self.reply_share = Some(reply.share);
        reply.bytes
    }

    /// Receives the reply to a write, also after the client has left or its time is over: the replica has to apply what
    /// was written. Returns `None` if the upstream has closed its connection.
    ///
    /// # Errors
    /// Those of a malformed reply, and [`FrameError::Abandoned`].
    pub(super) async fn receive_to_end(
        &mut self,
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        // However little memory there is.
        let memory = Account::default();
        let departure = Departure::EndsNothing;
        match self.receive_until(request_id, &memory, departure).await {
            Err(FrameError::Expired) => {
                // An error means that the client has left.
                let _ = self.dismiss().await;
                self.receive_until(request_id, &memory, departure).await
            }
            received => received,
        }
    }

    /// Sends a message to the upstream.
    ///
    /// # Errors
    /// Those of [`frames::write`], [`FrameError::Expired`] and [`FrameError::Abandoned`].
    pub(super) async fn send(&mut self, message: &[u8]) -> Result<(), FrameError> {
        let limit = self.proxy.timeouts.message;
        let (asked, departure) = (self.asked, Departure::EndsNothing);
        let link = self.client.link.as_deref();
        let late = late(&mut self.reader, link, &self.replicas, asked, departure);
        tokio::select! {
            biased;
            sent = frames::write(&mut self.upstream_writer, message, limit) => sent,
            late = late => Err(late.unwrap_or(FrameError::Abandoned)),
        }
    }

    /// Waits for something other than a message, such as a lock.
    ///
    /// # Errors
    /// [`FrameError::Expired`] and [`FrameError::Abandoned`].
    pub(super) async fn wait_for<T>(
        &mut self,
        event: impl Future<Output = T>,
    ) -> Result<T, FrameError> {
        let (asked, departure) = (self.asked, Departure::EndsNothing);
        let link = self.client.link.as_deref();
        let late = late(&mut self.reader, link, &self.replicas, asked, departure);
        tokio::select! {
            biased;
            value = event => Ok(value),
            late = late => Err(late.unwrap_or(FrameError::Abandoned)),
        }
    }

    /// Answers that the time of the command is over, and tells the client that nothing more comes: the connection to
    /// the upstream is of no use before the upstream has answered.
    pub(super) async fn dismiss(&mut self) -> Result<Next, FrameError> {
        let refusal = if self.asked.is_handshake {
            self.away()
        } else {
            expired()
        };
        let reply = OpMsg::new(refusal).encode(self.proxy.request_id(), self.asked.request_id);
        self.asked.deadline = None;
        self.asked.is_dismissed = true;
        self.answer(reply.into(), None).await?;
        self.writer.shutdown().await?;
        Ok(Next::Close)
    }

    /// Returns whether the client has been told that the time of its command is over.
    pub(super) fn is_dismissed(&self) -> bool {
        self.asked.is_dismissed
    }
}

fn expired() -> RawDocumentBuf {
    rawdoc! {
        "ok": 0.0, "errmsg": "the upstream did not answer within maxTimeMS", "code": 50, "codeName": "MaxTimeMSExpired",
    }
}

/// Waits until a command is not worth waiting for, and returns why; `None` if its client has left.
async fn late<R: AsyncRead + Unpin>(
    client: &mut FrameReader<R>,
    link: Option<&dyn Link>,
    replicas: &Replicas,
    asked: Asked,
    departure: Departure,
) -> Option<FrameError> {
    let abandoned = async {
        let has_more = !asked.is_dismissed && departed(client, link).await;
        if !has_more && departure == Departure::EndsWait {
            return None;
        }
        replicas.hangs().await;
        Some(FrameError::Abandoned)
    };
    tokio::select! {
        () = asked.expired() => Some(FrameError::Expired),
        abandoned = abandoned => abandoned,
    }
}

/// Waits until the client has left. Returns whether it left messages that are not read yet.
async fn departed<R: AsyncRead + Unpin>(
    client: &mut FrameReader<R>,
    link: Option<&dyn Link>,
) -> bool {
    let has_more = client.has_more().await;
    // Behind these messages, only the system knows the end of the stream.
    while has_more && !link.is_some_and(Link::is_lost) {
        sleep(LINK_INTERVAL).await;
    }
    has_more
}

fn is_handshake(command: &str) -> bool {
    hello::is_hello(command) || LOGIN.contains(&command)
}

/// Returns the time that the upstream has for a command, if the command says so.
fn limit(command: &str, body: &RawDocument) -> Option<Duration> {
    // A `getMore` has the time for which the upstream waits for documents. It may take longer to find some.
    let limit = milliseconds(body, "maxTimeMS").filter(|_| command != "getMore");
    limit.map(|limit| limit.saturating_add(GRACE))
}

fn milliseconds(body: &RawDocument, name: &str) -> Option<Duration> {
    let limit = number(body, name).filter(|limit| *limit > 0.0)?;
    Some(Duration::from_millis(limit as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_time_that_it_says_and_a_grace() {
        let find = |time: i64| limit("find", &rawdoc! { "find": "c", "maxTimeMS": time });
        assert_eq!(find(300), Some(Duration::from_millis(300) + GRACE));
        assert_eq!(find(0), None);
        assert_eq!(limit("find", &rawdoc! { "find": "c" }), None);
        let more = rawdoc! { "getMore": 5i64, "maxTimeMS": 300 };
        assert_eq!(limit("getMore", &more), None);
    }

    #[test]
    fn a_long_time_is_no_short_one() {
        const DAY: Duration = Duration::from_secs(24 * 3_600);
        let body = rawdoc! { "find": "c", "maxTimeMS": 1e300 };
        let asked = Asked::new(1, "find", &body, Duration::from_secs(10));
        assert!(asked.deadline.is_none_or(|at| at > Instant::now() + DAY));
    }
}
