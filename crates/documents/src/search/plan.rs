//! Cache plans: whether and how the cache answers a filter.

use std::sync::Arc;

use forebay_documents_cache::Expr;
use forebay_documents_query::filter::Node;
use forebay_documents_query::{Code, Error, Filter};
use parking_lot::Mutex;

use super::collection::{CacheIndex, CollectionSearch, State};
use super::generation::Generation;
use super::report::{ExecutionReport, PlanSummary};
use super::translate::{Cover, Translator};

/// The options of a command that affect the choice of indexes.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// The name of the index to use, or `$natural` for none.
    pub hint: Option<String>,
    /// Whether the command has a collation that does not compare strings byte by byte.
    pub collation: bool,
}

/// The reason why the cache does not answer a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUsed {
    /// The collection has no cache index.
    #[error("the collection has no cache index")]
    NoCacheIndex,
    /// No condition of the filter is on a cached field.
    #[error("the filter has no condition on a cached field")]
    NoCachedField,
    /// A condition on a cached field is of a kind that caches cannot answer, for example a range.
    #[error(
        "the cache cannot answer the condition on the field '{path}': caches answer equality with a string or null, \
         $in with strings, null and patterns, $regex, $exists, and negations of these conditions"
    )]
    Predicate {
        /// The field.
        path: String,
    },
    /// A branch of an `$or` has no condition on a cached field.
    #[error("a branch of $or has no condition on a cached field")]
    UncachedBranch,
    /// A negation contains a condition that the cache cannot evaluate.
    #[error("a negation contains conditions that the cache cannot evaluate")]
    UncachedUnderNegation,
    /// The cache of the field is being built.
    #[error("the cache index '{index}' is being built ({done} of {total} documents)")]
    Building {
        /// The index.
        index: String,
        /// Number of documents cached so far.
        done: u64,
        /// Number of documents that the collection had when the build began.
        total: u64,
    },
    /// The cache of the field could not be built.
    #[error("the cache index '{index}' has failed: {reason}")]
    Failed {
        /// The index.
        index: String,
        /// The reason.
        reason: String,
    },
    /// The command has a collation that does not compare strings byte by byte.
    #[error("the command has a collation, and the cache compares strings byte by byte")]
    Collation,
    /// The command's hint requires another index.
    #[error("the command has a hint to '{hint}'")]
    Hint {
        /// The required index.
        hint: String,
    },
    /// The cache can evaluate only a part of the filter, so it cannot count the values in the matching documents.
    #[error("the filter has conditions that the cache cannot evaluate")]
    NotExact,
    /// The field whose values are to be counted is not cached.
    #[error("the field '{path}' is not cached")]
    ValuesNotCached {
        /// The field.
        path: String,
    },
}

impl NotUsed {
    /// Returns the text of the reason, for `explain`.
    pub fn reason(&self) -> String {
        self.to_string()
    }

    /// The names of all reasons, in the order of [`NotUsed::place`].
    pub const NAMES: [&'static str; 11] = [
        "no-cache-index",
        "no-cached-field",
        "predicate",
        "uncached-branch",
        "uncached-under-negation",
        "building",
        "failed",
        "collation",
        "hint",
        "not-exact",
        "values-not-cached",
    ];

    /// Returns the name of the reason, which `explain`, metrics and the status page use.
    pub fn name(&self) -> &'static str {
        NotUsed::NAMES[self.place()]
    }

    /// Returns the index of the name in [`NAMES`](NotUsed::NAMES).
    pub fn place(&self) -> usize {
        match self {
            NotUsed::NoCacheIndex => 0,
            NotUsed::NoCachedField => 1,
            NotUsed::Predicate { .. } => 2,
            NotUsed::UncachedBranch => 3,
            NotUsed::UncachedUnderNegation => 4,
            NotUsed::Building { .. } => 5,
            NotUsed::Failed { .. } => 6,
            NotUsed::Collation => 7,
            NotUsed::Hint { .. } => 8,
            NotUsed::NotExact => 9,
            NotUsed::ValuesNotCached { .. } => 10,
        }
    }

    /// Returns whether a search over cached fields falls back to a scan, because the cache cannot evaluate its
    /// conditions or is not built.
    ///
    /// In strict mode, the server refuses such a search. A search without a condition on a cached field may scan
    /// even in strict mode.
    pub fn is_fallback(&self) -> bool {
        !matches!(
            self,
            NotUsed::NoCacheIndex | NotUsed::NoCachedField | NotUsed::ValuesNotCached { .. }
        )
    }

    /// Returns the error with which a server in strict mode refuses the search.
    pub fn strict_error(&self) -> Error {
        let message = format!(
            "strict mode refuses the search, because it would fall back to a scan of the collection: {self}"
        );
        Error::new(Code::NoQueryExecutionPlans, message)
    }
}

/// A plan of a search in the cache. The search answers a filter, alone or together with the store.
#[derive(Clone)]
pub struct SearchPlan {
    pub(super) search: Arc<CollectionSearch>,
    pub(super) generation: Arc<Generation>,
    pub(super) filter: Arc<Filter>,
    pub(super) expr: Expr,
    pub(super) summary: Arc<PlanSummary>,
    /// The column whose values are to be counted.
    pub(super) values: Option<usize>,
    /// The report of the plan's last execution.
    pub(super) report: Arc<Mutex<Option<Arc<ExecutionReport>>>>,
}

impl SearchPlan {
    /// Returns whether the cache evaluates the whole filter.
    ///
    /// If not, documents are read and checked one by one, and an index of the store may be faster.
    pub fn is_exact(&self) -> bool {
        self.summary.exact
    }

