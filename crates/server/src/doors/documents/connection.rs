//! A client's connection: reads requests and sends replies, in order.

use std::sync::Arc;
use std::time::Duration;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use bytes::Bytes;
use forebay_documents::Command;
use forebay_memory::{Account, Share};
use forebay_net::frames::{self, FREE_BYTES_MAX, Frame, FrameError, FrameReader, Refused};
use forebay_net::{LARGE_MESSAGE_BYTES_MIN, Stream, compressed};
use forebay_wire_mongo::{
    Body, Compressor, Flags, Limits, Message, OpMsg, OpQuery, OpReply, ReplyFlags, inflated_bytes,
    is_compressible,
};
use tokio::io::{ReadHalf, WriteHalf, split};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::fail_point::{End, Failure, statements};
use super::session::Session;
use super::{Door, Refusal, dispatch, hello};
use crate::listen::stopped;

/// Maximum bytes of a message from an unauthenticated client.
const STRANGER_MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// A client's connection.
pub struct Connection {
    door: Arc<Door>,
    session: Session,
    reader: FrameReader<ReadHalf<Box<dyn Stream>>>,
    writer: WriteHalf<Box<dyn Stream>>,
}

/// The parts of a request that its reply needs: its id and its compressor.
#[derive(Debug, Clone, Copy)]
struct Origin {
    request_id: i32,
    compressor: Option<Compressor>,
}

impl Connection {
    /// Creates a connection over `stream`.
    pub fn new(door: Arc<Door>, mut session: Session, stream: Box<dyn Stream>) -> Connection {
        session.client.reply = Arc::new(door.memory.share());
        let (reader, writer) = split(stream);
        let reader = FrameReader::new(reader, door.timeouts.message);
        Connection {
            door,
            session,
            reader,
            writer,
        }
    }

    /// Serves the client until it disconnects or breaks the protocol, or until the server shuts down.
    ///
    /// # Errors
    /// The reason why the connection was closed, for the log.
    pub async fn serve(mut self, mut shutdown: watch::Receiver<bool>) -> Result<(), FrameError> {
        let handshake = self.door.timeouts.handshake;
        let begun = tokio::select! {
            begun = self.reader.first_byte(handshake) => begun?,
            () = stopped(&mut shutdown) => false,
        };
        if !begun {
            return Ok(());
        }
        loop {
            let limits = self.limits();
            let memory = self.memory().clone();
            let frame = tokio::select! {
                frame = self.reader.next(&limits, &memory) => frame,
                () = stopped(&mut shutdown) => Ok(None),
                () = self.session.wait_until_overdue() => return Err(FrameError::TooSlow {
                    action: "authenticate",
                    limit: self.door.timeouts.handshake,
                }),
            };
            let answered = match frame {
                Ok(Some(frame)) => self.request(frame, &limits).await,
                Ok(None) => return Ok(()),
                Err(error) => Err(error),
            };
            match answered {
                Err(FrameError::Full(refused)) => self.refuse(refused).await?,
                answered => answered?,
            }
            if self.session.has_too_many_failures() {
                return Ok(());
            }
        }
    }

    /// Returns the memory account to which the client's messages are charged.
    fn memory(&self) -> &Account {
        if self.session.is_stranger(&self.door) {
            &self.door.strangers
        } else {
            &self.door.memory
        }
    }

    fn limits(&self) -> Limits {
        if self.session.is_stranger(&self.door) {
            Limits {
                message_bytes_max: STRANGER_MESSAGE_BYTES_MAX,
                ..Limits::default()
            }
        } else {
            Limits::default()
        }
    }

