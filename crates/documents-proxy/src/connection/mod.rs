//! A client's connection and its own connection to the upstream. Upstream connections are not shared between clients,
//! so that authentication, sessions, cursors and transactions work as without the proxy. Messages pass unchanged in
//! both directions, except for the handshake and for compression, which each side negotiates separately.

mod cached;
mod catch_up;
mod commands;
mod compare;
mod cursors;
mod fetch;
mod handshake;
mod indexes;
mod operations;
mod patience;
mod proof;
mod reads;
mod reasons;
mod rename;
mod stale;
mod writes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bson::{RawDocument, RawDocumentBuf};
use bytes::Bytes;
use forebay_documents::{ClientContext, Namespace};
use forebay_memory::{Account, Full, Share};
use forebay_net::Stream;
use forebay_net::frames::{self, FREE_BYTES_MAX, Frame, FrameError, FrameReader, Refused};
use forebay_net::{compressed, inflated, random_bytes};
use forebay_wire_mongo::{
    Body, Compressor, Flags, HEADER_BYTES, Header, Limits, Message, OpCode, OpMsg, OpQuery,
    OpReply, Peek, ReplyFlags, flags, hello, is_compressible, limits,
};
use tokio::io::{ReadHalf, WriteHalf, split};
use tokio::sync::watch;

use patience::{Asked, Departure};

use crate::replicas::Replicas;
use crate::{Proxy, memory_refusal};

/// Maximum bytes of a reply: the bytes of the largest batch, and of the reply document around the batch.
const REPLY_BYTES_MAX: usize = limits::MESSAGE_BYTES_MAX + 64 * 1024;

/// Nesting levels around a document in a reply: the reply, `cursor` and the batch.
const REPLY_LEVELS: usize = 3;

const REPLY_LIMITS: Limits = Limits {
    message_bytes_max: REPLY_BYTES_MAX,
    document_bytes_max: limits::WIRE_DOCUMENT_BYTES_MAX,
    depth_max: limits::DEPTH_MAX + REPLY_LEVELS,
};

/// Byte offset of the request id in a message's header.
const REQUEST_ID: usize = 4;
/// Byte offset of `responseTo`, the id of the message that a reply answers.
const RESPONSE_TO: usize = 8;
/// Byte offset of the opcode.
const OP_CODE: usize = 12;

type Reader = FrameReader<ReadHalf<Box<dyn Stream>>>;
type Writer = WriteHalf<Box<dyn Stream>>;

/// A client's connection and its connection to the upstream.
pub struct Connection {
    proxy: Arc<Proxy>,
    reader: Reader,
    writer: Writer,
    upstream_reader: Reader,
    upstream_writer: Writer,
    replicas: Arc<Replicas>,
    /// Identifies the client to commands on replicas, which check whether the client is still connected.
    client: ClientContext,
    /// For each collection, the last time at which the upstream let the client read it.
    proven: HashMap<Namespace, Instant>,
    /// Share of memory for the upstream's reply, held until the reply is passed on.
    reply_share: Option<Share>,
    /// Whether the client has authenticated, or has begun to.
    may_be_authenticated: bool,
    /// Whether the client is cut off from the upstream, so that only caches answer it.
    is_cut_off: bool,
    /// Whether the command in progress is a read, and caches may answer it if the upstream goes away.
    may_be_cut_off: bool,
    /// The command in progress.
    asked: Asked,
}

/// A request in the form sent to the upstream.
#[derive(Clone)]
struct Request {
    bytes: Bytes,
    /// Compressor that the client used and expects for the reply.
    compressor: Option<Compressor>,
}

impl Request {
    fn id(&self) -> i32 {
        header_number(&self.bytes, REQUEST_ID)
    }
}

/// What a connection does after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

