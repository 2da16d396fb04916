//! Sends batches of documents to a server, several batches concurrently.

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use forebay_wire_mongo::limits::DOCUMENT_BYTES_MAX;
use mongodb::Collection;
use mongodb::error::{Error, ErrorKind, InsertManyError};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::task::JoinSet;

use super::Position;
use crate::driver_error::sentence;

/// Maximum number of documents in an insert.
const BATCH_DOCUMENTS_MAX: usize = 10_000;
/// Bytes of collected documents at which an insert is sent.
const BATCH_BYTES: usize = 8 << 20;
/// Maximum number of inserts in flight.
const IN_FLIGHT: usize = 3;
/// Maximum number of refusals whose reasons are kept.
pub const REASONS_MAX: usize = 10;

/// Bytes of the `_id` field that the driver adds to documents without one.
const ID_BYTES: usize = 1 + "_id\0".len() + 12;

/// Why an import stopped early: the server refused a whole batch, or cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("the server did not accept the documents: {}", sentence(.0))]
pub struct SendError(#[from] Error);

/// Where a document of an import comes from.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Name of the file.
    pub file: Arc<str>,
    /// Where the document begins in the file.
    pub position: Position,
}

impl Origin {
    fn explain(&self, reason: &str) -> String {
        format!("{}: {}: {reason}", self.file, self.position)
    }
}

/// The outcome of an import.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Number of documents that the server inserted.
    pub inserted: u64,
    /// Number of documents that the server refused, or that were not sent because they are too large.
    pub refused: u64,
    /// Maps the numbers of the first `REASONS_MAX` refused documents to the reasons, each with file and line.
    pub reasons: BTreeMap<u64, String>,
}

impl Outcome {
    /// Counts a refused document, and keeps the reason if the document is one of the first that were refused.
    fn refuse(&mut self, number: u64, origin: &Origin, reason: &str) {
        self.refused += 1;
        self.reasons.insert(number, origin.explain(reason));
        if self.reasons.len() > REASONS_MAX {
            self.reasons.pop_last();
        }
    }
}

/// Checks that a document is not too large to store. If it were sent, the driver would refuse the whole batch that
/// contains it.
///
/// # Errors
/// If it is too large.
fn check_size(document: &RawDocument) -> Result<(), String> {
    let mut bytes = document.as_bytes().len();
    if bytes + ID_BYTES <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    if !matches!(document.get("_id"), Ok(Some(_))) {
        bytes += ID_BYTES;
    }
    match bytes <= DOCUMENT_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "the document has {bytes} bytes; at most {DOCUMENT_BYTES_MAX} can be stored"
        )),
    }
}

/// Documents for an insert.
#[derive(Debug, Default)]
struct Batch {
    documents: Vec<RawDocumentBuf>,
    /// Number and origin of each document.
    origins: Vec<(u64, Origin)>,
    bytes: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.documents.len() >= BATCH_DOCUMENTS_MAX || self.bytes >= BATCH_BYTES
    }
}

/// Collects documents into batches and queues them. Blocks the thread while the queue is full.
#[derive(Debug)]
pub struct Sender {
    batches: mpsc::Sender<Batch>,
    batch: Batch,
    /// Number of documents so far, including those that were not sent.
    count: u64,
    outcome: Arc<Mutex<Outcome>>,
}

/// The inserts in flight.
#[derive(Debug)]
pub struct Inserts {
    workers: JoinSet<Result<(), Error>>,
    outcome: Arc<Mutex<Outcome>>,
}

type Batches = Arc<AsyncMutex<mpsc::Receiver<Batch>>>;

impl Sender {
    /// Starts the workers that insert documents into `collection`. They call `inserted` with the number of documents
    /// inserted so far. When `stopped` becomes true, they finish the inserts in flight and end.
    pub fn start(
        collection: Collection<RawDocumentBuf>,
        stopped: &watch::Receiver<bool>,
        inserted: impl Fn(u64) + Clone + Send + 'static,
    ) -> (Sender, Inserts) {
        let (batches, receiver) = mpsc::channel(1);
        let receiver = Arc::new(AsyncMutex::new(receiver));
        let outcome = Arc::new(Mutex::new(Outcome::default()));
        let mut workers = JoinSet::new();
        for _ in 0..IN_FLIGHT {
            workers.spawn(work(
                collection.clone(),
                receiver.clone(),
                stopped.clone(),
                outcome.clone(),
                inserted.clone(),
            ));
        }
        (
            Sender {
                batches,
                batch: Batch::default(),
                count: 0,
                outcome: outcome.clone(),
            },
            Inserts { workers, outcome },
        )
    }

