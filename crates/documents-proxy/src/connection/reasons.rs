//! Reasons why a read is answered by the upstream and not by a replica, with the measured times and counts. Shown by
//! `explain` and in the errors of strict searches.

use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::{ClientContext, Namespace};

use super::reads::IDS_MAX;
use crate::replicas::pace::{Pace, Wanted};
use crate::replicas::{Replicas, number};

/// Why a read is passed on unchanged.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// The replica does not answer at present. The text says why.
    NotReady(String),
    /// The upstream does not let the client read the collection.
    Unproven,
    /// The filter has no condition that a cache can evaluate.
    NoCondition,
    /// The read has an argument that a replica does not support.
    Argument(String),
    /// The replica's search failed.
    Refused(String),
    /// Too many documents match the conditions that the replica can evaluate.
    TooMany {
        condition: RawDocumentBuf,
        is_whole: bool,
    },
    /// The upstream's search finds enough documents for the limit after it has scanned few documents.
    Early { limit: usize, scanned: u64 },
    /// The upstream's search is faster than queries by `_id`.
    Slower {
        count: usize,
        by_id: Duration,
        search: Duration,
    },
    /// The upstream's latency for queries by `_id` is not known yet.
    Unmeasured { count: usize },
}

impl Reason {
    /// Creates the reason from the error reply of a replica's failed search.
    pub fn refused(reply: &RawDocument) -> Reason {
        Reason::Refused(reply.get_str("errmsg").unwrap_or_default().to_owned())
    }

    /// Returns the reason as text. Counts the matching documents on behalf of `client` if necessary.
    pub async fn text(
        &self,
        replicas: &Replicas,
        client: &ClientContext,
        namespace: &Namespace,
    ) -> String {
        match self {
            Reason::NotReady(why) => why.clone(),
            Reason::Unproven => {
                "the upstream does not let this client read the collection".to_owned()
            }
            Reason::NoCondition => "there is no condition on a cached field".to_owned(),
            Reason::Argument(name) => format!("only the upstream supports {name}"),
            Reason::Refused(why) => format!("the cache cannot run the command: {why}"),
            Reason::TooMany {
                condition,
                is_whole,
            } => {
                let count =
                    rawdoc! { "count": namespace.collection.as_str(), "query": condition.clone() };
                let reply = replicas.run_for(client, &namespace.db, count).await;
                let count = number(&reply, "n").map_or("many".to_owned(), |n| grouped(n as u64));
                let what = if *is_whole {
                    ""
                } else {
                    " the conditions on cached fields"
                };
                let most = grouped(IDS_MAX as u64);
                format!(
                    "{count} documents match{what}; the upstream searches if more than {most} match"
                )
            }
            Reason::Early { limit, scanned } => format!(
                "the upstream finds enough documents for limit {limit} among its first {scanned} documents"
            ),
            Reason::Slower {
                count,
                by_id,
                search,
            } => format!(
                "the upstream takes {} ms to search, and about {} ms to return {count} documents by their _id",
                ms(*search),
                ms(*by_id)
            ),
            Reason::Unmeasured { count } => {
                format!(
                    "the upstream's latency for {count} documents by their _id is being measured"
                )
            }
        }
    }
}

/// Describes the upstream's queries for the documents that a replica found, and the measured times.
pub fn by_id(wanted: Wanted, pace: Option<Pace>) -> String {
    let (count, how) = match wanted.one_by_one {
        Some(count) => (count, ", one by one"),
        None => (wanted.together, ""),
    };
    let text = format!(
        "the cache finds {count} documents, and the upstream returns them by their _id{how}"
    );
    let Some(pace) = pace else {
        return text;
    };
    let took = ms(pace.by_id(wanted).1);
    match pace.search() {
        Some(search) => format!(
            "{text}: about {took} ms, while a search by the upstream takes {} ms",
            ms(search)
        ),
        None => format!("{text}: about {took} ms"),
    }
}

/// Formats a duration in milliseconds, with one decimal below 10 ms.
fn ms(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 10.0 {
        format!("{ms:.1}")
    } else {
        grouped(ms.round() as u64)
    }
}

/// Formats a number with commas between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_stand_in_groups_of_three() {
        let numbers = [0, 999, 1_000, 3_439, 12_345, 1_234_567];
        let texts = ["0", "999", "1,000", "3,439", "12,345", "1,234,567"];
        assert_eq!(numbers.map(grouped), texts);
    }
}
