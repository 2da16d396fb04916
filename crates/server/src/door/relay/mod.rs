//! A connection that is passed on: every client has a connection of its own to the store, so that authentication,
//! sessions, cursors and transactions keep their meaning. Bytes go through unchanged in both directions, but for the
//! handshake and for compression, which each side agrees for itself.

mod cached;
mod catch_up;
mod commands;
mod compare;
mod cursors;
mod fetch;
mod handshake;
mod indexes;
mod operations;
mod proof;
mod reads;
mod reasons;
mod stale;
mod writes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bson::{RawDocument, RawDocumentBuf};
use bytes::Bytes;
use forebay_documents::Namespace;
use forebay_memory::{Account, Full, Share};
use forebay_wire_mongo::{
    Body, Compressor, Flags, HEADER_BYTES, Header, Limits, Message, OpCode, OpMsg, OpQuery,
    OpReply, Peek, ReplyFlags, flags, inflated_bytes, is_compressible, limits, uncompressed,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split};
use tokio::sync::watch;
use tokio::task::block_in_place;

use super::connection::{LARGE_MESSAGE_BYTES_MIN, compressed};
use super::frames::{self, FREE_BYTES_MAX, Frame, FrameError, FrameReader, Refused};
use super::listener::stopped;
use super::session::Session;
use super::{Behind, Door, Refusal, hello};
use crate::auth::scram::random_bytes;
use crate::shadow::Shadow;
use crate::upstream::Stream;

/// A reply may be as long as the longest batch and what stands around it, in bytes.
const REPLY_BYTES_MAX: usize = limits::MESSAGE_BYTES_MAX + 64 * 1024;

/// Levels around a document in a reply: the reply, `cursor` and the batch.
const REPLY_LEVELS: usize = 3;

const REPLY_LIMITS: Limits = Limits {
    message_bytes_max: REPLY_BYTES_MAX,
    document_bytes_max: limits::WIRE_DOCUMENT_BYTES_MAX,
    depth_max: limits::DEPTH_MAX + REPLY_LEVELS,
};

/// Where the header has the message's number.
const REQUEST_ID: usize = 4;
/// Where it has the number of the message that this one answers.
const RESPONSE_TO: usize = 8;
/// Where it says what kind of message it is.
const OP_CODE: usize = 12;

type StoreReader = FrameReader<ReadHalf<Box<dyn Stream>>>;
type StoreWriter = WriteHalf<Box<dyn Stream>>;

/// A client's connection and its connection to the store.
pub struct Relay<S> {
    door: Arc<Door>,
    client: FrameReader<ReadHalf<S>>,
    client_writer: WriteHalf<S>,
    store: StoreReader,
    store_writer: StoreWriter,
    shadow: Arc<Shadow>,
    /// The client, as shadows see it: they check whether it is still connected.
    session: Session,
    /// The collections that the client may read, and when the store said so.
    proven: HashMap<Namespace, Instant>,
    /// What the store's reply holds until it is passed on.
    reply_share: Option<Share>,
    /// Has the client authenticated, or begun to?
    is_somebody: bool,
    /// Is the store away, and does the client get what caches answer alone?
    is_stale: bool,
    /// Is a read under way that caches may answer if the store goes away?
    may_turn_stale: bool,
}

/// A request as it goes to the store.
#[derive(Clone)]
struct Request {
    bytes: Bytes,
    /// How the client compressed it, and wants the reply.
    compressor: Option<Compressor>,
}

impl Request {
    fn id(&self) -> i32 {
        header_number(&self.bytes, REQUEST_ID)
    }
}

