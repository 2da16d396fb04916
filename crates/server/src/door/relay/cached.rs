//! Commands on collections with caches: which of them the shadow answers, and which it has to follow.

use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};
use bytes::Bytes;
use forebay_documents::Namespace;
use forebay_wire_mongo::{Flags, OpMsg, Peek};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::catch_up::{caught_up, told};
use super::commands::{
    CHANGES_RIGHTS, ENDS_TRANSACTION, UNFOLLOWED, declares, decode, expires, namespace, writes_out,
};
use super::compare::Verdict;
use super::cursors::open_cursor;
use super::indexes::with_definitions;
use super::reads::{self, Answer, Read};
use super::reasons::Reason;
use super::writes::{self, Write};
use super::{FrameError, Next, Relay, Request, compare, cursors, operations, proof};
use crate::shadow::{Effect, Mirror, Ready, Shadow, first_batch, operation_time, succeeded};

/// How long a shadow stands still, and writers with it, while the store is asked what it says: less than writers wait.
const COMPARE_PATIENCE: Duration = Duration::from_secs(5);

impl<S: AsyncRead + AsyncWrite + Unpin> Relay<S> {
    /// Runs a command where there are shadows.
    pub(super) async fn shadowed(
        &mut self,
        shadow: &Arc<Shadow>,
        request: Request,
    ) -> Result<Next, FrameError> {
        let Some(peek) = Peek::new(&request.bytes) else {
            return self.exchange(request, Flags::default()).await;
        };
        let (name, flags) = (peek.command().to_owned(), peek.flags);
        if cursors::concerns_shadows(&peek) {
            return self.cursor_command(request).await;
        }
        if !reads::is_read(&name) {
            self.door.count_forwarded(&name);
        }
        if CHANGES_RIGHTS.contains(&name.as_str()) {
            self.proven.clear();
            self.is_somebody = true;
        }
        let namespace = namespace(peek.body);
        if writes::is_write(&name) {
            let Some(mirror) = namespace.map(|namespace| shadow.mirror(&namespace)) else {
                return self.exchange(request, flags).await;
            };
            let next = self.write(shadow, &mirror, request, flags).await;
            shadow.release(mirror);
            return next;
        }
        let Some(message) = decode(&request.bytes) else {
            return self.exchange(request, flags).await;
        };
        self.by_name(shadow, &name, namespace, request, message, flags)
            .await
    }

    /// Runs a command that is neither a write nor about a cursor of a shadow.
    async fn by_name(
        &mut self,
        shadow: &Arc<Shadow>,
        name: &str,
        namespace: Option<Namespace>,
        request: Request,
        message: OpMsg,
        flags: Flags,
    ) -> Result<Next, FrameError> {
        let body = &message.body;
        let is_read = reads::is_read(name) && !flags.has(Flags::MORE_TO_COME);
        if let (true, Some(namespace)) = (declares(name, body), &namespace) {
            let mirror = shadow.mirror(namespace);
            let next = self.create_indexes(shadow, &mirror, request, body).await;
            shadow.release(mirror);
            return next;
        }
        let mirror = namespace.and_then(|namespace| shadow.find(&namespace));
        match (name, mirror) {
            ("aggregate", _) if writes_out(body) => self.unfollowed(shadow, request, message).await,
            ("aggregate", _) if is_read && operations::lists_operations(body) => {
                self.aggregate_operations(request, message).await
            }
            (_, Some(mirror)) if is_read => self.read(shadow, &mirror, request, message).await,
            ("dropIndexes", Some(mirror)) => {
                self.drop_indexes(shadow, &mirror, request, &message).await
            }
            // Where there are streams, they tell what it deletes.
            ("createIndexes", Some(_)) if shadow.exclusive && expires(body) => {
                self.unfollowed(shadow, request, message).await
            }
            ("listIndexes", Some(mirror)) => {
                let definitions = mirror.definitions();
                let amend = |reply: &mut _| with_definitions(reply, &definitions);
                self.amended(request, message, amend).await
            }
            ("drop" | "dropDatabase", _) => self.gone(shadow, request, message).await,
            (name, _) if reads::is_read(name) => {
                self.door.count_forwarded(name);
                self.exchange(request, flags).await
            }
            ("explain", _) => self.explain(shadow, request, message).await,
            ("currentOp", _) => self.current_op(request, message).await,
            ("forebayDevices", _) if operations::lists_devices(body) => {
                self.devices(&request, body).await
            }
            ("killAllSessions" | "killAllSessionsByPattern", _)
                if !flags.has(Flags::MORE_TO_COME) =>
            {
                self.kill_sessions(request, message).await
            }
            ("killOp", _) if let Some(number) = operations::killed(body) => {
                self.kill_op(request, &message, number).await
            }
            ("serverStatus", _) => {
                let told = shadow.counters.document();
                let amend = |reply: &mut RawDocumentBuf| {
                    reply.append(bson::cstr!("forebayUpstream"), told);
                };
                self.amended(request, message, amend).await
            }
            (name, _) if ENDS_TRANSACTION.contains(&name) && !flags.has(Flags::MORE_TO_COME) => {
                self.transaction_ends(shadow, request).await
            }
            (name, _) if UNFOLLOWED.contains(&name) => {
                self.unfollowed(shadow, request, message).await
            }
            _ => self.exchange(request, flags).await,
        }
    }

