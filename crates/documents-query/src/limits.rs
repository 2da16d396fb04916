//! The limits of the query language.

use std::sync::Arc;

use forebay_cancel::SharedStop;
use forebay_memory::Account;

use crate::expr::Variables;
use crate::filter::Compilation;

/// Maximum nesting of documents and arrays, including the outermost document. Applies to everything that is read from a
/// client, computed by an expression, a stage or an update, or stored. Deeper nesting is an `Overflow` error. MongoDB
/// has the same limit.
pub const DOCUMENT_DEPTH_MAX: usize = 200;

/// Limits of parsing and execution, and state that all parts of a command share.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum nesting of `$and`, `$or`, `$nor`, `$not` and `$elemMatch` in one filter. Deeper nesting is a `BadValue`
    /// error.
    pub filter_depth_max: usize,
    /// Maximum nesting of operators in one aggregation expression. Deeper nesting is a `BadValue` error.
    pub expression_depth_max: usize,
    /// Maximum bytes of one document. A larger document is a `BSONObjectTooLarge` error.
    pub document_bytes_max: usize,
    /// Maximum stages of one pipeline. More stages are a `FailedToParse` error.
    pub pipeline_stages_max: usize,
    /// Limits on the cost of one `$regex` pattern.
    pub pattern: forebay_text::Limits,
    /// Settings for the compilation of patterns, including one budget for all patterns of a command.
    pub compilation: Compilation,
    /// Maximum bytes of memory that one blocking stage (`$group`, `$sort`) may hold.
    pub stage_memory_bytes_max: usize,
    /// The memory account that all stages charge.
    pub memory: Account,
    /// The variables of the command's `let`.
    pub variables: Variables,
}

impl Limits {
    /// Returns the cancellation token of the command. Long evaluations check it.
    pub fn stop(&self) -> &Arc<SharedStop> {
        self.compilation.budget.stop()
    }
}

impl Default for Limits {
    /// Returns MongoDB's own limits.
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
