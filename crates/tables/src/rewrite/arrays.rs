//! `ARRAY(SELECT ...)`, which DataFusion does not have.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArguments, GroupByExpr, OrderByKind, Query, SelectItem, SetExpr, Value,
    visit_expressions,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;

use crate::clients::is_row_function;

/// Returns `ARRAY(SELECT ...)` as a subquery that aggregates; `None` if the call is another.
pub(super) fn of_query(function: &Function) -> Option<Expr> {
    let FunctionArguments::Subquery(query) = &function.args else {
        return None;
    };
    if !function.name.to_string().eq_ignore_ascii_case("array") {
        return None;
    }
    let aggregated = aggregated(query)
        .unwrap_or_else(|| format!("SELECT array_agg(rows.value) FROM ({query}) AS rows(value)"));
    parsed(&format!("coalesce(({aggregated}), make_array())"))
}

/// Returns a query with its column aggregated in place, so that it may be correlated; `None` if it has no such form.
fn aggregated(query: &Query) -> Option<String> {
    let mut query = query.clone();
    let SetExpr::Select(select) = &mut *query.body else {
        return None;
    };
    let [SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. }] =
        &*select.projection
    else {
        return None;
    };
    let is_plain = query.limit_clause.is_none()
        && query.fetch.is_none()
        && select.distinct.is_none()
        && select.having.is_none()
        && matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
    // A call may be an aggregation, or return several rows.
    let calls = visit_expressions(value, |expr| match expr {
        Expr::Function(_) if !is_row_function(expr) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    if !is_plain || calls.is_break() {
        return None;
    }
    let order = match query.order_by.take().map(|order| order.kind) {
        None => String::new(),
        Some(OrderByKind::Expressions(mut keys)) => {
            for key in &mut keys {
                if matches!(&key.expr, Expr::Value(place) if matches!(place.value, Value::Number(..)))
                {
                    key.expr = value.clone();
                }
            }
            let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
            format!(" ORDER BY {}", keys.join(", "))
        }
        Some(OrderByKind::All(_)) => return None,
    };
    let value = parsed(&format!("array_agg({value}{order})"))?;
    select.projection = vec![SelectItem::UnnamedExpr(value)];
    Some(query.to_string())
}

fn parsed(text: &str) -> Option<Expr> {
    let parser = Parser::new(&PostgreSqlDialect {}).try_with_sql(text);
    parser.and_then(|mut parser| parser.parse_expr()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_become_aggregates() {
        let rewritten = |text: &str| {
            let Some(Expr::Function(function)) = parsed(text) else {
                panic!("{text} is a call");
            };
            of_query(&function).expect("an array").to_string()
        };
        assert_eq!(
            rewritten("ARRAY(SELECT a || 'x' FROM t WHERE t.b = u.b ORDER BY 1 DESC)"),
            "coalesce((SELECT array_agg(a || 'x' ORDER BY a || 'x' DESC) FROM t WHERE t.b = u.b), make_array())"
        );
        assert_eq!(
            rewritten("array(SELECT max(a) FROM t)"),
            "coalesce((SELECT array_agg(rows.value) FROM (SELECT max(a) FROM t) AS rows (value)), make_array())"
        );
    }
}
