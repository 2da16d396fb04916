//! A connection without a driver, which can send any bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, bail};
use bson::RawDocumentBuf;
use bytes::Bytes;
use forebay_wire_mongo::{Body, HEADER_BYTES, Header, Limits, Message, OpMsg};

/// A client that can send incomplete messages, and leave replies unread.
pub struct Raw(pub TcpStream);

impl Raw {
    /// Connects to `HOST:PORT`. Every read and write fails after `timeout`.
    pub fn connect(address: &str, timeout: Duration) -> Result<Raw> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Raw(stream))
    }

    /// Sends bytes unchanged.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.0.write_all(bytes)?)
    }

    /// Reads the next reply, which may be slightly larger than the maximum message of a client.
    pub fn receive(&mut self) -> Result<OpMsg> {
        let limits = Limits {
            message_bytes_max: 49_000_000,
            ..Limits::default()
        };
        let mut head = [0; HEADER_BYTES];
        self.0.read_exact(&mut head)?;
        let mut frame = head.to_vec();
        frame.resize(Header::parse(&head, &limits)?.message_bytes, 0);
        self.0.read_exact(&mut frame[HEADER_BYTES..])?;
        match Message::decode(Bytes::from(frame), &limits)?.body {
            Body::Msg(message) => Ok(message),
            other => bail!("no reply to a command: {other:?}"),
        }
    }

    /// Sends a command and returns its reply.
    pub fn ask(&mut self, command: RawDocumentBuf) -> Result<RawDocumentBuf> {
        self.send(&OpMsg::new(command).encode(1, 0))?;
        Ok(self.receive()?.body)
    }
}
