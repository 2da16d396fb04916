//! Clients while the store is away. With `upstream-serve-stale` they get what caches answer alone, as of when the store
//! was last there.
//!
//! The first command that needs the store gets an error that says so and ends the connection: on a new one, the store
//! may be back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use forebay_wire_mongo::Peek;
use tokio::io::{AsyncRead, AsyncWrite, empty};

use super::commands::{decode, namespace};
use super::reads::{Answer, is_read};
use super::{Behind, Door, FrameError, Next, Relay, Request, handshake};
use super::{cursors, operations};
use crate::door::session::Session;
use crate::shadow::Shadow;

impl<S: AsyncRead + AsyncWrite + Unpin> Relay<S> {
    /// A client who came while the store could not be reached.
    pub fn stale(door: Arc<Door>, shadow: Arc<Shadow>, session: Session, client: S) -> Relay<S> {
        Relay {
            is_stale: true,
            ..Relay::new(door, shadow, session, client, Box::new(empty()))
        }
    }

    /// The store has closed the connection: whether it cannot be reached at all, and the client is served without it.
    pub(super) async fn turns_stale(&mut self) -> bool {
        let Some(Behind { upstream, shadow }) = &self.door.behind else {
            return false;
        };
        self.is_stale = shadow.serve_stale && (shadow.is_away() || !upstream.is_there().await);
        if self.is_stale {
            shadow.lost();
        }
        self.is_stale
    }

    /// Runs a read; if the store goes meanwhile, answers it without.
    pub(super) async fn read_in_spite(&mut self, request: Request) -> Result<Next, FrameError> {
        let shadow = Arc::clone(&self.shadow);
        self.may_turn_stale = true;
        let answered = self.shadowed(&shadow, request.clone()).await;
        self.may_turn_stale = false;
        match answered {
            Ok(Next::Request) => Ok(Next::Request),
            _ if self.turns_stale().await => self.answer_stale(request).await,
            ended => ended,
        }
    }

    /// The store is there again: whether the client has a connection to it. Who has said who it is has to say it anew.
    pub(super) async fn returns(&mut self) -> bool {
        let Some(Behind { upstream, .. }) = self.door.behind.as_ref().filter(|_| !self.is_somebody)
        else {
            return false;
        };
        let Ok(store) = upstream.connect().await else {
            return false;
        };
        self.set_store(store);
        // It may be another store, or let others read.
        self.proven.clear();
        self.is_stale = false;
        true
    }

    pub(super) fn remember_hello(&self, told: &RawDocument) {
        if self.shadow.serve_stale {
            *self.shadow.hello.lock() = Some(handshake::remembered(told));
        }
    }

    /// The reply to a hello, if the store has been there before.
    pub(super) fn stale_hello(&self, asked: &RawDocument) -> Option<RawDocumentBuf> {
        let told = self.shadow.hello.lock();
        Some(handshake::reply(told.as_ref()?, asked))
    }

    pub(super) async fn hello_stale(
        &mut self,
        asked: &RawDocument,
        request: &Request,
    ) -> Result<Next, FrameError> {
        match self.stale_hello(asked) {
            Some(reply) => self.respond(reply, request).await,
            None => self.refuse_away(request).await,
        }
    }

    /// Tells the client that the store is away, and ends the connection.
    pub(super) async fn refuse_away(&mut self, request: &Request) -> Result<Next, FrameError> {
        self.respond(self.away(), request).await?;
        Ok(Next::Close)
    }

    /// The error that the store is away, in the form of a server that shuts down: drivers then try again.
    pub(super) fn away(&self) -> RawDocumentBuf {
        let store = self.door.upstream().map(ToString::to_string);
        let store = store.unwrap_or_default();
        rawdoc! {
            "ok": 0.0, "errmsg": format!("the store behind, {store}, cannot be reached"), "code": 91,
            "codeName": "ShutdownInProgress",
        }
    }

    /// Answers a command, if the cache can alone.
    pub(super) async fn answer_stale(&mut self, request: Request) -> Result<Next, FrameError> {
        if let Some(message) = decode(&request.bytes)
            && message
                .body
                .get("forebayDevices")
                .is_ok_and(|it| it.is_some())
            && operations::lists_devices(&message.body)
        {
            return self.devices(&request, &message.body).await;
        }
        if !self.shadow.serve_stale {
            return self.refuse_away(&request).await;
        }
        if Peek::new(&request.bytes).is_some_and(|asked| cursors::concerns_shadows(&asked)) {
            return self.cursor_command(request).await;
        }
        let Some(message) = decode(&request.bytes) else {
            return Ok(Next::Close);
        };
        let shadow = Arc::clone(&self.shadow);
        let name = message.body.iter_elements().next().and_then(Result::ok);
        let mirror = name
            .filter(|name| is_read(name.key().as_str()))
            .and_then(|_| namespace(&message.body))
            .and_then(|namespace| shadow.find(&namespace));
        let Some(mirror) = mirror else {
            return self.refuse_away(&request).await;
        };
        let mut epoch = mirror.epoch();
        let mut answer = self.answer_of(&shadow, &mirror, &message.body).await?;
        // Its stream may just have ended: then it is as good as before, under another number.
        while !matches!(answer, Answer::Reply(_)) && mirror.epoch() != epoch {
            epoch = mirror.epoch();
            answer = self.answer_of(&shadow, &mirror, &message.body).await?;
        }
        match answer {
            Answer::Reply(reply) => {
                shadow.counters.answered.fetch_add(1, Ordering::Relaxed);
                shadow.counters.stale.fetch_add(1, Ordering::Relaxed);
                self.respond(reply, &request).await
            }
            _ => self.refuse_away(&request).await,
        }
    }
}