impl Connection {
    /// Creates a connection that passes messages between the client at `stream` and the upstream.
    pub fn new(
        proxy: Arc<Proxy>,
        client: ClientContext,
        stream: Box<dyn Stream>,
        upstream: Box<dyn Stream>,
    ) -> Connection {
        let (reader, writer) = split(stream);
        let (upstream_reader, upstream_writer) = upstream_sides(upstream, &proxy);
        Connection {
            reader: FrameReader::new(reader, proxy.timeouts.message),
            writer,
            upstream_reader,
            upstream_writer,
            replicas: proxy.replicas.clone(),
            proxy,
            client,
            proven: HashMap::new(),
            reply_share: None,
            may_be_authenticated: false,
            is_cut_off: false,
            may_be_cut_off: false,
            asked: Asked::default(),
        }
    }

    fn set_upstream(&mut self, upstream: Box<dyn Stream>) {
        (self.upstream_reader, self.upstream_writer) = upstream_sides(upstream, &self.proxy);
    }

    /// Serves the client until the client or the upstream disconnects or breaks the protocol, or the server shuts down.
    ///
    /// # Errors
    /// The reason why the connection was closed. It is only for the log, because the client is gone.
    pub async fn serve(mut self, mut shutdown: watch::Receiver<bool>) -> Result<(), FrameError> {
        let handshake = self.proxy.timeouts.handshake;
        let begun = tokio::select! {
            begun = self.reader.first_byte(handshake) => begun?,
            () = stopped(&mut shutdown) => false,
        };
        let limits = Limits::default();
        let mut next = if begun { Next::Request } else { Next::Close };
        while next == Next::Request {
            let memory = self.memory().clone();
            let frame = tokio::select! {
                frame = self.reader.next(&limits, &memory) => frame,
                () = self.upstream_reader.closed(), if !self.is_cut_off => {
                    self.replicas.check_after_close();
                    if self.cut_off_if_away().await {
                        continue;
                    }
                    Ok(None)
                }
                () = stopped(&mut shutdown) => Ok(None),
            };
            next = match frame {
                Ok(Some(frame)) => self.request(frame).await?,
                Ok(None) => Next::Close,
                Err(FrameError::Full(refused)) => self.refuse(refused).await?,
                Err(error) => return Err(error),
            };
            self.reply_share = None;
        }
        Ok(())
    }

    /// Returns the account from which the client's messages take memory. If the upstream requires authentication,
    /// unauthenticated clients share a smaller account.
    fn memory(&self) -> &Account {
        if self.proxy.upstream.has_credential() && !self.may_be_authenticated {
            &self.proxy.strangers
        } else {
            &self.proxy.memory
        }
    }

    /// Answers a message with an error because the message or its reply does not fit in memory.
    async fn refuse(&mut self, refused: Refused) -> Result<Next, FrameError> {
        if !refused.is_silent {
            let reply = refusal(&refused.full, self.proxy.request_id(), refused.request_id);
            self.answer(reply, None).await?;
        }
        Ok(Next::Request)
    }

    async fn request(&mut self, frame: Frame) -> Result<Next, FrameError> {
        let request_id = frame.request_id();
        let is_silent = flags(&frame.bytes).has(Flags::MORE_TO_COME);
        match self.request_with_room(frame).await {
            // If the client's message or the upstream's reply does not fit in memory, the proxy answers with an error.
            Err(FrameError::Full(Refused { full, .. })) => {
                let refused = Refused {
                    full,
                    request_id,
                    is_silent,
                };
                self.refuse(refused).await
            }
            Err(FrameError::Expired) => self.dismiss().await,
            answered => answered,
        }
    }

    async fn request_with_room(&mut self, frame: Frame) -> Result<Next, FrameError> {
        frame.make_room(0).await?;
        let Frame {
            bytes,
            share: _share,
        } = frame;
        let (bytes, compressor) = inflated(bytes)?;
        let request = Request { bytes, compressor };
        if self.is_cut_off && !self.replicas.is_away() && !self.reconnect().await {
            return Ok(Next::Close);
        }
        match op_code(&request.bytes)? {
            OpCode::Msg => self.command(request).await,
            OpCode::Query => self.query(request).await,
            op_code => Err(unknown(op_code.code())),
        }
    }

