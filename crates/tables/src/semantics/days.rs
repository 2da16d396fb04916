//! Days and times of timestamps.
//!
//! DataFusion takes casts for ones that keep the order. `CAST(t AS time) < '00:30'` left out files that go over
//! midnight, and `CAST(t AS date) < '2026-01-02'` failed if the bounds of `t` were known.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::ScalarUDF;

use super::native;

/// Returns the function that hides a timestamp from what DataFusion knows of it, before it is cast.
pub(super) fn of_cast(from: &DataType, to: &DataType) -> Option<Arc<ScalarUDF>> {
    let is_part = matches!(
        to,
        DataType::Date32 | DataType::Time32(_) | DataType::Time64(_)
    );
    (is_part && matches!(from, DataType::Timestamp(..))).then(|| native::named("instant"))
}