    async fn read(
        &mut self,
        shadow: &Arc<Shadow>,
        mirror: &Arc<Mirror>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let flags = message.flags;
        let answer = self.answer_of(shadow, mirror, &message.body).await?;
        let counters = &shadow.counters;
        let counter = match &answer {
            Answer::Reply(_) => &counters.answered,
            Answer::Fetch(..) | Answer::Narrowed(..) => &counters.narrowed,
            Answer::Forward(_) => &counters.forwarded,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if !matches!(answer, Answer::Reply(_)) {
            let name = Peek::new(&request.bytes).map_or("", |peek| peek.command());
            self.door.count_forwarded(name);
        }
        match answer {
            Answer::Fetch(fetch, _) => {
                self.fetch(shadow, mirror, fetch, &message.body, request)
                    .await
            }
            Answer::Narrowed(body, _) => {
                let bytes = OpMsg { body, ..message }.encode(request.id(), 0).into();
                self.exchange(Request { bytes, ..request }, flags).await
            }
            // Of what has further batches, the store may show others first.
            Answer::Reply(reply) if open_cursor(&reply).is_none() && compare::is_due(shadow) => {
                self.compared(shadow, mirror, &message, &request).await
            }
            Answer::Reply(reply) => self.respond(reply, &request).await,
            Answer::Forward(reason) => {
                if matches!(reason, Reason::Slower { .. }) {
                    counters.slower.fetch_add(1, Ordering::Relaxed);
                }
                let (client, body) = (&self.session.client, &message.body);
                match reads::refusal(shadow, client, mirror, body, &reason).await {
                    Some(refusal) if self.proves(mirror).await? => {
                        self.respond(refusal, &request).await
                    }
                    _ => self.exchange(request, flags).await,
                }
            }
        }
    }

    /// The answer of the shadow to a read, if the client may read the collection. If it may not, the store refuses the
    /// read.
    pub(super) async fn answer_of(
        &mut self,
        shadow: &Arc<Shadow>,
        mirror: &Arc<Mirror>,
        body: &RawDocument,
    ) -> Result<Answer, FrameError> {
        let Some(ready) = self.filled(mirror) else {
            // An older copy may answer once the store is away, when it can no longer be asked for permission.
            if self.shadow.serve_stale && !self.is_stale {
                self.proves(mirror).await?;
            }
            return Ok(Answer::Forward(self.not_ready(mirror)));
        };
        let read = match Read::parse(&mirror.namespace, &ready.kept, body) {
            Ok(read) => read,
            Err(reason) => return Ok(Answer::Forward(reason)),
        };
        if !self.proves(mirror).await? {
            return Ok(Answer::Forward(Reason::Unproven));
        }
        let answer = reads::answer(shadow, mirror, &self.session.client, &read).await;
        // Of what has been loaded again meanwhile, the earlier state is unknown.
        if self.filled(mirror) == Some(ready) {
            return Ok(answer);
        }
        match answer {
            // What was stopped does not begin again at the store.
            Answer::Reply(reply) if reads::was_stopped(&reply) => return Ok(Answer::Reply(reply)),
            Answer::Reply(reply) => self.close(&mirror.namespace, &reply).await,
            _ => {}
        }
        Ok(Answer::Forward(self.not_ready(mirror)))
    }

    /// Why the shadow does not answer this client.
    fn not_ready(&self, mirror: &Mirror) -> Reason {
        let away = || match self.shadow.is_away() {
            true => "the store cannot be reached".to_owned(),
            false => "the cache has just been loaded".to_owned(),
        };
        Reason::NotReady(mirror.reason().unwrap_or_else(away))
    }

    /// The shadow, if it answers this client.
    fn filled(&self, mirror: &Mirror) -> Option<Ready> {
        match (self.shadow.is_away(), self.is_stale) {
            (true, true) => mirror.stale(),
            // It may be another store's by now that this client is connected to.
            (true, false) if self.shadow.exclusive => None,
            _ => mirror.ready(),
        }
    }

    /// Answers with what the shadow says, unless the store says something else and stays with it.
    ///
    /// A shadow that follows a stream stands still while the store is asked, and then goes on to the time of the
    /// store's answer; documents that were written between may be in one answer and not in the other, as a store that
    /// searches reads each document at a time of its own.
    async fn compared(
        &mut self,
        shadow: &Arc<Shadow>,
        mirror: &Arc<Mirror>,
        message: &OpMsg,
        request: &Request,
    ) -> Result<Next, FrameError> {
        shadow.counters.compared.fetch_add(1, Ordering::Relaxed);
        let mut tries = 0;
        loop {
            let no_writes = match shadow.exclusive {
                true => Some(mirror.gate.clone().read_owned().await),
                false => None,
            };
            let still = mirror.stand_still().await;
            let held = (still, no_writes);
            let (told, held) = self.ask_while_held(message, request, held).await?;
            let Some(told) = told else {
                return Ok(Next::Close);
            };
            let (Some(straight), Some((still, no_writes))) = (Peek::new(&told), held) else {
                shadow.counters.undecided.fetch_add(1, Ordering::Relaxed);
                return self.pass(told, request).await;
            };
            if let (false, Some(at)) = (shadow.exclusive, operation_time(straight.body)) {
                // Too late, it is another answer that is compared, and taken for a difference if the store stays with
                // it.
                drop(timeout(COMPARE_PATIENCE, still.move_to(at)).await);
            }
            let answer = self.answer_of(shadow, mirror, &message.body).await?;
            let changed = still.changed();
            drop((still, no_writes));
            let Answer::Reply(reply) = answer else {
                return self.pass(told, request).await;
            };
            if open_cursor(&reply).is_some() {
                self.close(&mirror.namespace, &reply).await;
                return self.pass(told, request).await;
            }
            let verdict = compare::judge(&message.body, &reply, straight.body, &changed);
            if verdict == Verdict::Same {
                return self.respond(reply, request).await;
            }
            tries += 1;
            if tries < compare::TRIES {
                continue;
            }
            if verdict == Verdict::Undecided {
                shadow.counters.undecided.fetch_add(1, Ordering::Relaxed);
            } else {
                compare::report(shadow, &mirror.namespace, message, &reply, straight.body);
            }
            return self.pass(told, request).await;
        }
    }

    /// Asks the store while something is held; gives that back, unless the store took too long and it was let go.
    async fn ask_while_held<H>(
        &mut self,
        message: &OpMsg,
        request: &Request,
        held: H,
    ) -> Result<(Option<Bytes>, Option<H>), FrameError> {
        let message = unsilenced(message.clone());
        let mut asking = pin!(self.ask(&message, request.id()));
        match timeout(COMPARE_PATIENCE, asking.as_mut()).await {
            Ok(told) => Ok((told?, Some(held))),
            Err(_) => {
                drop(held);
                Ok((asking.await?, None))
            }
        }
    }

    /// Whether the store lets the client read the collection; each connection asks anew after a while.
    pub(super) async fn proves(&mut self, mirror: &Mirror) -> Result<bool, FrameError> {
        let namespace = &mirror.namespace;
        let proven = self.proven.get(namespace);
        if self.is_stale {
            return Ok(self.proved_in_time(proven.copied(), mirror));
        }
        if proof::counts(proven.copied(), Instant::now()) {
            return Ok(true);
        }
        let probe = rawdoc! {
            "find": namespace.collection.as_str(), "projection": { "_id": 1 }, "limit": 1, "singleBatch": true,
            "$db": namespace.db.as_str(),
        };
        let Some(reply) = self.ask_own(probe).await? else {
            return Ok(false);
        };
        // A reply to something else could be one that the client has brought about.
        let of = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_str("ns"));
        let proven = succeeded(&reply) && of.is_ok_and(|of| of == namespace.to_string());
        let at = proven.then(Instant::now);
        match at {
            Some(at) => drop(self.proven.insert(namespace.clone(), at)),
            None => drop(self.proven.remove(namespace)),
        }
        if !self.is_somebody {
            mirror.set_open(at);
        }
        Ok(proven)
    }

