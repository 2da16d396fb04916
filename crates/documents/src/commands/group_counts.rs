//! Answers a `$group` from the cache's counts of values. The `$group` must group by a cached field and only count
//! documents.

use std::collections::HashMap;
use std::sync::Arc;

use bson::raw::CString;
use bson::{DateTime, RawBson, RawBsonRef, RawDocumentBuf, cstr};
use forebay_documents_query::element::encoded_bytes;
use forebay_documents_query::stage::{AccumulatorKind, Group};
use forebay_documents_query::{Expression, Filter, Scope, key};
use forebay_memory::Held;

use crate::collections::OpenCollection;
use crate::error::CommandError;
use crate::places::aside;
use crate::request::Request;
use crate::search::{Arrays, PlanOptions, SearchPlan, Values};
use crate::searches::Search;
use crate::streams::{List, Row, Stream};

/// Returns the groups, or `None` if the cache cannot count them.
///
/// # Errors
/// An error if the search was stopped, or the groups exceed the memory limit.
pub async fn from_cache(
    request: &Request<'_>,
    collection: &OpenCollection,
    filter: &Arc<Filter>,
    group: &Group,
) -> Result<Option<List>, CommandError> {
    let Some(plan) = plan(collection, filter, group) else {
        return Ok(None);
    };
    let Some(weights) = weights(group) else {
        return Ok(None);
    };
    request.begin_search(Search::Values(plan.clone()));
    let bytes_max = request.documents.settings().stage_memory_bytes_max;
    let values = plan
        .values(Arrays::Whole, bytes_max, request.stop())
        .await?;
    let groups = || Groups::new(values, &group.id, request);
    let groups = aside(request.stop(), groups).await??;
    Ok(Some(groups.into_documents(group, &weights)))
}

/// Returns the search that finds the groups, for `explain`.
pub fn plan(
    collection: &OpenCollection,
    filter: &Arc<Filter>,
    group: &Group,
) -> Option<Arc<SearchPlan>> {
    let path = counted(group)?;
    collection
        .search
        .plan_values(filter, &path, &PlanOptions::default())
        .ok()
        .map(Arc::new)
}

/// The integers that each document adds to the fields of its group.
pub type Weights = Vec<i64>;

/// Returns the weights of a `$group` that puts all documents into one group and only counts them. Returns `None` for
/// any other `$group`.
pub fn weights_of_all(group: &Group) -> Option<Weights> {
    group.id.as_literal()?;
    weights(group)
}

/// Returns the output document of a `$group` that puts all documents, `count` in number, into one group.
pub fn of_all(group: &Group, weights: &[i64], count: u64) -> Option<RawDocumentBuf> {
    Some(document(
        group.id.as_literal()?.clone(),
        count,
        group,
        weights,
    ))
}

/// Returns the path of the field that is the group key. Returns `None` if the group key is not a field, or if an
/// accumulator does more than count documents.
fn counted(group: &Group) -> Option<String> {
    weights(group)?;
    group.id.as_field().filter(|path| !path.is_empty())
}

/// Returns one weight per accumulator. Returns `None` if an accumulator does more than count documents.
fn weights(group: &Group) -> Option<Weights> {
    let weights = group
        .accumulations
        .iter()
        .map(|accumulation| match accumulation.kind {
            AccumulatorKind::Count => Some(1),
            AccumulatorKind::Sum => weight(&accumulation.operand),
            _ => None,
        });
    weights.collect()
}

/// Returns the operand of a `$sum`, if it is a constant integer.
fn weight(operand: &Expression) -> Option<i64> {
    match operand.as_literal()? {
        RawBson::Int32(number) => Some(i64::from(*number)),
        _ => None,
    }
}

/// Values with their document counts, in the order of first occurrence.
#[derive(Default)]
struct Groups {
    places: HashMap<Vec<u8>, usize>,
    groups: Vec<(RawBson, u64)>,
    /// The memory of the groups and of their documents.
    held: Held,
}

/// Memory of a group and its document besides the bytes of its value.
const GROUP_BYTES: usize = 384;
/// Copies of a value besides its key: the group's value, and the group's document.
const COPIES: usize = 2;

impl Groups {
    /// Makes groups of the cache's counts, and adds the documents that the cache could not evaluate.
    fn new(
        mut values: Values,
        id: &Expression,
        request: &Request<'_>,
    ) -> Result<Groups, CommandError> {
        let mut groups = Groups {
            held: Held::new(&request.documents.settings().memory, 0),
            ..Groups::default()
        };
        for string in &values.strings {
            groups.add(
                RawBsonRef::String(&String::from_utf8_lossy(&string.value)),
                string.count,
            )?;
        }
        groups.add(RawBsonRef::Null, values.null + values.missing)?;
        let now = DateTime::now();
        while let Some(row) = values.others.next(request.stop())? {
            let scope = Scope::new(&row, now);
            groups.add(id.evaluate(&scope)?.or_null(), 1)?;
        }
        Ok(groups)
    }

    fn add(&mut self, value: RawBsonRef<'_>, count: u64) -> Result<(), CommandError> {
        if count == 0 {
            return Ok(());
        }
        let bytes = GROUP_BYTES + key::bytes_max(value) + COPIES * encoded_bytes(value);
        self.held.take(bytes)?;
        let next = self.groups.len();
        let place = *self.places.entry(key::encode(value)).or_insert(next);
        match self.groups.get_mut(place) {
            Some((_, total)) => {
                *total += count;
                self.held.give_back(bytes);
            }
            None => self.groups.push((RawBson::from(value), count)),
        }
        Ok(())
    }

    fn into_documents(self, group: &Group, weights: &[i64]) -> List {
        let documents = self.groups.into_iter();
        let documents = documents.map(|(id, count)| document(id, count, group, weights));
        List::holding(documents.map(Row::Built), self.held)
    }
}

fn document(id: RawBson, count: u64, group: &Group, weights: &[i64]) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), id);
    for (accumulation, weight) in group.accumulations.iter().zip(weights) {
        let name =
            CString::try_from(accumulation.name.as_str()).expect("a name from BSON holds no NUL");
        let total = (count as i64).saturating_mul(*weight);
        document.append(
            name,
            i32::try_from(total).map_or(RawBson::Int64(total), RawBson::Int32),
        );
    }
    document
}
