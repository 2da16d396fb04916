//! Runs commands on collections with caches. A replica answers the reads. Writes go to the upstream, and are then
//! applied to the replica.

use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};
use bytes::Bytes;
use forebay_documents::Namespace;
use forebay_wire_mongo::{Flags, OpMsg, Peek};
use tokio::sync::OwnedRwLockWriteGuard;
use tokio::time::timeout;

use super::catch_up::{peek, wait_until_applied};
use super::commands::{
    CHANGES_RIGHTS, ENDS_TRANSACTION, UNFOLLOWED, declares, decode, expires, namespace, writes_out,
};
use super::compare::Verdict;
use super::cursors::open_cursor;
use super::indexes::with_definitions;
use super::patience::Departure;
use super::reads::{self, Answer, Read};
use super::reasons::Reason;
use super::writes::{self, Write};
use super::{Connection, FrameError, Next, Request, compare, cursors, operations};
use crate::replicas::{
    Answering, Effect, Replica, Replicas, View, first_batch, operation_time, succeeded,
};

/// Maximum time for which a replica's change stream pauses, while the proxy waits for the upstream's reply to compare
/// it with the replica's reply. Writers wait during the pause; their timeout is longer.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(5);

impl Connection {
    /// Runs a command that may involve replicas.
    pub(super) async fn serve_command(
        &mut self,
        replicas: &Arc<Replicas>,
        request: Request,
    ) -> Result<Next, FrameError> {
        let Some(peek) = Peek::new(&request.bytes) else {
            return self.exchange(request, Flags::default()).await;
        };
        let (name, flags) = (peek.command().to_owned(), peek.flags);
        if cursors::concerns_replicas(&peek) {
            return self.cursor_command(request).await;
        }
        if !reads::is_read(&name) {
            self.proxy.count_forwarded(&name);
        }
        if CHANGES_RIGHTS.contains(&name.as_str()) {
            self.proven.clear();
            self.may_be_authenticated = true;
        }
        let namespace = namespace(peek.body);
        if writes::is_write(&name) {
            let Some(replica) = namespace.map(|namespace| replicas.replica(&namespace)) else {
                return self.exchange(request, flags).await;
            };
            let next = self.write(replicas, &replica, request, flags).await;
            replicas.release(replica);
            return next;
        }
        let Some(message) = decode(&request.bytes) else {
            return self.exchange(request, flags).await;
        };
        self.by_name(replicas, &name, namespace, request, message, flags)
            .await
    }

    /// Runs a command that is neither a write nor about a replica's cursor.
    async fn by_name(
        &mut self,
        replicas: &Arc<Replicas>,
        name: &str,
        namespace: Option<Namespace>,
        request: Request,
        message: OpMsg,
        flags: Flags,
    ) -> Result<Next, FrameError> {
        let body = &message.body;
        let is_read = reads::is_read(name) && !flags.has(Flags::MORE_TO_COME);
        if let (true, Some(namespace)) = (declares(name, body), &namespace) {
            let replica = replicas.replica(namespace);
            let next = self.create_indexes(replicas, &replica, request, body).await;
            replicas.release(replica);
            return next;
        }
        let replica = namespace.and_then(|namespace| replicas.find(&namespace));
        match (name, replica) {
            ("aggregate", _) if writes_out(body) => {
                self.run_unfollowed(replicas, request, message).await
            }
            ("aggregate", _) if is_read && operations::lists_operations(body) => {
                self.aggregate_operations(request, message).await
            }
            (_, Some(replica)) if is_read => self.read(replicas, &replica, request, message).await,
            ("dropIndexes" | "deleteIndexes", Some(replica)) => {
                self.drop_indexes(replicas, &replica, request, message)
                    .await
            }
            // The command creates a TTL index. Without a change stream, nothing reports the documents that the upstream
            // then deletes. The reload that follows the command finds the TTL index and turns the caches off.
            ("createIndexes", Some(_)) if replicas.exclusive && expires(body) => {
                self.run_unfollowed(replicas, request, message).await
            }
            ("listIndexes", Some(replica)) => {
                let definitions = replica.definitions();
                let amend = |reply: &mut _| with_definitions(reply, &definitions);
                self.amended(request, message, amend).await
            }
            ("renameCollection", _) => self.rename(replicas, request, message).await,
            ("drop" | "dropDatabase", _) => self.drop_collections(replicas, request, message).await,
            (name, _) if reads::is_read(name) => {
                self.proxy.count_forwarded(name);
                self.exchange(request, flags).await
            }
            (name, _) => self.without_replica(replicas, name, request, message).await,
        }
    }

