//! Reads and writes whole messages on a byte stream, with time limits.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_memory::{Account, Full, Share};
use forebay_wire_mongo::{
    Error, Flags, HEADER_BYTES, Header, Limits, OpCode, flags, inflated_bytes,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

/// Messages and replies of at most this many bytes are not charged to the memory account, so that they always succeed.
pub const FREE_BYTES_MAX: usize = 16 * 1024;
/// Maximum time for which a message waits for memory.
pub const MEMORY_WAIT: Duration = Duration::from_secs(5);
/// Minimum size of the read buffer.
const READ_BYTES_MIN: usize = 4 * 1024;

/// Why a message could not be read or sent.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream failed or ended inside a message.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer took too long.
    #[error("the peer took longer than {limit:?} to {action}")]
    TooSlow {
        /// What the peer was expected to do.
        action: &'static str,
        /// The exceeded time limit.
        limit: Duration,
    },
    /// A fail point closes the connection.
    #[error("a fail point closed the connection")]
    FailPoint,
    /// The upstream did not answer a command in time.
    #[error("the upstream did not answer in time")]
    Expired,
    /// The client has disconnected, and the upstream does not answer.
    #[error("the client has disconnected, and the upstream does not answer")]
    Abandoned,
    /// The header is malformed.
    #[error("{0}")]
    Header(#[from] Error),
    /// A message does not fit in the memory account. It was read and discarded, so the stream is still usable.
    #[error("{}", .0.full)]
    Full(Refused),
}

/// A message that does not fit in the memory account.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    /// The state of the memory account.
    pub full: Full,
    /// The id of the request, for the reply.
    pub request_id: i32,
    /// Whether the request asks for no reply.
    pub is_silent: bool,
}

impl Refused {
    /// Creates the refusal of a message from the message's first bytes.
    fn new(full: Full, message: &[u8]) -> Refused {
        Refused {
            full,
            request_id: request_id(message),
            is_silent: flags(message).has(Flags::MORE_TO_COME),
        }
    }
}

/// A whole message, with its share of the memory account.
#[derive(Debug)]
pub struct Frame {
    /// Header and content.
    pub bytes: Bytes,
    /// Released when the command is done.
    pub share: Share,
}

impl Frame {
    /// Returns the id of the request, for the reply.
    pub fn request_id(&self) -> i32 {
        request_id(&self.bytes)
    }

    /// Reserves memory for processing the message: `copies` copies of its content, and the decompressed content itself
    /// if the message is compressed.
    ///
    /// # Errors
    /// [`FrameError::Full`] if the account has too little memory.
    pub async fn make_room(&self, copies: usize) -> Result<(), FrameError> {
        let bytes = match inflated_bytes(&self.bytes) {
            Some(inflated) => inflated * (copies + 1),
            None => self.bytes.len() * copies,
        };
        if bytes <= FREE_BYTES_MAX {
            return Ok(());
        }
        let room = self.share.grow_within(bytes, MEMORY_WAIT).await;
        room.map_err(|full| FrameError::Full(Refused::new(full, &self.bytes)))
    }
}

/// A refused message whose remaining bytes must still be read and discarded.
#[derive(Debug, Clone, Copy)]
struct PassedOver {
    refusal: Refused,
    bytes_left: usize,
}

