//! A documents server on a store in memory or in a directory, with short forms of common commands.

use std::sync::Arc;

use bson::{Document, RawDocumentBuf, doc};
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{ClientContext, Command, Documents, Location, Settings};

/// A documents server and a client of it.
pub struct Door {
    pub documents: Arc<Documents>,
    pub client: ClientContext,
}

/// Opens a server on a store in memory.
pub fn door() -> Door {
    with(Settings::default())
}

/// Opens a server with these settings and two host devices.
pub fn with(settings: Settings) -> Door {
    let spec: DeviceSpec = "host:2".parse().expect("the specification is right");
    let devices = Devices::new(&spec, DeviceOptions::default()).expect("threads can be had");
    let documents = Documents::open(settings, Arc::new(devices)).expect("the store opens");
    Door {
        documents,
        client: ClientContext {
            connection_id: 1,
            ..ClientContext::default()
        },
    }
}

/// Opens a server on a store in a directory.
pub fn at(directory: &std::path::Path) -> Door {
    with(Settings {
        location: Location::Directory(directory.to_owned()),
        ..Settings::default()
    })
}

impl Door {
    /// Returns the reply to a command on the database in `$db`, or `test` by default.
    pub async fn ask(&self, mut command: Document) -> Document {
        command
            .entry("$db".to_owned())
            .or_insert_with(|| "test".into());
        let body = RawDocumentBuf::try_from(&command).expect("commands hold no NUL");
        let reply = self
            .documents
            .run(&self.client, Command::from_body(body))
            .await;
        Document::try_from(reply).expect("a reply is BSON")
    }

    /// Returns the reply to a command that must succeed.
    pub async fn ok(&self, command: Document) -> Document {
        let shown = command.clone();
        let reply = self.ask(command).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{shown} -> {reply}");
        reply
    }

    /// Returns the error code of a command that must fail.
    pub async fn code(&self, command: Document) -> i32 {
        let shown = command.clone();
        let reply = self.ask(command).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(0.0), "{shown} -> {reply}");
        reply.get_i32("code").expect("an error has a code")
    }

    /// Returns the reply to a command on the database `admin` that must succeed.
    pub async fn admin(&self, mut command: Document) -> Document {
        command.insert("$db", "admin");
        self.ok(command).await
    }

    /// Inserts documents into a collection of the database `test`.
    pub async fn insert(&self, collection: &str, documents: impl IntoIterator<Item = Document>) {
        let documents: Vec<Document> = documents.into_iter().collect();
        let count = documents.len() as i32;
        let reply = self
            .ok(doc! { "insert": collection, "documents": documents })
            .await;
        assert_eq!(reply, doc! { "n": count, "ok": 1.0 });
    }

    /// Returns all documents of the cursor that `command` opens.
    pub async fn all(&self, command: Document) -> Vec<Document> {
        let session = command.get("lsid").cloned();
        let reply = self.ok(command).await;
        let cursor = reply
            .get_document("cursor")
            .expect("the reply has a cursor");
        let collection = cursor
            .get_str("ns")
            .expect("the cursor has a namespace")
            .split_once('.')
            .expect("with a dot")
            .1
            .to_owned();
        let (mut id, mut found) = (
            cursor.get_i64("id").expect("the cursor has an id"),
            batch(cursor, "firstBatch"),
        );
        while id != 0 {
            let mut more = doc! { "getMore": id, "collection": &collection };
            more.extend(session.clone().map(|session| ("lsid".to_owned(), session)));
            let reply = self.ok(more).await;
            let cursor = reply
                .get_document("cursor")
                .expect("the reply has a cursor");
            found.extend(batch(cursor, "nextBatch"));
            id = cursor.get_i64("id").expect("the cursor has an id");
        }
        found
    }

    /// Returns the integer `_id`s of the documents that a `find` with this filter returns.
    pub async fn ids(&self, collection: &str, filter: Document) -> Vec<i32> {
        let found = self
            .all(doc! { "find": collection, "filter": filter })
            .await;
        found
            .iter()
            .map(|document| document.get_i32("_id").expect("ids are integers"))
            .collect()
    }

    /// Returns the number of documents that match a filter.
    pub async fn count(&self, collection: &str, filter: Document) -> i32 {
        let reply = self.ok(doc! { "count": collection, "query": filter }).await;
        reply.get_i32("n").expect("a count is a number")
    }
}

/// Returns the documents of one batch.
pub fn batch(cursor: &Document, name: &str) -> Vec<Document> {
    let batch = cursor.get_array(name).expect("the cursor has a batch");
    batch
        .iter()
        .map(|document| document.as_document().expect("of documents").clone())
        .collect()
}

impl Door {
    /// Caches a field of a collection and waits until the cache is ready.
    pub async fn cache(&self, collection: &str, field: &str) {
        let index = doc! { "key": { field: "cache" }, "name": format!("{field}_cache") };
        self.ok(doc! { "createIndexes": collection, "indexes": [index] })
            .await;
        self.cache_is_ready(collection).await;
    }

    /// Waits until the caches of a collection are ready.
    pub async fn cache_is_ready(&self, collection: &str) {
        loop {
            let stats = self.ok(doc! { "collStats": collection }).await;
            let states = stats
                .get_array("cacheIndexes")
                .expect("the statistics list the caches");
            let ready = |state: &bson::Bson| {
                state
                    .as_document()
                    .is_some_and(|state| state.get_str("state").is_ok_and(|state| state == "ready"))
            };
            if !states.is_empty() && states.iter().all(ready) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