    /// Adds a document. Returns false if sending has failed. A document that is too large to store is not sent, but
    /// counted as refused.
    pub fn push(&mut self, document: RawDocumentBuf, origin: Origin) -> bool {
        self.count += 1;
        if let Err(reason) = check_size(&document) {
            self.outcome.lock().refuse(self.count, &origin, &reason);
            return true;
        }
        self.batch.bytes += document.as_bytes().len();
        self.batch.documents.push(document);
        self.batch.origins.push((self.count, origin));
        !self.batch.is_full() || self.flush()
    }

    /// Queues the collected documents. Returns false if sending has failed.
    pub fn flush(&mut self) -> bool {
        let batch = std::mem::take(&mut self.batch);
        batch.documents.is_empty() || self.batches.blocking_send(batch).is_ok()
    }
}

impl Inserts {
    /// Waits for the replies to all batches. Returns the outcome, and the first error that is not about individual
    /// documents, for instance a lost connection.
    pub async fn finish(mut self) -> (Outcome, Result<(), SendError>) {
        let mut sent = Ok(());
        while sent.is_ok()
            && let Some(ended) = self.workers.join_next().await
        {
            sent = ended.expect("a worker does not panic and is not cancelled");
        }
        let outcome = self.outcome.lock().clone();
        (outcome, sent.map_err(SendError::from))
    }
}

async fn work(
    collection: Collection<RawDocumentBuf>,
    batches: Batches,
    mut stopped: watch::Receiver<bool>,
    outcome: Arc<Mutex<Outcome>>,
    inserted: impl Fn(u64),
) -> Result<(), Error> {
    loop {
        let next = async { batches.lock().await.recv().await };
        let batch = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => None,
            batch = next => batch,
        };
        let Some(batch) = batch else {
            return Ok(());
        };
        let sent = batch.documents.len() as u64;
        let refused = insert(&collection, batch, &outcome)
            .await
            .inspect_err(|_| close(&batches))?;
        let count = {
            let mut outcome = outcome.lock();
            outcome.inserted += sent - refused;
            outcome.inserted
        };
        inserted(count);
    }
}

/// Closes the queue of batches, so that the sender and the other workers stop.
fn close(batches: &Batches) {
    if let Ok(mut batches) = batches.try_lock() {
        batches.close();
    }
}

/// Inserts a batch, and returns the number of refused documents.
async fn insert(
    collection: &Collection<RawDocumentBuf>,
    batch: Batch,
    outcome: &Mutex<Outcome>,
) -> Result<u64, Error> {
    let Batch {
        documents, origins, ..
    } = batch;
    let Err(error) = collection.insert_many(documents).ordered(false).await else {
        return Ok(0);
    };
    let ErrorKind::InsertMany(InsertManyError {
        write_errors: Some(refusals),
        ..
    }) = &*error.kind
    else {
        return Err(error);
    };
    let mut outcome = outcome.lock();
    for refusal in refusals {
        // The index comes from the peer.
        let Some((number, origin)) = origins.get(refusal.index) else {
            return Err(error);
        };
        outcome.refuse(*number, origin, &refusal.message);
    }
    Ok(refusals.len() as u64)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn the_id_that_the_driver_adds_counts() {
        let overhead = rawdoc! { "_id": 1, "a": "" }.as_bytes().len();
        let text = "x".repeat(DOCUMENT_BYTES_MAX - overhead);
        assert_eq!(check_size(&rawdoc! { "_id": 1, "a": &*text }), Ok(()));
        let refused = check_size(&rawdoc! { "_id": 1, "a": format!("{text}x") });
        assert!(refused.is_err_and(|reason| reason.contains("16777217 bytes")));
        let refused = check_size(&rawdoc! { "a": &*text });
        let bytes = DOCUMENT_BYTES_MAX - rawdoc! { "_id": 1 }.as_bytes().len() + 5 + ID_BYTES;
        assert!(refused.is_err_and(|reason| reason.contains(&format!("{bytes} bytes"))));
    }
}
