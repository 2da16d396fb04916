//! The stream of change events.

use std::sync::Arc;

use bson::{DateTime, RawBson, RawDocument, RawDocumentBuf};
use forebay_cancel::{Stop, StopReason, Stopped};
use forebay_documents_query::Code;
use forebay_documents_query::stage::{Grown, Stage};
use forebay_documents_store::{
    ChangeEvent, ChangeKind, ClusterTime, Collection, History, Interest, Store, StoreError, Watch,
};
use forebay_memory::Account;

use super::event;
use super::options::{Options, Start};
use super::token::{Mark, ResumeToken};
use crate::error::CommandError;
use crate::streams::{Row, Stream};

/// Number of events that the stages drop between two checks of the cancellation token.
const LEFT_OUT_INTERVAL: u32 = 64;

/// Maximum unread bytes of a page that an idle stream keeps.
const RESTING_BYTES_MAX: usize = 64 << 10;

/// A stream over the changes of the store.
///
/// The stream reads the changes in `(position, until]` page by page. At the end, it asks the watch for the first later
/// change that concerns the stream, and skips all changes before that change.
pub struct ChangeStream {
    store: Arc<Store>,
    history: Arc<History>,
    watch: Arc<Watch>,
    scope: Interest,
    looks_up: bool,
    stages: Vec<Stage>,
    /// Changes before this time are not returned.
    from: ClusterTime,
    /// Time up to which all changes have been processed.
    position: ClusterTime,
    until: ClusterTime,
    page: std::vec::IntoIter<ChangeEvent>,
    /// The resume token of the last returned event.
    last: ResumeToken,
    /// The change that invalidates the stream. Its own event has been returned, but not yet the `invalidate` event.
    ending: Option<ChangeEvent>,
    ended: bool,
    grown: Grown,
}

impl ChangeStream {
    /// Opens a stream.
    ///
    /// # Errors
    /// `ChangeStreamHistoryLost` if the start position is no longer in the history.
    pub fn open(
        store: Arc<Store>,
        history: Arc<History>,
        options: &Options,
        stages: Vec<Stage>,
        memory: &Account,
    ) -> Result<ChangeStream, CommandError> {
        let watch = history.watch(options.scope.clone());
        let (_, until) = history.news(&watch);
        let mut stream = ChangeStream {
            store,
            history,
            watch: Arc::new(watch),
            scope: options.scope.clone(),
            looks_up: options.looks_up,
            stages,
            from: ClusterTime::new(0),
            position: until,
            until,
            page: Vec::new().into_iter(),
            last: ResumeToken::new(until, Mark::HighWater),
            ending: None,
            ended: false,
            grown: Grown::new(memory),
        };
        match options.start {
            Start::Now => {}
            Start::After(token) => stream.resume(token)?,
            Start::At(time) => stream.start_at(time)?,
        }
        Ok(stream)
    }

    fn resume(&mut self, token: ResumeToken) -> Result<(), CommandError> {
        let change = self.history.get(token.at)?.ok_or_else(lost)?;
        let ends =
            event::concerns(&self.scope, &change) && event::invalidates(&self.scope, &change);
        if ends && token.mark == Mark::Event {
            self.ending = Some(change);
        }
        self.position = token.at;
        self.last = token;
        Ok(())
    }

    fn start_at(&mut self, time: ClusterTime) -> Result<(), CommandError> {
        self.position = self.history.before(time)?.ok_or_else(lost)?;
        self.from = time;
        self.last = ResumeToken::new(self.position, Mark::HighWater);
        Ok(())
    }

    /// Returns a resume token. A stream resumed with this token continues after the last change that this stream has
    /// returned or skipped.
    pub fn token(&self) -> ResumeToken {
        if self.position > self.last.at {
            ResumeToken::new(self.position, Mark::HighWater)
        } else {
            self.last
        }
    }

    /// Returns the watch that signals new changes.
    pub fn watch(&self) -> Arc<Watch> {
        self.watch.clone()
    }

    /// Returns the next change that concerns the stream, or `None` if there is none yet or the time limit has passed.
    fn next_change(&mut self, stop: &Stop) -> Result<Option<ChangeEvent>, CommandError> {
        let mut pages = 0;
        loop {
            for change in self.page.by_ref() {
                self.position = change.at;
                if change.at >= self.from && event::concerns(&self.scope, &change) {
                    return Ok(Some(change));
                }
            }
            if pages > 0 && is_late(stop)? {
                return Ok(None);
            }
            if self.position >= self.until && !self.advance() {
                return Ok(None);
            }
            self.read_page()?;
            pages += 1;
        }
    }

    /// Moves `until` to the last change, and `position` past changes that do not concern the stream. Returns false if
    /// no new change concerns the stream.
    fn advance(&mut self) -> bool {
        let (first, last) = self.history.news(&self.watch);
        self.until = last;
        self.position = match first {
            Some(first) => self.position.max(first.minus_one()),
            None => last,
        };
        first.is_some()
    }

