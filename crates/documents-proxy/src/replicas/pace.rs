//! Measures how long the upstream takes to return documents by `_id`, and to search by itself. The times are measured
//! separately for each collection. They cannot be assumed, because upstreams differ: FerretDB 1 on SQLite reads a part
//! of the collection for one `_id`, and the whole collection for two `_id`s.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{RawArrayBuf, RawBson, RawDocumentBuf, cstr, rawdoc};
use forebay_documents::Namespace;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Replica, ReplicaError, Replicas, is_code};

/// Maximum number of documents that are fetched with one query each.
pub const ONE_BY_ONE_MAX: usize = 16;
/// A strategy with at most this latency is used without comparing it with the other strategies.
const SHORT: Duration = Duration::from_millis(10);
/// Timeout of a read that waits for the first measurement. On timeout, the upstream searches by itself.
const FIRST_MEASUREMENT_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum time of one measurement; longer times count as this long.
const MEASURED_MAX: Duration = Duration::from_millis(MEASURED_MAX_MS as u64);
/// `MEASURED_MAX` in milliseconds: the upstream's own time limit for a measured command.
const MEASURED_MAX_MS: i64 = 60_000;
/// Error code MaxTimeMSExpired, of a command that the upstream stopped at its time limit.
const MAX_TIME_EXPIRED: i32 = 50;
/// Minimum interval between measurements while the upstream searches by itself because that is faster.
const INTERVAL: Duration = Duration::from_secs(60);
/// Minimum interval between measurements, as a multiple of a measurement's duration, so that measuring takes at most
/// 1/50 of the time.
const INTERVAL_TIMES: u32 = 50;

/// How the proxy gets documents from the upstream after a replica has found their `_id`s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// One query for each `_id`.
    OneByOne,
    /// One query for all `_id`s, together with the filter.
    Together,
    /// A search by the upstream itself, with the client's filter.
    Search,
}

/// How many documents a read needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Number of queries if each document is fetched by its own query; `None` if such queries cannot answer the read.
    pub one_by_one: Option<usize>,
    /// Number of `_id`s in the query if one query fetches all documents.
    pub together: usize,
}

/// The measured times of a collection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Time of a query for one `_id`.
    one: Duration,
    /// Number of `_id`s in a query for several documents, and the time of that query.
    several: (usize, Duration),
    /// Time of a search of the whole collection; `None` if queries by `_id` were so fast that the search was not
    /// measured.
    search: Option<Duration>,
}

impl Pace {
    /// Returns the fastest strategy and its time, assuming that a search by the upstream reads `share` (a fraction) of
    /// the collection. Returns `None` if queries by `_id` are slow and the search was not measured.
    pub fn strategy(&self, wanted: Wanted, share: f64) -> Option<(Strategy, Duration)> {
        let (strategy, by_id) = self.by_id(wanted);
        if by_id <= SHORT {
            return Some((strategy, by_id));
        }
        let search = self.search?.mul_f64(share);
        Some(if by_id <= search {
            (strategy, by_id)
        } else {
            (Strategy::Search, search)
        })
    }

    /// Returns whether the upstream should search by itself, assuming that its search ends after `share` (a fraction)
    /// of the collection.
    pub fn prefers_search(&self, wanted: Wanted, share: f64) -> bool {
        let search = self.search.map(|search| search.mul_f64(share));
        search.is_none_or(|search| search <= SHORT || search < self.by_id(wanted).1)
    }

    /// Returns whether one query for each `_id` is so fast that it needs no comparison with a search.
    pub fn is_fast_one_by_one(&self, wanted: Wanted) -> bool {
        let (strategy, by_id) = self.by_id(wanted);
        strategy == Strategy::OneByOne && by_id <= SHORT
    }

    /// Returns the faster of the two strategies that query by `_id`, and its time.
    pub fn by_id(&self, wanted: Wanted) -> (Strategy, Duration) {
        let (of, several) = self.several;
        // More `_id`s than were measured may take proportionally longer.
        let together = several.mul_f64((wanted.together as f64 / of.max(1) as f64).max(1.0));
        let few = wanted.one_by_one.filter(|few| *few <= ONE_BY_ONE_MAX);
        match few.map(|few| self.one.saturating_mul(few as u32)) {
            Some(each) if each <= together => (Strategy::OneByOne, each),
            _ => (Strategy::Together, together),
        }
    }

