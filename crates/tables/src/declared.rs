//! Tables that are declared for GPUs: brought to them when they are declared, when the server starts, and after each
//! change. Each table has a task of its own, which ends with the declaration.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::iter::repeat_n;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use datafusion::arrow::datatypes::Schema;
use datafusion::catalog::TableProvider;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::sql::parser::Statement;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::catalogue::{Entry, Kind};
use crate::declaration::Declaration;
use crate::engine::Shared;
use crate::error::{Code, Result, SqlError};
use crate::gpu::TableName;
use crate::nan::NanRule;
use crate::parse::{Body, parse};
use crate::provider::DATABASE;
use crate::read_ahead::advised;
use crate::rows::Running;
use crate::source::id_of;
use crate::{managed, provider};

/// Time between two looks at a declared table: whether its files have changed, and whether columns that gave way can
/// be brought back.
const CHECK_PERIOD: Duration = Duration::from_secs(10);
/// Maximum time until the next attempt for a table that could not be listed, or was written while it was loaded. The
/// time doubles with each attempt.
const RETRY_PERIOD_MAX: Duration = Duration::from_secs(300);
/// Time between two looks at a table, however often tables change.
const PAUSE: Duration = Duration::from_millis(200);
/// Minimum time between two looks at a table of the source, which changes without notice.
const SOURCE_PERIOD: Duration = Duration::from_secs(1);
/// Minimum time between two looks, as a multiple of the time that the first one took, with its load and the wait for
/// its turn. So a table that is written all the time is loaded at most a quarter of the time.
const SOURCE_PAUSES: u32 = 3;
/// Maximum time to list the files of a table.
const LIST_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum number of tables whose files are listed at once, and of listings that hang besides them.
const LISTINGS_MAX: usize = 8;
const HUNG_LISTINGS_MAX: usize = 32;
/// Maximum number of places that are left to the CPU: of all tables with `gpu = off`.
const PLACES_MAX: usize = 4_096;
/// Maximum time that a statement waits until GPUs are told which files they leave. A call of the system may hang.
const TELL_TIME_MAX: Duration = Duration::from_secs(1);

/// What the tasks of declared tables share.
#[derive(Debug)]
pub(crate) struct Declared {
    changes: watch::Sender<()>,
    listings: Semaphore,
    hung_listings: Semaphore,
    /// The change of the catalogue after which GPUs were told which files they leave. It is locked meanwhile, so that
    /// none is told an older list after a newer one.
    told: Mutex<Option<u64>>,
}

impl Default for Declared {
    fn default() -> Declared {
        Declared {
            changes: watch::Sender::default(),
            listings: Semaphore::new(LISTINGS_MAX),
            hung_listings: Semaphore::new(HUNG_LISTINGS_MAX),
            told: Mutex::default(),
        }
    }
}

impl Declared {
    /// Looks at the declared tables, as one may have changed.
    pub(crate) fn wake(&self) {
        self.changes.send_replace(());
    }
}

/// Tells GPUs which files and tables they leave to the CPU, if the catalogue has changed. Blocks. If another call
/// hangs, the next one tells them.
pub(crate) fn leave_to_cpu(shared: &Shared) {
    let Some(mut told) = shared.declared.told.try_lock_for(TELL_TIME_MAX) else {
        return;
    };
    let changes = shared.catalogue.changes();
    if !shared.has_gpu() || *told == Some(changes) {
        return;
    }
    let (mut files, mut tables) = (Vec::new(), HashSet::new());
    let declared = shared.catalogue.declared().into_iter();
    for (_, name, entry) in declared.filter(|(.., entry)| entry.is_off()) {
        if entry.kind == Kind::Source {
            tables.insert(entry.definition.clone());
        }
        match locations(shared, &entry) {
            Ok(locations) => files.extend(locations),
            Err(error) => {
                tracing::warn!(table = name, %error, "a GPU may read a table with gpu = off");
            }
        }
    }
    if files.len() > PLACES_MAX {
        let places = files.len();
        tracing::warn!(
            places,
            "GPUs may read some tables with gpu = off: they have too many places"
        );
        files.truncate(PLACES_MAX);
    }
    for rule in &shared.gpu_rules {
        rule.leave_to_cpu(files.clone(), tables.clone());
    }
    *told = Some(changes);
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
        Kind::Source => Vec::new(),
    };
    let parsed = locations.iter().map(ListingTableUrl::parse);
    Ok(parsed.collect::<datafusion::error::Result<_>>()?)
}

