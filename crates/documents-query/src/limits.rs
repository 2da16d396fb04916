//! The named limits of the query language.

use std::sync::Arc;

use forebay_cancel::SharedStop;
use forebay_memory::Account;

use crate::expr::Variables;
use crate::filter::Compilation;

/// Maximum nesting of documents and arrays, the outermost document included, in all that is read from a client, made by
/// an expression, a stage or an update, or stored; deeper is `Overflow`. MongoDB has the same limit.
pub const DOCUMENT_DEPTH_MAX: usize = 200;

/// Limits of parsing and execution, and what all parts of a command share.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Nesting of `$and`, `$or`, `$nor`, `$not` and `$elemMatch` in one filter; deeper is `BadValue`.
    pub filter_depth_max: usize,
    /// Nesting of operators in one aggregation expression; deeper is `BadValue`.
    pub expression_depth_max: usize,
    /// Size of one document in bytes; a larger one is `BSONObjectTooLarge`.
    pub document_bytes_max: usize,
    /// Stages in one pipeline; more is `FailedToParse`.
    pub pipeline_stages_max: usize,
    /// Limits of the cost of one `$regex` pattern.
    pub pattern: forebay_text::Limits,
    /// How patterns are compiled, and the limit of what all patterns of a command cost together.
    pub compilation: Compilation,
    /// Memory in bytes that one blocking stage (`$group`, `$sort`) may hold.
    pub stage_memory_bytes_max: usize,
    /// The account that all stages together take memory from.
    pub memory: Account,
    /// The variables of the command's `let`.
    pub variables: Variables,
}

impl Limits {
    /// The cancellation token of the command. Long evaluations check it.
    pub fn stop(&self) -> &Arc<SharedStop> {
        self.compilation.budget.stop()
    }
}

impl Default for Limits {
    /// MongoDB's own limits.
    fn default() -> Limits {
        Limits {
            filter_depth_max: 100,
            expression_depth_max: 100,
            document_bytes_max: 16 * 1024 * 1024,
            pipeline_stages_max: 1000,
            pattern: forebay_text::Limits::default(),
            compilation: Compilation::default(),
            stage_memory_bytes_max: 100 * 1024 * 1024,
            memory: Account::default(),
            variables: Variables::default(),
        }
    }
}
