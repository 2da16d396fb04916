//! Messages on a connection.

use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use forebay_memory::Share;
use forebay_net::Stream;
use pgwire::error::PgWireError;
use pgwire::messages::{DecodeContext, Message, PgWireFrontendMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use crate::door::Settings;

/// Maximum bytes of a message before the client has logged in.
const STRANGER_MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Type of the messages of a login.
const PASSWORD_MESSAGE: u8 = b'p';
/// Types of the messages with a statement.
const QUERY_MESSAGE: u8 = b'Q';
const PARSE_MESSAGE: u8 = b'P';
/// Maximum bytes of a message.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Bytes of a message that need no room in the account.
const FREE_BYTES: usize = 16 << 10;
/// Bytes of replies that are collected before they are sent.
const OUT_BYTES: usize = 64 << 10;
/// Maximum bytes that are read ahead while a statement runs.
const AHEAD_BYTES_MAX: usize = 256 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The client broke the protocol.
    #[error("malformed message: {0}")]
    Protocol(String),
    /// The client did not begin a session in time.
    #[error("the session did not begin in time")]
    TooSlow,
    /// The client did not send the rest of a message, or take its replies, in time.
    #[error("the client did not {0} in time")]
    Stalled(&'static str),
    /// There is no memory for a message.
    #[error("no memory for a message of {0} bytes")]
    Memory(usize),
    /// The client may not do this. It was told why.
    #[error("refused: {0}")]
    Refused(String),
}

impl From<PgWireError> for ConnectionError {
    fn from(error: PgWireError) -> ConnectionError {
        ConnectionError::Protocol(error.to_string())
    }
}

/// Returns whether the texts of a statement are UTF-8. The decoder would replace other bytes.
fn has_texts(message: u8, body: &[u8]) -> bool {
    let texts = match message {
        QUERY_MESSAGE => 1,
        PARSE_MESSAGE => 2,
        _ => 0,
    };
    let mut texts = body.split(|byte| *byte == 0).take(texts);
    texts.all(|text| std::str::from_utf8(text).is_ok())
}

/// A connection's messages.
pub(crate) struct Wire {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    input: BytesMut,
    pub(crate) out: BytesMut,
    context: DecodeContext,
    message_bytes_max: usize,
    message_timeout: Duration,
    share: Share,
}

impl Wire {
    pub(crate) fn new(stream: Box<dyn Stream>, settings: &Settings) -> Wire {
        let (reader, writer) = split(stream);
        let mut context = DecodeContext::default();
        context.awaiting_frontend_ssl = false;
        context.awaiting_frontend_startup = false;
        Wire {
            reader,
            writer,
            input: BytesMut::new(),
            out: BytesMut::new(),
            context,
            message_bytes_max: STRANGER_MESSAGE_BYTES_MAX,
            message_timeout: settings.message_timeout,
            share: settings.memory.share(),
        }
    }

    /// Returns the stream, for TLS.
    ///
    /// # Errors
    /// If the client sent something before its handshake, which another machine on the way could have written.
    pub(crate) fn into_stream(self) -> Result<Box<dyn Stream>, ConnectionError> {
        if !self.input.is_empty() {
            let message = "data before the TLS handshake".to_owned();
            return Err(ConnectionError::Protocol(message));
        }
        Ok(self.reader.unsplit(self.writer))
    }

    /// Allows the large messages of logged-in clients.
    pub(crate) fn allow_large_messages(&mut self) {
        self.message_bytes_max = MESSAGE_BYTES_MAX;
    }

    /// Reads the first packet, which has no type: its bytes without its length. Returns `None` if the client left.
    pub(crate) async fn first_packet(&mut self) -> Result<Option<BytesMut>, ConnectionError> {
        if !self.fill(4).await? {
            return Ok(None);
        }
        let bytes = self.length(0)?;
        if !self.fill(bytes).await? {
            return Ok(None);
        }
        let mut packet = self.input.split_to(bytes);
        packet.advance(4);
        Ok(Some(packet))
    }

    /// Reads the next message. Returns `None` if the client left. Can be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<PgWireFrontendMessage>, ConnectionError> {
        self.share.shrink_to(0);
        if !self.fill(1).await? {
            return Ok(None);
        }
        let limit = self.message_timeout;
        let rest = timeout(limit, self.rest());
        rest.await
            .map_err(|_| ConnectionError::Stalled("send a message"))?
    }

    async fn rest(&mut self) -> Result<Option<PgWireFrontendMessage>, ConnectionError> {
        if !self.fill(5).await? {
            return Ok(None);
        }
        let bytes = 1 + self.length(1)?;
        if bytes > FREE_BYTES && self.share.try_grow(2 * bytes).is_err() {
            return Err(ConnectionError::Memory(bytes));
        }
        if !self.fill(bytes).await? {
            return Ok(None);
        }
        if self.message_bytes_max == STRANGER_MESSAGE_BYTES_MAX && self.input[0] != PASSWORD_MESSAGE
        {
            let message = "only a password is expected here".to_owned();
            return Err(ConnectionError::Protocol(message));
        }
        if !has_texts(self.input[0], &self.input[5..bytes]) {
            let message = "the text of a statement is not UTF-8".to_owned();
            return Err(ConnectionError::Protocol(message));
        }
        // The decoder sees this message alone, with a length that was checked.
        let mut message = self.input.split_to(bytes);
        let decoded = PgWireFrontendMessage::decode(&mut message, &self.context)?;
        if decoded.is_none() || !message.is_empty() {
            let message = "the length of a message differs from its content".to_owned();
            return Err(ConnectionError::Protocol(message));
        }
        Ok(decoded)
    }

    /// Returns the length of a message, which is at `offset` and counts itself.
    fn length(&self, offset: usize) -> Result<usize, ConnectionError> {
        let mut bytes = &self.input[offset..offset + 4];
        let length = usize::try_from(bytes.get_i32()).unwrap_or(0);
        if (4..=self.message_bytes_max).contains(&length) {
            return Ok(length);
        }
        let message = format!(
            "a message has {length} bytes, from 4 to {} are allowed",
            self.message_bytes_max
        );
        Err(ConnectionError::Protocol(message))
    }

    /// Reads until there are `bytes`. Returns false if the client left.
    async fn fill(&mut self, bytes: usize) -> Result<bool, ConnectionError> {
        while self.input.len() < bytes {
            if self.reader.read_buf(&mut self.input).await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns when the client leaves. Keeps what it sends meanwhile; a client that sends much waits.
    pub(crate) async fn closed(&mut self) -> ConnectionError {
        loop {
            if self.input.len() >= AHEAD_BYTES_MAX {
                return std::future::pending().await;
            }
            match self.reader.read_buf(&mut self.input).await {
                Ok(0) => return io::Error::from(io::ErrorKind::UnexpectedEof).into(),
                Ok(_) => {}
                Err(error) => return error.into(),
            }
        }
    }

    /// Returns whether no message is waiting to be read.
    pub(crate) fn is_idle(&self) -> bool {
        self.input.is_empty()
    }

    /// Adds a message to the replies.
    pub(crate) fn put(&mut self, message: &impl Message) -> Result<(), ConnectionError> {
        Ok(message.encode(&mut self.out)?)
    }

    /// Sends the replies if they are many.
    pub(crate) async fn flush_if_full(&mut self) -> Result<(), ConnectionError> {
        match self.out.len() >= OUT_BYTES {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Sends the replies.
    pub(crate) async fn flush(&mut self) -> Result<(), ConnectionError> {
        while !self.out.is_empty() {
            let write = self.writer.write_buf(&mut self.out);
            let written = timeout(self.message_timeout, write).await;
            if written.map_err(|_| ConnectionError::Stalled("take its replies"))?? == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
        }
        timeout(self.message_timeout, self.writer.flush())
            .await
            .map_err(|_| ConnectionError::Stalled("take its replies"))??;
        if self.out.capacity() > 4 * OUT_BYTES {
            self.out = BytesMut::new();
        }
        Ok(())
    }
}
