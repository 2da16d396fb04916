//! Limits how long a connection waits for the upstream: until the command's time limit, or until the client has
//! disconnected. If the reply to a write is expected, or the client has sent more messages, the connection waits for
//! the upstream even after the client has disconnected, unless the upstream hangs. A client that stays connected and
//! sets no time limit waits as long as it would without the proxy.

use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use bytes::Bytes;
use forebay_documents::Link;
use forebay_memory::Account;
use forebay_net::frames::{self, Frame, FrameError, FrameReader};
use forebay_wire_mongo::{OpMsg, hello};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Connection, Next, REPLY_LIMITS, answers};
use crate::replicas::{Replicas, number};

/// Time that the proxy waits for the upstream beyond a command's `maxTimeMS`. The upstream normally answers earlier.
const GRACE: Duration = Duration::from_secs(1);
/// Interval at which the proxy checks whether a client with unread messages has disconnected.
const LINK_INTERVAL: Duration = Duration::from_secs(1);
/// Commands of a handshake after the hello.
const LOGIN: &[&str] = &["saslStart", "saslContinue", "authenticate"];

/// The time limit of the command in progress.
#[derive(Debug, Default, Clone, Copy)]
pub struct Asked {
    request_id: i32,
    /// Time at which the proxy stops waiting for the upstream and answers the command with an error; `None` without a
    /// time limit.
    deadline: Option<Instant>,
    /// Whether the command is part of the handshake, which has a time limit of its own.
    is_handshake: bool,
    /// Whether the client has received the error that the time limit has passed. The connection then only waits for the
    /// upstream's reply to a write.
    is_dismissed: bool,
}

/// What the proxy does when the client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// Stops waiting for the upstream, unless the client has sent more messages.
    EndsWait,
    /// Continues to wait, unless the upstream hangs.
    EndsNothing,
}

impl Asked {
    /// Reads the time limit of a command that expects a reply. `handshake` is the time limit of commands of the
    /// handshake.
    pub fn new(request_id: i32, name: &str, body: &RawDocument, handshake: Duration) -> Asked {
        let limit = if is_handshake(name) {
            // The upstream may delay its reply to a hello, to wait for a topology change.
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

    /// Waits until the command's time limit has passed.
    async fn expired(self) {
        match self.deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }
}

impl Connection {
    /// Receives the upstream's reply to the message with this id. Returns `None` if the upstream has closed its
    /// connection, or if the client's disconnection ends the wait (`departure`).
    ///
    /// Discards replies that no command waits for: FerretDB 1 replies even to unacknowledged writes.
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
                        // The upstream may have been restarted.
                        self.replicas.check_after_close();
                    }
                    frame?
                }
                late = late => match late {
                    Some(late) => return Err(late),
                    None => None,
                },
                // The upstream may hang while the connection stays open.
                () = self.replicas.wait_away(), if self.may_be_cut_off => None,
            };
            match frame {
                Some(frame) if !answers(&frame, request_id) => {}
                frame => return Ok(frame.map(|frame| self.keep(frame))),
            }
        }
    }

    /// Returns the bytes of a reply. Holds the reply's share of memory until the reply is passed on.
    fn keep(&mut self, reply: Frame) -> Bytes {
        self.reply_share = Some(reply.share);
        reply.bytes
    }

    /// Receives the reply to a write, even after the client has disconnected or the time limit has passed: the replica
    /// has to apply the write. Returns `None` if the upstream has closed its connection.
    ///
    /// # Errors
    /// Those of a malformed reply, and [`FrameError::Abandoned`].
    pub(super) async fn receive_to_end(
        &mut self,
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        // The reply has no memory limit, because the replica has to apply the write in any case.
        let memory = Account::default();
        let departure = Departure::EndsNothing;
        match self.receive_until(request_id, &memory, departure).await {
            Err(FrameError::Expired) => {
                // Ignores an error, which means that the client has disconnected.
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

    /// Waits for an event other than a message, such as a lock that becomes free.
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

    /// Replies with the error that the command's time limit has passed, and closes the sending side of the client's
    /// connection. No further command can be served, because the connection to the upstream cannot be used until the
    /// upstream has answered.
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

    /// Returns whether the client has received the error that the time limit has passed.
    pub(super) fn is_dismissed(&self) -> bool {
        self.asked.is_dismissed
    }
}

fn expired() -> RawDocumentBuf {
    rawdoc! {
        "ok": 0.0, "errmsg": "the upstream did not answer within maxTimeMS", "code": 50, "codeName": "MaxTimeMSExpired",
    }
}

/// Completes when the connection should no longer wait for the upstream. Returns the reason as an error; `None` if the
/// only reason is that the client has disconnected.
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
        replicas.wait_hung().await;
        Some(FrameError::Abandoned)
    };
    tokio::select! {
        () = asked.expired() => Some(FrameError::Expired),
        abandoned = abandoned => abandoned,
    }
}

/// Waits until the client has disconnected. Returns whether there are unread messages of the client.
async fn departed<R: AsyncRead + Unpin>(
    client: &mut FrameReader<R>,
    link: Option<&dyn Link>,
) -> bool {
    let has_more = client.has_more().await;
    // While there are unread messages, the end of the stream cannot be read. Only the operating system can then report
    // that the client has disconnected.
    while has_more && !link.is_some_and(Link::is_lost) {
        sleep(LINK_INTERVAL).await;
    }
    has_more
}

fn is_handshake(command: &str) -> bool {
    hello::is_hello(command) || LOGIN.contains(&command)
}

/// Returns the time for which the proxy waits for the upstream, if the command sets a time limit.
fn limit(command: &str, body: &RawDocument) -> Option<Duration> {
    // In a `getMore`, `maxTimeMS` limits how long the upstream waits for new documents, not how long it searches.
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
