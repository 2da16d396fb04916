//! The columns that an engine holds, by file.
//!
//! A file is known by its place, size, time and tag, so that a file that changed is another one. A version of a
//! versioned table counts as a file. A loss of the device loses nothing, since files are read again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Instant;

use datafusion::arrow::datatypes::DataType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use forebay_device::cuda::DeviceType;
use parking_lot::Mutex;

use crate::arguments::Part;
use crate::column::{Bytes, Chunk, Column, joined};
use crate::computed::Refused;
use crate::cost::Costs;
use crate::counts::Counts;
use crate::declared::Declared;
use crate::disk::Disk;
use crate::engine::Engine;
use crate::file_key::FileKey;
use crate::fragment::{Rows, Source};
use crate::giving_way::{Freeing, Need};
use crate::hopeless::Hopeless;
use crate::packed::Packed;
use crate::reason::Reason;
use crate::scanned::{Facts, Scanned};
use crate::search::Programs;
use crate::texts::Texts;
use crate::written::Written;

/// Reads of a column after which it is brought to the device.
const READS: i32 = 2;
/// Reads of a column for which there was no room, before it is tried again.
const READS_WITHOUT_ROOM: i32 = 100;

/// Number of reads of a column in memory of the host, after each of which it is promoted if the device has room.
const READS_ON_HOST: u64 = 8;
/// Number of columns above which the half that was used longest ago is forgotten.
pub(crate) const COLUMNS_MAX: usize = 1 << 18;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ColumnKey {
    pub(crate) file: FileKey,
    name: String,
    data_type: DataType,
    /// What is computed of it.
    pub(crate) computed: Option<Arc<dyn PhysicalExpr>>,
}

impl ColumnKey {
    /// Returns the bytes of the table's file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.bytes
    }

    /// Returns the same column of another version of its table.
    pub(crate) fn in_version(&self, file: &FileKey) -> ColumnKey {
        ColumnKey {
            file: file.clone(),
            ..self.clone()
        }
    }

    /// Returns whether it is a column of a versioned table.
    pub(crate) fn is_of_version(&self) -> bool {
        self.file.number.is_some()
    }

    /// Returns the path or the URL of the table's file, or the name of a versioned table, and the name of the column,
    /// or what is computed of it.
    pub(crate) fn names(&self) -> (String, String) {
        let FileKey { store, path, .. } = &self.file;
        let computed = self.computed.as_ref().map(ToString::to_string);
        (
            format!("{}{path}", store.strip_prefix("file://").unwrap_or(store)),
            computed.unwrap_or_else(|| self.name.clone()),
        )
    }

    /// Returns texts that tell the column of a file, and the version of the file, from others.
    pub(crate) fn texts(&self) -> (String, String) {
        let file = &self.file;
        (
            format!(
                "{:?}",
                (&file.store, &file.path, &self.name, &self.data_type)
            ),
            format!(
                "{:?}",
                (file.bytes, file.modified, &file.tag, &file.version)
            ),
        )
    }
}

#[derive(Debug)]
pub(crate) enum State {
    /// On files, and read by this many queries; less than zero if there was no room lately.
    Away(i32),
    Here(Arc<Column>),
    Refused(Reason),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) state: State,
    /// Time of the last use, counted in uses.
    pub(crate) used: u64,
    /// Time of the last use here, or, of a column that is away, of the state.
    pub(crate) used_at: Instant,
    /// Number of uses since it is here.
    reads: u64,
    /// The query that used it last. A query may read a column in several of its parts.
    query: Weak<TaskContext>,
}