/// Brings declared tables to GPUs until the engine is dropped. A defect does not end it.
pub(crate) async fn keep(shared: Weak<Shared>) {
    while let Err(error) = tokio::spawn(follow_all(Weak::clone(&shared))).await {
        if error.is_cancelled() {
            return;
        }
        tracing::error!(%error, "declared tables are not followed for a while");
        sleep(CHECK_PERIOD).await;
    }
}

/// A declared table and its task.
struct Followed {
    entry: Arc<Entry>,
    task: JoinSet<()>,
}

impl Followed {
    fn new(shared: &Arc<Shared>, name: &TableName, entry: Arc<Entry>) -> Followed {
        let (shared, name, of_task) = (Arc::downgrade(shared), name.clone(), Arc::clone(&entry));
        let mut task = JoinSet::new();
        task.spawn(follow(shared, name, of_task));
        Followed { entry, task }
    }

    /// Returns whether the task has ended, which is a defect, while the engine runs.
    fn has_ended(&mut self, name: &TableName) -> bool {
        let ended = self.task.try_join_next();
        if let Some(Err(error)) = &ended {
            tracing::error!(table = %name.table, %error, "a declared table is not followed for a while");
        }
        ended.is_some()
    }
}

/// Starts and ends the tasks of tables as they are declared, dropped, and declared in another way.
async fn follow_all(shared: Weak<Shared>) {
    let mut followed: BTreeMap<TableName, Followed> = BTreeMap::new();
    let mut leaving = None;
    let Some(mut changes) = subscribed(&shared) else {
        return;
    };
    while let Some(here) = shared.upgrade() {
        // It may hang in a call of the system.
        if leaving.as_ref().is_none_or(JoinHandle::is_finished) {
            let here = Arc::clone(&here);
            leaving = Some(spawn_blocking(move || leave_to_cpu(&here)));
        }
        follow_declared(&here, &mut followed).await;
        // What sessions share ends with the engine, also if this task ends later.
        drop(here);
        // An error is the end of the engine.
        drop(timeout(CHECK_PERIOD, changes.changed()).await);
    }
}

fn subscribed(shared: &Weak<Shared>) -> Option<watch::Receiver<()>> {
    Some(shared.upgrade()?.declared.changes.subscribe())
}

async fn follow_declared(shared: &Arc<Shared>, followed: &mut BTreeMap<TableName, Followed>) {
    let declared = shared.catalogue.declared().into_iter();
    let declared = declared.filter_map(|(schema, table, entry)| {
        let database = match entry.kind {
            // The task also ends the declaration of a table that is gone, even with `off` or without a GPU.
            Kind::Source => shared.source.as_ref()?.name(),
            _ if entry.is_off() || !shared.has_gpu() => return None,
            _ => DATABASE,
        };
        let name = TableName {
            catalog: database.into(),
            schema: schema.into(),
            table: table.into(),
        };
        Some((name, entry))
    });
    let declared: BTreeMap<TableName, Arc<Entry>> = declared.collect();
    let is_ended = |name: &TableName, it: &mut Followed| {
        let entry = declared.get(name);
        it.has_ended(name) || !entry.is_some_and(|entry| Arc::ptr_eq(entry, &it.entry))
    };
    let ended = followed.extract_if(.., |name, it| is_ended(name, it));
    let mut ended: Vec<_> = ended.collect();
    for (_, ended) in &mut ended {
        ended.task.shutdown().await;
    }
    // Each time: work that blocks may have declared a table again after its task had ended.
    let kept = declared.iter().filter(|(_, entry)| !entry.is_off());
    let names: BTreeSet<TableName> = kept.map(|(name, _)| name.clone()).collect();
    for rule in &shared.gpu_rules {
        rule.retain_declared(&names);
    }
    for (name, entry) in declared {
        let new = Followed::new;
        followed
            .entry(name)
            .or_insert_with_key(|name| new(shared, name, entry));
    }
}

