//! Reading a collection by commands, as a client of the documents server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use bson::raw::RawArray;
use bson::{Document, RawDocument, RawDocumentBuf, cstr, doc};
use datafusion::error::{DataFusionError, Result};
use forebay_documents::{ClientContext, Command, Documents, Link, Namespace, Rights};
use forebay_tables::{Code, SqlError};
use tokio::runtime::Handle;

use crate::Clients;

/// The first number of the connections of readers. Those of clients count from 1.
const CONNECTIONS_FROM: i64 = 1 << 40;
/// Number of documents of a reply. The server also limits its bytes.
const REPLY_DOCUMENTS: i32 = 16_384;

/// A client that reads one collection.
#[derive(Clone)]
pub(crate) struct Reader {
    documents: Arc<Documents>,
    clients: Arc<dyn Clients>,
    /// Name of the user; `None` if tables are listed for all users.
    user: Option<String>,
    /// The user as a client, with the rights that it had when the reader was made.
    client: ClientContext,
    database: String,
    collection: String,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({}.{})", self.database, self.collection)
    }
}

/// A version of a collection as a user reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) collection: bson::Uuid,
    pub(crate) changes: u64,
    string_fields: Vec<String>,
    rights: Rights,
}

/// The life of a query. The server stops the commands of a query that has ended.
#[derive(Debug)]
struct Life(Arc<AtomicBool>);

