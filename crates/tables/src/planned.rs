//! Planned queries, and those that are kept for statements that were seen before.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::datasource::TableType;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement;
use forebay_memory::{Account, Share};
use parking_lot::Mutex;

use crate::error::Result;
use crate::{clients, managed, plan};

/// Maximum number of plans that are kept.
const PLANS_MAX: usize = 1_000;
/// Maximum bytes of the text of a statement whose plan is kept.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Bytes of a plan that is kept, and further bytes for each byte of its text.
const PLAN_BYTES: usize = 16 << 10;
const PLAN_BYTES_OF_TEXT: usize = 64;
/// Part of the process's memory that plans may take: one of these.
const MEMORY_PARTS: u64 = 64;

tokio::task_local! {
    /// The tables that were looked up while a statement was planned.
    static LOOKUPS: Mutex<Lookups>;
}

/// A query and its plan.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) plan: LogicalPlan,
    /// Types of the parameters, from `$1` on.
    pub(crate) parameters: Vec<Option<DataType>>,
    columns: OnceLock<SchemaRef>,
    /// The optimized plan, if it is good for later runs.
    optimized: OnceLock<LogicalPlan>,
    /// The tables that the plan reads; `None` if it is good for one run only.
    tables: Option<Vec<Lookup>>,
}

/// What a plan depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) user: String,
    pub(crate) time_zone: Option<String>,
    /// The schema of tables that are named without one.
    pub(crate) schema: String,
    /// Types of the parameters that the client told.
    pub(crate) declared: Vec<Option<DataType>>,
}

impl Planned {
    /// Plans a query. `is_local` allows `COPY ... TO` a file.
    ///
    /// # Errors
    /// If the query cannot be planned.
    pub(crate) async fn new(
        state: &SessionState,
        text: &str,
        mut statement: Statement,
        declared: &[Option<DataType>],
        is_local: bool,
    ) -> Result<Planned> {
        let schema = &state.config_options().catalog.default_schema;
        let rewritten = clients::rewrite(&mut statement, text, schema);
        let text = rewritten.as_deref().unwrap_or(text);
        let planning = async {
            managed::with_defaults(state, &mut statement).await?;
            plan::query(state, text, statement, is_local).await
        };
        let (plan, lookups) = recorded(planning).await;
        let plan = plan?;
        let tables = match lookups.has_others || !plan::is_repeatable(&plan)? {
            true => None,
            false => Some(lookups.tables),
        };
        Ok(Planned {
            parameters: plan::parameters(&plan, declared)?,
            plan,
            columns: OnceLock::new(),
            optimized: OnceLock::new(),
            tables,
        })
    }

    /// Returns the columns. They are computed once.
    ///
    /// # Errors
    /// If types do not fit.
    pub(crate) fn columns(&self, state: &SessionState) -> Result<&SchemaRef> {
        if let Some(columns) = self.columns.get() {
            return Ok(columns);
        }
        let columns = plan::columns(state, &self.plan, &self.parameters)?;
        Ok(self.columns.get_or_init(|| columns))
    }

    /// Returns the columns, if they were computed.
    pub(crate) fn known_columns(&self) -> Option<&SchemaRef> {
        self.columns.get()
    }

    /// Returns the optimized plan of a query without parameters.
    ///
    /// # Errors
    /// If the query cannot be optimized.
    pub(crate) fn optimized(&self, state: &SessionState) -> Result<LogicalPlan> {
        if let Some(optimized) = self.optimized.get() {
            return Ok(optimized.clone());
        }
        let optimized = state.optimize(&self.plan)?;
        if self.tables.is_some() {
            let _ = self.optimized.set(optimized.clone());
        }
        Ok(optimized)
    }

    /// Returns whether the plan can be used again: its tables are the ones that it was made for.
    async fn is_current(&self) -> bool {
        let Some(tables) = &self.tables else {
            return false;
        };
        for lookup in tables {
            match lookup.schema.table(&lookup.name).await {
                Ok(Some(table)) if Arc::ptr_eq(&table, &lookup.table) => {}
                _ => return false,
            }
        }
        true
    }
}