impl Entry {
    pub(crate) fn new(state: State, used: u64) -> Entry {
        Entry {
            state,
            used,
            used_at: Instant::now(),
            reads: 0,
            query: Weak::new(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) columns: HashMap<ColumnKey, Entry>,
    pub(crate) declared: Declared,
    pub(crate) uses: u64,
}

impl Known {
    /// Returns a column; if it is not here, how many queries have read it.
    ///
    /// # Errors
    /// If it cannot be here.
    fn use_column(
        &mut self,
        key: ColumnKey,
        (query, now): (&Arc<TaskContext>, Instant),
    ) -> Result<Result<Arc<Column>, i32>, Reason> {
        let used = self.uses;
        if key.is_of_version() && !self.columns.contains_key(&key) {
            self.forget_before(&key.file);
        }
        let entry = self
            .columns
            .entry(key)
            .or_insert_with(|| Entry::new(State::Away(0), used));
        entry.used = used;
        entry.reads += 1;
        match &mut entry.state {
            State::Here(here) if here.is_usable() => {
                entry.used_at = now;
                Ok(Ok(Arc::clone(here)))
            }
            State::Here(_) => {
                entry.state = State::Away(READS);
                Ok(Err(READS))
            }
            State::Refused(reason) => Err(reason.clone()),
            State::Away(reads) => {
                // The weak pointer keeps its address from another query.
                if entry.query.as_ptr() != Arc::as_ptr(query) {
                    entry.query = Arc::downgrade(query);
                    *reads += 1;
                }
                Ok(Err(*reads))
            }
        }
    }

    pub(crate) fn put(&mut self, key: ColumnKey, column: Column, need: Need) {
        let has_texts = column.text_bytes() > 0;
        let used = match need {
            Need::Query(_) => self.uses,
            Need::Declared => 0,
        };
        let entry = Entry::new(State::Here(Arc::new(column)), used);
        self.columns.insert(key.clone(), entry);
        self.declared.end_wait(&key);
        if has_texts {
            self.free_texts(&key);
        }
    }

    /// Returns a column that is in memory of the host, or on the disk, and is read often.
    pub(crate) fn often_on_host(&self, key: &ColumnKey) -> Option<Arc<Column>> {
        let entry = self.columns.get(key)?;
        match &entry.state {
            State::Here(column) if column.bytes.host > 0 || column.is_on_disk => {
                let is_often = entry.reads > 0 && entry.reads % READS_ON_HOST == 0;
                is_often.then(|| Arc::clone(column))
            }
            _ => None,
        }
    }
}

/// The columns that an engine holds.
#[derive(Debug)]
pub(crate) struct Columns {
    /// The devices, at least one.
    pub(crate) engines: Vec<Arc<dyn Engine>>,
    /// The folder of column files; `None` without one.
    pub(crate) disk: Option<Arc<Disk>>,
    pub(crate) written: Written,
    pub(crate) hopeless: Hopeless,
    pub(crate) programs: Programs,
    pub(crate) known: Arc<Mutex<Known>>,
    pub(crate) counts: Counts,
    pub(crate) costs: Arc<Costs>,
    /// Held by the load that runs. Loads take turns in the order in which they ask for it: those of sessions that wait,
    /// one that no session waits for, and one of declared tables.
    pub(crate) loading: Arc<tokio::sync::Mutex<()>>,
    /// Held by the load that no session waits for, from when it asks for its turn.
    pub(crate) unawaited: Arc<tokio::sync::Mutex<()>>,
    /// Held by the load of a declared table, from when it asks for its turn.
    pub(crate) bringing: tokio::sync::Mutex<()>,
    /// Maximum bytes of the tables of joins of a query, and of its totals.
    pub(crate) tables_bytes_max: AtomicU64,
    /// Minimum number of slices of each table of a join that has as many places, even if it has room. Tests set it.
    pub(crate) slices_min: AtomicU64,
    /// Whether rows are divided by slices whenever they can be, even if that takes longer. Tests set it.
    pub(crate) always_divides: AtomicBool,
    /// The bytes of the last divided rows for which memory of the host had no room, and when that was.
    pub(crate) refused_partitions: Mutex<Option<(u64, Instant)>>,
}

/// The columns of a source, all in memory of the engine.
#[derive(Debug, Clone)]
pub(crate) struct Resident {
    pub(crate) files: Vec<HashMap<usize, Arc<Column>>>,
}

/// A source and its files.
pub(crate) type Read = (Arc<Source>, Vec<(FileKey, PartitionedFile)>);

impl Columns {
    pub(crate) fn new(
        engines: Vec<Arc<dyn Engine>>,
        freeing: &Freeing,
        disk: Option<Disk>,
    ) -> Arc<Columns> {
        Arc::new(Columns {
            engines,
            disk: disk.map(Arc::new),
            written: Written::default(),
            hopeless: Hopeless::default(),
            programs: Programs::default(),
            counts: Counts::default(),
            costs: Arc::default(),
            known: Arc::clone(&freeing.0),
            loading: Arc::default(),
            unawaited: Arc::default(),
            bringing: tokio::sync::Mutex::default(),
            tables_bytes_max: AtomicU64::new(u64::MAX),
            slices_min: AtomicU64::new(1),
            always_divides: AtomicBool::new(false),
            refused_partitions: Mutex::default(),
        })
    }

    /// Returns the number of columns that are here, and their bytes.
    pub(crate) fn held(&self) -> (usize, Bytes) {
        let known = self.known.lock();
        let here = known.columns.values().filter_map(|it| match &it.state {
            State::Here(column) => Some(column.bytes),
            _ => None,
        });
        here.fold((0, Bytes::default()), |(count, mut bytes), of_column| {
            bytes += of_column;
            (count + 1, bytes)
        })
    }

    /// Returns the key of a column of a file.
    pub(crate) fn key(file: &FileKey, source: &Source, column: usize) -> ColumnKey {
        Columns::key_of(file, source, source.computed(column), column)
    }

    /// Returns the key of a column of a file, or of what is computed of one.
    pub(crate) fn key_of(
        file: &FileKey,
        source: &Source,
        computed: Option<&Arc<dyn PhysicalExpr>>,
        column: usize,
    ) -> ColumnKey {
        let read = computed.map(collect_columns).into_iter().flatten().next();
        let schema = source.schema();
        let field = schema.field(read.map_or(column, |it| it.index()));
        ColumnKey {
            file: file.clone(),
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            computed: computed.cloned(),
        }
    }

    /// Returns the columns of all sources of a query if they are here; otherwise whether those that are not have been
    /// read often enough to be brought here.
    ///
    /// # Errors
    /// If a column cannot be here.
    pub(crate) fn resident(
        &self,
        reads: &[Read],
        query: &Arc<TaskContext>,
    ) -> Result<Result<Vec<Resident>, bool>, Refused> {
        let mut known = self.known.lock();
        known.uses += 1;
        if known.columns.len() > COLUMNS_MAX {
            known.forget_half();
        }
        let (mut all, mut missing, now) = (Vec::new(), Vec::new(), Instant::now());
        for (index, (source, files)) in reads.iter().enumerate() {
            let mut resident = Vec::new();
            for (file, _) in files {
                let mut of_file = HashMap::new();
                for column in &source.columns {
                    let key = Columns::key(file, source, *column);
                    let used = known.use_column(key, (query, now));
                    let used = used.map_err(|reason| Refused {
                        source: index,
                        column: *column,
                        reason,
                    });
                    match used? {
                        Ok(here) => drop(of_file.insert(*column, here)),
                        Err(reads) => missing.push((source, file, *column, reads)),
                    }
                }
                resident.push(of_file);
            }
            all.push(Resident { files: resident });
        }
        drop(known);
        if missing.is_empty() {
            return Ok(Ok(all));
        }
        Ok(Err(self.are_often_read(missing, query)))
    }

    /// Returns whether all columns that are missing were read often enough to be brought here: those that have column
    /// files were. A search reads texts, whatever it searches for; they count once a query, however many searches it
    /// has.
    fn are_often_read(
        &self,
        missing: Vec<(&Arc<Source>, &FileKey, usize, i32)>,
        query: &Arc<TaskContext>,
    ) -> bool {
        let (mut are_often_read, mut texts_used) = (true, HashMap::new());
        let by = (query, Instant::now());
        let use_texts = |key: &ColumnKey| self.known.lock().use_column(key.clone(), by);
        for (source, file, column, reads) in missing {
            let texts = self.texts_of_search(file, source, column);
            let are_texts = texts.is_some_and(|(key, _)| {
                let used = texts_used.entry(key);
                let used = used.or_insert_with_key(use_texts);
                matches!(used, Ok(Ok(_) | Err(READS..)))
            });
            let has_file = || self.file_of(&Columns::key(file, source, column)).is_some();
            let is_here_soon = || reads > 0 && has_file();
            are_often_read = are_often_read && (are_texts || reads >= READS || is_here_soon());
        }
        are_often_read
    }

    /// Returns whether a column is here, or refused.
    pub(crate) fn is_settled(&self, key: &ColumnKey) -> bool {
        let known = self.known.lock();
        let entry = known.columns.get(key);
        entry.is_some_and(|entry| !matches!(entry.state, State::Away(_)))
    }

    /// Uses a column that is here.
    pub(crate) fn here(&self, key: &ColumnKey) -> Option<Arc<Column>> {
        let mut known = self.known.lock();
        let now = known.uses;
        let entry = known.columns.get_mut(key)?;
        (entry.used, entry.used_at) = (now, Instant::now());
        match &entry.state {
            State::Here(column) => Some(Arc::clone(column)),
            State::Away(_) | State::Refused(_) => None,
        }
    }

    /// Returns a column that is here.
    pub(crate) fn column_here(&self, key: &ColumnKey) -> Option<Arc<Column>> {
        match &self.known.lock().columns.get(key)?.state {
            State::Here(column) => Some(Arc::clone(column)),
            State::Away(_) | State::Refused(_) => None,
        }
    }

    /// Returns whether a column is refused, or there was no room for it lately.
    pub(crate) fn is_put_off(&self, key: &ColumnKey) -> bool {
        let known = self.known.lock();
        let state = known.columns.get(key).map(|it| &it.state);
        matches!(state, Some(State::Refused(_) | State::Away(..0)))
    }

    /// Returns the time, counted in uses.
    pub(crate) fn now(&self) -> u64 {
        self.known.lock().uses
    }

    /// Copies packed rows to the engine, or, if there is no room, to memory of the host that it reads. If there is none
    /// either, frees columns that give way.
    ///
    /// # Errors
    /// If there is no room, or the device fails.
    pub(crate) async fn store(
        &self,
        packed: Packed,
        stripe: u32,
        need: Need,
    ) -> Result<Chunk, Reason> {
        let memory = self.placed(&packed.words, stripe, need).await?;
        Ok(Chunk::of(packed, stripe, memory))
    }

    /// Returns the column of chunks, as [`Columns::store`] stored them.
    ///
    /// # Errors
    /// If there is no room, or the device fails.
    pub(crate) async fn column(
        &self,
        mut chunks: Vec<Chunk>,
        texts: Arc<Texts>,
        need: Need,
    ) -> Result<Column, Reason> {
        let mut first = 0;
        for chunk in &mut chunks {
            let rows = i64::from(chunk.rows);
            if chunk.texts.is_some() {
                chunk.range = Some((first, first + rows - 1));
                chunk.reference = first;
            }
            first += rows;
        }
        let parts: Vec<Part> = chunks.iter().map(Chunk::part).collect();
        let bytes = DeviceType::bytes_of(&parts);
        let words = bytes.as_chunks::<4>().0.iter();
        let words: Vec<u32> = words.map(|it| u32::from_le_bytes(*it)).collect();
        let mut column = Column::new(chunks, texts);
        column.parts = vec![None; self.engines.len()];
        if !parts.is_empty() {
            let mut no_room = None;
            for device in self.live() {
                match self.copied(words.clone(), device, need).await {
                    Ok(copied) => column.parts[device] = Some(copied),
                    Err(reason) => no_room = Some(reason),
                }
            }
            // A device without room for them leaves the rows to the others.
            if let Some(reason) = no_room
                && column.parts.iter().all(Option::is_none)
            {
                return Err(reason);
            }
        }
        Ok(column)
    }

    /// Puts a column among those that are here. One that no query has read yet gives way as one that was used longest
    /// ago.
    pub(crate) fn put(&self, key: ColumnKey, column: Column, need: Need) {
        self.known.lock().put(key, column, need);
    }

    /// Puts a column that was made of one that was here, unless that one was forgotten meanwhile: its table may be left
    /// to the CPU now, or dropped.
    pub(crate) fn put_made_of(
        &self,
        (key_before, before): (&ColumnKey, &Arc<Column>),
        key: ColumnKey,
        column: Column,
    ) {
        let mut known = self.known.lock();
        let entry = known.columns.get(key_before);
        let is_here = entry.is_some_and(|entry| match &entry.state {
            State::Here(here) => Arc::ptr_eq(here, before),
            State::Away(_) | State::Refused(_) => false,
        });
        if is_here {
            let need = Need::Query(known.uses);
            known.put(key, column, need);
        }
    }

    /// Refuses a column. If it is declared, the same column of a later version waits.
    pub(crate) fn refuse(&self, key: ColumnKey, reason: Reason) {
        self.known.lock().wait(&key);
        self.settle(key, State::Refused(reason));
    }

    /// Waits with the next load of a column for which there was no room.
    pub(crate) fn put_off(&self, key: ColumnKey) {
        self.known.lock().wait(&key);
        self.settle(key, State::Away(-READS_WITHOUT_ROOM));
    }

    fn settle(&self, key: ColumnKey, state: State) {
        let mut known = self.known.lock();
        let used = known.uses;
        known.columns.insert(key, Entry::new(state, used));
    }
}

impl Resident {
    /// Returns the numbers of rows of the chunks of each file.
    ///
    /// # Errors
    /// If the columns of a file do not have the same rows.
    pub(crate) fn chunks(&self) -> Result<Vec<Vec<u32>>, Reason> {
        let files = self.files.iter().map(|columns| {
            let mut columns = columns
                .values()
                .map(|it| it.chunks.iter().map(|it| it.rows));
            let first: Vec<u32> = columns.next().into_iter().flatten().collect();
            let are_alike = columns.all(|rows| rows.eq(first.iter().copied()));
            are_alike
                .then_some(first)
                .ok_or_else(|| Reason::of("a file changed while it was read"))
        });
        files.collect()
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u64 {
        let columns = self.files.iter().filter_map(|it| it.values().next());
        columns.map(|column| column.rows()).sum()
    }

    /// Returns what is known of the columns.
    ///
    /// # Errors
    /// If the columns of a file do not have the same rows.
    pub(crate) fn scanned(&self, rows: &Rows, stop: &Arc<AtomicBool>) -> Result<Scanned, Reason> {
        let count = self.chunks()?.into_iter().flatten().map(u64::from).sum();
        let mut facts: HashMap<usize, Facts> = HashMap::new();
        for columns in &self.files {
            for (index, column) in columns {
                let known = facts.entry(*index).or_default();
                known.has_nulls |= column.has_nulls;
                known.files.push(Arc::clone(column));
                known.range = joined(known.range, column.range);
                known.widths.push(column.width);
                known.exponents.push(column.exponents);
            }
        }
        Ok(Scanned {
            schema: Arc::clone(&rows.schema),
            joined: rows.joined(),
            facts: Some(facts),
            rows: count,
            stop: Arc::clone(stop),
        })
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, StringArray};
    use forebay_tables::TableName;

    use super::*;
    use crate::packed::Packer;
    use crate::texts::Dictionary;

    fn key(name: &str) -> ColumnKey {
        ColumnKey {
            file: FileKey {
                store: String::new(),
                path: String::new(),
                bytes: 0,
                modified: None,
                tag: None,
                version: None,
                number: None,
            },
            name: name.to_owned(),
            data_type: DataType::Utf8,
            computed: None,
        }
    }

    /// Returns a column with texts of these bytes.
    fn column(bytes: usize) -> State {
        let texts = Dictionary::default();
        let values: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(bytes)]));
        let pushed = Packer::default().push(&values, &texts);
        pushed.expect("few texts");
        let texts = texts.take_texts().expect("few buffers");
        let column = Column::new(Vec::new(), Arc::new(texts));
        State::Here(Arc::new(column))
    }