/// Reads messages from a stream.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
    passed_over: Option<PassedOver>,
    message_timeout: Duration,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Creates a reader. Each message must arrive within `message_timeout`.
    pub fn new(stream: R, message_timeout: Duration) -> FrameReader<R> {
        FrameReader {
            stream,
            buffer: BytesMut::new(),
            passed_over: None,
            message_timeout,
        }
    }

    /// Reads the next message, charging it to `memory` as it arrives. Returns `None` if the peer closed the stream
    /// between messages.
    ///
    /// Waits for the first byte without a time limit. Cancel-safe.
    ///
    /// # Errors
    /// See [`FrameError`]. After any error except [`FrameError::Full`], the stream is no longer usable.
    pub async fn next(
        &mut self,
        limits: &Limits,
        memory: &Account,
    ) -> Result<Option<Frame>, FrameError> {
        if self.passed_over.is_some() {
            return self.pass_over().await;
        }
        if self.buffer.is_empty() && !self.fill_between_messages().await? {
            return Ok(None);
        }
        let message_bytes = self.header(limits).await?.message_bytes;
        let share = memory.share();
        match self.fill_with_room(message_bytes, &share).await? {
            Ok(()) => Ok(Some(Frame {
                bytes: self.take(message_bytes),
                share,
            })),
            Err(full) => {
                drop(share);
                self.passed_over = Some(PassedOver {
                    refusal: Refused::new(full, &self.buffer),
                    bytes_left: message_bytes,
                });
                self.pass_over().await
            }
        }
    }

    /// Waits for the first byte. Returns false if the stream ended.
    ///
    /// # Errors
    /// If the stream fails or the peer takes longer than `limit`.
    pub async fn first_byte(&mut self, limit: Duration) -> Result<bool, FrameError> {
        match timeout(limit, self.fill(READ_BYTES_MIN)).await {
            Ok(more) => more,
            Err(_) => Err(FrameError::TooSlow {
                action: "send its first message",
                limit,
            }),
        }
    }

    /// Waits until the peer closes the stream or the stream fails. Never returns if unread bytes have arrived.
    ///
    /// Cancel-safe.
    pub async fn closed(&mut self) {
        if self.has_more().await {
            std::future::pending().await
        }
    }

    /// Waits until there are bytes to read. Returns false if the peer has closed the stream or the stream has failed.
    ///
    /// Cancel-safe.
    pub async fn has_more(&mut self) -> bool {
        !self.buffer.is_empty() || self.fill(READ_BYTES_MIN).await.unwrap_or(false)
    }

    /// Reads the start of the next message. Returns false if the client has disconnected. TLS's close message may be
    /// missing, because a client may disconnect between messages without it.
    async fn fill_between_messages(&mut self) -> Result<bool, FrameError> {
        match self.fill(READ_BYTES_MIN).await {
            Err(FrameError::Io(error)) if is_departure(&error) => Ok(false),
            filled => filled,
        }
    }

    async fn header(&mut self, limits: &Limits) -> Result<Header, FrameError> {
        let limit = self.message_timeout;
        in_time(limit, async {
            while self.buffer.len() < HEADER_BYTES {
                self.fill_some(HEADER_BYTES).await?;
            }
            Ok(())
        })
        .await?;
        let head = self
            .buffer
            .first_chunk::<HEADER_BYTES>()
            .expect("the buffer was filled to a header's length");
        let header = Header::parse(head, limits)?;
        // Refuses clients of other protocols, such as TLS.
        OpCode::from_code(header.op_code)?;
        Ok(header)
    }

    /// Reads until the buffer holds `count` bytes, growing the share accordingly. Returns `Ok(Err(Full))` if the
    /// account has too little memory.
    ///
    /// The time limit starts with this call, so it does not include the server's earlier work. All waits for memory
    /// together take at most [`MEMORY_WAIT`].
    async fn fill_with_room(
        &mut self,
        count: usize,
        share: &Share,
    ) -> Result<Result<(), Full>, FrameError> {
        let limit = self.message_timeout;
        let mut wait = MEMORY_WAIT.min(limit / 2);
        in_time(limit, async {
            while self.buffer.len() < count {
                let missing = count - self.buffer.len();
                let bytes = self.buffer.len() + self.room(missing);
                if bytes > FREE_BYTES_MAX {
                    let more = bytes.saturating_sub(share.bytes() as usize);
                    let began = Instant::now();
                    if let Err(full) = share.grow_within(more, wait).await {
                        return Ok(Err(full));
                    }
                    wait = wait.saturating_sub(began.elapsed());
                }
                self.fill_some(missing).await?;
            }
            Ok(Ok(()))
        })
        .await
    }

    /// Takes a message of `message_bytes` bytes from the front of the buffer. If the message is large, the buffer then
    /// shares no memory with it.
    fn take(&mut self, message_bytes: usize) -> Bytes {
        let message = self.buffer.split_to(message_bytes).freeze();
        if message_bytes > FREE_BYTES_MAX {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        message
    }

    /// Reads and discards the rest of a message that does not fit in memory. Returns the refusal as an error.
    async fn pass_over(&mut self) -> Result<Option<Frame>, FrameError> {
        let limit = self.message_timeout;
        in_time(limit, async {
            while let Some(over) = &mut self.passed_over {
                let there = over.bytes_left.min(self.buffer.len());
                over.bytes_left -= there;
                let (bytes_left, refused) = (over.bytes_left, over.refusal);
                self.buffer = BytesMut::from(&self.buffer[there..]);
                if bytes_left == 0 {
                    self.passed_over = None;
                    return Err(FrameError::Full(refused));
                }
                self.fill_some(bytes_left.min(FREE_BYTES_MAX)).await?;
            }
            Ok(None)
        })
        .await
    }

    /// Reads once. Returns an error at the end of the stream.
    async fn fill_some(&mut self, wanted: usize) -> Result<(), FrameError> {
        if self.fill(wanted).await? {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
        }
    }

    /// Reads once. Returns false at the end of the stream.
    async fn fill(&mut self, wanted: usize) -> Result<bool, FrameError> {
        let room = self.room(wanted);
        self.buffer.reserve(room);
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }

    /// Returns the number of bytes to reserve for the next read. The number grows with the bytes received so far, so
    /// that a message does not reserve memory by its declared length alone.
    fn room(&self, wanted: usize) -> usize {
        wanted.min(self.buffer.len()).max(READ_BYTES_MIN)
    }
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, FrameError>>,
) -> Result<T, FrameError> {
    match timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(FrameError::TooSlow {
            action: "send a message",
            limit,
        }),
    }
}