    /// Whether the store's permission for this client, or for all unauthenticated clients, was still valid when the
    /// store was lost.
    fn proved_in_time(&self, proven: Option<Instant>, mirror: &Mirror) -> bool {
        let Some(lost_at) = self.shadow.lost_at() else {
            return false;
        };
        [proven, mirror.open_at()]
            .into_iter()
            .any(|given| proof::counts(given, lost_at))
    }

    /// Whether the store lets the client write to the collection, by an update of a document that is not there; else
    /// what the store says.
    pub(super) async fn proves_write(
        &mut self,
        namespace: &Namespace,
    ) -> Result<Option<RawDocumentBuf>, FrameError> {
        let update = rawdoc! { "q": { "_id": ObjectId::new() }, "u": { "$set": { "forebay": 1 } } };
        let probe = rawdoc! {
            "update": namespace.collection.as_str(), "updates": [update], "$db": namespace.db.as_str(),
        };
        let reply = self.ask_own(probe).await?.unwrap_or_default();
        let none = matches!(reply.get("writeErrors"), Ok(None));
        Ok((!succeeded(&reply) || !none).then_some(reply))
    }

    /// The `_id`s of the documents that queries of the client find; `None` if that is unknown because the store refuses
    /// to say or there are too many.
    async fn ids_of(
        &mut self,
        namespace: &Namespace,
        queries: &[RawDocumentBuf],
    ) -> Result<Option<Vec<RawBson>>, FrameError> {
        let most = i64::try_from(writes::TOUCHED_MAX + 1).unwrap_or(i64::MAX);
        let mut ids = Vec::new();
        for query in queries {
            let find = rawdoc! {
                "find": namespace.collection.as_str(), "filter": query.clone(), "projection": { "_id": 1 },
                "limit": most, "batchSize": most, "$db": namespace.db.as_str(),
            };
            let Some(reply) = self.ask_own(find).await? else {
                return Ok(None);
            };
            let of_all = first_batch(&reply).map(|found| found.get("_id").ok().flatten());
            let Some(found) = of_all
                .map(|id| id.map(RawBson::from))
                .collect::<Option<Vec<_>>>()
            else {
                return Ok(None);
            };
            ids.extend(found);
            if !succeeded(&reply)
                || open_cursor(&reply).is_some()
                || ids.len() > writes::TOUCHED_MAX
            {
                return Ok(None);
            }
        }
        Ok(Some(ids))
    }