    /// Runs a command that is not about a single replica.
    async fn without_replica(
        &mut self,
        replicas: &Arc<Replicas>,
        name: &str,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let (body, flags) = (&message.body, message.flags);
        match name {
            "explain" => self.explain(replicas, request, message).await,
            "currentOp" => self.current_op(request, message).await,
            "forebayDevices" if operations::lists_devices(body) => {
                self.devices(&request, body).await
            }
            "forebayBuckets" => self.buckets(replicas, request, &message).await,
            "killAllSessions" | "killAllSessionsByPattern" if !flags.has(Flags::MORE_TO_COME) => {
                self.kill_sessions(request, message).await
            }
            "killOp" if let Some(number) = operations::killed(body) => {
                self.kill_op(request, &message, number).await
            }
            "serverStatus" => {
                let counters = replicas.counters.document();
                let amend = |reply: &mut RawDocumentBuf| {
                    reply.append(bson::cstr!("forebayUpstream"), counters);
                };
                self.amended(request, message, amend).await
            }
            name if ENDS_TRANSACTION.contains(&name) && !flags.has(Flags::MORE_TO_COME) => {
                self.end_transaction(replicas, request).await
            }
            name if UNFOLLOWED.contains(&name) => {
                self.run_unfollowed(replicas, request, message).await
            }
            _ => self.exchange(request, flags).await,
        }
    }

