//! Serves clients while the upstream is away. With `upstream-serve-stale`, caches answer what they can, as of the time
//! when the upstream was last reachable.
//!
//! A command that needs the upstream gets an error, and its connection is closed, because the client's next connection
//! may reach the upstream again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::ClientContext;
use forebay_net::Stream;
use forebay_wire_mongo::Peek;
use tokio::io::empty;

use super::commands::{decode, namespace};
use super::reads::{Answer, is_read};
use super::{Connection, FrameError, Next, Request, handshake};
use super::{cursors, operations};
use crate::Proxy;

impl Connection {
    /// Creates the connection of a client that connected while the upstream could not be reached.
    pub fn cut_off(
        proxy: Arc<Proxy>,
        client: ClientContext,
        stream: Box<dyn Stream>,
    ) -> Connection {
        Connection {
            is_cut_off: true,
            ..Connection::new(proxy, client, stream, Box::new(empty()))
        }
    }

    /// Checks whether the upstream is away; called after the upstream closed the connection. If the upstream is away,
    /// and caches may answer meanwhile, marks the client as cut off and returns true.
    pub(super) async fn cut_off_if_away(&mut self) -> bool {
        let Proxy {
            upstream, replicas, ..
        } = &*self.proxy;
        self.is_cut_off =
            replicas.serve_stale && (replicas.is_away() || !upstream.is_there().await);
        if self.is_cut_off {
            replicas.mark_away(&"the upstream closed a connection and accepts no new one");
        }
        self.is_cut_off
    }

    /// Runs a read. If the upstream goes away meanwhile, caches answer the read if they can.
    pub(super) async fn read_or_cut_off(&mut self, request: Request) -> Result<Next, FrameError> {
        let replicas = Arc::clone(&self.replicas);
        self.may_be_cut_off = true;
        let answered = self.serve_command(&replicas, request.clone()).await;
        self.may_be_cut_off = false;
        match answered {
            Ok(Next::Request) => Ok(Next::Request),
            Err(FrameError::Expired) => Err(FrameError::Expired),
            _ if self.cut_off_if_away().await => self.answer_stale(request).await,
            ended => ended,
        }
    }

    /// Connects the client to the upstream, which is back. Returns false if the connection fails, or if the client has
    /// authenticated, because it would have to authenticate again.
    pub(super) async fn reconnect(&mut self) -> bool {
        if self.may_be_authenticated {
            return false;
        }
        let Ok(upstream) = self.proxy.upstream.connect().await else {
            return false;
        };
        self.set_upstream(upstream);
        // The new connection may lead to another server, or to one with other access rules.
        self.proven.clear();
        self.is_cut_off = false;
        true
    }

    pub(super) fn remember_hello(&self, received: &RawDocument) {
        if self.replicas.serve_stale {
            *self.replicas.hello.lock() = Some(handshake::remembered(received));
        }
    }

    /// Makes the reply to a hello from the upstream's reply to an earlier hello. Returns `None` if there was no earlier
    /// reply.
    pub(super) fn stale_hello(&self, asked: &RawDocument) -> Option<RawDocumentBuf> {
        let received = self.replicas.hello.lock();
        Some(handshake::reply(received.as_ref()?, asked))
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

    /// Replies that the upstream is away, and closes the connection.
    pub(super) async fn refuse_away(&mut self, request: &Request) -> Result<Next, FrameError> {
        self.respond(self.away(), request).await?;
        Ok(Next::Close)
    }

    /// Returns the error reply that the upstream is away. Its code is ShutdownInProgress, after which drivers retry.
    pub(super) fn away(&self) -> RawDocumentBuf {
        let upstream = &self.proxy.upstream;
        rawdoc! {
            "ok": 0.0, "errmsg": format!("the upstream {upstream} cannot be reached"), "code": 91,
            "codeName": "ShutdownInProgress",
        }
    }

    /// Answers a command from caches alone, or refuses it.
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
        if !self.replicas.serve_stale {
            return self.refuse_away(&request).await;
        }
        if Peek::new(&request.bytes).is_some_and(|asked| cursors::concerns_replicas(&asked)) {
            return self.cursor_command(request).await;
        }
        let Some(message) = decode(&request.bytes) else {
            return Ok(Next::Close);
        };
        let replicas = Arc::clone(&self.replicas);
        let name = message.body.iter_elements().next().and_then(Result::ok);
        let replica = name
            .filter(|name| is_read(name.key().as_str()))
            .and_then(|_| namespace(&message.body))
            .and_then(|namespace| replicas.find(&namespace));
        let Some(replica) = replica else {
            return self.refuse_away(&request).await;
        };
        let mut epoch = replica.epoch();
        let mut answer = self.answer_of(&replicas, &replica, &message.body).await?;
        // If the replica lost its change stream during the read, its copy is still valid, but in a new epoch. The read
        // is then tried again.
        while !matches!(answer, Answer::Reply(_)) && replica.epoch() != epoch {
            epoch = replica.epoch();
            answer = self.answer_of(&replicas, &replica, &message.body).await?;
        }
        match answer {
            Answer::Reply(reply) => {
                replicas.counters.answered.fetch_add(1, Ordering::Relaxed);
                replicas.counters.stale.fetch_add(1, Ordering::Relaxed);
                self.respond(reply, &request).await
            }
            _ => self.refuse_away(&request).await,
        }
    }
}