    /// Returns whether a search by the upstream would be faster than continuing with one query for each `_id`. The
    /// queries so far took the time `after`, and `left` documents remain.
    pub fn is_too_slow(&self, after: Duration, left: usize) -> bool {
        let rest = self.one.saturating_mul(left as u32);
        let search = self.search.unwrap_or(FIRST_MEASUREMENT_TIMEOUT);
        after > SHORT && after + rest > search
    }

    /// Returns the time of a search by the upstream, if it was measured.
    pub fn search(&self) -> Option<Duration> {
        self.search
    }
}

/// The measured pace of a collection, and the state of the measurement.
#[derive(Debug, Default)]
pub struct Measurement(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pace: Option<Pace>,
    is_running: bool,
    /// When the next measurement may begin.
    next: Option<Instant>,
}

impl Measurement {
    /// Returns the measured times, if there was a measurement.
    pub fn pace(&self) -> Option<Pace> {
        self.0.lock().pace
    }

    /// Records the time of a query for one `_id`. Keeps the longest time, because an upstream that scans takes longer
    /// for documents near the end of the collection.
    pub fn note_time(&self, one: Duration) {
        if let Some(pace) = &mut self.0.lock().pace {
            pace.one = pace.one.max(one);
        }
    }

    /// Begins a measurement if one is due and none is running. If this returns true, the caller has to measure.
    fn begin(&self) -> bool {
        let mut state = self.0.lock();
        let is_due = state.next.is_none_or(|next| next <= Instant::now());
        let begins = is_due && !state.is_running;
        state.is_running |= begins;
        begins
    }

    fn end(&self, begun: Instant, measured: Option<Pace>) {
        let pause = INTERVAL.max(begun.elapsed() * INTERVAL_TIMES);
        // If the search was not measured, the next measurement may begin as soon as a read needs it.
        let is_all = measured.is_none_or(|pace| pace.search.is_some());
        let mut state = self.0.lock();
        state.is_running = false;
        state.next = is_all.then(|| Instant::now() + pause);
        state.pace = measured.or(state.pace);
    }
}

impl Replicas {
    /// Returns the pace of a collection. If the pace is unknown or old, measures it with the `_id`s that a replica
    /// found for `filter`. Returns `None` if the pace is unknown and the measurement takes more than 100 ms.
    pub async fn pace(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        ids: &[RawBson],
        wanted: Wanted,
        share: f64,
        filter: RawDocumentBuf,
    ) -> Option<Pace> {
        let known = replica.measurement.pace();
        let strategy = known.and_then(|pace| pace.strategy(wanted, share));
        let suffices = strategy.is_some_and(|(strategy, _)| strategy != Strategy::Search);
        if suffices || !replica.measurement.begin() {
            return known;
        }
        let (replicas, replica, ids) = (self.clone(), replica.clone(), ids.to_vec());
        let measuring = tokio::spawn(async move {
            let begun = Instant::now();
            let namespace = &replica.namespace;
            let measured = replicas.measure(namespace, &ids, wanted, filter).await;
            if let Err(error) = &measured {
                tracing::info!(%namespace, %error, "the upstream's latency cannot be measured");
            }
            let measured = measured.ok();
            replica.measurement.end(begun, measured);
            measured
        });
        match known {
            None => timeout(FIRST_MEASUREMENT_TIMEOUT, measuring)
                .await
                .ok()?
                .ok()?,
            known => known,
        }
    }

    async fn measure(
        &self,
        namespace: &Namespace,
        ids: &[RawBson],
        wanted: Wanted,
        filter: RawDocumentBuf,
    ) -> Result<Pace, ReplicaError> {
        let Namespace { db, collection } = namespace;
        let find = |id: RawBson| {
            let mut by_id = RawDocumentBuf::new();
            by_id.append(cstr!("_id"), id);
            let batch = ids.len() as i64 + 1;
            // The query has no `limit`. With a limit, an upstream without an index on `_id` would stop early if the
            // documents are near the beginning, and the measured time would be too short.
            rawdoc! {
                "find": collection.as_str(), "filter": by_id, "batchSize": batch, "singleBatch": true,
                "maxTimeMS": MEASURED_MAX_MS,
            }
        };
        // The first command may have to open a connection, so its time is not measured.
        self.ask_upstream(db, rawdoc! { "ping": 1 }).await?;
        let first = ids.first().cloned().unwrap_or(RawBson::Null);
        let one = self.timed(db, find(first)).await?;
        let all = rawdoc! { "$in": RawArrayBuf::from_iter(ids.iter().cloned()) };
        let several = self.timed(db, find(all.into())).await?;
        let mut pace = Pace {
            one,
            several: (ids.len(), several),
            search: None,
        };
        if pace.by_id(wanted).1 > SHORT {
            let count = rawdoc! {
                "count": collection.as_str(), "query": filter, "maxTimeMS": MEASURED_MAX_MS,
            };
            pace.search = Some(self.timed(db, count).await?);
        }
        Ok(pace)
    }