    async fn read(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let flags = message.flags;
        let answer = self.answer_of(replicas, replica, &message.body).await?;
        let counters = &replicas.counters;
        let counter = match &answer {
            Answer::Reply(_) => &counters.answered,
            Answer::Fetch(..) | Answer::Narrowed(..) => &counters.narrowed,
            Answer::Forward(_) => &counters.forwarded,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if !matches!(answer, Answer::Reply(_)) {
            let name = Peek::new(&request.bytes).map_or("", |peek| peek.command());
            self.proxy.count_forwarded(name);
        }
        match answer {
            Answer::Fetch(fetch, _) => {
                self.fetch(replicas, replica, fetch, &message.body, request)
                    .await
            }
            Answer::Narrowed(body, _) => {
                let bytes = OpMsg { body, ..message }.encode(request.id(), 0).into();
                self.exchange(Request { bytes, ..request }, flags).await
            }
            // A reply that opens a cursor is not compared. The upstream's first batch may have other documents, because
            // the upstream may return documents in another order.
            Answer::Reply(reply) if open_cursor(&reply).is_none() && compare::is_due(replicas) => {
                self.compared(replicas, replica, &message, &request).await
            }
            Answer::Reply(reply) => self.respond(reply, &request).await,
            Answer::Forward(reason) => {
                if matches!(reason, Reason::Slower { .. }) {
                    counters.slower.fetch_add(1, Ordering::Relaxed);
                }
                let (client, body) = (&self.client, &message.body);
                match reads::refusal(replicas, client, replica, body, &reason).await {
                    Some(refusal) if self.prove_read(replica).await? => {
                        self.respond(refusal, &request).await
                    }
                    _ => self.exchange(request, flags).await,
                }
            }
        }
    }

    /// Returns how a read is to be answered. The replica answers only if the client may read the collection. Otherwise
    /// the read is passed on, and the upstream refuses it.
    pub(super) async fn answer_of(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        body: &RawDocument,
    ) -> Result<Answer, FrameError> {
        let Some(ready) = self.answering(replica) else {
            // Asks the upstream now whether the client may read the collection. If the upstream goes away later, a
            // complete copy answers this client only if the upstream has allowed the read before.
            if self.replicas.serve_stale && !self.is_cut_off {
                self.prove_read(replica).await?;
            }
            return Ok(Answer::Forward(self.not_ready(replica)));
        };
        let read = match Read::parse(&replica.namespace, &ready.fields, body) {
            Ok(read) => read,
            Err(reason) => return Ok(Answer::Forward(reason)),
        };
        if !self.prove_read(replica).await? {
            return Ok(Answer::Forward(Reason::Unproven));
        }
        let answer = reads::answer(replicas, replica, &self.client, &read).await;
        // If the replica was loaded again during the read, the answer may mix documents of both copies.
        if self.answering(replica) == Some(ready) {
            return Ok(answer);
        }
        match answer {
            // An interrupted search is not repeated at the upstream.
            Answer::Reply(reply) if reads::was_stopped(&reply) => return Ok(Answer::Reply(reply)),
            Answer::Reply(reply) => self.close(&replica.namespace, &reply).await,
            _ => {}
        }
        Ok(Answer::Forward(self.not_ready(replica)))
    }

    /// Returns why the replica does not answer this client.
    fn not_ready(&self, replica: &Replica) -> Reason {
        let away = || {
            if self.replicas.is_away() {
                "the upstream cannot be reached".to_owned()
            } else {
                "the cache was loaded while the command ran".to_owned()
            }
        };
        Reason::NotReady(replica.reason().unwrap_or_else(away))
    }

    /// Returns the replica's copy that may answer this client; `None` if no copy may answer.
    fn answering(&self, replica: &Replica) -> Option<Answering> {
        replica.answering(View {
            is_away: self.replicas.is_away(),
            is_cut_off: self.is_cut_off,
            serve_stale: self.replicas.serve_stale,
            exclusive: self.replicas.exclusive,
        })
    }

    /// Compares the replica's reply with the upstream's. Answers with the replica's reply if the two replies are equal
    /// in one of at most [`compare::TRIES`] attempts, otherwise with the upstream's reply.
    ///
    /// The replica's change stream pauses while the upstream answers. It is then applied up to the time of the
    /// upstream's reply, before the replica answers. A document that was written during the pause may be in only one of
    /// the two replies, because the upstream reads the documents of a search at different times.
    async fn compared(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        message: &OpMsg,
        request: &Request,
    ) -> Result<Next, FrameError> {
        replicas.counters.compared.fetch_add(1, Ordering::Relaxed);
        let mut tries = 0;
        loop {
            let held = self.wait_for(async {
                let no_writes = if replicas.exclusive {
                    Some(replica.apply_lock.clone().read_owned().await)
                } else {
                    None
                };
                (replica.pause().await, no_writes)
            });
            let held = held.await?;
            let (direct_reply, held) = self.ask_while_held(message, request, held).await?;
            let Some(direct_reply) = direct_reply else {
                return Ok(Next::Close);
            };
            let (Some(direct), Some((paused, no_writes))) = (Peek::new(&direct_reply), held) else {
                replicas.counters.undecided.fetch_add(1, Ordering::Relaxed);
                return self.pass(direct_reply, request).await;
            };
            if let (false, Some(at)) = (replicas.exclusive, operation_time(direct.body)) {
                // On a timeout, the two replies show the data at different times. They may then differ, but a
                // difference is reported only if the replies of all attempts differ.
                drop(timeout(COMPARE_TIMEOUT, paused.move_to(at)).await);
            }
            let answer = self.answer_of(replicas, replica, &message.body).await?;
            let changed = paused.changed();
            drop((paused, no_writes));
            let Answer::Reply(reply) = answer else {
                return self.pass(direct_reply, request).await;
            };
            if open_cursor(&reply).is_some() {
                self.close(&replica.namespace, &reply).await;
                return self.pass(direct_reply, request).await;
            }
            let verdict = compare::judge(&message.body, &reply, direct.body, &changed);
            if verdict == Verdict::Same {
                return self.respond(reply, request).await;
            }
            tries += 1;
            if tries < compare::TRIES {
                continue;
            }
            if verdict == Verdict::Undecided {
                replicas.counters.undecided.fetch_add(1, Ordering::Relaxed);
            } else {
                compare::report(replicas, &replica.namespace, message, &reply, direct.body);
            }
            return self.pass(direct_reply, request).await;
        }
    }

    /// Asks the upstream while holding the guards `held`. Returns the reply and the guards. If the upstream takes too
    /// long, drops the guards before the reply arrives, and returns `None` instead of the guards.
    async fn ask_while_held<H>(
        &mut self,
        message: &OpMsg,
        request: &Request,
        held: H,
    ) -> Result<(Option<Bytes>, Option<H>), FrameError> {
        let message = with_reply(message.clone());
        let mut asking = pin!(self.ask(&message, request.id()));
        match timeout(COMPARE_TIMEOUT, asking.as_mut()).await {
            Ok(reply) => Ok((reply?, Some(held))),
            Err(_) => {
                drop(held);
                Ok((asking.await?, None))
            }
        }
    }

    /// Runs the queries of `write` at the upstream, and adds the `_id`s of the found documents to `write`. Marks the
    /// effect of the write as unknown if the upstream refuses a query or finds too many documents. Returns false if the
    /// upstream does not answer.
    async fn look_up(
        &mut self,
        namespace: &Namespace,
        write: &mut Write,
    ) -> Result<bool, FrameError> {
        let Some(queries) = write.lookups() else {
            return Ok(true);
        };
        let most = i64::try_from(writes::TOUCHED_MAX + 1).unwrap_or(i64::MAX);
        let mut ids = Vec::new();
        for query in queries {
            let find = rawdoc! {
                "find": namespace.collection.as_str(), "filter": query.clone(), "projection": { "_id": 1 },
                "limit": most, "batchSize": most, "$db": namespace.db.as_str(),
            };
            // Continues even if the client has disconnected, because commands that a client sent before it disconnected
            // are still executed.
            let asked = self.ask_until(find, Departure::EndsNothing);
            let Some(reply) = asked.await? else {
                return Ok(false);
            };
            let of_all = first_batch(&reply).map(|found| found.get("_id").ok().flatten());
            let found: Option<Vec<_>> = of_all.map(|id| id.map(RawBson::from)).collect();
            let is_whole = found.is_some() && succeeded(&reply) && open_cursor(&reply).is_none();
            ids.extend(found.into_iter().flatten());
            if !is_whole || ids.len() > writes::TOUCHED_MAX {
                write.set_unknown();
                return Ok(true);
            }
        }
        write.add_touched(ids);
        Ok(true)
    }

    async fn write(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        request: Request,
        flags: Flags,
    ) -> Result<Next, FrameError> {
        if !replicas.exclusive {
            // Without caches, no replica has to apply the write, so its reply is not needed.
            if !replica.is_declared() && flags.has(Flags::MORE_TO_COME) {
                return self.exchange(request, flags).await;
            }
            let reply = self.ask_for_write(&request, flags).await;
            let written = slice::from_ref(replica);
            return self
                .reply_when_applied(written, reply, &request, flags)
                .await;
        }
        let shared = replica.apply_lock.clone().read_owned();
        let shared = self.wait_for(shared).await?;
        if !replica.is_declared() {
            // Release the lock before the reply is sent: a client may receive the reply slowly, and a declaration of
            // caches waits for the lock.
            let reply = self.ask_for_write(&request, flags).await;
            drop(shared);
            return self.reply_to_write(reply, &request, flags).await;
        }
        drop(shared);
        let lock = self.lock(replica).await?;
        let reply = self
            .write_followed(replicas, replica, &request, flags)
            .await;
        drop(lock);
        self.reply_to_write(reply, &request, flags).await
    }

    /// Sends a write to the upstream, and applies it to the replica before returning the reply. The caller holds the
    /// apply lock exclusively.
    async fn write_followed(
        &mut self,
        replicas: &Arc<Replicas>,
        replica: &Arc<Replica>,
        request: &Request,
        flags: Flags,
    ) -> Result<Option<Bytes>, FrameError> {
        let Some(message) = decode(&request.bytes) else {
            let reply = self.ask_for_write(request, flags).await;
            if flags.has(Flags::MORE_TO_COME) {
                replicas.apply(replica, Effect::Unfinished).await;
            } else if !peek(&reply).is_some_and(|reply| writes::is_refusal(reply.body)) {
                replicas.apply(replica, Effect::Unknown).await;
            }
            return reply;
        };
        let name = Peek::new(&request.bytes).map_or("", |peek| peek.command());
        let mut write = Write::parse(name, message);
        if !self.look_up(&replica.namespace, &mut write).await? {
            return Ok(None);
        }
        let bytes = write.message.encode(request.id(), 0);
        let reply = self.ask_to_end(&bytes, request.id()).await;
        let peeked = peek(&reply);
        replicas
            .apply(replica, write.effect(peeked.map(|reply| reply.body)))
            .await;
        reply
    }

    /// Sends a write and waits for its reply, even if the client wants none. If the message is
    /// malformed and requests no reply, returns `None` at once.
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
        let bytes = writes::expecting_reply(message).encode(request.id(), 0);
        self.ask_to_end(&bytes, request.id()).await
    }

