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
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::error::Result;
use crate::physical::{Basis, Physical};
use crate::{clients, managed, plan};

/// Maximum number of plans that are kept.
const PLANS_MAX: usize = 1_000;
/// Maximum bytes of the text of a statement whose plan is kept.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Bytes of a plan that is kept, and further bytes for each byte of its text.
const PLAN_BYTES: usize = 16 << 10;
const PLAN_BYTES_OF_TEXT: usize = 64;
/// Number of physical plans of a statement, for different parameters, when another one is kept.
const PHYSICAL_MAX: usize = 7;
/// Part of the process's memory that plans may take: one of these.
const MEMORY_PARTS: u64 = 64;

tokio::task_local! {
    /// The tables that were looked up while a statement was planned.
    static LOOKUPS: Mutex<Lookups>;
}

/// A query and its plan.
#[derive(Debug)]
pub(crate) struct Planned {
    key: Arc<Key>,
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
        key: Arc<Key>,
        mut statement: Statement,
        is_local: bool,
    ) -> Result<Planned> {
        let schema = &state.config_options().catalog.default_schema;
        let rewritten = clients::rewrite(&mut statement, &key.text, schema);
        let text = rewritten.as_deref().unwrap_or(&key.text);
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
            parameters: plan::parameters(&plan, &key.declared)?,
            key,
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
    pub(crate) async fn is_current(&self) -> bool {
        let Some(tables) = &self.tables else {
            return false;
        };
        let are_same = tables.iter().map(|lookup| async move {
            let found = lookup.schema.table(&lookup.name).await;
            matches!(found, Ok(Some(table)) if Arc::ptr_eq(&table, &lookup.table))
        });
        join_all(are_same).await.into_iter().all(|it| it)
    }

    /// Returns the time zone of the session for which it was planned.
    pub(crate) fn time_zone(&self) -> Option<&str> {
        self.key.time_zone.as_deref()
    }

    /// Returns the tables that the plan reads; `None` if it is good for one run only.
    pub(crate) fn tables(&self) -> Option<impl Iterator<Item = &Arc<dyn TableProvider>>> {
        let tables = self.tables.as_ref()?;
        Some(tables.iter().map(|lookup| &lookup.table))
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
    plans: HashMap<Arc<Key>, Entry>,
    /// The number of changes of the catalogue when the plans were made.
    changes: u64,
    /// Memory of the plans.
    share: Share,
    bytes: u64,
    bytes_max: u64,
    /// Physical plans that are not kept any more, to be dropped.
    removed: Vec<Arc<Physical>>,
}

/// The plans of a statement.
#[derive(Debug)]
struct Entry {
    planned: Arc<Planned>,
    /// Its physical plans, the one that was used last at the end.
    physical: Vec<Arc<Physical>>,
    /// Estimated bytes of all.
    bytes: usize,
}

impl Plans {
    pub(crate) fn new(memory: &Account) -> Plans {
        Plans(Mutex::new(Kept {
            plans: HashMap::new(),
            changes: 0,
            share: memory.share(),
            bytes: 0,
            bytes_max: memory.figures().limit_bytes / MEMORY_PARTS,
            removed: Vec::new(),
        }))
    }

    /// Changes what is kept. What it removes is dropped after the lock: plans of managed tables may be the last that
    /// keep deleted files.
    fn with<T>(&self, change: impl FnOnce(&mut Kept) -> T) -> T {
        let mut kept = self.0.lock();
        let result = change(&mut kept);
        let removed = std::mem::take(&mut kept.removed);
        drop(kept);
        drop(removed);
        result
    }

    /// Returns the plan of a statement that was seen before; `None` if there is none, or its tables have changed.
    /// `changes` is the number of changes of the catalogue so far.
    pub(crate) async fn get(&self, key: &Key, changes: u64) -> Option<Arc<Planned>> {
        let found = self.with(|kept| {
            if kept.changes != changes {
                kept.clear();
                kept.changes = changes;
            }
            kept.plans.get(key).map(|it| Arc::clone(&it.planned))
        })?;
        if found.is_current().await {
            return Some(found);
        }
        self.with(|kept| kept.remove(key));
        None
    }

    /// Keeps a plan that was made when the catalogue had this number of changes, if it is good for later runs.
    pub(crate) fn put(&self, changes: u64, planned: &Arc<Planned>) {
        let key = &planned.key;
        if planned.tables.is_none() || key.text.len() > TEXT_BYTES_MAX {
            return;
        }
        self.with(|kept| {
            if kept.changes != changes || kept.has(planned) {
                return;
            }
            kept.remove(key);
            if kept.plans.len() >= PLANS_MAX {
                kept.clear();
            }
            let bytes = key.bytes();
            if kept.grow(bytes) {
                let entry = Entry {
                    planned: Arc::clone(planned),
                    physical: Vec::new(),
                    bytes,
                };
                kept.plans.insert(Arc::clone(key), entry);
            }
        });
    }

    /// Returns whether physical plans of a statement are kept.
    pub(crate) fn runs_again(&self, key: &Key) -> bool {
        let kept = self.0.lock();
        kept.plans
            .get(key)
            .is_some_and(|it| !it.physical.is_empty())
    }

    /// Returns whether physical plans of a plan are kept.
    pub(crate) fn has_physical(&self, planned: &Arc<Planned>) -> bool {
        let kept = self.0.lock();
        let entry = kept.plans.get(&planned.key);
        kept.has(planned) && entry.is_some_and(|it| !it.physical.is_empty())
    }

    /// Returns the physical plan that is kept for a plan and for `of`, to be run once. One that only one run may have
    /// is not kept any more.
    pub(crate) fn physical(&self, planned: &Arc<Planned>, of: &Basis) -> Option<Arc<Physical>> {
        self.with(|kept| {
            if !kept.has(planned) {
                return None;
            }
            let physical = &mut kept.plans.get_mut(&planned.key)?.physical;
            let index = physical.iter().position(|it| it.of == *of)?;
            let found = physical.remove(index);
            physical.push(Arc::clone(&found));
            if found.has_subqueries {
                kept.retain_physical(&planned.key, |_, rank| rank > 0);
            }
            Some(found)
        })
    }

    /// Keeps a physical plan of a plan that is kept, if no managed table has a later version.
    pub(crate) fn put_physical(&self, planned: &Arc<Planned>, physical: Physical) {
        let bytes = physical.bytes + planned.key.bytes();
        if !physical.of.is_current() {
            return;
        }
        let physical = Arc::new(physical);
        self.with(|kept| {
            if !kept.has(planned) {
                return;
            }
            kept.retain_physical(&planned.key, |it, rank| {
                rank < PHYSICAL_MAX && it.of != physical.of
            });
            if !kept.grow(bytes) {
                return;
            }
            match kept.plans.get_mut(&planned.key) {
                Some(entry) => {
                    entry.bytes += bytes;
                    entry.physical.push(physical);
                }
                // All were removed to make room.
                None => kept.shrink(bytes),
            }
        });
    }

    /// Forgets a physical plan.
    pub(crate) fn forget_physical(&self, planned: &Planned, of: &Basis) {
        self.with(|kept| kept.retain_physical(&planned.key, |it, _| it.of != *of));
    }

    /// Forgets the physical plans over versions of managed tables that are not the last: they keep files.
    pub(crate) fn forget_versions(&self) {
        let all: Vec<_> = {
            let kept = self.0.lock();
            let entries = kept.plans.iter();
            let plans = entries.flat_map(|(key, it)| it.physical.iter().map(move |it| (key, it)));
            let managed = plans.filter(|(_, it)| it.of.has_versions());
            let managed = managed.map(|(key, it)| (Arc::clone(key), Arc::clone(it)));
            managed.collect()
        };
        // The versions are read from disk, without the lock.
        for (key, physical) in all {
            if !physical.of.is_current() {
                self.with(|kept| kept.retain_physical(&key, |it, _| it.of != physical.of));
            }
        }
    }
}

impl Key {
    /// Returns the estimated bytes of the plan.
    fn bytes(&self) -> usize {
        PLAN_BYTES + self.text.len() * PLAN_BYTES_OF_TEXT
    }
}

impl Kept {
    /// Returns whether it is this plan that is kept of its statement.
    fn has(&self, planned: &Arc<Planned>) -> bool {
        let entry = self.plans.get(&planned.key);
        entry.is_some_and(|it| Arc::ptr_eq(&it.planned, planned))
    }

    /// Takes memory for a plan. Removes all others if there is no room. Returns whether there is room.
    fn grow(&mut self, bytes: usize) -> bool {
        if bytes as u64 > self.bytes_max {
            return false;
        }
        if self.bytes + bytes as u64 > self.bytes_max {
            self.clear();
        }
        if self.share.try_grow(bytes).is_err() {
            self.clear();
            return false;
        }
        self.bytes += bytes as u64;
        true
    }

    fn shrink(&mut self, bytes: usize) {
        self.share.shrink(bytes);
        self.bytes -= bytes as u64;
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.plans.remove(key) {
            self.shrink(entry.bytes);
            self.removed.extend(entry.physical);
        }
    }

    /// Keeps those physical plans of a statement for which `is_kept` is true. It gets the number of plans that were
    /// used after the plan, too.
    fn retain_physical(&mut self, key: &Key, is_kept: impl Fn(&Physical, usize) -> bool) {
        let Some(entry) = self.plans.get_mut(key) else {
            return;
        };
        let all = std::mem::take(&mut entry.physical);
        let mut freed = 0;
        let count = all.len();
        for (index, physical) in all.into_iter().enumerate() {
            if is_kept(&physical, count - 1 - index) {
                entry.physical.push(physical);
            } else {
                freed += physical.bytes + key.bytes();
                self.removed.push(physical);
            }
        }
        entry.bytes -= freed;
        self.shrink(freed);
    }

    fn clear(&mut self) {
        let entries = self.plans.drain();
        self.removed.extend(entries.flat_map(|(_, it)| it.physical));
        self.share.shrink_to(0);
        self.bytes = 0;
    }
}