/// A table as it was when its columns were brought to GPUs.
#[derive(Clone)]
struct Brought {
    table: Weak<dyn TableProvider>,
    version: Option<u64>,
}

impl PartialEq for Brought {
    fn eq(&self, other: &Brought) -> bool {
        self.version == other.version && self.table.ptr_eq(&other.table)
    }
}

/// What a look at a table did.
enum Look {
    /// Nothing, as there was nothing to bring.
    Nothing,
    Brought,
    /// A write overtook the load.
    Overtaken,
}

/// Returns the time until the next look at a table of the source. `before` is the time before this look, and `took`
/// that of the look and its load.
fn pause_after(look: &Result<Look>, before: Duration, took: Duration) -> Duration {
    let min = match look {
        Ok(Look::Overtaken) => before * 2,
        _ => SOURCE_PERIOD,
    };
    min.max(took * SOURCE_PAUSES).min(RETRY_PERIOD_MAX)
}

/// Brings a table to GPUs when it has changed, or columns are not there.
async fn follow(shared: Weak<Shared>, name: TableName, entry: Arc<Entry>) {
    let Some(mut changes) = subscribed(&shared) else {
        return;
    };
    let (mut brought, mut told) = (None, None);
    let (mut period, mut pause) = (CHECK_PERIOD, SOURCE_PERIOD);
    while let Some(here) = shared.upgrade() {
        changes.mark_unchanged();
        let began = Instant::now();
        let result = bring(&here, (&name, &entry), &mut brought).await;
        period = match brought.is_some() {
            true => CHECK_PERIOD,
            // It may be a file that is not there now.
            false => RETRY_PERIOD_MAX.min(period * 2),
        };
        pause = pause_after(&result, pause, began.elapsed());
        match result {
            Ok(Look::Brought) => told = None,
            Ok(Look::Nothing | Look::Overtaken) => {}
            Err(error) => {
                let reason = Some(error.to_string());
                if told != reason {
                    tracing::warn!(table = %name.table, %error, "a declared table is not brought to the GPU");
                }
                told = reason;
            }
        }
        drop(here);
        sleep(PAUSE).await;
        match entry.kind {
            Kind::Source if brought.is_some() => sleep(pause).await,
            Kind::Managed => drop(timeout(period, changes.changed()).await),
            // Files change without notice.
            Kind::External | Kind::View | Kind::Source => sleep(period).await,
        }
    }
}

/// Brings a table to GPUs, if it has changed or columns are missing.
async fn bring(
    shared: &Arc<Shared>,
    (name, entry): (&TableName, &Arc<Entry>),
    brought: &mut Option<Brought>,
) -> Result<Look> {
    let before = brought.take();
    let scan = scan(Arc::clone(shared), (name, entry), before.clone()).await;
    if let Err(error) = &scan
        && entry.kind == Kind::Source
        && error.code == Code::InsufficientPrivilege
    {
        // Otherwise its columns would stay on the GPU.
        let nothing = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        bring_scan(shared, (name, None), nothing).await?;
    }
    let Some((now, scan)) = scan? else {
        *brought = before;
        return Ok(Look::Nothing);
    };
    *brought = Some(now);
    let columns = match &entry.gpu {
        Some(Declaration::Columns(columns)) => Some(&**columns),
        _ => None,
    };
    Ok(match bring_scan(shared, (name, columns), scan).await? {
        true => Look::Brought,
        false => Look::Overtaken,
    })
}

/// Brings columns of a scan to all GPUs. Returns `false` if the table changed meanwhile.
async fn bring_scan(
    shared: &Arc<Shared>,
    (name, columns): (&TableName, Option<&[String]>),
    scan: Arc<dyn ExecutionPlan>,
) -> Result<bool> {
    let mut is_same = true;
    // The scan of the last one is not held here: it has all files.
    let scans = repeat_n(scan, shared.gpu_rules.len());
    for (rule, scan) in shared.gpu_rules.iter().zip(scans) {
        let context = shared.base().task_ctx();
        is_same &= rule.bring(name, columns, scan, context).await?;
    }
    Ok(is_same)
}