    /// Takes the apply lock of a replica exclusively.
    pub(super) async fn lock(
        &mut self,
        replica: &Replica,
    ) -> Result<OwnedRwLockWriteGuard<()>, FrameError> {
        let lock = replica.apply_lock.clone().write_owned();
        self.wait_for(lock).await
    }

    /// Sends the client the reply to a write once the replicas that follow change streams have applied the write.
    async fn reply_when_applied(
        &mut self,
        written: &[Arc<Replica>],
        reply: Result<Option<Bytes>, FrameError>,
        request: &Request,
        flags: Flags,
    ) -> Result<Next, FrameError> {
        let replicas = Arc::clone(&self.replicas);
        let applied = wait_until_applied(&replicas, written, &reply);
        self.wait_for(applied).await?;
        self.reply_to_write(reply, request, flags).await
    }

    /// Sends the client the reply to a write, if the client expects one.
    pub(super) async fn reply_to_write(
        &mut self,
        reply: Result<Option<Bytes>, FrameError>,
        request: &Request,
        flags: Flags,
    ) -> Result<Next, FrameError> {
        match reply? {
            _ if self.is_dismissed() => Ok(Next::Close),
            _ if flags.has(Flags::MORE_TO_COME) => Ok(Next::Request),
            None => Ok(Next::Close),
            Some(reply) => self.pass(reply, request).await,
        }
    }

