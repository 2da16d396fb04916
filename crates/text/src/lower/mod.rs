//! From the tree to literals and to an automaton's expression.

mod hir;
mod literal;
mod simplify;

pub(crate) use hir::{Lowered, lower};
pub(crate) use literal::{literal, value_prefix};
pub(crate) use simplify::simplify;
