//! Evaluation of expressions: combines the document sets of their conditions.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use forebay_text::Program;
use roaring::RoaringBitmap;

use super::sink::Sink;
use crate::numbers::NumberSet;
use crate::request::{Expr, Predicate, Want};

/// Returns the fields that a request uses.
pub(super) fn fields(expr: &Expr, want: &Want) -> BTreeSet<usize> {
    let mut fields: BTreeSet<usize> = leaves(expr).into_iter().map(|(field, _)| field).collect();
    if let Want::ValueCounts { field, .. } = want {
        fields.insert(*field);
    }
    fields
}

/// Returns the conditions of an expression, from left to right.
pub(super) fn leaves(expr: &Expr) -> Vec<(usize, &Predicate)> {
    let mut leaves = Vec::new();
    collect_leaves(expr, &mut leaves);
    leaves
}

fn collect_leaves<'a>(expr: &'a Expr, leaves: &mut Vec<(usize, &'a Predicate)>) {
    match expr {
        Expr::All => {}
        Expr::Leaf { field, predicate } => leaves.push((*field, predicate)),
        Expr::And(parts) | Expr::Or(parts) => {
            parts.iter().for_each(|part| collect_leaves(part, leaves));
        }
        Expr::Not(inner) => collect_leaves(inner, leaves),
    }
}

/// A set operation on a stack of document sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Pushes the set of all documents.
    All,
    /// Pushes the empty set.
    Nothing,
    /// Replaces the top set by its complement.
    Complement,
    /// Replaces the top two sets by their intersection.
    Intersect,
    /// Replaces the top two sets by their union.
    Unite,
}

/// A condition, and the steps to execute once its set has been pushed. Only the first part may be without a condition.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) leaf: Option<(usize, &'a Predicate)>,
    pub(super) then: Vec<Step>,
}

/// Returns the conditions of `expr` from left to right, each with the steps that follow it. Omits repeated conditions
/// within one `And` or `Or`.
pub(super) fn parts(expr: &Expr) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    add_parts(expr, &mut parts);
    parts
}

fn add_parts<'a>(expr: &'a Expr, parts: &mut Vec<Part<'a>>) {
    match expr {
        Expr::All => add_step(Step::All, parts),
        Expr::Leaf { field, predicate } => parts.push(Part {
            leaf: Some((*field, predicate)),
            then: Vec::new(),
        }),
        Expr::Not(inner) => {
            add_parts(inner, parts);
            add_step(Step::Complement, parts);
        }
        Expr::And(all) => add_list(all, Step::All, Step::Intersect, parts),
        Expr::Or(any) => add_list(any, Step::Nothing, Step::Unite, parts),
    }
}

fn add_list<'a>(list: &'a [Expr], empty: Step, join: Step, parts: &mut Vec<Part<'a>>) {
    if list.is_empty() {
        return add_step(empty, parts);
    }
    let mut known = HashSet::new();
    for (index, expr) in list.iter().enumerate() {
        if identity(expr).is_some_and(|leaf| !known.insert(leaf)) {
            continue;
        }
        add_parts(expr, parts);
        if index > 0 {
            add_step(join, parts);
        }
    }
}

fn add_step(step: Step, parts: &mut Vec<Part<'_>>) {
    if parts.is_empty() {
        parts.push(Part {
            leaf: None,
            then: Vec::new(),
        });
    }
    let last = parts.last_mut().expect("a part was just added");
    last.then.push(step);
}

/// A hash key that is equal for equal conditions.
#[derive(PartialEq, Eq, Hash)]
enum Identity<'a> {
    Equals(&'a [u8]),
    In(&'a [Vec<u8>]),
    /// Compared by address: conditions with the same pattern share one program.
    Program(*const Program),
    IsNull,
    IsMissing,
}

fn identity(expr: &Expr) -> Option<(usize, Identity<'_>)> {
    let Expr::Leaf { field, predicate } = expr else {
        return None;
    };
    let identity = match predicate {
        Predicate::Equals(value) => Identity::Equals(value),
        Predicate::In(values) => Identity::In(values),
        Predicate::Program(program) => Identity::Program(Arc::as_ptr(program)),
        Predicate::IsNull => Identity::IsNull,
        Predicate::IsMissing => Identity::IsMissing,
    };
    Some((*field, identity))
}

/// A stack of document sets: those of all conditions so far, combined as far as possible.
#[derive(Debug)]
pub(super) struct Combination {
    live: NumberSet,
    sets: Vec<RoaringBitmap>,
}

impl Combination {
    /// Creates an empty stack for a collection whose documents are `live`.
    pub(super) fn new(live: NumberSet) -> Combination {
        Combination {
            live,
            sets: Vec::new(),
        }
    }

    /// Pushes the documents of a condition, then executes the steps that follow it.
    pub(super) fn add(&mut self, found: Option<Sink>, then: &[Step]) {
        self.sets.extend(found.map(Sink::into_bitmap));
        then.iter().for_each(|step| self.run(*step));
    }

    fn run(&mut self, step: Step) {
        let set = match step {
            Step::All => self.live.to_bitmap(),
            Step::Nothing => RoaringBitmap::new(),
            Step::Complement => self.live.to_bitmap() - self.pop(),
            Step::Intersect => self.pop() & self.pop(),
            Step::Unite => self.pop() | self.pop(),
        };
        self.sets.push(set);
    }

    fn pop(&mut self) -> RoaringBitmap {
        self.sets
            .pop()
            .expect("each step has its sets on the stack")
    }

    /// Returns the documents that meet the expression. All parts must have been added.
    pub(super) fn finish(mut self) -> RoaringBitmap {
        self.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equals(value: &str) -> Expr {
        Expr::Leaf {
            field: 0,
            predicate: Predicate::Equals(value.into()),
        }
    }

    #[test]
    fn each_condition_is_followed_by_what_it_completes() {
        let not = Expr::Not(Box::new(equals("c")));
        let expr = Expr::Or(vec![
            Expr::And(vec![]),
            Expr::And(vec![equals("a"), equals("b")]),
            not,
        ]);
        let parts = parts(&expr);
        let leaves: Vec<bool> = parts.iter().map(|part| part.leaf.is_some()).collect();
        assert_eq!(leaves, [false, true, true, true]);
        let steps: Vec<&[Step]> = parts.iter().map(|part| &part.then[..]).collect();
        assert_eq!(
            steps,
            [
                &[Step::All][..],
                &[],
                &[Step::Intersect, Step::Unite],
                &[Step::Complement, Step::Unite]
            ]
        );
    }

    #[test]
    fn equal_conditions_are_searched_once() {
        let program = Arc::new(Program::substring("x"));
        let same = |field| Expr::Leaf {
            field,
            predicate: Predicate::Program(program.clone()),
        };
        let list = vec![same(0), equals("a"), same(0), same(1), equals("a"), same(0)];
        let all = Expr::And(list);
        let parts = parts(&all);
        assert_eq!(parts.len(), 3);
        let joins: usize = parts.iter().map(|part| part.then.len()).sum();
        assert_eq!(joins, 2);
    }
}
