//! From the tree to literals and to an automaton's expression.

mod hir;
mod literal;
mod parts;
mod simplify;

pub(crate) use literal::{literal, value_prefix};
pub(crate) use parts::{Part, Parts};
pub(crate) use simplify::simplify;