/// A table as it was when a plan was made.
#[derive(Debug)]
struct Lookup {
    schema: Arc<dyn SchemaProvider>,
    name: String,
    table: Arc<dyn TableProvider>,
}

#[derive(Debug, Default)]
struct Lookups {
    tables: Vec<Lookup>,
    /// Whether tables were looked up whose changes are not seen, such as those of `pg_catalog`.
    has_others: bool,
}

/// Runs planning, and returns the tables that it looked up.
async fn recorded<T>(planning: impl Future<Output = T>) -> (T, Lookups) {
    let recorded = async {
        let planned = planning.await;
        (
            planned,
            LOOKUPS.with(|lookups| std::mem::take(&mut *lookups.lock())),
        )
    };
    LOOKUPS.scope(Mutex::default(), recorded).await
}

/// Records that planning looked up a table. Later lookups return the same provider until the table changes. Views are
/// not recorded: plans hold what they consist of, and the catalogue tells whether one was replaced.
pub(crate) fn looked_up(
    schema: Arc<dyn SchemaProvider>,
    name: &str,
    table: &Arc<dyn TableProvider>,
) {
    if table.table_type() == TableType::View {
        return;
    }
    let lookup = Lookup {
        schema,
        name: name.to_owned(),
        table: Arc::clone(table),
    };
    let _ = LOOKUPS.try_with(|lookups| lookups.lock().tables.push(lookup));
}

/// Records that planning looked up a table whose changes are not seen.
pub(crate) fn looked_up_other() {
    let _ = LOOKUPS.try_with(|lookups| lookups.lock().has_others = true);
}

/// The plans that are kept.
#[derive(Debug)]
pub(crate) struct Plans(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    plans: HashMap<Key, Arc<Planned>>,
    /// The number of changes of the catalogue when the plans were made.
    changes: u64,
    /// Memory of the plans.
    share: Share,
    bytes: u64,
    bytes_max: u64,
}

impl Plans {
    pub(crate) fn new(memory: &Account) -> Plans {
        Plans(Mutex::new(Kept {
            plans: HashMap::new(),
            changes: 0,
            share: memory.share(),
            bytes: 0,
            bytes_max: memory.figures().limit_bytes / MEMORY_PARTS,
        }))
    }

    /// Returns the plan of a statement that was seen before; `None` if there is none, or its tables have changed.
    /// `changes` is the number of changes of the catalogue so far.
    pub(crate) async fn get(&self, key: &Key, changes: u64) -> Option<Arc<Planned>> {
        let found = {
            let mut kept = self.0.lock();
            if kept.changes != changes {
                kept.clear();
                kept.changes = changes;
            }
            kept.plans.get(key).cloned()?
        };
        if found.is_current().await {
            return Some(found);
        }
        self.0.lock().remove(key);
        None
    }

    /// Keeps a plan that was made when the catalogue had this number of changes, if it is good for later runs.
    pub(crate) fn put(&self, key: Key, changes: u64, planned: &Arc<Planned>) {
        if planned.tables.is_none() || key.text.len() > TEXT_BYTES_MAX {
            return;
        }
        let mut kept = self.0.lock();
        if kept.changes != changes {
            return;
        }
        kept.remove(&key);
        let bytes = key.bytes();
        if kept.plans.len() >= PLANS_MAX || kept.bytes + bytes as u64 > kept.bytes_max {
            kept.clear();
        }
        if kept.share.try_grow(bytes).is_err() {
            kept.clear();
            return;
        }
        kept.bytes += bytes as u64;
        kept.plans.insert(key, Arc::clone(planned));
    }
}

impl Key {
    /// Returns the estimated bytes of the plan.
    fn bytes(&self) -> usize {
        PLAN_BYTES + self.text.len() * PLAN_BYTES_OF_TEXT
    }
}

impl Kept {
    fn remove(&mut self, key: &Key) {
        if self.plans.remove(key).is_some() {
            self.share.shrink(key.bytes());
            self.bytes -= key.bytes() as u64;
        }
    }

    fn clear(&mut self) {
        self.plans.clear();
        self.share.shrink_to(0);
        self.bytes = 0;
    }
}