    async fn write(
        &mut self,
        shadow: &Arc<Shadow>,
        mirror: &Arc<Mirror>,
        request: Request,
        flags: Flags,
    ) -> Result<Next, FrameError> {
        if !shadow.exclusive {
            // Without caches, no shadow waits for its end.
            if !mirror.is_declared() && flags.has(Flags::MORE_TO_COME) {
                return self.exchange(request, flags).await;
            }
            let reply = self.ask_for_write(&request, flags).await;
            caught_up(shadow, slice::from_ref(mirror), &reply).await;
            return self.settle(reply, &request, flags).await;
        }
        let shared = mirror.gate.clone().read_owned().await;
        if !mirror.is_declared() {
            // Who declares caches waits for this; a client that takes its reply slowly must not keep it.
            let reply = self.ask_for_write(&request, flags).await;
            drop(shared);
            return self.settle(reply, &request, flags).await;
        }
        drop(shared);
        let alone = mirror.gate.clone().write_owned().await;
        let reply = self.write_followed(shadow, mirror, &request, flags).await;
        drop(alone);
        self.settle(reply, &request, flags).await
    }

    /// Sends a write to the store, and has the shadow follow before the reply. The caller holds the gate alone.
    async fn write_followed(
        &mut self,
        shadow: &Arc<Shadow>,
        mirror: &Arc<Mirror>,
        request: &Request,
        flags: Flags,
    ) -> Result<Option<Bytes>, FrameError> {
        let Some(message) = decode(&request.bytes) else {
            let reply = self.ask_for_write(request, flags).await;
            if flags.has(Flags::MORE_TO_COME) {
                shadow.follow(mirror, Effect::Unfinished).await;
            } else if !told(&reply).is_some_and(|reply| writes::is_refusal(reply.body)) {
                shadow.follow(mirror, Effect::Unknown).await;
            }
            return reply;
        };
        let name = Peek::new(&request.bytes).map_or("", |peek| peek.command());
        let mut write = Write::parse(name, message);
        let looked_up = match write.lookups() {
            None => None,
            Some(queries) if queries.is_empty() => Some(Vec::new()),
            Some(queries) => self.ids_of(&mirror.namespace, &queries).await?,
        };
        match looked_up {
            Some(ids) => write.touches(ids),
            None => write.is_unknown(),
        }
        let bytes = write.message.encode(request.id(), 0);
        let reply = self.ask_to_end(&bytes, request.id()).await;
        let told = told(&reply);
        shadow
            .follow(mirror, write.effect(told.map(|reply| reply.body)))
            .await;
        reply
    }

