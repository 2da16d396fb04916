//! Declared tables: their columns are brought here without a query, and are the last to give way.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::datasource::listing::{ListingTableUrl, PartitionedFile};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::object_store::path::Path as ObjectPath;
use datafusion::physical_plan::ExecutionPlan;
use forebay_tables::{TableName, VersionedScan};

use crate::columns::{COLUMNS_MAX, ColumnKey, Columns, Known, Read, State};
use crate::file_key::{FileKey, files};
use crate::fragment::Source;
use crate::from_disk::blocking;
use crate::giving_way::Need;
use crate::load::{CHANGED, load};
use crate::origin::Origin;
use crate::packed::is_packable;
use crate::placement::NO_ROOM;
use crate::reason::{Kind, Reason};

/// Number of columns that are read at once. Queries that bring columns here wait for these alone.
pub(crate) const COLUMNS_AT_ONCE: usize = 4;
/// The same for versioned tables, as each of their scans decodes all rows. If the load fails, fewer are read at once.
/// While columns are packed, each holds 4.5 MiB of memory (144 MiB in all) and at most 16 MiB of different texts.
const COLUMNS_OF_TABLE_AT_ONCE: usize = 32;
/// Time after which a declared column that found no room, or gave way, is tried again. The same column of a later
/// version waits as long, also after a refusal.
const RETRY: Duration = Duration::from_secs(300);
/// Maximum number of declared columns of files.
pub(crate) const DECLARED_MAX: usize = if cfg!(test) { 64 } else { COLUMNS_MAX / 4 };

/// A reason that does not apply to a session that waits until its columns are on the device.
const LEFT_TO_CPU: &str = "a table is declared with gpu = off";

/// The columns of declared tables, and what is left to the CPU.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    tables: HashMap<TableName, HashSet<ColumnKey>>,
    /// The tables of which columns are left out, and when they were; `None` if there may be room since.
    cut: HashMap<TableName, Option<Instant>>,
    /// The columns of all tables, each with the number of tables that declare it.
    columns: HashMap<ColumnKey, usize>,
    /// Those that gave way, had no room or were refused, and when.
    waiting: HashMap<ColumnKey, Instant>,
    left_to_cpu: Arc<LeftToCpu>,
}

impl Declared {
    pub(crate) fn has(&self, key: &ColumnKey) -> bool {
        self.columns.contains_key(key)
    }

    /// Replaces the columns of a table; `None` if it is not declared any more. Returns the files of the ones before.
    fn replace(
        &mut self,
        table: &TableName,
        columns: Option<HashSet<ColumnKey>>,
    ) -> HashSet<FileKey> {
        self.cut.remove(table);
        if let Some(columns) = &columns {
            self.wait_as_before(table, columns);
        }
        for key in columns.iter().flatten() {
            *self.columns.entry(key.clone()).or_default() += 1;
        }
        let before = match columns {
            Some(columns) => self.tables.insert(table.clone(), columns),
            None => self.tables.remove(table),
        };
        let count = |columns: Option<&HashSet<ColumnKey>>| columns.map_or(0, HashSet::len);
        if count(before.as_ref()) > count(self.tables.get(table)) {
            self.cut.values_mut().for_each(|since| *since = None);
        }
        for key in before.iter().flatten() {
            let Some(count) = self.columns.get_mut(key) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.columns.remove(key);
                self.waiting.remove(key);
            }
        }
        before.into_iter().flatten().map(|key| key.file).collect()
    }

    /// Lets columns of a new version of a table wait as long as those of the version before.
    fn wait_as_before(&mut self, table: &TableName, columns: &HashSet<ColumnKey>) {
        let (Some(before), Some(new)) = (self.tables.get(table), columns.iter().next()) else {
            return;
        };
        let before = before.iter().filter(|key| key.file.is_before(&new.file));
        let waiting = before.filter_map(|key| {
            let since = self.waiting.get(key)?;
            Some((key.in_version(&new.file), *since))
        });
        let waiting: Vec<_> = waiting.filter(|(key, _)| columns.contains(key)).collect();
        self.waiting.extend(waiting);
    }

    /// Ends the wait of a column, which is here now.
    pub(crate) fn end_wait(&mut self, key: &ColumnKey) {
        self.waiting.remove(key);
    }
}

/// What is left to the CPU.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeftToCpu {
    /// Places of files, by the store and the path before a pattern.
    places: HashMap<String, HashSet<ListingTableUrl>>,
    /// Ids of versioned tables.
    tables: HashSet<String>,
}

