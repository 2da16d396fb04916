//! Lowers a parsed tree to literals and to an expression for automata.

mod hir;
mod literal;
mod parts;
mod simplify;

pub(crate) use literal::{literal, value_prefix};
pub(crate) use parts::{Part, Parts};
pub(crate) use simplify::simplify;
