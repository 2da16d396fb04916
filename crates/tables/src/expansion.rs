//! A limit of common table expressions. DataFusion copies one into each place that names it, so that thirty of them,
//! each of which names the one before twice, would be a plan of 2^30 parts.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Query, Visit, Visitor, visit_relations};

use crate::error::{Code, Result, SqlError};

/// Maximum number of parts that the common table expressions of a statement become.
const PARTS_MAX: usize = 1_000;

/// Checks a statement.
///
/// # Errors
/// If its common table expressions become too many parts.
pub(crate) fn check(statement: &Statement) -> Result<()> {
    let statement = match statement {
        Statement::Statement(statement) => statement,
        Statement::Explain(explained) => return check(&explained.statement),
        _ => return Ok(()),
    };
    let mut parts = Parts::default();
    match statement.visit(&mut parts) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => {
            let message = "the common table expressions of the statement name each other too often";
            Err(SqlError::new(Code::StatementTooComplex, message)
                .with_hint("use a view or a file for what is named often"))
        }
    }
}

/// The number of parts that each common table expression becomes, by name.
#[derive(Debug, Default)]
struct Parts(HashMap<String, usize>);

impl Visitor for Parts {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        for table in query.with.iter().flat_map(|with| &with.cte_tables) {
            let mut count = 1_usize;
            let _ = visit_relations(&table.query, |name| {
                let named = self.0.get(&name.to_string().to_lowercase());
                count = count.saturating_add(named.copied().unwrap_or(0));
                ControlFlow::<()>::Continue(())
            });
            if count > PARTS_MAX {
                return ControlFlow::Break(());
            }
            self.0.insert(table.alias.name.value.to_lowercase(), count);
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    fn doubling(count: usize) -> String {
        let doubled =
            (1..count).map(|n| format!(", c{n} AS (SELECT 1 FROM c{0} a, C{0} b)", n - 1));
        format!(
            "WITH c0 AS (SELECT 1){} SELECT * FROM c1",
            doubled.collect::<String>()
        )
    }

    #[test]
    fn expressions_that_double_are_refused() {
        parse(&doubling(9)).expect("511 parts");
        let inner = format!("SELECT * FROM ({}) t", doubling(30));
        for text in [doubling(11), inner, format!("EXPLAIN {}", doubling(30))] {
            assert_eq!(
                parse(&text).expect_err("too many").code,
                Code::StatementTooComplex
            );
        }
    }
}
