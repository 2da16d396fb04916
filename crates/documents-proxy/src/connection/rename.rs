//! Passes on the rename of a collection, and moves the collection's caches to the new name.

use std::sync::Arc;

use forebay_wire_mongo::OpMsg;

use super::cached::with_reply;
use super::catch_up::peek;
use super::{Connection, FrameError, Next, Request, writes};
use crate::replicas::{Effect, Replica, Replicas, succeeded};

impl Connection {
    /// Passes on a `renameCollection`. If the renamed collection has caches, declares them under the new name, and no
    /// longer under the old one. If only the collection that is replaced has caches, its caches stay declared.
    pub(super) async fn rename(
        &mut self,
        replicas: &Arc<Replicas>,
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        let names = writes::targets("renameCollection", &message.body);
        let Some([from, to]) = names.as_deref() else {
            return self.run_unfollowed(replicas, request, message).await;
        };
        if from == to || replicas.find(from).is_none() {
            return self.run_unfollowed(replicas, request, message).await;
        }
        let (from, to) = (replicas.replica(from), replicas.replica(to));
        let next = self
            .rename_cached(replicas, (&from, &to), request, message)
            .await;
        replicas.release(from);
        replicas.release(to);
        next
    }

    async fn rename_cached(
        &mut self,
        replicas: &Arc<Replicas>,
        (from, to): (&Arc<Replica>, &Arc<Replica>),
        request: Request,
        message: OpMsg,
    ) -> Result<Next, FrameError> {
        // All commands that take several locks take them in order of namespace, which prevents deadlocks.
        let mut both = [from, to];
        both.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        let locks = (self.lock(both[0]).await?, self.lock(both[1]).await?);
        let flags = message.flags;
        let bytes = with_reply(message).encode(request.id(), 0);
        let reply = self.ask_to_end(&bytes, request.id()).await;
        match peek(&reply).map(|reply| reply.body) {
            Some(body) if succeeded(body) => follow(replicas, from, to).await,
            Some(body) if writes::is_refusal_of_all("renameCollection", body) => {}
            answered => {
                for replica in both.into_iter().filter(|it| it.is_declared()) {
                    let effect = match answered {
                        Some(_) => Effect::Unknown,
                        None => Effect::Unfinished,
                    };
                    replicas.apply(replica, effect).await;
                }
            }
        }
        drop(locks);
        self.reply_to_write(reply, &request, flags).await
    }
}

async fn follow(replicas: &Arc<Replicas>, from: &Arc<Replica>, to: &Arc<Replica>) {
    if let Err(error) = replicas.rename(from, to).await {
        let (from, to) = (&from.namespace, &to.namespace);
        tracing::error!(%from, %to, %error, "the caches of a renamed collection are not declared under its new name");
    }
}
