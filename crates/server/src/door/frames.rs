//! Whole messages out of a stream of bytes, and into one, with every wait bounded.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_wire_mongo::{Error, HEADER_BYTES, Header, Limits};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Messages up to this many bytes are not charged to the memory that all connections share.
const FREE_BYTES_MAX: usize = 64 * 1024;
/// The least room to read into.
const READ_BYTES_MIN: usize = 4 * 1024;

/// Why no message came, or none could be sent.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream failed or ended inside a message.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side took too long.
    #[error("the other side took longer than {limit:?} to {action}")]
    TooSlow {
        action: &'static str,
        limit: Duration,
    },
    /// The header is not one.
    #[error("{0}")]
    Header(#[from] Error),
}

/// A whole message, and its share of the memory for large messages.
#[derive(Debug)]
pub struct Frame {
    /// Header and content.
    pub bytes: Bytes,
    /// Given back when the command is done.
    pub share: Option<OwnedSemaphorePermit>,
}

/// Reads messages.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
    memory: Arc<Semaphore>,
    message_timeout: Duration,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader whose large messages share `memory`, in KiB.
    pub fn new(stream: R, memory: Arc<Semaphore>, message_timeout: Duration) -> FrameReader<R> {
        FrameReader {
            stream,
            buffer: BytesMut::new(),
            memory,
            message_timeout,
        }
    }

    /// The next message; none if the client closed the stream between messages.
    ///
    /// Waits for the first byte as long as it takes. Dropping the future between polls loses nothing.
    ///
    /// # Errors
    /// See [`FrameError`]; the stream can not be used further.
    pub async fn next(&mut self, limits: &Limits) -> Result<Option<Frame>, FrameError> {
        if self.buffer.is_empty() && !self.fill_between_messages().await? {
            return Ok(None);
        }
        let message_bytes = self.header(limits).await?.message_bytes;
        let share = self.share(message_bytes).await;
        self.fill_in_time(message_bytes).await?;
        Ok(Some(Frame {
            bytes: self.buffer.split_to(message_bytes).freeze(),
            share,
        }))
    }

    /// Waits until a first byte is there; false if the stream ended.
    ///
    /// # Errors
    /// If the stream fails or the client takes longer than `limit`.
    pub async fn first_byte(&mut self, limit: Duration) -> Result<bool, FrameError> {
        match timeout(limit, self.fill(READ_BYTES_MIN)).await {
            Ok(more) => more,
            Err(_) => Err(FrameError::TooSlow {
                action: "send its first message",
                limit,
            }),
        }
    }

    /// Waits until the other side has closed the stream or it failed; as long as a message is there to be read, for ever.
    ///
    /// Dropping the future between polls loses nothing.
    pub async fn closed(&mut self) {
        if self.buffer.is_empty() && !self.fill(READ_BYTES_MIN).await.unwrap_or(false) {
            return;
        }
        std::future::pending().await
    }

    /// Clients may leave between messages, also without the farewell that TLS asks for.
    async fn fill_between_messages(&mut self) -> Result<bool, FrameError> {
        match self.fill(READ_BYTES_MIN).await {
            Err(FrameError::Io(error)) if is_departure(&error) => Ok(false),
            filled => filled,
        }
    }

    async fn header(&mut self, limits: &Limits) -> Result<Header, FrameError> {
        self.fill_in_time(HEADER_BYTES).await?;
        let head = self
            .buffer
            .first_chunk::<HEADER_BYTES>()
            .expect("the buffer was filled to a header's length");
        Ok(Header::parse(head, limits)?)
    }

    /// Waits for room in the shared memory.
    async fn share(&self, message_bytes: usize) -> Option<OwnedSemaphorePermit> {
        if message_bytes <= FREE_BYTES_MAX {
            return None;
        }
        let kib = u32::try_from(message_bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let share = self.memory.clone().acquire_many_owned(kib).await;
        Some(share.expect("the semaphore is never closed"))
    }

    /// Fills the buffer; the client must send without long pauses, however long the server took before.
    async fn fill_in_time(&mut self, count: usize) -> Result<(), FrameError> {
        let limit = self.message_timeout;
        match timeout(limit, self.fill_to(count)).await {
            Ok(filled) => filled,
            Err(_) => Err(FrameError::TooSlow {
                action: "send a message",
                limit,
            }),
        }
    }

    async fn fill_to(&mut self, count: usize) -> Result<(), FrameError> {
        while self.buffer.len() < count {
            let missing = count - self.buffer.len();
            if !self.fill(missing).await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(())
    }

    /// Reads once; false at the end of the stream. Room grows with what has come, not with what was announced.
    async fn fill(&mut self, wanted: usize) -> Result<bool, FrameError> {
        let room = wanted.min(self.buffer.len()).max(READ_BYTES_MIN);
        self.buffer.reserve(room);
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }
}

fn is_departure(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}

/// Writes one message.
///
/// # Errors
/// If the stream fails, or the client does not take the message within `limit`.
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
            action: "take a reply",
            limit,
        }),
    }
}

#[cfg(test)]
mod tests {
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
        FrameReader::new(
            stream,
            Arc::new(Semaphore::new(1024)),
            Duration::from_millis(20),
        )
    }

    #[tokio::test]
    async fn messages_come_apart_however_they_arrive() {
        let messages = [message(0), message(10), message(300_000), message(1)];
        let stream = messages.concat();
        let mut reader = reader(stream.as_slice());
        for expected in &messages {
            let frame = reader
                .next(&LIMITS)
                .await
                .expect("a message")
                .expect("not the end");
            assert_eq!(frame.bytes, expected);
            assert_eq!(frame.share.is_some(), expected.len() > FREE_BYTES_MAX);
        }
        assert!(reader.next(&LIMITS).await.expect("no fault").is_none());
    }

    #[tokio::test]
    async fn a_cut_message_is_an_error() {
        let bytes = message(100);
        let mut reader = reader(&bytes[..50]);
        assert!(matches!(reader.next(&LIMITS).await, Err(FrameError::Io(_))));
    }

    #[tokio::test]
    async fn a_stalled_message_times_out() {
        let (mut client, server) = tokio::io::duplex(1024);
        let mut reader = reader(server);
        client
            .write_all(&message(100)[..20])
            .await
            .expect("room in the pipe");
        assert!(matches!(
            reader.next(&LIMITS).await,
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
        let announced = message(1 << 20);
        let mut reader = reader(&announced[..HEADER_BYTES]);
        assert!(matches!(
            reader.next(&LIMITS).await,
            Err(FrameError::Header(Error::MessageLength { .. }))
        ));
    }
}