impl LeftToCpu {
    fn new(files: Vec<ListingTableUrl>, tables: HashSet<String>) -> LeftToCpu {
        let mut places: HashMap<String, HashSet<ListingTableUrl>> = HashMap::new();
        for url in files {
            let place = format!("{}{}", url.object_store().as_str(), url.prefix());
            places.entry(place).or_default().insert(url);
        }
        LeftToCpu { places, tables }
    }

    fn is_empty(&self) -> bool {
        self.places.is_empty() && self.tables.is_empty()
    }

    fn has(&self, file: &FileKey) -> bool {
        if let (Some(_), Some(id)) = (file.number, &file.tag) {
            return self.tables.contains(id);
        }
        let Ok(path) = ObjectPath::parse(&file.path) else {
            return false;
        };
        let all = format!("{}{}", file.store, file.path);
        let folders = all[file.store.len()..].match_indices('/');
        let ends = folders.map(|(index, _)| file.store.len() + index);
        let mut places = ends.chain([file.store.len(), all.len()]);
        places.any(|end| {
            let urls = self.places.get(&all[..end]);
            urls.is_some_and(|urls| urls.iter().any(|url| url.contains(&path, false)))
        })
    }
}

impl Known {
    /// Notes the columns of a declared table; `None` if it is not declared any more. Forgets the columns of files that
    /// no declared table has now.
    pub(crate) fn declare(&mut self, table: &TableName, columns: Option<HashSet<ColumnKey>>) {
        let gone = self.declared.replace(table, columns);
        self.forget_files(gone);
    }

    /// Forgets the columns of these files, but for those that a declared table has.
    fn forget_files(&mut self, mut gone: HashSet<FileKey>) {
        if gone.is_empty() {
            return;
        }
        for key in self.declared.columns.keys() {
            gone.remove(&key.file);
        }
        self.columns.retain(|key, _| !gone.contains(&key.file));
    }

    /// Waits with the next load of a column, if it is declared.
    pub(crate) fn wait(&mut self, key: &ColumnKey) {
        if self.declared.has(key) {
            self.declared.waiting.insert(key.clone(), Instant::now());
        }
    }

    /// Returns whether a column is declared, neither here nor refused, and was not without room lately.
    pub(crate) fn is_missing(&self, key: &ColumnKey) -> bool {
        let waits = self.declared.waiting.get(key);
        if !self.declared.has(key) || waits.is_some_and(|since| since.elapsed() < RETRY) {
            return false;
        }
        let entry = self.columns.get(key);
        entry.is_none_or(|entry| matches!(entry.state, State::Away(_)))
    }
}

/// Files of a table, or its version.
type Files = Vec<(FileKey, PartitionedFile)>;

/// Files of a table, and the columns of them that are declared.
type Found = (Source, Files);

/// What a declared table brings, and an error if columns are left out.
type ToBring = (Found, Result<(), Reason>);

