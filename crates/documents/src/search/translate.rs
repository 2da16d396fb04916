//! Translates a filter's tree into an expression over cached fields.
//!
//! The cache evaluates conditions on strings, null and the existence of a field. The store evaluates the other
//! conditions on the documents that the cache selects. The cache must therefore select all matching documents, and may
//! select others. The translation may omit parts of a conjunction. Below a negation, it must not omit anything, because
//! the negation would then exclude matches.

use std::sync::Arc;

use bson::RawBson;
use forebay_documents_cache::{Expr, Predicate};
use forebay_documents_query::filter::{InList, Node, Regex, Test};
use forebay_text::Tier;

use super::collection::State;
use super::generation::Generation;
use super::plan::NotUsed;
use super::report::LeafSummary;

/// The part of a filter's tree that the cache can evaluate.
#[derive(Debug)]
pub enum Cover {
    /// The expression selects exactly the documents that match.
    Exact(Expr),
    /// The expression selects the documents that match, and possibly others.
    Superset(Expr),
    /// The cache cannot evaluate this part: every document may match.
    Nothing,
}

/// Translates filters into expressions over the fields of one generation.
pub struct Translator<'a> {
    state: &'a State,
    generation: &'a Generation,
    /// The conditions on cached fields, in the order of the expression.
    pub leaves: Vec<LeafSummary>,
    /// The indexes whose fields the expression uses.
    pub indexes: Vec<Arc<str>>,
    obstacle: Option<NotUsed>,
}