    async fn command(&mut self, mut request: Request) -> Result<Next, FrameError> {
        let Some(peek) = Peek::new(&request.bytes) else {
            // The upstream replies with an error to the malformed message, or closes the connection.
            return self.exchange(request, Flags::default()).await;
        };
        let name = peek.command();
        if !is_compressible(name) {
            request.compressor = None;
        }
        let flags = peek.flags;
        self.asked = if flags.has(Flags::MORE_TO_COME) {
            Asked::default()
        } else {
            self.read_limit(request.id(), name, peek.body)
        };
        let is_hello = hello::is_hello(name);
        if is_hello && flags.has(Flags::MORE_TO_COME) {
            return self.exchange(request, flags).await;
        }
        if is_hello {
            return self.hello(request).await;
        }
        if self.is_cut_off {
            return self.answer_stale(request).await;
        }
        if self.replicas.serve_stale && (reads::is_read(name) || name == "getMore") {
            return self.read_or_cut_off(request).await;
        }
        let replicas = self.replicas.clone();
        self.serve_command(&replicas, request).await
    }

    fn read_limit(&self, request_id: i32, name: &str, body: &RawDocument) -> Asked {
        Asked::new(
            request_id,
            name,
            body,
            self.proxy.upstream.connect_timeout(),
        )
    }

    /// Sends a request to the upstream, and the upstream's replies to the client.
    async fn exchange(&mut self, request: Request, flags: Flags) -> Result<Next, FrameError> {
        self.send(&request.bytes).await?;
        let mut asked = request.id();
        drop(request.bytes);
        let mut more = !flags.has(Flags::MORE_TO_COME);
        while more {
            let Some(reply) = self.receive(asked).await? else {
                return Ok(Next::Close);
            };
            // Of several replies to one request, each has the previous reply's id as its `responseTo`.
            asked = header_number(&reply, REQUEST_ID);
            let peeked = Peek::new(&reply);
            more = peeked.is_some_and(|reply| reply.flags.has(Flags::MORE_TO_COME));
            if peeked.is_some_and(|reply| proof::is_revocation(reply.body)) {
                self.proven.clear();
            }
            self.answer(reply, request.compressor).await?;
        }
        Ok(Next::Request)
    }

    /// Passes on a hello and its reply, without the fields that concern only the client's or only the upstream's
    /// connection.
    async fn hello(&mut self, request: Request) -> Result<Next, FrameError> {
        let Message { header, body, .. } =
            Message::decode(request.bytes.clone(), &Limits::default())?;
        let Body::Msg(message) = body else {
            return Err(unknown(header.op_code));
        };
        self.remember_client(&message.body);
        if self.is_cut_off {
            return self.hello_stale(&message.body, &request).await;
        }
        self.may_be_authenticated |= handshake::authenticates(&message.body);
        let asked = OpMsg {
            flags: Flags(message.flags.0 & !Flags::EXHAUST_ALLOWED.0),
            body: handshake::request(&message.body),
            ..message.clone()
        };
        let asked = asked.encode(header.request_id, 0);
        let Some(reply) = self.ask_hello(&asked, header.request_id).await? else {
            return if self.is_cut_off {
                self.hello_stale(&message.body, &request).await
            } else {
                Ok(Next::Close)
            };
        };
        let Message {
            header,
            body: Body::Msg(reply),
            ..
        } = Message::decode(reply, &Limits::default())?
        else {
            return Err(unknown(header.op_code));
        };
        self.remember_hello(&reply.body);
        let reply = OpMsg::new(self.handshake_reply(&reply.body, &message.body));
        let reply = reply.encode(header.request_id, header.response_to);
        self.answer(reply.into(), None).await?;
        Ok(Next::Request)
    }