/// Whether the connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Relay<S> {
    /// Passes on between `client` and `store`.
    pub fn new(
        door: Arc<Door>,
        shadow: Arc<Shadow>,
        session: Session,
        client: S,
        store: Box<dyn Stream>,
    ) -> Relay<S> {
        let (client, client_writer) = split(client);
        let (store, store_writer) = store_sides(store, &door);
        Relay {
            client: FrameReader::new(client, door.timeouts.message),
            store,
            door,
            client_writer,
            store_writer,
            shadow,
            session,
            proven: HashMap::new(),
            reply_share: None,
            is_somebody: false,
            is_stale: false,
            may_turn_stale: false,
        }
    }

    fn set_store(&mut self, store: Box<dyn Stream>) {
        (self.store, self.store_writer) = store_sides(store, &self.door);
    }

    /// Serves the client until it or the store leaves, one breaks the protocol or the server shuts down.
    ///
    /// # Errors
    /// Why the connection had to be closed; for the log, as the client is gone.
    pub async fn serve(mut self, mut shutdown: watch::Receiver<bool>) -> Result<(), FrameError> {
        let handshake = self.door.timeouts.handshake;
        let begun = tokio::select! {
            begun = self.client.first_byte(handshake) => begun?,
            () = stopped(&mut shutdown) => false,
        };
        let limits = Limits::default();
        let mut next = if begun { Next::Request } else { Next::Close };
        while next == Next::Request {
            let memory = self.memory().clone();
            let frame = tokio::select! {
                frame = self.client.next(&limits, &memory) => frame,
                () = self.store.closed(), if !self.is_stale => {
                    self.shadow.left();
                    match self.turns_stale().await {
                        true => continue,
                        false => Ok(None),
                    }
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

    /// The account that the client's messages take from. Where the store needs no authentication, no client counts as a
    /// stranger.
    fn memory(&self) -> &Account {
        let asks = |behind: &Behind| behind.upstream.has_credential();
        match self.door.behind.as_ref().is_some_and(asks) && !self.is_somebody {
            true => &self.door.strangers,
            false => &self.door.memory,
        }
    }

    /// Answers a message that there was no room for, or to which there was none for the reply.
    async fn refuse(&mut self, refused: Refused) -> Result<Next, FrameError> {
        if !refused.is_silent {
            let reply = refusal(&refused.full, self.door.request_id(), refused.request_id);
            self.answer(reply, None).await?;
        }
        Ok(Next::Request)
    }

    async fn request(&mut self, frame: Frame) -> Result<Next, FrameError> {
        let request_id = frame.request_id();
        let is_silent = flags(&frame.bytes).has(Flags::MORE_TO_COME);
        match self.request_with_room(frame).await {
            // Also of the store's reply, which answers the client's message.
            Err(FrameError::Full(Refused { full, .. })) => {
                let refused = Refused {
                    full,
                    request_id,
                    is_silent,
                };
                self.refuse(refused).await
            }
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
        if self.is_stale && !self.shadow.is_away() && !self.returns().await {
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
            // The store says what is wrong with it, or closes the connection.
            return self.exchange(request, Flags::default()).await;
        };
        let name = peek.command();
        if !is_compressible(name) {
            request.compressor = None;
        }
        let flags = peek.flags;
        match hello::is_hello(name) {
            true if flags.has(Flags::MORE_TO_COME) => self.exchange(request, flags).await,
            true => self.hello(request).await,
            false if self.is_stale => self.answer_stale(request).await,
            false if self.shadow.serve_stale && (reads::is_read(name) || name == "getMore") => {
                self.read_in_spite(request).await
            }
            false => {
                let shadow = self.shadow.clone();
                self.shadowed(&shadow, request).await
            }
        }
    }

    /// Sends a request to the store and its replies to the client.
    async fn exchange(&mut self, request: Request, flags: Flags) -> Result<Next, FrameError> {
        self.send(&request.bytes).await?;
        let mut asked = request.id();
        drop(request.bytes);
        let mut more = !flags.has(Flags::MORE_TO_COME);
        while more {
            let Some(reply) = self.receive(asked).await? else {
                return Ok(Next::Close);
            };
            // Where more replies come, each answers the one before.
            asked = header_number(&reply, REQUEST_ID);
            let told = Peek::new(&reply);
            more = told.is_some_and(|told| told.flags.has(Flags::MORE_TO_COME));
            if told.is_some_and(|told| proof::is_taken_back(told.body)) {
                self.proven.clear();
            }
            self.answer(reply, request.compressor).await?;
        }
        Ok(Next::Request)
    }

    /// Passes a hello on, without what concerns the two connections alone.
    async fn hello(&mut self, request: Request) -> Result<Next, FrameError> {
        let Message { header, body, .. } =
            Message::decode(request.bytes.clone(), &Limits::default())?;
        let Body::Msg(message) = body else {
            return Err(unknown(header.op_code));
        };
        self.remember_client(&message.body);
        if self.is_stale {
            return self.hello_stale(&message.body, &request).await;
        }
        self.is_somebody |= handshake::authenticates(&message.body);
        let asked = OpMsg {
            flags: Flags(message.flags.0 & !Flags::EXHAUST_ALLOWED.0),
            body: handshake::request(&message.body),
            ..message.clone()
        };
        let asked = asked.encode(header.request_id, 0);
        let Some(reply) = self.ask_hello(&asked, header.request_id).await? else {
            return match self.is_stale {
                true => self.hello_stale(&message.body, &request).await,
                false => Ok(Next::Close),
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

    /// The reply to a hello. Where caches answer without the store, drivers poll: one that leaves a hello with the
    /// store drops all its connections as soon as the store goes, and with them the proof of what the client may read.
    fn handshake_reply(&self, told: &RawDocument, asked: &RawDocument) -> RawDocumentBuf {
        let reply = handshake::reply(told, asked);
        match self.shadow.serve_stale {
            true => reads::without(&reply, &["topologyVersion"]),
            false => reply,
        }
    }

    fn remember_client(&mut self, hello: &RawDocument) {
        if let Ok(metadata) = hello.get_document("client") {
            self.session.remember(metadata);
        }
    }

    /// Passes on the handshake of an older driver: no other command comes this way.
    async fn query(&mut self, request: Request) -> Result<Next, FrameError> {
        let Message { header, body, .. } =
            Message::decode(request.bytes.clone(), &Limits::default())?;
        let Body::Query(query) = body else {
            return Err(unknown(header.op_code));
        };
        let command = query.query.get_document("$query").unwrap_or(&query.query);
        let name = command.iter_elements().next().and_then(Result::ok);
        let name = name.map_or("", |element| element.key().as_str());
        if query.command_database().is_some() && hello::is_hello(name) {
            return self.query_hello(&query, header, &command.to_owned()).await;
        }
        let authenticates = matches!(name, "saslStart" | "saslContinue");
        if query.command_database().is_some() && authenticates && !self.is_stale {
            self.proven.clear();
            self.is_somebody = true;
            return self.exchange(request, Flags::default()).await;
        }
        let refusal = hello::unsupported_query(name);
        self.answer_query(refusal, self.door.request_id(), header.request_id)
            .await
    }

    async fn query_hello(
        &mut self,
        query: &OpQuery,
        header: Header,
        command: &RawDocumentBuf,
    ) -> Result<Next, FrameError> {
        self.remember_client(command);
        if self.is_stale {
            return self.query_hello_stale(header, command).await;
        }
        self.is_somebody |= handshake::authenticates(command);
        let asked = OpQuery {
            query: handshake::request(command),
            ..query.clone()
        };
        let asked = asked.encode(header.request_id);
        let Some(reply) = self.ask_hello(&asked, header.request_id).await? else {
            return match self.is_stale {
                true => self.query_hello_stale(header, command).await,
                false => Ok(Next::Close),
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
        let (number, asked) = (self.door.request_id(), header.request_id);
        match self.stale_hello(command) {
            Some(document) => self.answer_query(document, number, asked).await,
            None => {
                self.answer_query(self.away(), number, asked).await?;
                Ok(Next::Close)
            }
        }
    }

    /// Sends a hello to the store and gives the reply, which the store may hold back until something changes. Returns
    /// `None` if the store or the client has gone, or the server stops; the client is served without the store then,
    /// if caches may.
    async fn ask_hello(
        &mut self,
        hello: &[u8],
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        self.send(hello).await?;
        let documents = self.door.documents.clone();
        self.may_turn_stale = self.shadow.serve_stale;
        let reply = tokio::select! {
            reply = self.receive(request_id) => reply,
            () = documents.stopping() => Ok(None),
        };
        self.may_turn_stale = false;
        if matches!(reply, Ok(None)) && self.shadow.is_away() {
            self.turns_stale().await;
        }
        reply
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

    /// The store's reply to the message of this number; none if the store or the client has gone.
    ///
    /// Replies that no command waits for are dropped: FerretDB 1 sends one to a write that asks for none.
    async fn receive(&mut self, request_id: i32) -> Result<Option<Bytes>, FrameError> {
        let memory = self.memory().clone();
        loop {
            let frame = tokio::select! {
                frame = self.store.next(&REPLY_LIMITS, &memory) => self.noticed(frame)?,
                () = self.client.closed() => None,
                // It may hang, with the connection open.
                () = self.shadow.goes_away(), if self.may_turn_stale => None,
            };
            match frame {
                Some(frame) if !answers(&frame, request_id) => {}
                frame => return Ok(frame.map(|frame| self.keep(frame))),
            }
        }
    }

    /// The bytes of a reply, whose share is held until it is passed on.
    fn keep(&mut self, reply: Frame) -> Bytes {
        self.reply_share = Some(reply.share);
        reply.bytes
    }

    /// As [`receive`](Relay::receive), also when the client has gone.
    async fn receive_to_end(&mut self, request_id: i32) -> Result<Option<Bytes>, FrameError> {
        // The shadow has to follow what was written, however little memory there is.
        let memory = Account::default();
        loop {
            let frame = self.store.next(&REPLY_LIMITS, &memory).await;
            match self.noticed(frame)? {
                Some(frame) if !answers(&frame, request_id) => {}
                frame => return Ok(frame.map(|frame| self.keep(frame))),
            }
        }
    }

    /// What the store sent; the shadows are told if it is gone.
    fn noticed(
        &self,
        frame: Result<Option<Frame>, FrameError>,
    ) -> Result<Option<Frame>, FrameError> {
        if !matches!(frame, Ok(Some(_))) {
            self.shadow.left();
        }
        frame
    }

    async fn send(&mut self, message: &[u8]) -> Result<(), FrameError> {
        frames::write(&mut self.store_writer, message, self.door.timeouts.message).await
    }

    /// The answer and what it holds of the account until it is sent, or that there is no room for it. What the store
    /// said has its share already.
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
        let limit = self.door.timeouts.message;
        let (message, _held) = self.with_room(message);
        match compressor {
            None => frames::write(&mut self.client_writer, &message, limit).await,
            some => {
                let message = compressed(message.into(), some);
                frames::write(&mut self.client_writer, &message, limit).await
            }
        }
    }
}

/// A message of ours in place of one that there is no room for.
fn refusal(full: &Full, request_id: i32, response_to: i32) -> Bytes {
    let refusal = OpMsg::new(Refusal::of_memory(full).to_reply());
    refusal.encode(request_id, response_to).into()
}

fn store_sides(store: Box<dyn Stream>, door: &Door) -> (StoreReader, StoreWriter) {
    let (reader, writer) = split(store);
    let reader = FrameReader::new(reader, door.timeouts.message);
    (reader, writer)
}

/// The message as it goes to the store; a large one is inflated where blocking is allowed.
fn inflated(message: Bytes) -> Result<(Bytes, Option<Compressor>), FrameError> {
    let limits = Limits::default();
    let inflated =
        match inflated_bytes(&message).is_some_and(|bytes| bytes >= LARGE_MESSAGE_BYTES_MIN) {
            true => block_in_place(|| uncompressed(message, &limits)),
            false => uncompressed(message, &limits),
        };
    Ok(inflated?)
}

/// Is this the reply to the message of this number?
fn answers(frame: &Frame, request_id: i32) -> bool {
    header_number(&frame.bytes, RESPONSE_TO) == request_id
}

/// A number for a message of our own that the client cannot guess: else it could have the store send another reply that
/// looks like ours.
fn secret_number() -> i32 {
    let mut bytes = [0; 4];
    random_bytes(&mut bytes);
    i32::from_le_bytes(bytes)
}

fn op_code(message: &[u8]) -> Result<OpCode, FrameError> {
    Ok(OpCode::from_code(header_number(message, OP_CODE))?)
}

/// The number at `place` in a message's header.
fn header_number(message: &[u8], place: usize) -> i32 {
    let number = message[place..HEADER_BYTES].first_chunk::<4>();
    number.map_or(0, |number| i32::from_le_bytes(*number))
}

fn unknown(code: i32) -> FrameError {
    forebay_wire_mongo::Error::UnknownOpCode { code }.into()
}
