//! A minimal client: one connection, one command at a time, no work beyond the protocol.

use anyhow::{Context, Result, bail};
use bson::{Document, RawDocumentBuf};
use bytes::Bytes;
use forebay_wire_mongo::{Body, HEADER_BYTES, Header, Limits, Message, OpMsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection.
#[derive(Debug)]
pub struct WireClient {
    stream: TcpStream,
    limits: Limits,
    request_id: i32,
}

impl WireClient {
    /// Connects to `address`, as in `127.0.0.1:27017`.
    ///
    /// # Errors
    /// If no server listens at the address.
    pub async fn connect(address: &str) -> Result<WireClient> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(WireClient {
            stream,
            limits: Limits::default(),
            request_id: 0,
        })
    }

    /// Sends a command, which must name its database in `$db`, and waits for the reply.
    ///
    /// # Errors
    /// If the connection ends, or the reply is malformed or not `ok`.
    pub async fn run(&mut self, command: &Document) -> Result<RawDocumentBuf> {
        self.request_id = self.request_id.wrapping_add(1);
        let message = OpMsg::new(RawDocumentBuf::try_from(command)?).encode(self.request_id, 0);
        self.stream.write_all(&message).await?;
        let body = match self.read().await?.body {
            Body::Msg(reply) => reply.body,
            other => bail!("the reply is not an OP_MSG: {other:?}"),
        };
        if body.get_f64("ok").unwrap_or(0.0) != 1.0 {
            bail!("{command} was refused: {body:?}");
        }
        Ok(body)
    }

    /// Runs a `find` and counts the documents of its first batch.
    ///
    /// # Errors
    /// As for [`WireClient::run`].
    pub async fn find_count(&mut self, command: &Document) -> Result<usize> {
        let reply = self.run(command).await?;
        Ok(reply
            .get_document("cursor")?
            .get_array("firstBatch")?
            .into_iter()
            .count())
    }

    async fn read(&mut self) -> Result<Message> {
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head).await?;
        let header = Header::parse(&head, &self.limits)?;
        let length = header.message_bytes;
        let mut frame = head.to_vec();
        frame.resize(length, 0);
        self.stream.read_exact(&mut frame[HEADER_BYTES..]).await?;
        Ok(Message::decode(Bytes::from(frame), &self.limits)?)
    }
}
