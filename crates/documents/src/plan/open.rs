//! Executes plans.

use forebay_cancel::Stop;
use forebay_documents_query::Sort;
use forebay_documents_query::filter::Node;
use forebay_documents_store::RecordNumber;
use forebay_memory::Held;

use super::{Access, Plan};
use crate::error::CommandError;
use crate::places::aside;
use crate::request::Request;
use crate::search::Wanted;
use crate::streams::{Fetch, List, Range, Scan, Stream, Walk, count_scan, sorted};

impl Plan {
    /// Returns the matches as a stream.
    ///
    /// # Errors
    /// The error of the cache or the store.
    pub async fn open(&self, wanted: Wanted, stop: &Stop) -> Result<Box<dyn Stream>, CommandError> {
        let (store, filter) = (self.collection.store.clone(), self.filter.clone());
        Ok(match &self.access {
            Access::Nothing => Box::new(List::default()),
            Access::Id(id) => {
                let number = store.number_by_id(id.as_raw_bson_ref())?;
                if number.is_some() {
                    self.tally.read_key();
                    self.tally.examine(true);
                }
                Box::new(Fetch::new(store, filter, number.into_iter().collect()))
            }
            Access::Cache(search) => Box::new(search.find(wanted, stop).await?),
            Access::Index(access) => {
                let range = Range::from(access);
                Box::new(Walk::new(store, filter, range, self.tally.clone()))
            }
            Access::Union(union) => {
                let range = Range::from(&**union);
                Box::new(Walk::new(store, filter, range, self.tally.clone()))
            }
            Access::Scan { direction } => {
                Box::new(Scan::new(&store, filter, *direction, self.tally.clone()))
            }
        })
    }

    /// Returns the number of matches.
    ///
    /// # Errors
    /// The error of the cache or the store.
    pub async fn count(&self, stop: &Stop) -> Result<u64, CommandError> {
        let store = &self.collection.store;
        match &self.access {
            Access::Nothing => Ok(0),
            Access::Cache(search) => search.count(stop).await,
            Access::Scan { .. } if matches!(self.filter.root(), Node::AlwaysTrue) => {
                Ok(store.document_count())
            }
            Access::Scan { .. } => {
                aside(stop, || count_scan(store, &self.filter, &self.tally, stop)).await?
            }
            Access::Id(_) | Access::Index(_) | Access::Union(_) => {
                let stream = self.open(Wanted::All, stop).await?;
                if stream.is_short() {
                    count_stream(stream, stop)
                } else {
                    aside(stop, || count_stream(stream, stop)).await?
                }
            }
        }
    }

    /// Returns the record numbers of at most `limit` matches. A write changes documents only after this search has
    /// ended, so that the search never sees the write's own changes.
    ///
    /// # Errors
    /// The error of the cache or the store.
    pub async fn numbers(
        &self,
        limit: Option<u64>,
        stop: &Stop,
    ) -> Result<Vec<RecordNumber>, CommandError> {
        let wanted = limit.map_or(Wanted::All, Wanted::Any);
        let mut stream = self.open(wanted, stop).await?;
        let limit = limit.unwrap_or(u64::MAX);
        let is_short = stream.is_short() && matches!(self.access, Access::Id(_));
        let mut pull = || {
            let mut numbers = Vec::new();
            while (numbers.len() as u64) < limit {
                match stream.next(stop)? {
                    Some(row) => numbers.extend(row.number()),
                    None => break,
                }
            }
            Ok(numbers)
        };
        if is_short {
            pull()
        } else {
            aside(stop, pull).await?
        }
    }
}

impl Plan {
    /// Returns the record number of the first match, in the order of `sort` if given.
    ///
    /// # Errors
    /// The error of the cache or the store.
    pub async fn first_number(
        &self,
        sort: Option<&Sort>,
        request: &Request<'_>,
    ) -> Result<Option<RecordNumber>, CommandError> {
        let stop = request.stop();
        let Some(sort) = sort.filter(|_| !self.is_sorted) else {
            return Ok(self.numbers(Some(1), stop).await?.pop());
        };
        let stream = self.open(Wanted::All, stop).await?;
        let held = Held::new(&request.documents.settings().memory, 0);
        let sort = || sorted(stream, sort, Some(1), usize::MAX, held, stop);
        let mut first = aside(stop, sort).await??;
        Ok(first.next(stop)?.and_then(|row| row.number()))
    }
}

fn count_stream(mut stream: Box<dyn Stream>, stop: &Stop) -> Result<u64, CommandError> {
    let mut count = 0;
    while stream.next(stop)?.is_some() {
        count += 1;
    }
    Ok(count)
}