impl Columns {
    /// Brings columns of a declared table here: those of these names, or all that can be packed. Columns without room
    /// wait for the first call after [`RETRY`]. If a versioned table changes meanwhile, its columns wait for the next
    /// call. Returns `false` if the table has changed.
    ///
    /// # Errors
    /// If a file cannot be read, or there are too many columns, or no room. The others are brought.
    pub(crate) async fn bring(
        self: &Arc<Self>,
        table: &TableName,
        names: Option<&[String]>,
        scan: Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Result<bool, Reason> {
        let (columns, table) = (Arc::clone(self), table.clone());
        let names: Option<HashSet<String>> = names.map(|names| names.iter().cloned().collect());
        let declare = move || columns.declare_scan(&table, names.as_ref(), &scan);
        let Some(((source, files), mut result)) = blocking(declare).await?? else {
            return Ok(true);
        };
        let at_once = match &source.origin {
            Origin::Table(_) => COLUMNS_OF_TABLE_AT_ONCE,
            Origin::Files(_) | Origin::Plan(..) => COLUMNS_AT_ONCE,
        };
        for file in &files {
            for columns in source.columns.chunks(at_once) {
                let part = (source.with_columns(columns.to_vec()), vec![file.clone()]);
                let brought = self.bring_part(part, context).await;
                if source.origin.has_changed() {
                    return Ok(false);
                }
                if brought.as_ref().is_err_and(|it| it.is(NO_ROOM)) {
                    // The other columns would find no room, either.
                    self.wait_with_missing(&source, &files);
                    return brought.map(|()| true);
                }
                result = result.and(brought);
            }
            tokio::task::consume_budget().await;
        }
        result.map(|()| true)
    }

    /// Waits with the next load of all columns of files that are missing.
    fn wait_with_missing(&self, source: &Source, files: &[(FileKey, PartitionedFile)]) {
        let mut known = self.known.lock();
        for (file, _) in files {
            for column in &source.columns {
                let key = Columns::key(file, source, *column);
                if known.is_missing(&key) {
                    known.wait(&key);
                }
            }
        }
    }

    /// Notes the columns of a declared table. Returns them, and an error if some are left out; `None` if the table has
    /// no files.
    ///
    /// # Errors
    /// If the plan reads parts of files.
    fn declare_scan(
        &self,
        table: &TableName,
        names: Option<&HashSet<String>>,
        scan: &Arc<dyn ExecutionPlan>,
    ) -> Result<Option<ToBring>, Reason> {
        let Some((origin, mut found)) = origin(scan)? else {
            self.known.lock().declare(table, Some(HashSet::new()));
            return Ok(None);
        };
        let left = Arc::clone(&self.known.lock().declared.left_to_cpu);
        found.retain(|(file, _)| !left.has(file));
        let columns = wanted(&origin, names);
        let source = Source::of(origin, columns);
        let keys = found.iter().flat_map(|(file, _)| {
            let columns = source.columns.iter();
            columns.map(|column| Columns::key(file, &source, *column))
        });
        let mut known = self.known.lock();
        let tables = known.declared.tables.iter();
        let others = tables.filter(|(of, _)| *of != table);
        let others: usize = others.map(|(_, columns)| columns.len()).sum();
        let room = DECLARED_MAX.saturating_sub(others);
        known.declare(table, Some(keys.take(room).collect()));
        let is_all = found.len() * source.columns.len() <= room;
        found.truncate(room);
        if !is_all {
            known
                .declared
                .cut
                .insert(table.clone(), Some(Instant::now()));
        }
        let result = is_all.then_some(()).ok_or_else(|| {
            let text = format!("more than {DECLARED_MAX} columns of files are declared");
            Reason::new(text)
        });
        drop(known);
        Ok(Some(((source, found), result)))
    }

    /// Brings columns of a file here.
    ///
    /// # Errors
    /// If they cannot be read.
    async fn bring_part(
        self: &Arc<Self>,
        (source, files): Found,
        context: &Arc<TaskContext>,
    ) -> Result<(), Reason> {
        let missing = || {
            self.forget_lost();
            let known = self.known.lock();
            let missing = source.columns.iter().copied();
            let missing = missing
                .filter(|column| known.is_missing(&Columns::key(&files[0].0, &source, *column)));
            missing.collect::<Vec<_>>()
        };
        let (mut result, mut at_once) = (Ok(()), source.columns.len());
        // Each round brings or refuses a column. One may fail for many columns, and the last one finds no room for
        // few.
        for _ in 0..source.columns.len() + 2 {
            if missing().is_empty() {
                break;
            }
            let _bringing = self.bringing.lock().await;
            if let Some(disk) = &self.disk {
                // What was loaded before is written first, while other loads take their turn.
                drop(disk.writing.lock().await);
            }
            let loading = Arc::clone(&self.loading).lock_owned().await;
            let mut wanted = missing();
            let before = wanted.len();
            wanted.truncate(at_once);
            let read: Read = (Arc::new(source.with_columns(wanted)), files.clone());
            let with = (Arc::clone(context), Need::Declared);
            let loaded = load(Arc::clone(self), vec![read], with, loading).await;
            result = loaded.map(drop);
            let are_same = missing().len() == before;
            match &result {
                Err(reason) if reason.is(CHANGED) => break,
                Err(reason) if reason.is(NO_ROOM) && !are_same => break,
                _ if are_same => at_once = COLUMNS_AT_ONCE,
                _ => {}
            }
        }
        result
    }

    /// Returns whether all columns of a declared table are here that have room and are not refused, and none was left
    /// out, or not for long.
    pub(crate) fn is_declared_here(&self, table: &TableName) -> bool {
        let known = self.known.lock();
        let columns = known.declared.tables.get(table);
        let cut = known.declared.cut.get(table);
        let is_all = cut.is_none_or(|since| since.is_some_and(|it| it.elapsed() < RETRY));
        is_all && columns.is_some_and(|columns| !columns.iter().any(|key| known.is_missing(key)))
    }

    #[cfg(test)]
    pub(crate) fn is_declared(&self, table: &TableName) -> bool {
        self.known.lock().declared.tables.contains_key(table)
    }

    /// Forgets which tables are declared, but for these, and the columns of their files.
    pub(crate) fn retain_declared(&self, tables: &BTreeSet<TableName>) {
        let mut known = self.known.lock();
        let declared = known.declared.tables.keys().cloned();
        let ended: Vec<_> = declared.filter(|table| !tables.contains(table)).collect();
        let mut gone = HashSet::new();
        for table in ended {
            gone.extend(known.declared.replace(&table, None));
        }
        known.forget_files(gone);
    }

    /// Leaves files, and versioned tables by their ids, to the CPU. Forgets the columns of those that were not left
    /// to it before.
    pub(crate) fn leave_to_cpu(&self, files: Vec<ListingTableUrl>, tables: HashSet<String>) {
        let left = Arc::new(LeftToCpu::new(files, tables));
        let mut known = self.known.lock();
        if *known.declared.left_to_cpu == *left {
            return;
        }
        let before = std::mem::replace(&mut known.declared.left_to_cpu, Arc::clone(&left));
        let is_new = |file: &FileKey| left.has(file) && !before.has(file);
        known.columns.retain(|key, _| !is_new(&key.file));
    }

    /// Returns whether one of the files or versioned tables is left to the CPU.
    pub(crate) fn are_left_to_cpu(&self, reads: &[Read]) -> bool {
        let left = Arc::clone(&self.known.lock().declared.left_to_cpu);
        let mut files = reads.iter().flat_map(|(_, files)| files);
        !left.is_empty() && files.any(|(file, _)| left.has(file))
    }

    /// Checks that no table is left to the CPU. Only for sessions that do not wait until their columns are on the
    /// device.
    ///
    /// # Errors
    /// The reason if one is.
    pub(crate) fn check_left_to_cpu(&self, reads: &[Read]) -> Result<(), Reason> {
        match self.are_left_to_cpu(reads) {
            true => Err(Reason::of_kind(Kind::Planner, LEFT_TO_CPU)),
            false => Ok(()),
        }
    }

    /// Forgets the columns of files that are left to the CPU since a load of them began.
    pub(crate) fn forget_left_to_cpu(&self, reads: &[Read]) {
        if self.are_left_to_cpu(reads) {
            let mut known = self.known.lock();
            let left = Arc::clone(&known.declared.left_to_cpu);
            known.columns.retain(|key, _| !left.has(&key.file));
        }
    }

    /// Returns whether all columns of sources are declared.
    pub(crate) fn are_declared(&self, reads: &[Read]) -> bool {
        let known = self.known.lock();
        reads.iter().all(|(source, files)| {
            files.iter().all(|(file, _)| {
                let mut columns = source.columns.iter();
                columns.all(|column| known.declared.has(&Columns::key(file, source, *column)))
            })
        })
    }
}

/// Returns the scan of Parquet files that a plan is.
pub(crate) fn file_scan(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let scan = scan.data_source().downcast_ref::<FileScanConfig>()?;
    scan.file_source.is::<ParquetSource>().then_some(scan)
}

/// Returns where the rows of a declared table are from, and its files; `None` if it has none.
///
/// # Errors
/// If the plan reads parts of files.
fn origin(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<(Origin, Files)>, Reason> {
    if let Some(scan) = plan.downcast_ref::<VersionedScan>() {
        let origin = Origin::Table(Arc::clone(scan.table()));
        let files = origin.files()?;
        return Ok(Some((origin, files)));
    }
    let Some(scan) = file_scan(plan) else {
        return Ok(None);
    };
    // The files may be many, and only those that are brought are kept.
    let without_files = FileScanConfigBuilder::from(scan.clone()).with_file_groups(Vec::new());
    let origin = Origin::Files(Arc::new(without_files.build()));
    Ok(Some((origin, files(scan)?)))
}

/// Returns the indexes of columns of a table: of those with these names, or of all that can be packed.
fn wanted(origin: &Origin, names: Option<&HashSet<String>>) -> Vec<usize> {
    let schema = origin.own_schema();
    let fields = schema.fields().iter().enumerate();
    let wanted = fields.filter(|(_, field)| {
        let is_named = names.is_none_or(|names| names.contains(field.name()));
        is_named && is_packable(field.data_type())
    });
    wanted.map(|(index, _)| index).collect()
}
