//! The status of a build without a tables server.

use serde_json::Value;

use super::metrics::Page;

/// No tables server.
pub struct Tables;

impl Tables {
    /// Returns `null`.
    pub async fn json(&self, _shows_texts: bool) -> Value {
        Value::Null
    }

    /// Returns that no such statement was running.
    pub fn cancel(&self, _number: u64) -> bool {
        false
    }

    /// Appends nothing.
    pub fn append(&self, _page: &mut Page) {}
}
