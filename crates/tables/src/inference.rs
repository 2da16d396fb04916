//! Types of parameters that DataFusion does not infer: arrays, as in `name = ANY ($1)`, and numbers of rows.

use std::collections::HashMap;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use crate::error::Result;

/// The function that `= ANY` of an array becomes.
const ANY: &str = "array_has";

/// Adds the types of parameters that are compared with each item of an array, or that are numbers of rows.
pub(crate) fn infer_arrays(
    plan: &LogicalPlan,
    types: &mut HashMap<String, Option<DataType>>,
) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Limit(limit) = node {
            for count in [&limit.skip, &limit.fetch].into_iter().flatten() {
                if let Expr::Placeholder(parameter) = &**count
                    && let Some(known) = types.get_mut(&parameter.id)
                {
                    known.get_or_insert(DataType::Int64);
                }
            }
        }
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expression| {
            expression.apply(|inner| {
                if let Expr::ScalarFunction(call) = inner
                    && call.func.name() == ANY
                    && let [Expr::Placeholder(parameter), item] = &*call.args
                    && let Some(known) = types.get_mut(&parameter.id)
                    && let Ok(item) = item.get_type(&schema)
                    && known.is_none()
                {
                    *known = Some(DataType::new_list(item, true));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}