    fn read_page(&mut self) -> Result<(), CommandError> {
        let page = match self.history.read(self.position, self.until) {
            Err(StoreError::HistoryLost) => return Err(lost()),
            page => page?,
        };
        if page.is_empty() {
            self.position = self.until;
        }
        self.page = page.into_iter();
        Ok(())
    }

    /// Returns the event of a change, or `None` if a stage drops it.
    fn show(&mut self, change: ChangeEvent) -> Result<Option<Row>, CommandError> {
        let looked_up = if self.looks_up && change.kind == ChangeKind::Update {
            Some(self.look_up(&change)?)
        } else {
            None
        };
        let event = event::event(&change, looked_up)?;
        self.last = ResumeToken::new(change.at, Mark::Event);
        if event::invalidates(&self.scope, &change) {
            self.ending = Some(change);
        }
        self.through_stages(event)
    }

    /// Returns the `invalidate` event, which ends the stream.
    fn end(&mut self, change: &ChangeEvent) -> Result<Option<Row>, CommandError> {
        self.ended = true;
        self.last = ResumeToken::new(change.at, Mark::Invalidate);
        self.position = change.at;
        self.through_stages(event::invalidate(change))
    }

    /// Returns the current version of the changed document, or null if it has been deleted.
    fn look_up(&self, change: &ChangeEvent) -> Result<RawBson, CommandError> {
        let found = match self.collection_of(change) {
            Some(collection) => document(&collection, &change.detail),
            None => Ok(None),
        };
        match found {
            Ok(found) => Ok(found.map_or(RawBson::Null, RawBson::Document)),
            Err(StoreError::PartitionDropped) => Ok(RawBson::Null),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the collection in which a change was made, even if the collection has been renamed since then.
    fn collection_of(&self, change: &ChangeEvent) -> Option<Arc<Collection>> {
        let named = self
            .store
            .collection(&change.namespace.db, &change.namespace.collection);
        let is_same = |collection: &Arc<Collection>| collection.uuid() == change.uuid;
        named
            .filter(is_same)
            .or_else(|| self.store.all_collections().into_iter().find(is_same))
    }

    fn through_stages(&mut self, mut event: RawDocumentBuf) -> Result<Option<Row>, CommandError> {
        let bytes = event.as_bytes().len();
        for stage in &self.stages {
            match stage {
                Stage::Match(filter) if !filter.try_matches(&event)? => return Ok(None),
                Stage::Transform(transform) => {
                    let apply = || transform.apply(&event, DateTime::now());
                    event = self.grown.make(bytes, apply)?;
                }
                _ => {}
            }
        }
        self.check_token(&event)?;
        Ok(Some(Row::Built(event)))
    }

    /// Checks that no stage has modified the resume token (`_id`) of an event.
    fn check_token(&self, event: &RawDocument) -> Result<(), CommandError> {
        let kept = event.get_document("_id").and_then(|id| id.get_str("_data"));
        if kept.is_ok_and(|data| data == self.last.data()) {
            return Ok(());
        }
        Err(CommandError::refused(
            Code::ChangeStreamFatalError,
            "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. \
             Modifying the _id field of an event makes it impossible to resume the stream from that point: keep _id \
             in the pipeline",
        ))
    }
}

impl Stream for ChangeStream {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        let mut left_out = 0_u32;
        while !self.ended {
            let row = match self.ending.take() {
                Some(change) => self.end(&change)?,
                None => match self.next_change(stop)? {
                    Some(change) => self.show(change)?,
                    None => return Ok(None),
                },
            };
            if row.is_some() {
                return Ok(row);
            }
            left_out += 1;
            if left_out.is_multiple_of(LEFT_OUT_INTERVAL) && is_late(stop)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn rest(&mut self) {
        let unread = self.page.as_slice().iter();
        let bytes: usize = unread.map(|change| change.detail.as_bytes().len()).sum();
        if bytes > RESTING_BYTES_MAX {
            // The next page begins after `position`.
            self.page = Vec::new().into_iter();
        }
    }

    fn is_done(&self) -> bool {
        self.ended
    }

    fn changes(&self) -> Option<&ChangeStream> {
        Some(self)
    }
}

/// Returns the current version of the document that an update changed.
fn document(
    collection: &Collection,
    update: &RawDocument,
) -> Result<Option<RawDocumentBuf>, StoreError> {
    let key = update.get_document("documentKey")?;
    let number = match key.get("_id")? {
        Some(id) => collection.number_by_id(id)?,
        None => None,
    };
    let found = number.map(|number| collection.get(number)).transpose()?;
    Ok(found.flatten().map(|document| document.to_buf()))
}

/// Returns whether the time limit has passed. The stream then returns the events found so far.
fn is_late(stop: &Stop) -> Result<bool, CommandError> {
    match stop.check() {
        Ok(()) => Ok(false),
        Err(Stopped {
            reason: StopReason::Deadline,
        }) => Ok(true),
        Err(stopped) => Err(stopped.into()),
    }
}

fn lost() -> CommandError {
    CommandError::refused(
        Code::ChangeStreamHistoryLost,
        "Resume of change stream was not possible, as the resume point may no longer be in the change history: \
         open a new stream, then read the data again. A larger --documents-change-history-bytes-max keeps a longer history",
    )
}