    #[test]
    fn a_query_counts_once() {
        let (mut known, first, second) = (Known::default(), Arc::default(), Arc::default());
        let reads = [&first, &first, &second, &second].map(|query| {
            let used = known.use_column(key("one"), (query, Instant::now()));
            used.ok().and_then(Result::err)
        });
        assert_eq!(reads, [Some(1), Some(1), Some(2), Some(2)]);
    }

    #[test]
    fn columns_whose_texts_were_used_longest_ago_are_forgotten() {
        let mut known = Known::default();
        let sizes = [
            ("one", 0),
            ("two", 400_000),
            ("three", 400_000),
            ("four", 1),
        ];
        for (used, (name, bytes)) in sizes.into_iter().enumerate() {
            let (state, used) = (column(bytes), used as u64);
            known.columns.insert(key(name), Entry::new(state, used));
        }
        known.free_texts(&key("four"));
        assert_eq!(known.columns.len(), 4);
        let (state, used) = (column(600_000), 0);
        known.columns.insert(key("five"), Entry::new(state, used));
        known.free_texts(&key("five"));
        let mut left: Vec<_> = known.columns.keys().map(|it| it.name.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, ["five", "four", "three"]);
    }

    #[test]
    fn declared_columns_give_way_last_and_not_to_each_other() {
        let mut known = Known::default();
        for (used, name) in ["declared", "old", "new"].into_iter().enumerate() {
            let bytes = Bytes {
                device: 10,
                ..Bytes::default()
            };
            let column = Column {
                bytes,
                ..Column::default()
            };
            let entry = Entry::new(State::Here(Arc::new(column)), used as u64);
            known.columns.insert(key(name), entry);
        }
        let table = TableName {
            catalog: "forebay".into(),
            schema: "public".into(),
            table: "t".into(),
        };
        known.declare(&table, Some([key("declared")].into()));
        let here = |known: &Known| {
            let here = known.columns.iter();
            let here = here.filter(|(_, entry)| matches!(entry.state, State::Here(_)));
            let mut names: Vec<_> = here.map(|(key, _)| key.name.clone()).collect();
            names.sort();
            names
        };
        let free = |known: &mut Known, bytes, need| known.free(bytes, need, |it| it.bytes.device);
        free(&mut known, 10, Need::Query(u64::MAX));
        assert_eq!(here(&known), ["declared", "new"]);
        free(&mut known, 20, Need::Query(0));
        assert_eq!(here(&known), ["declared", "new"]);
        free(&mut known, 20, Need::Declared);
        assert_eq!(here(&known), ["declared"]);
        free(&mut known, 10, Need::Query(1));
        assert_eq!(here(&known), [""; 0]);
        // It is not brought back at once.
        assert!(!known.is_missing(&key("declared")));
    }
}
