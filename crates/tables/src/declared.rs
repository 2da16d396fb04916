//! Tables that are declared for GPUs: brought to them when they are declared, when the server starts, and after each
//! change.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use datafusion::catalog::TableProvider;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::TaskContext;
use datafusion::sql::parser::Statement;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::catalogue::{Entry, Kind};
use crate::declaration::Declaration;
use crate::engine::Shared;
use crate::error::Result;
use crate::gpu::TableName;
use crate::parse::{Body, parse};
use crate::{managed, provider};

/// Time after which it is looked whether files of declared tables have changed, and whether columns that gave way are
/// brought back.
const CHECK_PERIOD: Duration = Duration::from_secs(10);

/// Wakes what brings declared tables to GPUs.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    wake: Arc<Notify>,
    /// Held while GPUs are told which files they leave, so that none is told an older list after a newer one.
    telling: Mutex<()>,
}

impl Declared {
    /// Follows a change of a declaration.
    pub(crate) fn changed(&self, shared: &Shared) {
        leave_to_cpu(shared);
        self.wake();
    }

    /// Looks at the declared tables, as one may have changed.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }
}

/// Tells GPUs which files they leave to the CPU.
pub(crate) fn leave_to_cpu(shared: &Shared) {
    if !shared.has_gpu() {
        return;
    }
    let _telling = shared.declared.telling.lock();
    let mut files = Vec::new();
    for (_, name, entry) in shared.catalogue.declared() {
        if entry.gpu == Some(Declaration::Off) {
            match locations(shared, &entry) {
                Ok(locations) => files.extend(locations),
                Err(error) => {
                    tracing::warn!(table = name, %error, "a GPU may read a table with gpu = off");
                }
            }
        }
    }
    for rule in &shared.gpu_rules {
        rule.leave_to_cpu(files.clone());
    }
}

/// Returns where the files of a table are.
fn locations(shared: &Shared, entry: &Entry) -> Result<Vec<ListingTableUrl>> {
    let locations = match entry.kind {
        Kind::Managed => {
            let folder = shared.place.path_of(&entry.definition)?;
            vec![format!("{}/", folder.display())]
        }
        Kind::External | Kind::View => {
            let parsed = parse(&entry.definition)?.pop().map(|it| it.body);
            match parsed {
                Some(Body::Sql(Statement::CreateExternalTable(table))) => table.locations,
                _ => Vec::new(),
            }
        }
    };
    let parsed = locations.iter().map(ListingTableUrl::parse);
    Ok(parsed.collect::<datafusion::error::Result<_>>()?)
}

/// A table as it was when its columns were brought to GPUs.
struct Brought {
    declaration: Option<Declaration>,
    table: Weak<dyn TableProvider>,
    version: Option<u64>,
}

impl PartialEq for Brought {
    fn eq(&self, other: &Brought) -> bool {
        let is_same = (&self.declaration, self.version) == (&other.declaration, other.version);
        is_same && self.table.ptr_eq(&other.table)
    }
}

/// Brings declared tables to GPUs, one after another, until the engine is dropped.
pub(crate) async fn keep(shared: Weak<Shared>) {
    let mut brought = BTreeMap::new();
    loop {
        let Some(here) = shared.upgrade() else {
            return;
        };
        let has_declared = bring_all(&here, &mut brought).await;
        let wake = Arc::clone(&here.declared.wake);
        // What sessions share ends with the engine, also if this task ends later.
        drop(here);
        match has_declared {
            true => drop(timeout(CHECK_PERIOD, wake.notified()).await),
            false => wake.notified().await,
        }
    }
}

/// Brings the declared tables that have changed, or of which columns are not there. Returns whether there are any.
async fn bring_all(shared: &Arc<Shared>, brought: &mut BTreeMap<TableName, Brought>) -> bool {
    // Tables may have been dropped.
    leave_to_cpu(shared);
    let mut declared = shared.catalogue.declared();
    declared.retain(|(.., entry)| entry.gpu != Some(Declaration::Off));
    let names = declared.iter();
    let names: BTreeSet<TableName> = names
        .map(|(schema, name, _)| (schema.clone(), name.clone()))
        .collect();
    brought.retain(|name, _| names.contains(name));
    for rule in &shared.gpu_rules {
        rule.retain_declared(&names);
    }
    for (schema, table, entry) in declared {
        let name = (schema, table);
        if let Err(error) = bring(shared, (&name, &entry), brought).await {
            // It may be a file that is not there now.
            tracing::debug!(table = name.1, %error, "a declared table is not brought to the GPU");
            brought.remove(&name);
        }
    }
    !names.is_empty()
}

/// Brings a table, if it has changed, or columns are not there.
async fn bring(
    shared: &Arc<Shared>,
    (name, entry): (&TableName, &Arc<Entry>),
    brought: &mut BTreeMap<TableName, Brought>,
) -> Result<()> {
    let table = provider::declared(shared, &name.1, entry).await?;
    let now = Brought {
        declaration: entry.gpu.clone(),
        version: managed::last_version(&*table)?,
        table: Arc::downgrade(&table),
    };
    let is_same = brought.get(name) == Some(&now);
    if is_same && shared.gpu_rules.iter().all(|rule| rule.is_there(name)) {
        return Ok(());
    }
    let columns = match &entry.gpu {
        Some(Declaration::Columns(columns)) => Some(&**columns),
        _ => None,
    };
    let base = shared.base();
    let scan = table.scan(base, None, &[], None).await?;
    drop(table);
    for rule in &shared.gpu_rules {
        let context: Arc<TaskContext> = base.task_ctx();
        let bringing = rule.bring(name, columns, &scan, context);
        unless_changed(shared, (name, entry), bringing).await;
    }
    brought.insert(name.clone(), now);
    Ok(())
}

/// Waits for work, and drops it if the table is declared in another way meanwhile, or dropped.
async fn unless_changed(
    shared: &Shared,
    (name, entry): (&TableName, &Arc<Entry>),
    work: impl Future<Output = ()>,
) {
    let mut work = pin!(work);
    let mut is_woken = false;
    loop {
        tokio::select! {
            () = &mut work => break,
            () = shared.declared.wake.notified() => {
                is_woken = true;
                let found = shared.catalogue.table(&name.0, &name.1);
                if !found.is_some_and(|found| Arc::ptr_eq(&found, entry)) {
                    break;
                }
            }
        }
    }
    if is_woken {
        // Other tables may have changed, too.
        shared.declared.wake();
    }
}