    /// Returns the report of the plan's last execution, or `None` before the first one.
    pub fn report(&self) -> Option<Arc<ExecutionReport>> {
        self.report.lock().clone()
    }

    /// Returns the collection's name, `database.collection`.
    pub fn namespace(&self) -> String {
        self.search.with_state(|state| state.namespace.clone())
    }

    /// Returns the whole filter.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Returns the plan's conditions on cached fields.
    pub fn summary(&self) -> &PlanSummary {
        &self.summary
    }
}

impl State {
    /// Returns the reason why the declared index `index` cannot answer a search.
    pub fn unready(&self, index: &CacheIndex) -> NotUsed {
        if let Some(building) = self
            .building
            .as_ref()
            .filter(|building| building.has(index))
        {
            let (index, done, total) = (index.name.clone(), building.done(), building.total);
            return NotUsed::Building { index, done, total };
        }
        let reason = self
            .failure
            .as_ref()
            .map_or_else(|| "the index is not built".to_owned(), ToString::to_string);
        NotUsed::Failed {
            index: index.name.clone(),
            reason,
        }
    }

    /// Returns an error if the command's options exclude the cache.
    fn check_options(&self, options: &PlanOptions) -> Result<(), NotUsed> {
        if self.declared.is_empty() {
            return Err(NotUsed::NoCacheIndex);
        }
        if options.collation {
            return Err(NotUsed::Collation);
        }
        match &options.hint {
            Some(hint) if !self.declared.iter().any(|index| index.name == *hint) => {
                Err(NotUsed::Hint { hint: hint.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Returns the complete generation, or the reason why the index that `node` needs is not ready.
    fn answering(&self, node: &Node) -> Result<&Arc<Generation>, NotUsed> {
        self.ready.as_ref().ok_or_else(|| self.first_unready(node))
    }

    fn first_unready(&self, node: &Node) -> NotUsed {
        let named = self
            .declared
            .iter()
            .find(|index| index.fields.iter().any(|path| names(node, path)));
        named.map_or(NotUsed::NoCachedField, |index| self.unready(index))
    }
}

/// Returns whether any condition of the filter is on the path `wanted`.
fn names(node: &Node, wanted: &str) -> bool {
    match node {
        Node::And(nodes) | Node::Or(nodes) | Node::Nor(nodes) => {
            nodes.iter().any(|node| names(node, wanted))
        }
        Node::Not(node) => names(node, wanted),
        Node::Leaf { path, .. } => path.as_str() == wanted,
        Node::Expr { .. } | Node::AlwaysTrue | Node::AlwaysFalse => false,
    }
}

impl CollectionSearch {
    /// Plans a search of the cache for the documents that match `filter`.
    ///
    /// # Errors
    /// The reason why the cache cannot answer.
    pub fn plan(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        options: &PlanOptions,
    ) -> Result<SearchPlan, NotUsed> {
        self.with_state(|state| {
            state.check_options(options)?;
            let generation = state.answering(filter.root())?;
            let mut translator = Translator::new(state, generation);
            let (expr, exact) = match translator.cover(filter.root()) {
                Cover::Exact(expr) => (expr, true),
                Cover::Superset(expr) => (expr, false),
                Cover::Nothing => return Err(translator.obstacle()),
            };
            if translator.leaves.is_empty() {
                return Err(translator.obstacle());
            }
            Ok(self.assemble(filter, generation, translator, expr, exact))
        })
    }

    /// Plans a count of the values of the field `path` in the documents that match `filter`.
    ///
    /// # Errors
    /// The reason why the cache cannot answer: for example, the field is not cached, or the cache cannot evaluate the
    /// whole filter.
    pub fn plan_values(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        path: &str,
        options: &PlanOptions,
    ) -> Result<SearchPlan, NotUsed> {
        self.with_state(|state| {
            state.check_options(options)?;
            let generation = state.values_generation(path)?;
            let mut translator = Translator::new(state, generation);
            let Some(field) = translator.field(path) else {
                return Err(translator.obstacle());
            };
            match translator.cover(filter.root()) {
                Cover::Exact(expr) => {
                    let plan = self.assemble(filter, generation, translator, expr, true);
                    Ok(SearchPlan {
                        values: Some(field),
                        ..plan
                    })
                }
                Cover::Superset(_) => Err(NotUsed::NotExact),
                Cover::Nothing => Err(translator.obstacle()),
            }
        })
    }

    fn assemble(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        generation: &Arc<Generation>,
        translator: Translator<'_>,
        expr: Expr,
        exact: bool,
    ) -> SearchPlan {
        let summary = PlanSummary {
            indexes: translator.indexes,
            leaves: translator.leaves,
            exact,
        };
        SearchPlan {
            search: Arc::clone(self),
            generation: Arc::clone(generation),
            filter: Arc::clone(filter),
            expr,
            summary: Arc::new(summary),
            values: None,
            report: Arc::default(),
        }
    }
}

impl State {
    /// Returns the generation that holds the values of `path`.
    fn values_generation(&self, path: &str) -> Result<&Arc<Generation>, NotUsed> {
        let declaring = self
            .declared
            .iter()
            .find(|index| index.fields.iter().any(|field| field == path));
        let index = declaring.ok_or_else(|| NotUsed::ValuesNotCached {
            path: path.to_owned(),
        })?;
        match &self.ready {
            Some(generation) if generation.extractor.fields().index_of(path).is_some() => {
                Ok(generation)
            }
            _ => Err(self.unready(index)),
        }
    }
}