    /// Returns the reply to a hello. With `--upstream-serve-stale`, omits `topologyVersion`, so that drivers poll. A
    /// driver that receives hello replies as a stream would drop all its connections as soon as the upstream goes away.
    /// The proxy would then forget what the client may read, because it remembers that for each connection.
    fn handshake_reply(&self, received: &RawDocument, asked: &RawDocument) -> RawDocumentBuf {
        let reply = handshake::reply(received, asked);
        if self.replicas.serve_stale {
            reads::without(&reply, &["topologyVersion"])
        } else {
            reply
        }
    }

    fn remember_client(&mut self, asked: &RawDocument) {
        if self.client.app_name.is_none()
            && let Ok(metadata) = asked.get_document("client")
        {
            self.client.app_name = hello::app_name(metadata).map(str::to_owned);
        }
    }

    /// Passes on the handshake of an older driver. Refuses every other command in an `OP_QUERY`.
    async fn query(&mut self, request: Request) -> Result<Next, FrameError> {
        self.asked = Asked::default();
        let Message { header, body, .. } =
            Message::decode(request.bytes.clone(), &Limits::default())?;
        let Body::Query(query) = body else {
            return Err(unknown(header.op_code));
        };
        let command = query.query.get_document("$query").unwrap_or(&query.query);
        let name = command.iter_elements().next().and_then(Result::ok);
        let name = name.map_or("", |element| element.key().as_str());
        if query.command_database().is_some() && hello::is_hello(name) {
            self.asked = self.read_limit(header.request_id, name, command);
            return self.query_hello(&query, header, &command.to_owned()).await;
        }
        let authenticates = matches!(name, "saslStart" | "saslContinue");
        if query.command_database().is_some() && authenticates && !self.is_cut_off {
            self.proven.clear();
            self.may_be_authenticated = true;
            return self.exchange(request, Flags::default()).await;
        }
        let refusal = hello::unsupported_query(name);
        self.answer_query(refusal, self.proxy.request_id(), header.request_id)
            .await
    }

    async fn query_hello(
        &mut self,
        query: &OpQuery,
        header: Header,
        command: &RawDocumentBuf,
    ) -> Result<Next, FrameError> {
        self.remember_client(command);
        if self.is_cut_off {
            return self.query_hello_stale(header, command).await;
        }
        self.may_be_authenticated |= handshake::authenticates(command);
        let asked = OpQuery {
            query: handshake::request(command),
            ..query.clone()
        };
        let asked = asked.encode(header.request_id);
        let Some(reply) = self.ask_hello(&asked, header.request_id).await? else {
            return if self.is_cut_off {
                self.query_hello_stale(header, command).await
            } else {
                Ok(Next::Close)
            };
        };
        let Message {
            header,
            body: Body::Reply(reply),
            ..
        } = Message::decode(reply, &Limits::default())?
        else {
            return Err(unknown(header.op_code));
        };
        self.remember_hello(&reply.document);
        let document = self.handshake_reply(&reply.document, command);
        self.answer_query(document, header.request_id, header.response_to)
            .await
    }

    async fn query_hello_stale(
        &mut self,
        header: Header,
        command: &RawDocument,
    ) -> Result<Next, FrameError> {
        let (number, asked) = (self.proxy.request_id(), header.request_id);
        match self.stale_hello(command) {
            Some(document) => self.answer_query(document, number, asked).await,
            None => {
                self.answer_query(self.away(), number, asked).await?;
                Ok(Next::Close)
            }
        }
    }

    /// Sends a hello to the upstream and returns the reply, which the upstream may delay until its topology changes.
    /// Returns `None` if the upstream or the client closed its connection, or the server shuts down. If the upstream is
    /// away, marks the client as cut off, so that caches answer its reads.
    async fn ask_hello(
        &mut self,
        hello: &[u8],
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        let documents = self.proxy.documents.clone();
        self.may_be_cut_off = self.replicas.serve_stale;
        let reply = tokio::select! {
            reply = self.send_and_receive(hello, request_id) => reply,
            () = documents.stopping() => return Ok(None),
        };
        self.may_be_cut_off = false;
        match reply {
            Ok(Some(reply)) => Ok(Some(reply)),
            Err(FrameError::Expired) => {
                self.is_cut_off = true;
                Ok(None)
            }
            // The client keeps its connection. A driver that loses one during a hello drops all its others too.
            _ if self.cut_off_if_away().await => Ok(None),
            ended => ended,
        }
    }