    /// Passes on a command whose changes cannot be derived from the command and its reply. The client gets the reply
    /// once replicas that follow change streams have applied the changes. Other replicas are invalidated before the
    /// reply, and then reloaded, unless the upstream refused the command.
    pub(super) async fn run_unfollowed(
        &mut self,
        replicas: &Arc<Replicas>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let flags = message.flags;
        let name = Peek::new(&request.bytes).map_or("", |peek| peek.command());
        let targets = writes::targets(name, &message.body);
        let bytes = with_reply(message).encode(request.id(), 0);
        let reply = self.ask_to_end(&bytes, request.id()).await;
        let peeked = peek(&reply);
        let why = "a command's changes cannot be derived from the command and its reply";
        let mut written = replicas.declared();
        written.retain(|replica| {
            let targets = targets.as_ref();
            targets.is_none_or(|targets| targets.contains(&replica.namespace))
        });
        if !replicas.exclusive {
            return self
                .reply_when_applied(&written, reply, &request, flags)
                .await;
        }
        for replica in written {
            match peeked {
                Some(reply) if writes::is_refusal_of_all(name, reply.body) => {}
                Some(_) => replicas.reload(&replica, why),
                None => replicas.reload_after_pause(&replica, why),
            }
        }
        self.reply_to_write(reply, &request, flags).await
    }

    /// Passes on a `commitTransaction` or `abortTransaction`. Delays the reply until the caches have applied the
    /// transaction's writes.
    async fn end_transaction(
        &mut self,
        replicas: &Arc<Replicas>,
        request: Request,
    ) -> Result<Next, FrameError> {
        let reply = self.ask_to_end(&request.bytes, request.id()).await;
        let flags = Flags::default();
        if replicas.exclusive {
            return self.reply_to_write(reply, &request, flags).await;
        }
        let declared = replicas.declared();
        self.reply_when_applied(&declared, reply, &request, flags)
            .await
    }