    /// Returns how long the upstream takes to run a command.
    async fn timed(&self, db: &str, command: RawDocumentBuf) -> Result<Duration, ReplicaError> {
        let begun = Instant::now();
        match timeout(MEASURED_MAX, self.ask_upstream(db, command)).await {
            Ok(Err(ReplicaError::Upstream(error))) if is_code(&error, MAX_TIME_EXPIRED) => {
                Ok(MEASURED_MAX)
            }
            Ok(reply) => reply.map(|_| begun.elapsed()),
            Err(_) => Ok(MEASURED_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// FerretDB 1.24 on SQLite with 100,000 documents, as measured by a user.
    const FERRETDB: Pace = Pace {
        one: ms(210),
        several: (11, ms(2_610)),
        search: Some(ms(2_760)),
    };

    fn strategy(
        pace: Pace,
        one_by_one: Option<usize>,
        together: usize,
        share: f64,
    ) -> Option<Strategy> {
        let wanted = Wanted {
            one_by_one,
            together,
        };
        Some(pace.strategy(wanted, share)?.0)
    }

    #[test]
    fn documents_are_asked_for_by_id_as_long_as_that_is_faster_than_a_search() {
        let all = |count, share| strategy(FERRETDB, Some(count), count, share);
        assert_eq!(all(1, 1.0), Some(Strategy::OneByOne));
        assert_eq!(all(11, 1.0), Some(Strategy::OneByOne));
        assert_eq!(strategy(FERRETDB, None, 11, 1.0), Some(Strategy::Together));
        assert_eq!(all(14, 1.0), Some(Strategy::Search));
        assert_eq!(strategy(FERRETDB, None, 900, 1.0), Some(Strategy::Search));
        // With a limit, the upstream's search ends early.
        assert_eq!(
            strategy(FERRETDB, Some(1), 900, 0.01),
            Some(Strategy::Search)
        );
        assert_eq!(
            strategy(FERRETDB, Some(1), 900, 0.5),
            Some(Strategy::OneByOne)
        );
    }

    #[test]
    fn what_is_fast_needs_no_search_to_compare_with() {
        let indexed = Pace {
            one: Duration::from_micros(200),
            several: (100, ms(1)),
            search: None,
        };
        assert_eq!(strategy(indexed, Some(1), 1, 1.0), Some(Strategy::OneByOne));
        assert_eq!(
            strategy(indexed, Some(10), 10, 1.0),
            Some(Strategy::Together)
        );
        assert_eq!(
            strategy(indexed, None, 1_000, 0.0),
            Some(Strategy::Together)
        );
        let slow = Pace {
            several: (1, ms(300)),
            one: ms(300),
            ..indexed
        };
        assert_eq!(strategy(slow, Some(1), 1, 1.0), None);
    }

    #[test]
    fn asking_one_by_one_is_given_up_before_it_takes_much_longer_than_a_search() {
        assert!(!FERRETDB.is_too_slow(ms(0), 11));
        assert!(!FERRETDB.is_too_slow(ms(420), 9));
        // Each query now takes a second.
        let slower = Pace {
            one: ms(1_000),
            ..FERRETDB
        };
        assert!(slower.is_too_slow(ms(1_000), 10));
        assert!(!slower.is_too_slow(ms(1_000), 1));
    }

    #[test]
    fn one_measurement_runs_at_a_time_and_the_next_one_later() {
        let measurement = Measurement::default();
        assert!(measurement.begin() && !measurement.begin());
        let search = None;
        measurement.end(Instant::now(), Some(Pace { search, ..FERRETDB }));
        assert!(measurement.begin(), "there was no search to compare with");
        measurement.end(Instant::now(), Some(FERRETDB));
        assert!(!measurement.begin(), "a moment ago");
        measurement.note_time(ms(1_010));
        measurement.note_time(ms(10));
        assert_eq!(measurement.pace().map(|pace| pace.one), Some(ms(1_010)));
    }
}