    async fn answer_query(
        &mut self,
        document: RawDocumentBuf,
        request_id: i32,
        response_to: i32,
    ) -> Result<Next, FrameError> {
        let flags = ReplyFlags::AWAIT_CAPABLE;
        let reply = OpReply { flags, document }.encode(request_id, response_to);
        self.answer(reply.into(), None).await?;
        Ok(Next::Request)
    }

    /// Sends a message and returns the reply; `None` if the upstream or the client has closed its connection.
    async fn send_and_receive(
        &mut self,
        message: &[u8],
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        self.send(message).await?;
        self.receive(request_id).await
    }

    /// Receives the upstream's reply to the message with this id; `None` if the upstream or the client closed its
    /// connection.
    async fn receive(&mut self, request_id: i32) -> Result<Option<Bytes>, FrameError> {
        let memory = self.memory().clone();
        self.receive_until(request_id, &memory, Departure::EndsWait)
            .await
    }

    /// Returns the answer, and a share of memory that the caller holds until the answer is sent. If the answer does not
    /// fit in memory, returns an error reply instead. Takes no share for an upstream's reply, which already has one.
    fn with_room(&self, answer: Bytes) -> (Bytes, Option<Share>) {
        if self.reply_share.is_some() || answer.len() <= FREE_BYTES_MAX {
            return (answer, None);
        }
        let share = self.memory().share();
        match share.try_grow(answer.len()) {
            Ok(()) => (answer, Some(share)),
            Err(full) => {
                let number = |place| header_number(&answer, place);
                (
                    refusal(&full, number(REQUEST_ID), number(RESPONSE_TO)),
                    None,
                )
            }
        }
    }

    async fn answer(
        &mut self,
        message: Bytes,
        compressor: Option<Compressor>,
    ) -> Result<(), FrameError> {
        let limit = self.proxy.timeouts.message;
        let (message, _held) = self.with_room(message);
        match compressor {
            None => frames::write(&mut self.writer, &message, limit).await,
            some => {
                let message = compressed(message.into(), some);
                frames::write(&mut self.writer, &message, limit).await
            }
        }
    }
}

/// Returns the error reply for a message that does not fit in memory.
fn refusal(full: &Full, request_id: i32, response_to: i32) -> Bytes {
    let refusal = OpMsg::new(memory_refusal(full));
    refusal.encode(request_id, response_to).into()
}

fn upstream_sides(upstream: Box<dyn Stream>, proxy: &Proxy) -> (Reader, Writer) {
    let (reader, writer) = split(upstream);
    let reader = FrameReader::new(reader, proxy.timeouts.message);
    (reader, writer)
}

/// Waits until the server is told to shut down.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|down| *down).await;
}

/// Returns whether this is the reply to the message with this id.
fn answers(frame: &Frame, request_id: i32) -> bool {
    header_number(&frame.bytes, RESPONSE_TO) == request_id
}

/// Returns an unpredictable request id for the proxy's own messages. With a predictable id, a client could make the
/// upstream send a reply that the proxy takes for its own.
fn secret_number() -> i32 {
    let mut bytes = [0; 4];
    random_bytes(&mut bytes);
    i32::from_le_bytes(bytes)
}

fn op_code(message: &[u8]) -> Result<OpCode, FrameError> {
    Ok(OpCode::from_code(header_number(message, OP_CODE))?)
}

/// Returns the number at byte offset `place` of a message's header.
fn header_number(message: &[u8], place: usize) -> i32 {
    let number = message[place..HEADER_BYTES].first_chunk::<4>();
    number.map_or(0, |number| i32::from_le_bytes(*number))
}

fn unknown(code: i32) -> FrameError {
    forebay_wire_mongo::Error::UnknownOpCode { code }.into()
}