    async fn request(&mut self, frame: Frame, limits: &Limits) -> Result<(), FrameError> {
        // Messages that would decompress to more than the limit are refused below, before they are decompressed.
        let is_allowed = inflated_bytes(&frame.bytes)
            .is_none_or(|inflated| inflated <= limits.message_bytes_max);
        if is_allowed {
            // Make room for one copy of the documents, because decoding copies them from the message.
            frame.make_room(1).await?;
        }
        let request_id = frame.request_id();
        let Frame { bytes, share } = frame;
        let message = match decode(bytes, limits) {
            Ok(message) => message,
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(error) => {
                let reply = Refusal::of_content(&error).to_reply();
                return self
                    .reply(
                        reply,
                        Flags::default(),
                        Origin {
                            request_id,
                            compressor: None,
                        },
                    )
                    .await
                    .map(drop);
            }
        };
        let origin = Origin {
            request_id,
            compressor: message.compressor,
        };
        let answered = match message.body {
            Body::Msg(message) => self.command(message, origin).await,
            Body::Query(query) => self.query(&query, origin).await,
            Body::Reply(_) => Err(forebay_wire_mongo::Error::UnknownOpCode {
                code: message.header.op_code,
            }
            .into()),
        };
        drop(share);
        answered
    }

    /// Replies with an error to a message that does not fit in the memory account.
    async fn refuse(&mut self, refused: Refused) -> Result<(), FrameError> {
        if refused.is_silent {
            return Ok(());
        }
        let reply = Refusal::of_memory(&refused.full).to_reply();
        let origin = Origin {
            request_id: refused.request_id,
            compressor: None,
        };
        self.reply(reply, Flags::default(), origin).await.map(drop)
    }