/// A table as it is, and the scan of its files.
type Scan = (Brought, Arc<dyn ExecutionPlan>);

/// Returns the scan of a table, on a thread of its own as plans of queries; `None` if all is there as it was brought.
async fn scan(
    shared: Arc<Shared>,
    (name, entry): (&TableName, &Arc<Entry>),
    brought: Option<Brought>,
) -> Result<Option<Scan>> {
    let here = Arc::clone(&shared);
    let permit = here.declared.listings.acquire().await;
    let (of_work, entry) = (name.clone(), Arc::clone(entry));
    let work = async move {
        let planned = planned(&shared, &of_work, &entry, brought);
        timeout(LIST_TIME_MAX, planned).await
    };
    let mut running = Running::start_blocking(&Handle::current(), work);
    let within = timeout(LIST_TIME_MAX * 2, running.end()).await;
    // Threads that hang in calls of the system hold back no other table, unless they are many.
    let hung = within
        .is_err()
        .then(|| here.declared.hung_listings.try_acquire());
    let _permits = match hung {
        Some(Ok(hung)) => (None, Some(hung)),
        Some(Err(_)) => (Some(permit), None),
        None => (None, None),
    };
    let planned = match within {
        Ok(planned) => planned?,
        Err(_) => {
            tracing::warn!(
                table = %name.table,
                "files of a declared table are not listed for long"
            );
            running.end().await?
        }
    };
    planned.unwrap_or_else(|_| {
        let message = format!("its files are not listed in {} s", LIST_TIME_MAX.as_secs());
        Err(SqlError::new(Code::IoError, message))
    })
}

async fn planned(
    shared: &Arc<Shared>,
    name: &TableName,
    entry: &Arc<Entry>,
    brought: Option<Brought>,
) -> Result<Option<Scan>> {
    let table = match (entry.kind, &shared.source) {
        (Kind::Source, Some(source)) => {
            let user = entry.user.as_deref();
            source.table(user, &name.schema, &name.table).await?
        }
        _ => Some(provider::declared(shared, &name.table, entry).await?),
    };
    let Some(table) = table else {
        return ended(shared, entry);
    };
    let now = Brought {
        version: managed::last_version(&*table)?,
        table: Arc::downgrade(&table),
    };
    let is_same = brought.is_some_and(|brought| brought == now);
    if is_same && shared.gpu_rules.iter().all(|rule| rule.is_there(name)) {
        return Ok(None);
    }
    let scan = table.scan(shared.base(), None, &[], None).await?;
    if entry.kind == Kind::Source && id_of(&scan) != Some(&*entry.definition) {
        return ended(shared, entry);
    }
    match shared.has_gpu() && !entry.is_off() {
        true => Ok(Some((now, advised(NanRule::Statistics.applied(scan)?)?))),
        false => Ok(None),
    }
}

/// Ends the declaration of a table of the source that was dropped or replaced. Returns no scan.
fn ended(shared: &Shared, entry: &Arc<Entry>) -> Result<Option<Scan>> {
    shared.catalogue.end_of_source(entry)?;
    shared.declared.wake();
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_while_writes_overtake_loads() {
        let seconds = Duration::from_secs;
        for (look, before, took, pause) in [
            (Ok(Look::Brought), 1, 0, 1),
            (Ok(Look::Brought), 1, 2, 6),
            (Ok(Look::Overtaken), 1, 0, 2),
            (Ok(Look::Overtaken), 1, 2, 6),
            (Ok(Look::Overtaken), 6, 2, 12),
            (Ok(Look::Overtaken), 200, 2, 300),
            (Ok(Look::Nothing), 300, 0, 1),
            (Ok(Look::Brought), 300, 2, 6),
            (Ok(Look::Brought), 1, 1_000, 300),
        ] {
            let after = pause_after(&look, seconds(before), seconds(took));
            assert_eq!(after, seconds(pause), "{before} {took}");
        }
    }
}
