//! Conditions that guard others, as in `WHERE b <> 0 AND a / b > 1`.
//!
//! DataFusion evaluates all conditions of a `WHERE` for each row. PostgreSQL evaluates them in their order, and stops
//! at the first that is not true. People rely on it, although the standard does not promise it.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Operator, cast, lit, when};

/// Evaluates a condition that divides only for the rows that fulfil the conditions before it of the same columns.
pub(super) fn guarded(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let filter = match plan {
        LogicalPlan::Filter(filter) if divides(&filter.predicate)? => filter,
        plan => return Ok(Transformed::no(plan)),
    };
    let mut conditions: Vec<Expr> = Vec::new();
    for condition in split_conjunction_owned(filter.predicate) {
        let guards = guards(&conditions, &condition)?;
        conditions.push(match guards {
            // DataFusion writes a CASE of conditions as AND and OR, so this is one of numbers.
            Some(guards) => when(guards, cast(condition, DataType::Int32))
                .otherwise(lit(0_i32))?
                .eq(lit(1_i32)),
            None => condition,
        });
    }
    let predicate = conjunction(conditions).unwrap_or_else(|| lit(true));
    let filter = Filter::try_new(predicate, filter.input)?;
    Ok(Transformed::yes(LogicalPlan::Filter(filter)))
}

/// Returns the conditions before `condition` that guard it; `None` if it cannot fail.
fn guards(before: &[Expr], condition: &Expr) -> Result<Option<Expr>> {
    if !divides(condition)? {
        return Ok(None);
    }
    let columns = condition.column_refs();
    let guards = before.iter().filter(|guard| {
        let needed = guard.column_refs();
        !needed.is_empty() && needed.iter().all(|column| columns.contains(column))
    });
    Ok(conjunction(guards.cloned()))
}

/// Returns whether an expression divides by what may be zero.
fn divides(expr: &Expr) -> Result<bool> {
    let mut found = false;
    expr.apply(|inner| {
        found |= match inner {
            Expr::BinaryExpr(binary) => {
                matches!(binary.op, Operator::Divide | Operator::Modulo)
                    && !matches!(*binary.right, Expr::Literal(..))
            }
            _ => false,
        };
        Ok(match found {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(found)
}
