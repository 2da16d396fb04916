//! `EXPLAIN (FORMAT kernel)`: the kernels of a plan, with the plan as comments.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions, collect, displayable,
};

use crate::comments::{list, of_aggregate, of_function, of_join, of_slot, of_window, sql};
use crate::fragment::{Fragment, Rows};
use crate::groups::Place;
use crate::on_cpu::OnCpuExec;
use crate::operator::GpuFragmentExec;
use crate::program::Compiled;
use crate::reason::{FASTER, Reason};
use crate::source::Kernel;
use crate::uses::CURSORS_MAX;
use crate::work::NOT_THERE;

type Plan = Arc<dyn ExecutionPlan>;

/// What is printed of a plan without aggregates and joins for the device.
const NOTHING: &str = "// The plan has no aggregate, join, condition or limited sort over files or collections that a GPU could \
                       compute.\n";

/// Returns the kernels of a plan, from the last operator on, and why parts of it are the CPU's.
///
/// # Errors
/// If a scalar subquery fails.
pub(crate) async fn kernels(plan: &Plan, context: &Arc<TaskContext>) -> Result<String> {
    let mut operators = Vec::new();
    add_operators(plan, &mut operators);
    let (mut text, mut number) = (String::new(), 0);
    for operator in operators {
        if operator.is::<ScalarSubqueryExec>() {
            run_subqueries(operator, context).await?;
        } else if let Some(on_cpu) = operator.downcast_ref::<OnCpuExec>() {
            text += &format!("// {}", displayable(operator.as_ref()).one_line());
            text += remedy(on_cpu.reason());
        } else if let Some(fragment) = operator.downcast_ref::<GpuFragmentExec>() {
            number += 1;
            let of = fragment.fragment();
            text += &format!(
                "// Fragment {number}, {}: {}\n",
                fragment.device(),
                what(of)
            );
            text += &match fragment.kernels(context).await {
                Ok(kernels) => kernels,
                Err(reason) => on_cpu(&reason),
            };
        }
    }
    match text.is_empty() {
        true => Ok(NOTHING.to_owned()),
        false => Ok(text),
    }
}

/// Adds the operators of a plan that tell of kernels, and those that run before.
fn add_operators<'a>(plan: &'a Plan, operators: &mut Vec<&'a Plan>) {
    let fragment = plan.downcast_ref::<GpuFragmentExec>();
    if fragment.is_some() || plan.is::<OnCpuExec>() || plan.is::<ScalarSubqueryExec>() {
        operators.push(plan);
    }
    let children = plan.children().into_iter();
    // The first child of a fragment is the plan of the CPU, with the same operators below.
    for child in children.skip(usize::from(fragment.is_some())) {
        add_operators(child, operators);
    }
}

/// Runs scalar subqueries, whose values are constants of kernels.
async fn run_subqueries(operator: &Plan, context: &Arc<TaskContext>) -> Result<()> {
    let mut inputs: Vec<Plan> = operator.children().into_iter().cloned().collect();
    inputs[0] = Arc::new(EmptyExec::new(inputs[0].schema()));
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let alone = Arc::clone(operator).replace_children(inputs, options)?;
    collect(alone.reset_state()?, Arc::clone(context)).await?;
    Ok(())
}

/// Returns what a fragment computes.
fn what(fragment: &Fragment) -> String {
    if fragment.is_listed {
        let limit = fragment.limit.count();
        let limit = limit.map(|count| format!("{count} "));
        let of = if fragment.rows.joins.is_empty() {
            ""
        } else {
            " of joins"
        };
        let sorted = match &fragment.window {
            Some(window) if !window.functions.is_empty() => " with window functions",
            Some(_) => ", sorted",
            None => "",
        };
        return format!("{}rows{of}{sorted}", limit.unwrap_or_default());
    }
    let aggregates = fragment.aggregates.iter();
    let aggregates: Vec<_> = aggregates.map(of_aggregate).collect();
    let aggregates = match aggregates.is_empty() {
        true => "groups".to_owned(),
        false => aggregates.join(", "),
    };
    match fragment.keys.is_empty() {
        true => aggregates,
        false => format!("{aggregates} by {}", list(&fragment.keys)),
    }
}