    /// Passes on a `drop` or `dropDatabase`, and forgets the caches of dropped collections.
    async fn drop_collections(
        &mut self,
        replicas: &Arc<Replicas>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let db = message.body.get_str("$db").unwrap_or_default().to_owned();
        let collection = namespace(&message.body).map(|it| it.collection);
        let is_named = |replica: &Arc<Replica>| {
            let replica = &replica.namespace;
            replica.db == db
                && collection
                    .as_ref()
                    .is_none_or(|it| *it == replica.collection)
        };
        let declared = || replicas.declared().into_iter().filter(is_named);
        let known: Vec<_> = declared().collect();
        let mut locks = Vec::new();
        for replica in &known {
            locks.push(self.lock(replica).await?);
        }
        let flags = message.flags;
        let bytes = with_reply(message).encode(request.id(), 0);
        let reply = self.ask_to_end(&bytes, request.id()).await;
        let peeked = peek(&reply);
        for replica in &known {
            match peeked.map(|reply| succeeded(reply.body)) {
                Some(true) => forget(replicas, replica).await,
                Some(false) => {}
                None => replicas.apply(replica, Effect::Unfinished).await,
            }
        }
        drop(locks);
        for replica in declared() {
            let is_new = !known.iter().any(|known| Arc::ptr_eq(known, &replica));
            if replicas.exclusive && is_new {
                replicas.reload(&replica, "the cache may have been loaded before the drop");
            }
        }
        self.reply_to_write(reply, &request, flags).await
    }

    /// Passes on a command, and changes its reply if the command succeeded.
    pub(super) async fn amended(
        &mut self,
        request: Request,
        message: OpMsg,
        amend: impl FnOnce(&mut RawDocumentBuf),
    ) -> Result<Next, FrameError> {
        let Some(reply) = self.ask(&with_reply(message), request.id()).await? else {
            return Ok(Next::Close);
        };
        let Some(peeked) = Peek::new(&reply).filter(|reply| succeeded(reply.body)) else {
            return self.pass(reply, &request).await;
        };
        let mut body = peeked.body.to_owned();
        amend(&mut body);
        self.respond(body, &request).await
    }

    /// Sends a message and returns the reply; `None` if the upstream or the client has closed its connection.
    pub(super) async fn ask(
        &mut self,
        message: &OpMsg,
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        self.send_and_receive(&message.encode(request_id, 0), request_id)
            .await
    }

    /// Runs a command that the proxy issues by itself, with the client's rights. Its request id is one that the client
    /// cannot guess.
    pub(super) async fn ask_as_client(
        &mut self,
        command: RawDocumentBuf,
    ) -> Result<Option<RawDocumentBuf>, FrameError> {
        self.ask_until(command, Departure::EndsWait).await
    }

    async fn ask_until(
        &mut self,
        command: RawDocumentBuf,
        departure: Departure,
    ) -> Result<Option<RawDocumentBuf>, FrameError> {
        let request_id = super::secret_number();
        self.send(&OpMsg::new(command).encode(request_id, 0))
            .await?;
        let memory = self.memory().clone();
        let reply = self.receive_until(request_id, &memory, departure).await?;
        let peeked = reply.as_ref().and_then(|reply| Peek::new(reply));
        Ok(peeked.map(|reply| reply.body.to_owned()))
    }

    /// Sends a write and waits for the reply, even if the client disconnects, because the replica has to apply the
    /// write. Returns `None` if the upstream has closed the connection.
    pub(super) async fn ask_to_end(
        &mut self,
        message: &[u8],
        request_id: i32,
    ) -> Result<Option<Bytes>, FrameError> {
        self.send(message).await?;
        self.receive_to_end(request_id).await
    }

    /// Answers with a reply made by the proxy.
    pub(super) async fn respond(
        &mut self,
        reply: RawDocumentBuf,
        request: &Request,
    ) -> Result<Next, FrameError> {
        let reply = OpMsg::new(reply).encode(self.proxy.request_id(), request.id());
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

async fn forget(replicas: &Replicas, replica: &Replica) {
    if let Err(error) = replicas.forget(replica).await {
        tracing::error!(namespace = %replica.namespace, %error, "the caches of a dropped collection cannot be removed from the list of declared caches");
    }
}

/// Changes a message to request a reply.
pub(super) fn with_reply(message: OpMsg) -> OpMsg {
    OpMsg {
        flags: Flags::default(),
        ..message
    }
}
