//! A documents server for tests, with short forms of common commands.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, doc};
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{ClientContext, Command, Documents, Location, Settings};

/// The database that tests use.
pub const DB: &str = "test";

/// A documents server and a client of it.
pub struct Door {
    /// The server.
    pub documents: Arc<Documents>,
    client: ClientContext,
}

impl Door {
    /// Opens a server in memory, on some host devices, with small buckets.
    pub fn memory(devices: usize) -> Door {
        Door::open(Location::Memory, devices, 64)
    }

    /// Opens a server at a location.
    pub fn open(location: Location, devices: usize, bucket_values_max: usize) -> Door {
        let spec = DeviceSpec::host(NonZeroUsize::new(devices).expect("at least one device"));
        let devices =
            Arc::new(Devices::new(&spec, DeviceOptions::default()).expect("host devices"));
        let settings = Settings {
            location,
            bucket_values_max,
            sync_interval: Duration::from_millis(100),
            ..Settings::default()
        };
        let documents = Documents::open(settings, devices).expect("the door opens");
        Door {
            documents,
            client: ClientContext::default(),
        }
    }

    /// Runs a command on the test database. Returns the reply, which may be an error.
    pub async fn ask(&self, mut body: Document) -> Document {
        body.insert("$db", DB);
        self.ask_any(body).await
    }

    /// Runs a command on the database `admin`.
    pub async fn admin(&self, mut body: Document) -> Document {
        body.insert("$db", "admin");
        let reply = self.ask_any(body.clone()).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{body} -> {reply}");
        reply
    }

    async fn ask_any(&self, body: Document) -> Document {
        let body = RawDocumentBuf::try_from(&body).expect("a command is a document");
        let reply = self
            .documents
            .run(&self.client, Command::from_body(body))
            .await;
        Document::try_from(reply.as_ref()).expect("a reply is a document")
    }

    /// Runs a command that must succeed. Returns the reply.
    pub async fn run(&self, body: Document) -> Document {
        let reply = self.ask(body.clone()).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{body} -> {reply}");
        assert!(!reply.contains_key("writeErrors"), "{body} -> {reply}");
        reply
    }

    /// Declares one cache index with these fields, and waits until it is built.
    pub async fn cache(&self, collection: &str, fields: &[&str]) {
        let key: Document = fields
            .iter()
            .map(|field| ((*field).to_owned(), Bson::from("cache")))
            .collect();
        let index = doc! { "key": key, "name": index_name(fields) };
        self.run(doc! { "createIndexes": collection, "indexes": [index] })
            .await;
        self.built(collection, fields).await;
    }

    /// Waits until the cache of these fields answers searches.
    pub async fn built(&self, collection: &str, fields: &[&str]) {
        let namespace = format!("{DB}.{collection}");
        let has_all = || {
            let cache = self.documents.cache().get(&namespace);
            cache.is_some_and(|cache| {
                fields
                    .iter()
                    .all(|field| cache.field_index(field).is_some())
            })
        };
        while !has_all() {
            tokio::task::yield_now().await;
        }
    }

    /// Flushes the cache's deltas into its buckets.
    pub fn flush(&self, collection: &str) {
        if let Some(cache) = self.documents.cache().get(&format!("{DB}.{collection}")) {
            cache.flush();
        }
    }

    /// Counts the documents that match.
    pub async fn count(&self, collection: &str, filter: Document) -> i64 {
        let reply = self
            .run(doc! { "count": collection, "query": filter })
            .await;
        integer(reply.get("n"))
    }

    /// Returns all documents of the cursor that a command opens.
    pub async fn all(&self, mut command: Document) -> Vec<Document> {
        let collection = command
            .values()
            .next()
            .and_then(Bson::as_str)
            .expect("a collection")
            .to_owned();
        if command
            .keys()
            .next()
            .is_some_and(|name| name == "aggregate")
        {
            command.insert("cursor", doc! {});
        }
        let reply = self.run(command).await;
        let mut found = batch(&reply, "firstBatch");
        let mut id = cursor_id(&reply);
        while id != 0 {
            let reply = self
                .run(doc! { "getMore": id, "collection": &collection })
                .await;
            found.extend(batch(&reply, "nextBatch"));
            id = cursor_id(&reply);
        }
        found
    }

    /// Returns the output of `explain` with `executionStats`.
    pub async fn explain(&self, command: Document) -> Document {
        self.run(doc! { "explain": command, "verbosity": "executionStats" })
            .await
    }
}

/// Returns the value of an integer in a reply, whatever its integer type.
pub fn integer(value: Option<&Bson>) -> i64 {
    match value {
        Some(Bson::Int32(value)) => i64::from(*value),
        Some(Bson::Int64(value)) => *value,
        other => panic!("{other:?} is no integer"),
    }
}

/// Returns the first nested document with the stage `name`.
pub fn stage<'a>(explained: &'a Document, name: &str) -> Option<&'a Document> {
    if explained.get_str("stage").ok() == Some(name) {
        return Some(explained);
    }
    explained.values().find_map(|value| match value {
        Bson::Document(inner) => stage(inner, name),
        Bson::Array(array) => array
            .iter()
            .filter_map(Bson::as_document)
            .find_map(|inner| stage(inner, name)),
        _ => None,
    })
}

/// Returns the name that drivers generate for a cache index.
pub fn index_name(fields: &[&str]) -> String {
    fields
        .iter()
        .map(|field| format!("{field}_cache"))
        .collect::<Vec<_>>()
        .join("_")
}

fn batch(reply: &Document, name: &str) -> Vec<Document> {
    let cursor = reply.get_document("cursor").expect("a cursor");
    let batch = cursor.get_array(name).expect("a batch");
    batch
        .iter()
        .map(|document| document.as_document().expect("documents").clone())
        .collect()
}

fn cursor_id(reply: &Document) -> i64 {
    reply
        .get_document("cursor")
        .expect("a cursor")
        .get_i64("id")
        .expect("an id")
}