    /// Sends a write and waits for its end, also where the client does not; not for that of a message which is not
    /// well-formed and to which no reply comes.
    async fn ask_for_write(
        &mut self,
        request: &Request,
        flags: Flags,
    ) -> Result<Option<Bytes>, FrameError> {
        if !flags.has(Flags::MORE_TO_COME) {
            return self.ask_to_end(&request.bytes, request.id()).await;
        }
        let Some(message) = decode(&request.bytes) else {
            self.send(&request.bytes).await?;
            return Ok(None);
        };
        let bytes = writes::answered(message).encode(request.id(), 0);
        self.ask_to_end(&bytes, request.id()).await
    }

    /// Gives the client the reply to a write, if it wants one.
    async fn settle(
        &mut self,
        reply: Result<Option<Bytes>, FrameError>,
        request: &Request,
        flags: Flags,
    ) -> Result<Next, FrameError> {
        match reply? {
            _ if flags.has(Flags::MORE_TO_COME) => Ok(Next::Request),
            None => Ok(Next::Close),
            Some(reply) => self.pass(reply, request).await,
        }
    }

    /// Passes on a command whose effect is not followed, and begins to load all caches anew before the reply, unless
    /// the store refused it.
    async fn unfollowed(
        &mut self,
        shadow: &Arc<Shadow>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let flags = message.flags;
        let name = Peek::new(&request.bytes).map_or("", |peek| peek.command());
        let targets = writes::targets(name, &message.body);
        let bytes = unsilenced(message).encode(request.id(), 0);
        let reply = self.ask_to_end(&bytes, request.id()).await;
        let told = told(&reply);
        let why = "a command changed data in a way that is not followed";
        let mut written = shadow.declared();
        written.retain(|mirror| {
            let targets = targets.as_ref();
            targets.is_none_or(|targets| targets.contains(&mirror.namespace))
        });
        if !shadow.exclusive {
            caught_up(shadow, &written, &reply).await;
            written.clear();
        }
        for mirror in written {
            match told {
                Some(reply) if writes::is_refusal_of_all(name, reply.body) => {}
                Some(_) => shadow.reload(&mirror, why),
                None => shadow.reload_settled(&mirror, why),
            }
        }
        self.settle(reply, &request, flags).await
    }

    /// Passes on the end of a transaction; what was written in it can be read then.
    async fn transaction_ends(
        &mut self,
        shadow: &Arc<Shadow>,
        request: Request,
    ) -> Result<Next, FrameError> {
        let reply = self.ask_to_end(&request.bytes, request.id()).await;
        if !shadow.exclusive {
            caught_up(shadow, &shadow.declared(), &reply).await;
        }
        self.settle(reply, &request, Flags::default()).await
    }