fn on_cpu(reason: &Reason) -> String {
    format!("// Now on the CPU: {reason}\n{}", remedy(reason))
}

fn remedy(reason: &Reason) -> &'static str {
    match reason.is(NOT_THERE) || reason.is(FASTER) {
        true => "// SET forebay.gpu = on brings its columns to the GPU first.\n",
        false => "",
    }
}

/// A kernel as it is printed.
struct Printed {
    /// What it does, and what the names in its source mean.
    comments: Vec<String>,
    source: String,
}

/// Returns the kernels of a fragment in the order in which they run. `place` is where the totals of groups are;
/// `selects` tells whether a kernel selects groups.
pub(crate) fn printed(
    fragment: &Fragment,
    compiled: &Compiled,
    place: Place,
    selects: bool,
) -> String {
    let mut all = Vec::new();
    add_builds(fragment, &fragment.rows, &compiled.kernel, &mut all);
    let does = match fragment.is_listed {
        true => "lists rows",
        false => "adds rows to the totals of their groups",
    };
    all.push(of_rows(
        fragment,
        does.to_owned(),
        &compiled.kernel,
        Some(place),
    ));
    if let (Some(window), Some(order)) = (&fragment.window, &compiled.order) {
        all.push(Printed {
            comments: vec![of_window(fragment, window)],
            source: order.source(),
        });
    }
    if selects {
        all.push(of_groups(fragment, compiled));
    }
    let count = all.len();
    let texts = all.into_iter().enumerate().map(|(index, kernel)| {
        let mut text = format!("// Kernel {} of {count}: ", index + 1);
        text += &kernel.comments.join("\n//   ");
        text + "\n" + &kernel.source
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Adds the kernels that store the rows of joins.
fn add_builds(fragment: &Fragment, rows: &Rows, kernel: &Kernel, all: &mut Vec<Printed>) {
    for (build, join) in kernel.builds.iter().zip(&rows.joins) {
        add_builds(fragment, &join.rows, &build.kernel, all);
        let does = format!("stores the other rows of the {}", of_join(join));
        all.push(of_rows(fragment, does, &build.kernel, None));
    }
}

/// Returns a kernel that reads rows.
fn of_rows(fragment: &Fragment, does: String, kernel: &Kernel, place: Option<Place>) -> Printed {
    let source = &fragment.sources[kernel.of_source];
    let from = format!("rows of {}", source.origin.name());
    let columns = kernel.columns.iter().enumerate();
    let columns = columns.map(|(index, column)| {
        let expr = sql(&source.expr(*column));
        let cursor = if index < CURSORS_MAX {
            "cursor_of"
        } else {
            "found_cursor"
        };
        format!("{cursor}<{index}>: {expr}")
    });
    Printed {
        comments: [does, from].into_iter().chain(columns).collect(),
        source: kernel.source(place),
    }
}

/// Returns the kernel that selects groups.
fn of_groups(fragment: &Fragment, compiled: &Compiled) -> Printed {
    let mut comments = vec!["selects groups, and writes their totals".to_owned()];
    let conditions = fragment.selection.conditions.iter().map(|it| {
        let of = of_function(fragment, it.aggregate);
        format!("having: {of} {} {}", it.operator, it.value)
    });
    comments.extend(conditions);
    comments.extend(fragment.selection.top.iter().map(|top| {
        let order = if top.is_descending { " DESC" } else { "" };
        let of = of_function(fragment, top.aggregate);
        format!("order by: {of}{order}, limit {}", top.count)
    }));
    let totals = compiled.totals.iter().enumerate();
    comments.extend(totals.map(|(slot, total)| {
        let of = of_slot(slot, fragment, &compiled.outputs, &compiled.determined);
        format!("group[{}]: {of}", total.word)
    }));
    Printed {
        comments,
        source: compiled.selecting.source(),
    }
}