impl Link for Life {
    fn is_lost(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Reader {
    pub(crate) fn new(
        documents: &Arc<Documents>,
        clients: &Arc<dyn Clients>,
        user: Option<&str>,
        database: &str,
        collection: &str,
    ) -> Reader {
        Reader {
            documents: Arc::clone(documents),
            clients: Arc::clone(clients),
            user: user.map(str::to_owned),
            client: clients.client(user),
            database: database.to_owned(),
            collection: collection.to_owned(),
        }
    }

    /// Returns the reader with the rights that its user has now.
    #[must_use]
    pub(crate) fn with_rights_of_now(mut self) -> Reader {
        self.client.rights = self.clients.client(self.user.as_deref()).rights;
        self
    }

    /// Returns `database.collection`.
    pub(crate) fn namespace(&self) -> String {
        format!("{}.{}", self.database, self.collection)
    }

    fn to_namespace(&self) -> Namespace {
        Namespace::new(&self.database, &self.collection)
    }

    /// Returns the cached fields in which each document has a string or null, or which it lacks.
    pub(crate) fn string_fields(&self) -> Vec<String> {
        self.documents.string_fields(&self.to_namespace())
    }

    /// Returns the total bytes of the documents.
    pub(crate) fn document_bytes(&self) -> u64 {
        self.documents.document_bytes(&self.to_namespace())
    }

    /// Returns what the reader's plans depend on; `None` if the collection does not exist.
    pub(crate) fn version(&self) -> Option<Version> {
        let (collection, changes) = self.documents.version(&self.to_namespace())?;
        Some(Version {
            collection,
            changes,
            string_fields: self.string_fields(),
            rights: self.client.rights.clone(),
        })
    }

    /// Returns whether the documents are those of a version, and no change of them is being committed.
    pub(crate) fn has_documents_of(&self, version: &Version) -> bool {
        let version = (version.collection, version.changes);
        self.documents.has_version(&self.to_namespace(), version)
    }

    /// Returns this reader on a connection of its own, and a guard at whose end its commands stop. Replies take memory
    /// from the account of the process.
    fn connected(&self) -> (Reader, Ended) {
        static NEXT: AtomicI64 = AtomicI64::new(CONNECTIONS_FROM);
        let is_ended = Arc::new(AtomicBool::new(false));
        let mut reader = self.clone();
        reader.client.connection_id = NEXT.fetch_add(1, Ordering::Relaxed);
        reader.client.link = Some(Arc::new(Life(Arc::clone(&is_ended))));
        reader.client.reply = Arc::new(self.documents.settings().memory.share());
        (reader, Ended(is_ended))
    }

    /// Runs a command whose first argument is the collection.
    ///
    /// # Errors
    /// The command's error.
    async fn run(&self, name: &str, arguments: Document) -> Result<RawDocumentBuf> {
        let mut command = doc! { name: &self.collection };
        command.extend(arguments);
        self.send(command).await
    }

    async fn send(&self, mut command: Document) -> Result<RawDocumentBuf> {
        command.insert("$db", &self.database);
        let body = RawDocumentBuf::try_from(&command).map_err(external)?;
        let command = Command::from_body(body);
        let reply = self.documents.run(&self.client, command).await;
        match reply.get_f64("ok") {
            Ok(1.0) => Ok(reply),
            _ => Err(failed(&reply)),
        }
    }

    /// Returns at most `count` of the first documents, or of the last.
    ///
    /// # Errors
    /// If the user may not read the collection, or reading fails.
    pub(crate) async fn sample(&self, count: i32, is_last: bool) -> Result<Vec<RawDocumentBuf>> {
        let direction = if is_last { -1 } else { 1 };
        let arguments = doc! {
            "sort": { "$natural": direction },
            "limit": count,
            "batchSize": count,
            "singleBatch": true,
        };
        let (reader, _ended) = self.connected();
        let reply = reader.run("find", arguments).await?;
        let first = batch(&reply, "firstBatch")?;
        let documents = first.into_iter().map(|document| {
            let document = document.map_err(external)?;
            Ok(document.as_document().map(RawDocument::to_owned))
        });
        documents.filter_map(Result::transpose).collect()
    }

    /// Returns the number of documents that `count` counts.
    ///
    /// # Errors
    /// If the command fails.
    pub(crate) async fn count(&self, arguments: Document) -> Result<u64> {
        let (reader, _ended) = self.connected();
        let reply = reader.run("count", arguments).await?;
        let counted = reply.get("n").map_err(external)?;
        let counted = counted.and_then(|count| match count {
            bson::RawBsonRef::Int32(count) => u64::try_from(count).ok(),
            bson::RawBsonRef::Int64(count) => u64::try_from(count).ok(),
            _ => None,
        });
        counted.ok_or_else(|| DataFusionError::Internal("a count without a number".to_owned()))
    }

    /// Returns the stage with which `explain` tells how a command finds its documents.
    ///
    /// # Errors
    /// If the command cannot be planned.
    pub(crate) async fn explain(&self, name: &str, arguments: Document) -> Result<Document> {
        let mut command = doc! { name: &self.collection };
        command.extend(arguments);
        let explain = doc! { "explain": command, "verbosity": "queryPlanner" };
        let reply: Document = (&self.send(explain).await?).try_into().map_err(external)?;
        let planner = reply.get_document("queryPlanner").map_err(external)?;
        let mut stage = planner.get_document("winningPlan").map_err(external)?;
        while let Ok(inner) = stage.get_document("inputStage") {
            stage = inner;
        }
        Ok(stage.clone())
    }

    /// Runs a command that opens a cursor.
    ///
    /// # Errors
    /// If the command fails.
    pub(crate) async fn open(&self, name: &str, arguments: Document) -> Result<Cursor> {
        let (reader, ended) = self.connected();
        let reply = reader.run(name, arguments).await?;
        Ok(Cursor {
            id: cursor_id(&reply)?,
            reader,
            threads: Handle::current(),
            next: Some((reply, "firstBatch")),
            _ended: ended,
        })
    }
}

/// Marks the life of a query as ended when dropped.
struct Ended(Arc<AtomicBool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The documents of a command, reply by reply. Dropping it closes the server's cursor.
pub(crate) struct Cursor {
    reader: Reader,
    id: i64,
    threads: Handle,
    /// The reply that was not returned yet, and the name of its batch.
    next: Option<(RawDocumentBuf, &'static str)>,
    _ended: Ended,
}

impl Cursor {
    /// Returns the arguments that a command needs to open a cursor for this reader.
    pub(crate) fn options() -> Document {
        doc! { "batchSize": REPLY_DOCUMENTS, "noCursorTimeout": true }
    }

    /// Returns the options of `aggregate`.
    pub(crate) fn options_of_aggregate() -> Document {
        doc! { "cursor": { "batchSize": REPLY_DOCUMENTS } }
    }

    /// Calls `each` with the documents of the next reply. Returns `false` after the last reply.
    ///
    /// # Errors
    /// If the command fails, or `each` does.
    pub(crate) async fn read(
        &mut self,
        mut each: impl FnMut(&RawDocument) -> Result<()>,
    ) -> Result<bool> {
        let (reply, name) = match self.next.take() {
            Some(first) => first,
            None if self.id == 0 => return Ok(false),
            None => {
                // The last reply has become rows.
                self.reader.client.reply.shrink_to(0);
                (self.more().await?, "nextBatch")
            }
        };
        for document in batch(&reply, name)? {
            if let Some(document) = document.map_err(external)?.as_document() {
                each(document)?;
            }
        }
        Ok(true)
    }

    async fn more(&mut self) -> Result<RawDocumentBuf> {
        let command = doc! {
            "getMore": self.id,
            "collection": &self.reader.collection,
            "batchSize": REPLY_DOCUMENTS,
        };
        let reply = self.reader.send(command).await?;
        self.id = cursor_id(&reply)?;
        Ok(reply)
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if self.id == 0 {
            return;
        }
        let (mut reader, id) = (self.reader.clone(), self.id);
        // The query has ended, but this command is to run.
        reader.client.link = None;
        self.threads.spawn(async move {
            // A cursor that is gone already needs no end.
            let _ = reader.run("killCursors", doc! { "cursors": [id] }).await;
        });
    }
}

fn batch<'a>(reply: &'a RawDocument, name: &str) -> Result<&'a RawArray> {
    let cursor = reply.get_document("cursor").map_err(external)?;
    cursor.get_array(name).map_err(external)
}

fn cursor_id(reply: &RawDocument) -> Result<i64> {
    let cursor = reply.get_document("cursor").map_err(external)?;
    cursor.get_i64("id").map_err(external)
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Returns whether a command failed because there is no memory.
pub(crate) fn is_out_of_memory(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::External(inner) => inner
            .downcast_ref::<SqlError>()
            .is_some_and(|error| error.code == Code::OutOfMemory),
        _ => false,
    }
}

/// Returns the error of a reply.
fn failed(reply: &RawDocument) -> DataFusionError {
    let message = reply.get_str(cstr!("errmsg")).unwrap_or("a command failed");
    let code = match reply.get_i32(cstr!("code")) {
        Ok(13) => Code::InsufficientPrivilege,
        Ok(50 | 237 | 11600 | 11601) => Code::QueryCanceled,
        Ok(146 | 292) => Code::OutOfMemory,
        _ => Code::DataException,
    };
    DataFusionError::External(Box::new(SqlError::new(code, message)))
}