    /// Passes on a command by which collections go.
    async fn gone(
        &mut self,
        shadow: &Arc<Shadow>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let db = message.body.get_str("$db").unwrap_or_default().to_owned();
        let collection = namespace(&message.body).map(|it| it.collection);
        let is_named = |mirror: &Arc<Mirror>| {
            let mirror = &mirror.namespace;
            mirror.db == db
                && collection
                    .as_ref()
                    .is_none_or(|it| *it == mirror.collection)
        };
        let declared = || shadow.declared().into_iter().filter(is_named);
        let mirrors: Vec<_> = declared().collect();
        let mut alone = Vec::new();
        for mirror in &mirrors {
            alone.push(mirror.gate.clone().write_owned().await);
        }
        let flags = message.flags;
        let bytes = unsilenced(message).encode(request.id(), 0);
        let reply = self.ask_to_end(&bytes, request.id()).await;
        let told = told(&reply);
        for mirror in &mirrors {
            match told.map(|reply| succeeded(reply.body)) {
                Some(true) => forget(shadow, mirror).await,
                Some(false) => {}
                None => shadow.follow(mirror, Effect::Unfinished).await,
            }
        }
        drop(alone);
        for mirror in declared() {
            let is_new = !mirrors.iter().any(|known| Arc::ptr_eq(known, &mirror));
            if shadow.exclusive && is_new {
                shadow.reload(&mirror, "it may have been read before it was dropped");
            }
        }
        self.settle(reply, &request, flags).await
    }

    /// Passes on a command and changes the reply, if it is one of success.
    pub(super) async fn amended(
        &mut self,
        request: Request,
        message: OpMsg,
        amend: impl FnOnce(&mut RawDocumentBuf),
    ) -> Result<Next, FrameError> {
        let Some(reply) = self.ask(&unsilenced(message), request.id()).await? else {
            return Ok(Next::Close);
        };
        let Some(told) = Peek::new(&reply).filter(|reply| succeeded(reply.body)) else {
            return self.pass(reply, &request).await;
        };
        let mut body = told.body.to_owned();
        amend(&mut body);
        self.respond(body, &request).await
    }

    /// Sends a message and gives the reply; none if the store or the client has gone.
    pub(super) async fn ask(
        &mut self,
        message: &OpMsg,
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        self.send(&message.encode(request_id, 0)).await?;
        self.receive(request_id).await
    }

    /// Runs a command of our own with the client's rights. Its number is one that the client does not know.
    pub(super) async fn ask_own(
        &mut self,
        command: RawDocumentBuf,
    ) -> Result<Option<RawDocumentBuf>, FrameError> {
        let request_id = super::secret_number();
        let reply = self.ask(&OpMsg::new(command), request_id).await?;
        let told = reply.as_ref().and_then(|reply| Peek::new(reply));
        Ok(told.map(|reply| reply.body.to_owned()))
    }

    /// Sends a write and waits for the reply, also when the client leaves: the shadow has to follow. None if the store
    /// has gone.
    async fn ask_to_end(
        &mut self,
        message: &[u8],
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        self.send(message).await?;
        self.receive_to_end(request_id).await
    }

    /// Answers with a reply of ours.
    pub(super) async fn respond(
        &mut self,
        reply: RawDocumentBuf,
        request: &Request,
    ) -> Result<Next, FrameError> {
        let reply = OpMsg::new(reply).encode(self.door.request_id(), request.id());
        self.pass(reply.into(), request).await
    }

    pub(super) async fn pass(
        &mut self,
        reply: Bytes,
        request: &Request,
    ) -> Result<Next, FrameError> {
        self.answer(reply, request.compressor).await?;
        Ok(Next::Request)
    }
}

async fn forget(shadow: &Shadow, mirror: &Mirror) {
    if let Err(error) = shadow.forget(mirror).await {
        tracing::error!(namespace = %mirror.namespace, %error, "the caches of a dropped collection are still listed");
    }
}

/// The message, to which a reply comes.
fn unsilenced(message: OpMsg) -> OpMsg {
    OpMsg {
        flags: Flags::default(),
        ..message
    }
}
