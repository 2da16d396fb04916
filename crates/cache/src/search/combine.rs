//! The algebra of expressions.

use std::collections::BTreeSet;

use roaring::RoaringBitmap;

use super::sink::Sink;
use crate::numbers::NumberSet;
use crate::request::{Expr, Predicate, Want};

/// The fields a request names.
pub(super) fn fields(expr: &Expr, want: &Want) -> BTreeSet<usize> {
    let mut fields: BTreeSet<usize> = leaves(expr).into_iter().map(|(field, _)| field).collect();
    if let Want::ValueCounts { field, .. } = want {
        fields.insert(*field);
    }
    fields
}

/// The conditions of an expression, from left to right.
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

/// The documents that meet `expr`, given what was found for each of its conditions, from left to right.
pub(super) fn combine(expr: &Expr, found: Vec<Sink>, live: &NumberSet) -> RoaringBitmap {
    Combination {
        found: found.into_iter(),
        live,
    }
    .evaluate(expr)
}

struct Combination<'a> {
    found: std::vec::IntoIter<Sink>,
    live: &'a NumberSet,
}

impl Combination<'_> {
    fn evaluate(&mut self, expr: &Expr) -> RoaringBitmap {
        match expr {
            Expr::All => self.live.to_bitmap(),
            Expr::Leaf { .. } => self
                .found
                .next()
                .expect("one for each condition")
                .into_bitmap(),
            Expr::Not(inner) => {
                let inner = self.evaluate(inner);
                self.live.to_bitmap() - inner
            }
            Expr::And(parts) => {
                let intersection = parts
                    .iter()
                    .map(|part| self.evaluate(part))
                    .reduce(|a, b| a & b);
                intersection.unwrap_or_else(|| self.live.to_bitmap())
            }
            Expr::Or(parts) => {
                let union = parts
                    .iter()
                    .map(|part| self.evaluate(part))
                    .reduce(|a, b| a | b);
                union.unwrap_or_default()
            }
        }
    }
}