    async fn command(&mut self, message: OpMsg, origin: Origin) -> Result<(), FrameError> {
        let silent = message.flags.has(Flags::MORE_TO_COME);
        let exhaust = message.flags.has(Flags::EXHAUST_ALLOWED);
        let command = match dispatch::command(message) {
            Ok(command) => command,
            Err(_) if silent => return Ok(()),
            Err(refusal) => {
                return self
                    .reply(refusal.to_reply(), Flags::default(), origin)
                    .await
                    .map(drop);
            }
        };
        let origin = Origin {
            compressor: origin.compressor.filter(|_| is_compressible(&command.name)),
            ..origin
        };
        if exhaust && is_stream(&command) {
            return self.exhaust(command, origin).await;
        }
        match self.answer(command).await? {
            Some(reply) if !silent => self.reply(reply, Flags::default(), origin).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Returns the reply to a command; `None` if the command was a hello that waited for a topology change, and the
    /// client disconnected meanwhile.
    ///
    /// # Errors
    /// If a fail point closes the connection.
    async fn answer(&mut self, command: Command) -> Result<Option<RawDocumentBuf>, FrameError> {
        if hello::is_hello(&command.name) {
            match hello::await_time(&self.door, &command.body) {
                Err(refusal) => return Ok(Some(refusal.to_reply())),
                Ok(Some(await_time)) if !self.await_change(await_time).await => return Ok(None),
                Ok(_) => {}
            }
        }
        let points = self.door.fail_points.as_ref();
        match points.and_then(|points| points.failure(&self.session.client, &command)) {
            Some(failure) => self.fail(command, failure).await.map(Some),
            None => Ok(Some(self.run(command).await)),
        }
    }

    async fn run(&mut self, command: Command) -> RawDocumentBuf {
        dispatch::answer(&self.door, &mut self.session, command).await
    }

    /// Waits until the server stops, but at most `await_time`. Returns false if the client disconnects meanwhile.
    async fn await_change(&mut self, await_time: Duration) -> bool {
        tokio::select! {
            () = self.door.documents.stopping() => true,
            () = sleep(await_time) => true,
            () = self.reader.closed() => false,
        }
    }

    /// Applies a fail point to a command.
    async fn fail(
        &mut self,
        command: Command,
        failure: Failure,
    ) -> Result<RawDocumentBuf, FrameError> {
        tokio::select! {
            () = sleep(failure.delay) => {}
            () = self.door.documents.stopping() => {}
        }
        match failure.end {
            End::Normal => Ok(self.run(command).await),
            End::Closed => Err(FrameError::FailPoint),
            End::ClosedIfApplied => {
                let statements = statements(&command);
                let reply = self.run(command).await;
                let points = self.door.fail_points.as_ref();
                if points.is_some_and(|points| points.trigger_for_applied(statements, &reply)) {
                    Err(FrameError::FailPoint)
                } else {
                    Ok(reply)
                }
            }
            End::Error(reply) => Ok(reply),
            End::ErrorAdded(added) => {
                let mut reply = self.run(command).await;
                for (name, value) in added.into_iter().flatten() {
                    reply.append(name, value);
                }
                Ok(reply)
            }
        }
    }

    /// Sends several replies to one request. A getMore gets replies until its cursor is exhausted, and a hello until
    /// the server stops.
    async fn exhaust(
        &mut self,
        mut command: Command,
        mut origin: Origin,
    ) -> Result<(), FrameError> {
        let is_hello = hello::is_hello(&command.name);
        let goes_on = if is_hello { succeeded } else { has_more };
        loop {
            let Some(reply) = self.answer(command.clone()).await? else {
                return Ok(());
            };
            let more = goes_on(&reply);
            if is_hello && more {
                command.body = hello::next(&command.body, &self.door);
            }
            let flags = if more {
                Flags::MORE_TO_COME
            } else {
                Flags::default()
            };
            origin.request_id = self.reply(reply, flags, origin).await?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn query(&mut self, query: &OpQuery, origin: Origin) -> Result<(), FrameError> {
        let document = dispatch::answer_query(&self.door, &mut self.session, query).await;
        let reply = OpReply {
            flags: ReplyFlags::AWAIT_CAPABLE,
            document,
        };
        let message = reply.encode(self.door.request_id(), origin.request_id);
        self.send(message).await
    }

    /// Sends a reply and returns the reply's id.
    async fn reply(
        &mut self,
        body: RawDocumentBuf,
        flags: Flags,
        origin: Origin,
    ) -> Result<i32, FrameError> {
        let request_id = self.door.request_id();
        let held = self.session.client.reply.clone();
        let reply = OpMsg {
            flags,
            ..OpMsg::new(with_room(body, &held))
        };
        let message = reply.encode(request_id, origin.request_id);
        drop(reply);
        let message = compressed(message, origin.compressor);
        held.shrink_to(message.len());
        self.send(message).await?;
        held.shrink_to(0);
        Ok(request_id)
    }

    async fn send(&mut self, message: Vec<u8>) -> Result<(), FrameError> {
        frames::write(&mut self.writer, &message, self.door.timeouts.message).await
    }
}

/// Returns the reply if the memory account has room for it and for its encoded copy; otherwise returns an error reply.
/// Small replies are not charged.
fn with_room(reply: RawDocumentBuf, held: &Share) -> RawDocumentBuf {
    let bytes = reply.as_bytes().len();
    let full = if bytes <= FREE_BYTES_MAX {
        None
    } else {
        held.try_cover(2 * bytes).err()
    };
    match full {
        None => reply,
        Some(full) => Refusal::of_memory(&full).to_reply(),
    }
}

fn decode(bytes: Bytes, limits: &Limits) -> Result<Message, forebay_wire_mongo::Error> {
    let content_bytes = inflated_bytes(&bytes).unwrap_or(bytes.len());
    if content_bytes < LARGE_MESSAGE_BYTES_MIN {
        Message::decode(bytes, limits)
    } else {
        block_in_place(|| Message::decode(bytes, limits))
    }
}

/// Returns whether the reply is a cursor's batch and more batches follow.
fn has_more(reply: &RawDocument) -> bool {
    let cursor = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_i64("id"));
    succeeded(reply) && cursor.is_ok_and(|id| id != 0)
}

fn succeeded(reply: &RawDocument) -> bool {
    matches!(reply.get("ok"), Ok(Some(RawBsonRef::Double(1.0))))
}

/// Returns whether a command gets several replies if the client allows it.
fn is_stream(command: &Command) -> bool {
    if hello::is_hello(&command.name) {
        hello::is_stream(&command.body)
    } else {
        command.name == "getMore"
    }
}
