//! The plan as comments in kernels that are printed. Kernels that run have none: comments name columns and constants,
//! and queries of one shape share a kernel.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_expr_common::physical_expr::fmt_sql;

use crate::determined::Determined;
use crate::expression::{Code, Function};
use crate::fragment::{Aggregate, Fragment, Rows};
use crate::join::{Join, JoinKind};
use crate::program::{Column, Float, Output};
use crate::value::Value;
use crate::window::Window;

/// Maximum letters of a comment.
const LETTERS_MAX: usize = 200;

/// Returns a text as one line of a comment, shortened if it is long.
fn line_of(text: &str) -> String {
    let letters = text.chars();
    let mut line: String = letters
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(LETTERS_MAX)
        .collect();
    if text.chars().nth(LETTERS_MAX).is_some() {
        line.push('…');
    }
    line
}

/// Returns an expression as SQL.
pub(crate) fn sql(expr: &Arc<dyn PhysicalExpr>) -> String {
    line_of(&fmt_sql(expr.as_ref()).to_string())
}

/// Returns expressions as SQL.
pub(crate) fn list<'a>(exprs: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>) -> String {
    let exprs: Vec<_> = exprs.into_iter().map(sql).collect();
    exprs.join(", ")
}

/// Returns which rows a join keeps, and what is equal for a match.
pub(crate) fn of_join(join: &Join) -> String {
    let kind = match join.kind {
        JoinKind::Inner => "inner",
        JoinKind::Outer => "outer",
        JoinKind::Semi => "semi",
        JoinKind::Anti => "anti",
        JoinKind::Mark => "mark",
    };
    let repeats = match (join.repeats, join.kind.has_columns()) {
        (true, true) => ", rows repeated",
        (true, false) => ", by search",
        (false, _) => "",
    };
    let pairs = join.keys.iter().zip(&join.keys_of_rows);
    let equal = pairs.map(|(own, other)| format!("{} = {}", sql(own), sql(other)));
    let conditions = equal.chain(join.condition.iter().map(sql));
    let conditions: Vec<_> = conditions.collect();
    format!("{kind} join{repeats}: {}", conditions.join(" AND "))
}

/// Returns an aggregate as SQL.
pub(crate) fn of_aggregate(aggregate: &Aggregate) -> String {
    let name = aggregate.function.fun().name();
    let arguments = match aggregate.arguments.as_slice() {
        [argument] if name == "count" && argument.is::<Literal>() => "*".to_owned(),
        arguments => list(arguments),
    };
    match &aggregate.filter {
        Some(filter) => format!("{name}({arguments}) FILTER (WHERE {})", sql(filter)),
        None => format!("{name}({arguments})"),
    }
}

/// Returns the text of the aggregate or window function whose column has this index behind the keys.
pub(crate) fn of_function(fragment: &Fragment, index: usize) -> String {
    if let Some(aggregate) = fragment.aggregate_at(index) {
        return of_aggregate(aggregate);
    }
    let functions = fragment.window.iter().flat_map(|it| &it.functions);
    let function = functions.copied().nth(index);
    function.map_or_else(String::new, |it| it.name().to_owned())
}

/// Returns the text of what rows are sorted by, and of the window functions over them.
pub(crate) fn of_window(fragment: &Fragment, window: &Window) -> String {
    let order = |by: &PhysicalSortExpr| {
        let direction = if by.options.descending { " DESC" } else { "" };
        let nulls = if by.options.nulls_first {
            " NULLS FIRST"
        } else {
            ""
        };
        format!("{}{direction}{nulls}", sql(&by.expr))
    };
    let by: Vec<_> = window.by.iter().map(order).collect();
    let functions = (0..window.functions.len()).map(|index| of_function(fragment, index));
    let functions: Vec<_> = functions.collect();
    let mut text = format!("sorts rows by {}", by.join(", "));
    if !functions.is_empty() {
        text += &format!(", and computes {} of them", functions.join(", "));
    }
    text
}