fn is_departure(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}

/// Returns the id of a message whose header is complete.
fn request_id(message: &[u8]) -> i32 {
    i32::from_le_bytes([message[4], message[5], message[6], message[7]])
}

/// Writes a message.
///
/// # Errors
/// If the stream fails, or the peer does not receive the message within `limit`.
pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &[u8],
    limit: Duration,
) -> Result<(), FrameError> {
    let send = async {
        stream.write_all(message).await?;
        stream.flush().await
    };
    match timeout(limit, send).await {
        Ok(sent) => Ok(sent?),
        Err(_) => Err(FrameError::TooSlow {
            action: "receive a reply",
            limit,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    const LIMITS: Limits = Limits {
        message_bytes_max: 1 << 20,
        document_bytes_max: 1 << 20,
        depth_max: 100,
    };

    fn message(content_bytes: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let message_bytes = HEADER_BYTES + content_bytes;
        Header {
            message_bytes,
            request_id: 1,
            response_to: 0,
            op_code: 2013,
        }
        .write(&mut bytes);
        bytes.resize(message_bytes, 7);
        bytes
    }

    fn reader<R: AsyncRead + Unpin>(stream: R) -> FrameReader<R> {
        FrameReader::new(stream, Duration::from_millis(20))
    }

    fn account() -> Account {
        Account::new(1 << 20)
    }

    #[tokio::test]
    async fn messages_come_apart_however_they_arrive() {
        let account = account();
        let messages = [message(0), message(10), message(300_000), message(1)];
        let stream = messages.concat();
        let mut reader = reader(stream.as_slice());
        for expected in &messages {
            let frame = reader
                .next(&LIMITS, &account)
                .await
                .expect("a message")
                .expect("not the end");
            assert_eq!(frame.bytes, expected);
            let held = if expected.len() > FREE_BYTES_MAX {
                expected.len() as u64
            } else {
                0
            };
            assert_eq!(frame.share.bytes(), held);
        }
        assert!(
            reader
                .next(&LIMITS, &account)
                .await
                .expect("no fault")
                .is_none()
        );
    }

    #[tokio::test]
    async fn a_cut_message_is_an_error() {
        let account = account();
        let bytes = message(100);
        let mut reader = reader(&bytes[..50]);
        assert!(matches!(
            reader.next(&LIMITS, &account).await,
            Err(FrameError::Io(_))
        ));
    }

    #[tokio::test]
    async fn a_stalled_message_times_out() {
        let account = account();
        let (mut client, server) = tokio::io::duplex(1024);
        let mut reader = reader(server);
        client
            .write_all(&message(100)[..20])
            .await
            .expect("room in the pipe");
        assert!(matches!(
            reader.next(&LIMITS, &account).await,
            Err(FrameError::TooSlow { .. })
        ));
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_times_out() {
        let (_client, mut server) = tokio::io::duplex(64);
        let sent = write(&mut server, &message(1000), Duration::from_millis(20)).await;
        assert!(matches!(sent, Err(FrameError::TooSlow { .. })));
    }

    #[tokio::test]
    async fn oversized_messages_are_refused_before_they_are_read() {
        let account = account();
        let announced = message(1 << 20);
        let mut reader = reader(&announced[..HEADER_BYTES]);
        assert!(matches!(
            reader.next(&LIMITS, &account).await,
            Err(FrameError::Header(Error::MessageLength { .. }))
        ));
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused_before_it_is_read() {
        let account = account();
        let mut stranger = message(900_000);
        stranger[12..HEADER_BYTES].copy_from_slice(b"TLS?");
        let mut reader = reader(&stranger[..HEADER_BYTES]);
        assert!(matches!(
            reader.next(&LIMITS, &account).await,
            Err(FrameError::Header(Error::UnknownOpCode { .. }))
        ));
    }

    #[tokio::test]
    async fn what_is_announced_takes_nothing() {
        let account = account();
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let mut reader = FrameReader::new(server, Duration::from_secs(60));
        let announced = message(900_000);
        client
            .write_all(&announced[..100_000])
            .await
            .expect("room in the pipe");
        // When all sent bytes are read, the reader waits for the rest.
        tokio::select! {
            biased;
            frame = reader.next(&LIMITS, &account) => panic!("not whole: {frame:?}"),
            () = tokio::task::yield_now() => {}
        }
        let used = account.figures().used_bytes;
        assert!(used <= 200_000, "{used} bytes for 100,000");
    }

    #[tokio::test]
    async fn a_message_without_room_is_passed_over() {
        let account = account();
        let all = account.share();
        all.try_grow(900_000).expect("room");
        let small = message(10);
        let stream = [message(300_000), small.clone()].concat();
        let mut reader = FrameReader::new(stream.as_slice(), Duration::from_secs(1));
        let refused = reader.next(&LIMITS, &account).await;
        assert!(
            matches!(
                refused,
                Err(FrameError::Full(Refused { request_id: 1, .. }))
            ),
            "{refused:?}"
        );
        assert_eq!(account.figures().used_bytes, 900_000);
        let frame = reader.next(&LIMITS, &account).await.expect("a message");
        assert_eq!(frame.expect("not the end").bytes, small);
    }

    #[tokio::test]
    async fn the_waits_for_memory_of_a_message_have_one_limit() {
        let account = account();
        let others = account.share();
        others.try_grow(960 << 10).expect("room");
        let limit = Duration::from_secs(4);
        let stream = message(900_000);
        let mut reader = FrameReader::new(stream.as_slice(), limit);
        let mut next = pin!(reader.next(&LIMITS, &account));
        // Each wait ends before its limit, which is half of the message's limit.
        let refused = loop {
            match timeout(limit * 3 / 10, &mut next).await {
                Ok(read) => break read,
                Err(_) => others.shrink(200 << 10),
            }
        };
        assert!(matches!(refused, Err(FrameError::Full(_))), "{refused:?}");
    }

    #[tokio::test]
    async fn a_reader_keeps_no_memory_of_a_large_message() {
        let account = account();
        let large = message(300_000);
        let stream = [large.clone(), message(10)].concat();
        let mut reader = reader(stream.as_slice());
        let frame = reader.next(&LIMITS, &account).await.expect("a message");
        assert_eq!(frame.expect("not the end").bytes, large);
        assert!(reader.buffer.capacity() <= READ_BYTES_MIN);
    }
}
