//! `EXPLAIN (FORMAT kernel)`: the kernels of the parts of a query that a GPU computes.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::DataFusionError;
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast;

use crate::error::{Result, SqlError};
use crate::rows::Rows;

/// The tokens in front of the query.
const TOKENS: [&str; 5] = ["explain", "(", "format", "kernel", ")"];

/// `EXPLAIN (FORMAT kernel)` of a query.
#[derive(Debug, Clone)]
pub(crate) struct ExplainKernels {
    pub(crate) statement: Statement,
    /// The text of the query.
    pub(crate) text: String,
}

/// Returns whether the next statement is `EXPLAIN (FORMAT kernel)`. DataFusion does not know this format.
pub(crate) fn are_explained(parser: &DFParser<'_>) -> bool {
    TOKENS.iter().enumerate().all(|(index, token)| {
        let next = parser.parser.peek_nth_token(index).to_string();
        next.eq_ignore_ascii_case(token)
    })
}

/// Parses `EXPLAIN (FORMAT kernel)`.
///
/// # Errors
/// If what follows is no query.
pub(crate) fn parse(parser: &mut DFParser<'_>) -> Result<ExplainKernels> {
    for _ in TOKENS {
        parser.parser.next_token();
    }
    let statement = parser.parse_statement()?;
    match &statement {
        Statement::Statement(sql) if matches!(**sql, ast::Statement::Query(_)) => {}
        _ => {
            let what = "EXPLAIN (FORMAT kernel) of anything but a query";
            return Err(SqlError::unsupported(what));
        }
    }
    Ok(ExplainKernels {
        text: statement.to_string(),
        statement,
    })
}

/// Returns the columns of the rows.
pub(crate) fn columns() -> SchemaRef {
    let line = Field::new("QUERY PLAN", DataType::Utf8, false);
    Arc::new(Schema::new(vec![line]))
}

/// Returns the lines of a text as rows.
///
/// # Errors
/// If they are no rows.
pub(crate) fn rows(text: &str) -> Result<Rows> {
    let lines: Vec<&str> = text.lines().collect();
    let lines = Arc::new(StringArray::from(lines));
    let batch = RecordBatch::try_new(columns(), vec![lines]).map_err(DataFusionError::from)?;
    Ok(Rows::of_batches(columns(), vec![batch], "EXPLAIN", None))
}

#[cfg(test)]
mod tests {
    use crate::parse::{Body, parse};

    #[test]
    fn queries_are_parsed() {
        for text in [
            "EXPLAIN (FORMAT kernel) SELECT 1",
            "explain ( format KERNEL ) WITH t AS (SELECT 1) SELECT * FROM t",
        ] {
            let parsed = parse(text).expect(text).remove(0);
            assert_eq!(parsed.text, text);
            let Body::ExplainKernels(explained) = parsed.body else {
                panic!("{text}: {:?}", parsed.body);
            };
            assert!(text.ends_with(&explained.text), "{}", explained.text);
        }
    }

    #[test]
    fn others_are_refused() {
        for (text, message) in [
            (
                "EXPLAIN (FORMAT kernel) DELETE FROM t",
                "of anything but a query",
            ),
            (
                "EXPLAIN (FORMAT kernel) EXPLAIN SELECT 1",
                "of anything but a query",
            ),
            ("EXPLAIN (ANALYZE, FORMAT kernel) SELECT 1", "Got 'kernel'"),
            (
                "EXPLAIN (FORMAT kernels) SELECT 1",
                "'kernel'. Got 'kernels'",
            ),
            ("EXPLAIN FORMAT yaml SELECT 1", "Got 'yaml'"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