/// Returns what a total of a group is for: the aggregates that are made of it, or the key that it is.
pub(crate) fn of_slot(
    slot: usize,
    fragment: &Fragment,
    outputs: &[Vec<Column>],
    determined: &HashMap<usize, Determined>,
) -> String {
    let mut all = Vec::new();
    if slot == 0 {
        all.push("rows of the group".to_owned());
    }
    for (index, states) in outputs.iter().enumerate() {
        let mut slots = states.iter().flat_map(|it| slots_of(&it.output));
        if slots.any(|it| it == slot) {
            all.push(of_function(fragment, index));
        }
    }
    for (index, key) in fragment.keys.iter().enumerate() {
        let determined = determined.get(&index);
        if determined.is_some_and(|it| it.slot == slot || it.upper == Some(slot)) {
            all.push(format!("key {index}: {}", sql(key)));
        }
        if determined.is_some_and(|it| it.valid == Some(slot)) {
            all.push(format!("not NULL: {}", sql(key)));
        }
    }
    all.join(", ")
}

fn slots_of(output: &Output) -> Vec<usize> {
    match *output {
        Output::Count(slot) | Output::Unsigned(slot) | Output::Some(slot) => vec![slot],
        Output::Sum(slot, rows) | Output::Max(slot, rows) | Output::Min(slot, rows) => {
            vec![slot, rows]
        }
        Output::Parts { ref slots, rows } => slots.iter().copied().chain([rows]).collect(),
        Output::Float(Float::Decimals { sum, rows, .. }) => vec![sum, rows],
        Output::Float(Float::Sum { slots, rows, .. } | Float::Moment { slots, rows, .. }) => {
            slots.into_iter().chain([rows]).collect()
        }
    }
}

/// Adds comments to the function that adds a row to the totals of its group, which has a line for each of `slots`
/// totals.
pub(crate) fn add(
    function: &mut Function,
    slots: usize,
    fragment: &Fragment,
    (outputs, determined): (&[Vec<Column>], &HashMap<usize, Determined>),
) {
    for slot in 0..slots {
        let meaning = of_slot(slot, fragment, outputs, determined);
        let added = format!("(group, {slot}, ");
        let mut lines = function.lines.iter_mut();
        if let Some(line) = lines.find(|it| it.contains(&added)) {
            append(line, &meaning);
        }
    }
    let keys = fragment.keys.iter().enumerate();
    let keys = keys.filter(|(index, _)| !determined.contains_key(index));
    let keys: Vec<_> = keys
        .map(|(index, key)| format!("key {index}: {}", sql(key)))
        .collect();
    function.comments.extend(keys);
}

fn append(line: &mut String, comment: &str) {
    if comment.is_empty() {
        return;
    }
    line.push_str("  // ");
    line.push_str(&line_of(comment));
}

impl Code<'_, '_> {
    /// Adds a comment above the function.
    pub(crate) fn comment(&mut self, text: impl FnOnce(&Rows) -> String) {
        if self.draft.has_comments {
            self.function.comments.push(text(self.draft.rows));
        }
    }

    /// Adds a comment to the line that declares a variable, unless it has one.
    pub(crate) fn note(&mut self, variable: &str, text: impl FnOnce() -> String) {
        if !self.draft.has_comments {
            return;
        }
        let lines = self.function.lines.iter_mut();
        // `const KIND NAME = VALUE;`
        let mut declares = lines.filter(|it| it.split(' ').nth(2) == Some(variable));
        if let Some(line) = declares.next()
            && line.ends_with(';')
        {
            append(line, &text());
        }
    }

    /// Adds an expression as a comment to the line that declares its value.
    pub(crate) fn note_value(&mut self, expr: &Arc<dyn PhysicalExpr>, value: &Value) {
        self.note(&value.text, || sql(expr));
        if let Some(valid) = &value.valid {
            self.note(valid, || format!("not NULL: {}", sql(expr)));
        }
    }
}