impl<'a> Translator<'a> {
    /// Returns a translator for the fields of `generation` that `state` declares.
    pub fn new(state: &'a State, generation: &'a Generation) -> Translator<'a> {
        Translator {
            state,
            generation,
            leaves: Vec::new(),
            indexes: Vec::new(),
            obstacle: None,
        }
    }

    /// Returns the reason why the cache cannot answer. Call this only if the cover is [`Cover::Nothing`].
    pub fn obstacle(self) -> NotUsed {
        self.obstacle.unwrap_or(NotUsed::NoCachedField)
    }

    /// Translates `node` as far as the cache can evaluate it.
    pub fn cover(&mut self, node: &Node) -> Cover {
        match node {
            Node::And(nodes) => self.conjunction(nodes),
            Node::Or(nodes) => self.disjunction(nodes),
            Node::Nor(nodes) => self.negation(|translator| translator.disjunction(nodes)),
            Node::Not(node) => self.negation(|translator| translator.cover(node)),
            Node::Leaf { path, test } => self.leaf(path.as_str(), test),
            Node::Expr { .. } => Cover::Nothing,
            Node::AlwaysTrue => Cover::Exact(Expr::All),
            Node::AlwaysFalse => Cover::Exact(Expr::Or(Vec::new())),
        }
    }

    fn conjunction(&mut self, nodes: &[Node]) -> Cover {
        let (mut parts, mut exact) = (Vec::new(), true);
        for node in nodes {
            match self.cover(node) {
                Cover::Exact(part) => parts.push(part),
                Cover::Superset(part) => {
                    exact = false;
                    parts.push(part);
                }
                Cover::Nothing => exact = false,
            }
        }
        match (parts.is_empty(), exact) {
            (_, true) => Cover::Exact(joined(parts, Expr::And)),
            (false, false) => Cover::Superset(joined(parts, Expr::And)),
            (true, false) => Cover::Nothing,
        }
    }

    fn disjunction(&mut self, nodes: &[Node]) -> Cover {
        let (mark, mut parts, mut exact) = (self.mark(), Vec::new(), true);
        for node in nodes {
            match self.cover(node) {
                Cover::Exact(part) => parts.push(part),
                Cover::Superset(part) => {
                    exact = false;
                    parts.push(part);
                }
                Cover::Nothing => {
                    if !parts.is_empty() {
                        self.obstacle.get_or_insert(NotUsed::UncachedBranch);
                    }
                    self.rewind(mark);
                    return Cover::Nothing;
                }
            }
        }
        let joined = joined(parts, Expr::Or);
        if exact {
            Cover::Exact(joined)
        } else {
            Cover::Superset(joined)
        }
    }

    /// Negates the cover that `inner` returns. Returns [`Cover::Nothing`] if that cover is not exact.
    fn negation(&mut self, inner: impl FnOnce(&mut Self) -> Cover) -> Cover {
        let mark = self.mark();
        match inner(self) {
            Cover::Exact(expr) => Cover::Exact(Expr::Not(Box::new(expr))),
            Cover::Superset(_) => {
                self.obstacle.get_or_insert(NotUsed::UncachedUnderNegation);
                self.rewind(mark);
                Cover::Nothing
            }
            Cover::Nothing => Cover::Nothing,
        }
    }

    fn leaf(&mut self, path: &str, test: &Test) -> Cover {
        let mark = self.mark();
        let Some(field) = self.field(path) else {
            return Cover::Nothing;
        };
        let expr = match test {
            Test::Eq(value) => self.equality(field, value),
            Test::In(list) => self.membership(field, list),
            Test::Regex(regex) => Some(self.regex(field, regex)),
            Test::Exists => Some(Expr::Not(Box::new(self.plain(
                field,
                "missing",
                Predicate::IsMissing,
            )))),
            _ => None,
        };
        match expr {
            Some(expr) => Cover::Exact(expr),
            None => {
                self.rewind(mark);
                self.obstacle.get_or_insert_with(|| NotUsed::Predicate {
                    path: path.to_owned(),
                });
                Cover::Nothing
            }
        }
    }

    fn equality(&mut self, field: usize, value: &RawBson) -> Option<Expr> {
        match value {
            RawBson::String(text) => Some(self.equals(field, text)),
            RawBson::Null => Some(self.plain(field, "null", Predicate::IsNull)),
            _ => None,
        }
    }

    fn equals(&mut self, field: usize, text: &str) -> Expr {
        let predicate = Predicate::Equals(text.as_bytes().to_vec());
        self.push(field, "equals", None, Some(Tier::Exact), predicate)
    }

    fn membership(&mut self, field: usize, list: &InList) -> Option<Expr> {
        let (mut strings, mut null) = (Vec::new(), false);
        for value in list.values() {
            match value {
                RawBson::String(text) => strings.push(text.as_bytes().to_vec()),
                RawBson::Null => null = true,
                _ => return None,
            }
        }
        let mut parts = Vec::new();
        if !strings.is_empty() {
            parts.push(self.push(field, "in", None, Some(Tier::Exact), Predicate::In(strings)));
        }
        if null {
            parts.push(self.plain(field, "null", Predicate::IsNull));
        }
        parts.extend(
            list.patterns()
                .iter()
                .map(|pattern| self.regex(field, pattern)),
        );
        Some(joined(parts, Expr::Or))
    }

    fn regex(&mut self, field: usize, regex: &Regex) -> Expr {
        let program = regex.program();
        let pattern = format!("/{}/{}", regex.source(), regex.options());
        let predicate = Predicate::Program(Arc::clone(program));
        self.push(
            field,
            "regex",
            Some(pattern),
            Some(program.tier()),
            predicate,
        )
    }

    fn plain(&mut self, field: usize, name: &'static str, predicate: Predicate) -> Expr {
        self.push(field, name, None, None, predicate)
    }

    fn push(
        &mut self,
        field: usize,
        name: &'static str,
        pattern: Option<String>,
        tier: Option<Tier>,
        predicate: Predicate,
    ) -> Expr {
        let path = Arc::clone(&self.generation.extractor.fields().paths()[field]);
        self.leaves.push(LeafSummary {
            field,
            path,
            predicate: name,
            pattern,
            tier,
        });
        Expr::Leaf { field, predicate }
    }

    /// Returns the column of a cached path, and records the index that declares it.
    pub fn field(&mut self, path: &str) -> Option<usize> {
        let index = self
            .state
            .declared
            .iter()
            .find(|index| index.fields.iter().any(|field| field == path))?;
        let Some(field) = self.generation.extractor.fields().index_of(path) else {
            self.obstacle
                .get_or_insert_with(|| self.state.unready(index));
            return None;
        };
        if !self.indexes.iter().any(|name| **name == *index.name) {
            self.indexes.push(Arc::from(index.name.as_str()));
        }
        Some(field)
    }

    fn mark(&self) -> (usize, usize) {
        (self.leaves.len(), self.indexes.len())
    }

    fn rewind(&mut self, (leaves, indexes): (usize, usize)) {
        self.leaves.truncate(leaves);
        self.indexes.truncate(indexes);
    }
}

/// Returns a single part unchanged. Joins several parts with `join`.
fn joined(mut parts: Vec<Expr>, join: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match parts.len() {
        1 => parts.remove(0),
        _ => join(parts),
    }
}
