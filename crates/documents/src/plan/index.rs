//! Chooses an index of the store for a query.

use std::sync::Arc;

use forebay_documents_query::filter::Node;
use forebay_documents_query::{Sort, key};
use forebay_documents_store::{
    Direction, IndexBounds, IndexField, IndexKind, IndexSpec, IndexStatus,
};

use super::bounds::{Bounded, RANGES_MAX, bounds};

/// An access path through an index.
#[derive(Debug, Clone)]
pub struct IndexAccess {
    /// The index.
    pub spec: Arc<IndexSpec>,
    /// The ranges to walk, in order.
    pub ranges: Vec<IndexBounds>,
    /// The direction of the walk.
    pub direction: Direction,
    /// Number of leading fields that the filter binds to one or several values.
    pub equal: usize,
    /// Whether the next field after the `equal` ones is bound to a range.
    pub is_range: bool,
    /// Whether at most one document can match. True if the filter binds every field of a unique index to one value.
    pub is_point: bool,
    /// Whether the walk yields documents in the requested order.
    pub is_sorted: bool,
    /// Whether the walk may yield a document more than once.
    pub is_multikey: bool,
}

impl IndexAccess {
    /// Returns the rank of the path; larger is better. The criteria are compared in this order: a unique key, the
    /// number of equalities, a range, the requested order.
    fn rank(&self) -> (bool, usize, bool, bool) {
        (self.is_point, self.equal, self.is_range, self.is_sorted)
    }

    /// Returns whether the walk skips a part of the index.
    pub fn is_bounded(&self) -> bool {
        self.equal > 0 || self.is_range
    }

    /// Returns whether the index is better than a scan.
    fn is_useful(&self) -> bool {
        self.is_bounded() || (self.is_sorted && !self.spec.sparse)
    }
}

/// Returns the best path through one of the indexes, or `None` if a scan is better.
pub fn best(indexes: &[IndexStatus], filter: &Node, sort: Option<&Sort>) -> Option<IndexAccess> {
    let useful = indexes
        .iter()
        .filter_map(|index| access(index, filter, sort))
        .filter(IndexAccess::is_useful);
    // Among paths of equal rank, take the index that was created first.
    useful.reduce(|best, next| {
        if next.rank() > best.rank() {
            next
        } else {
            best
        }
    })
}

/// Returns index paths for a filter that requires an `$or`: one path for each branch. Together the paths yield all
/// matches. Returns `None` if a branch has no path, or the paths have too many ranges.
pub fn union(indexes: &[IndexStatus], filter: &Node) -> Option<Vec<IndexAccess>> {
    match filter {
        Node::And(nodes) => nodes.iter().find_map(|node| union(indexes, node)),
        Node::Or(branches) if (1..=RANGES_MAX).contains(&branches.len()) => {
            of_branches(indexes, branches)
        }
        _ => None,
    }
}

fn of_branches(indexes: &[IndexStatus], branches: &[Node]) -> Option<Vec<IndexAccess>> {
    let mut ranges = 0;
    let of_branch = |branch| {
        let access = best(indexes, branch, None).filter(IndexAccess::is_bounded)?;
        ranges += access.ranges.len();
        (ranges <= RANGES_MAX).then_some(access)
    };
    branches.iter().map(of_branch).collect()
}

/// Returns the path through one index, or `None` for a cache index or an index that is being built.
pub fn access(index: &IndexStatus, filter: &Node, sort: Option<&Sort>) -> Option<IndexAccess> {
    if index.spec.is_cache() || !index.complete {
        return None;
    }
    let fields = &index.spec.fields;
    let mut found = bounds(filter, fields, index.multikey);
    let order = sort
        .and_then(|sort| order(fields, &found, sort))
        .filter(|_| !index.multikey);
    if order == Some(Direction::Backward) {
        found.ranges.reverse();
    }
    Some(IndexAccess {
        spec: index.spec.clone(),
        direction: order.unwrap_or(Direction::Forward),
        is_point: index.spec.unique && found.equal == fields.len() && found.ranges.len() == 1,
        is_sorted: order.is_some(),
        is_multikey: index.multikey,
        equal: found.equal,
        is_range: found.range,
        ranges: found.ranges,
    })
}

/// Returns the direction in which a walk yields the requested order, or `None` if no walk does. Fields that the filter
/// binds to one value may occur anywhere in the sort. The other fields of the sort must be the next fields of the
/// index, in the same order.
fn order(fields: &[IndexField], found: &Bounded, sort: &Sort) -> Option<Direction> {
    let held = if found.in_order {
        found.equal
    } else {
        return None;
    };
    let mut rest = fields[held..].iter();
    let mut direction = None;
    for (path, wanted) in sort.parts() {
        let (path, ascending) = (path.as_str(), *wanted == key::Direction::Ascending);
        if fields[..held].iter().any(|field| field.path == path) {
            continue;
        }
        let field = rest.next().filter(|field| field.path == path)?;
        let this = if (field.kind == IndexKind::Ascending) == ascending {
            Direction::Forward
        } else {
            Direction::Backward
        };
        if direction.is_some_and(|direction| direction != this) {
            return None;
        }
        direction = Some(this);
    }
    Some(direction.unwrap_or(Direction::Forward))
}
