//! Reads columns of files, packs them, and brings them to the engine.

mod rows;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column as PhysicalColumn;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::OwnedMutexGuard;

use crate::column::{Chunk, Column};
use crate::column_file::Writer;
use crate::columns::{ColumnKey, Columns, Read};
use crate::declared::COLUMNS_AT_ONCE;
use crate::disk::Name;
use crate::file_key::FileKey;
use crate::fragment::Source;
use crate::from_disk::{FromDisk, OnDisk, blocking};
use crate::giving_way::{Need, TEXTS_BYTES_MAX};
use crate::kept::{Kept, Place};
use crate::origin::Origin;
use crate::packed::{CHUNK_ROWS, Packer, Packing, Unpackable};
use crate::placement::NO_ROOM;
use crate::reason::Reason;
use crate::texts::{Dictionary, Texts, TextsMax};

pub(crate) use self::rows::{CHANGED, load_plan};
use self::rows::{not_read, of_table};

/// Bytes of a file that one task reads.
pub(crate) const RANGE_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 32 << 20 };
/// Maximum number of ranges that wait in memory until they are written to column files.
const RANGES_TO_DISK: usize = 4;
/// Maximum bytes of the texts of the rows of a file.
const TEXTS_OF_ROWS_BYTES_MAX: usize = 768 << 20;

/// What the tasks that read a column of a file share.
#[derive(Debug, Default)]
struct OfColumn {
    texts: Dictionary,
    packing: Packing,
    /// Bytes of the texts of rows.
    text_bytes: AtomicUsize,
}

impl OfColumn {
    /// Returns what the tasks that read a column of a file share. The file is read in `ranges` ranges.
    fn of_file(
        wanted: &Arc<dyn PhysicalExpr>,
        ranges: u64,
        context: &TaskContext,
    ) -> Arc<OfColumn> {
        let max = match Kept::place_of(wanted) {
            Some(Place::Dictionary) => TextsMax::MANY,
            _ => TextsMax::FEW,
        };
        OfColumn::new(max, ranges, context)
    }

    fn new(max: TextsMax, ranges: u64, context: &TaskContext) -> Arc<OfColumn> {
        let memory = MemoryConsumer::new("texts for a device").register(context.memory_pool());
        Arc::new(OfColumn {
            texts: Dictionary::new(max, ranges, Some(&memory)),
            ..OfColumn::default()
        })
    }

    /// Appends values to those of a packer. The inner error tells why they cannot be packed. If the dictionary has
    /// shards, a blocking thread numbers the texts.
    async fn push(
        self: &Arc<Self>,
        packer: &mut Packer,
        values: ArrayRef,
    ) -> Result<Result<(), Unpackable>, Failed> {
        if !self.texts.has_shards() {
            return Ok(packer.push(&values, &self.texts));
        }
        let (of_column, mut taken) = (Arc::clone(self), std::mem::take(packer));
        let pushed = blocking(move || taken.push(&values, &of_column.texts).map(|()| taken));
        let pushed = pushed.await.map_err(Failed::Load)?;
        Ok(pushed.map(|pushed| *packer = pushed))
    }

    /// Takes the texts that have numbers. A blocking thread joins the texts of several shards.
    async fn take_texts(self: &Arc<Self>) -> Result<Arc<Texts>, Failed> {
        let texts = match self.texts.has_shards() {
            true => {
                let of_column = Arc::clone(self);
                let texts = blocking(move || of_column.texts.take_texts()).await;
                texts.map_err(Failed::Load)?
            }
            false => self.texts.take_texts(),
        };
        texts.map(Arc::new).map_err(failed)
    }

    /// Counts the texts of rows.
    fn add_texts(&self, column: usize, bytes: usize) -> Result<(), Failed> {
        let before = self.text_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes <= TEXTS_OF_ROWS_BYTES_MAX {
            return Ok(());
        }
        let text = format!("texts of more than {} MiB", TEXTS_OF_ROWS_BYTES_MAX >> 20);
        Err(Failed::Column(column, Reason::of_data(text)))
    }
}

/// Ends the tasks of a load when it is dropped: those that do not wait would not end before their range does, and
/// blocking threads may still add texts to the dictionaries.
struct EndOnDrop(Vec<Arc<OfColumn>>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(|it| it.texts.end());
    }
}

/// Where packed rows go.
#[derive(Debug, Clone, Copy)]
enum To {
    /// To devices.
    Engine(Need),
    /// To column files.
    Disk,
}

impl To {
    fn need(self) -> Need {
        match self {
            To::Engine(need) => need,
            To::Disk => Need::Query(0),
        }
    }
}

/// The stripes of the chunks of a range: the first, and what is added for each further chunk.
#[derive(Debug, Clone, Copy, Default)]
struct Stripes {
    first: u32,
    step: u32,
}

impl Stripes {
    /// Returns those of a range of a file. Chunks of a file that is read in one range have the same, as it is too small
    /// for several devices.
    fn of_range(path: &str, range: usize, ranges: usize) -> Stripes {
        let first = crc32c::crc32c(path.as_bytes());
        Stripes {
            first: crc32c::crc32c_append(first, &(range as u64).to_le_bytes()),
            step: u32::from(ranges > 1),
        }
    }

    fn of_chunk(self, chunk: usize) -> u32 {
        self.first
            .wrapping_add(self.step.wrapping_mul(chunk as u32))
    }
}

/// The columns that are read, as expressions over those of the scan.
type Exprs<'e> = &'e [Arc<dyn PhysicalExpr>];

/// What a task has read of one range of a file: the chunks of each column.
type OfRange = Vec<Vec<Chunk>>;

/// Brings the columns of sources to the engine, those that are not there. One load runs at a time: the one that holds
/// the lock `loading`.
///
/// Returns what was read from column files.
///
/// # Errors
/// If a file cannot be read, or there is no room.
pub(crate) async fn load(
    columns: Arc<Columns>,
    reads: Vec<Read>,
    (context, need): (Arc<TaskContext>, Need),
    _loading: OwnedMutexGuard<()>,
) -> Result<FromDisk, Reason> {
    let from_disk = columns.read_files(&reads, need).await;
    let from_disk = from_disk.unwrap_or_else(|reason| {
        tracing::warn!(%reason, "column files are not read");
        FromDisk::default()
    });
    for (source, files) in &reads {
        for file in files {
            let held = columns.text_bytes_of(&reads);
            load_file(&columns, source, (file, held), (need, &context)).await?;
        }
    }
    let keys = columns.to_write(&reads);
    // What the reads hold, such as files of managed tables, is not held while the disk is written.
    tokio::spawn(columns.write_files(keys, need));
    Ok(from_disk)
}

impl Columns {
    /// Brings columns that are read often to the engine while no session waits for them, unless another such load runs
    /// or waits: a later query brings them then.
    pub(crate) fn load_unawaited(self: &Arc<Self>, reads: Vec<Read>, context: &Arc<TaskContext>) {
        let columns = Arc::clone(self);
        let context = Arc::clone(context);
        self.unawaited(|loading| async move {
            let with = (context, Need::Query(columns.now()));
            let loaded = load(Arc::clone(&columns), reads.clone(), with, loading).await;
            if let Err(reason) = loaded {
                tracing::debug!(%reason, "columns stay on the CPU");
            }
            columns.forget_left_to_cpu(&reads);
        });
    }

    /// Promotes columns that are often read from memory of the host, as [`Columns::load_unawaited`] loads them.
    pub(crate) fn promote_unawaited(self: &Arc<Self>, reads: Vec<Read>) {
        let columns = Arc::clone(self);
        self.unawaited(|loading| async move {
            if let Err(reason) = columns.promote(&reads, columns.now()).await {
                tracing::debug!(%reason, "columns stay in memory of the host");
            }
            drop(loading);
        });
    }

    /// Starts a load when it is its turn, unless another one that no session waits for has not ended. `work` holds the
    /// lock that it is given.
    pub(crate) fn unawaited<F>(&self, work: impl FnOnce(OwnedMutexGuard<()>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Ok(only) = Arc::clone(&self.unawaited).try_lock_owned() else {
            return;
        };
        let loading = Arc::clone(&self.loading);
        tokio::spawn(async move {
            work(loading.lock_owned().await).await;
            drop(only);
        });
    }
}

async fn load_file(
    columns: &Arc<Columns>,
    source: &Source,
    ((file, partitioned), held): (&(FileKey, PartitionedFile), usize),
    (need, context): (Need, &Arc<TaskContext>),
) -> Result<(), Reason> {
    let (mut failed, mut has_room) = (Vec::new(), true);
    loop {
        let missing = missing(columns, source, file, &failed);
        let (keys, wanted): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
        if keys.is_empty() {
            return Ok(());
        }
        let (keys, wanted, names) = match has_room {
            true => (keys, wanted, None),
            false => with_names(keys, wanted),
        };
        let of = (&*wanted, need);
        let read = match &source.origin {
            Origin::Files(scan) => {
                let with = (context, names.as_deref());
                of_file(columns, (scan, partitioned), of, with).await
            }
            Origin::Table(table) => of_table(columns, table, of, context).await,
            Origin::Plan(..) => return Ok(()),
        };
        match read {
            Ok(read) => {
                let texts = held + read.iter().map(Column::text_bytes).sum::<usize>();
                let read = keys.into_iter().zip(&wanted).zip(read);
                return put_all(columns, read, texts, need);
            }
            // The CPU searches them.
            Err(Failed::Texts(index, reason)) => {
                tracing::debug!(%reason, texts = %wanted[index], "texts stay on the CPU");
                columns.put_off(keys[index].clone());
                failed.push(keys[index].clone());
            }
            Err(Failed::Column(index, reason))
                if Kept::place_of(&wanted[index]) == Some(Place::Engine) =>
            {
                columns.refuse(keys[index].clone(), reason);
                failed.push(keys[index].clone());
            }
            Err(Failed::Column(index, reason)) => {
                let name = match wanted[index].downcast_ref::<PhysicalColumn>() {
                    Some(column) => column.name().to_owned(),
                    None => wanted[index].to_string(),
                };
                let reason = reason.of_column(&name);
                columns.refuse(keys[index].clone(), reason.clone());
                return Err(reason);
            }
            Err(Failed::Load(reason))
                if has_room
                    && reason.is(NO_ROOM)
                    && columns.disk.is_some()
                    && file.number.is_none() =>
            {
                has_room = false;
            }
            Err(Failed::Load(reason)) => {
                put_off(columns, keys, (need, &reason));
                return Err(reason);
            }
        }
    }
}

/// Puts off the next load of columns that failed. Does nothing if they are many, as fewer may have room, or if their
/// table changed.
fn put_off(columns: &Columns, keys: Vec<ColumnKey>, (need, reason): (Need, &Reason)) {
    let are_many = need == Need::Declared && keys.len() > COLUMNS_AT_ONCE;
    if !are_many && !reason.is(CHANGED) {
        keys.into_iter().for_each(|key| columns.put_off(key));
    }
}

/// Keeps columns that were read. `texts` are the bytes of the dictionaries of the query.
fn put_all<'a>(
    columns: &Arc<Columns>,
    read: impl Iterator<Item = ((ColumnKey, &'a Arc<dyn PhysicalExpr>), Column)>,
    texts: usize,
    need: Need,
) -> Result<(), Reason> {
    let mut outcome = Ok(());
    for ((key, expr), column) in read {
        let is_dictionary = Kept::place_of(expr) == Some(Place::Dictionary);
        if is_dictionary && texts > TEXTS_BYTES_MAX {
            // It would evict columns of the same query.
            columns.put_off(key);
            outcome = Err(Reason::no_room(NO_ROOM));
        } else {
            columns.put(key, column, need);
        }
    }
    outcome
}

/// Columns that are read, as expressions, and the names of their column files if they are written to such.
type ToRead = (
    Vec<ColumnKey>,
    Vec<Arc<dyn PhysicalExpr>>,
    Option<Vec<Name>>,
);

/// Returns the columns that can have column files, with the names of these; all columns without names if none can.
fn with_names(keys: Vec<ColumnKey>, wanted: Vec<Arc<dyn PhysicalExpr>>) -> ToRead {
    let all = keys.iter().zip(&wanted);
    let named = all.filter_map(|(key, expr)| Some((key.clone(), expr.clone(), Name::of(key)?)));
    let named: Vec<_> = named.collect();
    if named.is_empty() {
        return (keys, wanted, None);
    }
    let keys = named.iter().map(|(key, ..)| key.clone()).collect();
    let wanted = named.iter().map(|(_, expr, _)| expr.clone()).collect();
    let names = named.into_iter().map(|(.., name)| name).collect();
    (keys, wanted, Some(names))
}

/// Returns the columns of a file that are to be read: those that are not here, and texts instead of what searches of
/// them compute.
fn missing(
    columns: &Columns,
    source: &Source,
    file: &FileKey,
    failed: &[ColumnKey],
) -> Vec<(ColumnKey, Arc<dyn PhysicalExpr>)> {
    let mut missing = Vec::new();
    for column in &source.columns {
        let key = Columns::key(file, source, *column);
        if columns.is_settled(&key) {
            continue;
        }
        let texts = columns.texts_of_search(file, source, *column);
        match texts.filter(|(key, _)| !columns.is_put_off(key) && !failed.contains(key)) {
            Some((key, _)) if columns.is_settled(&key) => {}
            Some(texts) if missing.contains(&texts) => {}
            Some(texts) => missing.push(texts),
            None => missing.push((key, source.expr(*column))),
        }
    }
    missing
}

/// Why a file was not loaded.
enum Failed {
    /// The column of this index cannot be packed.
    Column(usize, Reason),
    /// The texts of this index have no room.
    Texts(usize, Reason),
    Load(Reason),
}

fn failed(error: impl std::fmt::Display + 'static) -> Failed {
    Failed::Load(Reason::of(error))
}

/// Returns what decodes the files of a scan, without its conditions.
fn decoded(scan: &FileScanConfig) -> ParquetSource {
    let original = &scan.file_source;
    let mut decoded = ParquetSource::new(original.table_schema().clone());
    if let Some(original) = original.downcast_ref::<ParquetSource>() {
        decoded = decoded.with_table_parquet_options(original.table_parquet_options().clone());
        if let Some(reader) = original.parquet_file_reader_factory() {
            decoded = decoded.with_parquet_file_reader_factory(Arc::clone(reader));
        }
    }
    decoded
}

/// Reads columns of a file. Each task reads a range, so that the chunks are the same whenever the file is read. With
/// names, the columns are written to column files, and stay there.
async fn of_file(
    columns: &Arc<Columns>,
    (scan, file): (&FileScanConfig, &PartitionedFile),
    (wanted, need): (Exprs<'_>, Need),
    (context, names): (&Arc<TaskContext>, Option<&[Name]>),
) -> Result<Vec<Column>, Failed> {
    let bytes = file.object_meta.size;
    let ranges = bytes.div_ceil(RANGE_BYTES).max(1);
    let groups = (0..ranges).map(|range| {
        let mut part = file.clone();
        part.range = Some(FileRange {
            start: (range * RANGE_BYTES) as i64,
            end: ((range + 1) * RANGE_BYTES).min(bytes) as i64,
        });
        FileGroup::new(vec![part])
    });
    let read = indexes_of(wanted);
    let wanted = over_all(wanted, &read)?;
    let decoding = FileScanConfigBuilder::from(scan.clone())
        .with_source(Arc::new(decoded(scan)))
        .with_file_groups(groups.collect())
        .with_preserve_order(true)
        .with_projection_indices(Some(read))
        .map_err(failed)?
        .build();
    let decoding: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(decoding);
    let share = |it| OfColumn::of_file(it, ranges, context);
    let dropped = EndOnDrop(wanted.iter().map(share).collect());
    let shared = &*dropped.0;
    let tasks = (0..ranges as usize).map(|range| {
        let (columns, decoding) = (Arc::clone(columns), Arc::clone(&decoding));
        let (shared, context) = (shared.to_vec(), Arc::clone(context));
        let wanted = Arc::clone(&wanted);
        let to = match names {
            Some(_) => To::Disk,
            None => To::Engine(need),
        };
        let path = file.object_meta.location.as_ref();
        let to = (to, Stripes::of_range(path, range, ranges as usize));
        let task = async move {
            let of = (&decoding, &*wanted, range);
            of_range(&columns, of, to, &shared, context).await
        };
        async { SpawnedTask::spawn(task).join().await.map_err(failed)? }
    });
    let width = forebay_device::cores();
    if let Some(names) = names {
        let ranges = stream::iter(tasks).buffered(width.min(RANGES_TO_DISK));
        let table = scan.file_source.table_schema().table_schema();
        let all = table.fields().len();
        let bytes = bytes / all.max(1) as u64 * names.len() as u64;
        let of_columns = (names, shared, bytes);
        return to_disk(columns, ranges, of_columns, need).await;
    }
    let read: Vec<OfRange> = stream::iter(tasks).buffered(width).try_collect().await?;
    of_chunks(columns, read, (&wanted, shared), need).await
}

/// Writes columns to files, range by range, as they are packed.
async fn to_disk(
    columns: &Columns,
    mut ranges: impl Stream<Item = Result<OfRange, Failed>> + Unpin,
    (names, shared, bytes): (&[Name], &[Arc<OfColumn>], u64),
    need: Need,
) -> Result<Vec<Column>, Failed> {
    let Some(disk) = columns.disk.as_ref() else {
        return Err(Failed::Load(Reason::no_room(NO_ROOM)));
    };
    let _writing = disk.writing.lock().await;
    // Packed columns seldom take more than Parquet does.
    let has_room = columns.make_room_on_disk(disk, bytes, need).await;
    if !has_room.map_err(Failed::Load)? {
        let text = "there is no room for its columns, nor for column files on the disk";
        return Err(Failed::Load(Reason::no_room(text)));
    }
    let writers = names.iter().map(|_| Writer::new(disk.folder()));
    let mut writers: Vec<Writer> = writers.collect::<Result<_, _>>().map_err(failed)?;
    while let Some(range) = ranges.next().await {
        let range = range?;
        let written = blocking(move || {
            for (writer, chunks) in writers.iter_mut().zip(range) {
                for chunk in chunks {
                    let words = chunk.memory.held.downcast_ref::<Vec<u32>>();
                    writer.push(&chunk, words.map_or(&[], Vec::as_slice))?;
                }
            }
            Ok::<_, std::io::Error>(writers)
        });
        writers = written.await.map_err(Failed::Load)?.map_err(failed)?;
    }
    let mut written = Vec::new();
    for ((name, writer), of_column) in names.iter().zip(writers).zip(shared) {
        let texts = of_column.take_texts().await?;
        let (here, of_file, name) = (Arc::clone(disk), Arc::clone(&texts), name.clone());
        let finished = blocking(move || {
            let places = here.finish(writer, &name, &of_file)?;
            Ok::<_, std::io::Error>((here.hold(&name), places))
        });
        let (file, places) = finished.await.map_err(Failed::Load)?.map_err(failed)?;
        let chunks = places.iter().map(|place| OnDisk::chunk(&file, place));
        written.push(Column::new(chunks.collect(), texts));
    }
    Ok(written)
}

/// Returns the columns of chunks.
async fn of_chunks(
    columns: &Columns,
    mut read: Vec<OfRange>,
    (wanted, shared): (Exprs<'_>, &[Arc<OfColumn>]),
    need: Need,
) -> Result<Vec<Column>, Failed> {
    let mut stored = Vec::new();
    for (index, (expr, of_column)) in wanted.iter().zip(shared).enumerate() {
        let chunks = read
            .iter_mut()
            .flat_map(|range| std::mem::take(&mut range[index]))
            .collect();
        stored.push(match Kept::place_of(expr) {
            Some(Place::Engine) => {
                let texts = columns.texts(chunks);
                texts.map_err(|reason| Failed::Texts(index, reason))?
            }
            _ => {
                let texts = of_column.take_texts().await?;
                let column = columns.column(chunks, texts, need).await;
                column.map_err(Failed::Load)?
            }
        });
    }
    Ok(stored)
}

/// Returns the indexes of the columns of a table that expressions read.
fn indexes_of(wanted: Exprs<'_>) -> Vec<usize> {
    let read = wanted.iter().flat_map(collect_columns);
    let read: BTreeSet<usize> = read.map(|it| it.index()).collect();
    read.into_iter().collect()
}

/// Returns expressions over the columns of a table as those over the columns of these indexes alone.
fn over_all(wanted: Exprs<'_>, read: &[usize]) -> Result<Arc<[Arc<dyn PhysicalExpr>]>, Failed> {
    let wanted = wanted.iter().cloned();
    let wanted = wanted.map(|it| over_projected(it, read));
    wanted.collect::<Result<_, _>>().map_err(failed)
}

/// Returns an expression over the columns of a table as one over those of these indexes alone.
fn over_projected(
    expr: Arc<dyn PhysicalExpr>,
    read: &[usize],
) -> datafusion::error::Result<Arc<dyn PhysicalExpr>> {
    let moved = expr.transform_up(|node| {
        Ok(match node.downcast_ref::<PhysicalColumn>() {
            Some(column) => {
                let place = read.partition_point(|it| *it < column.index());
                Transformed::yes(Arc::new(PhysicalColumn::new(column.name(), place)) as _)
            }
            None => Transformed::no(node),
        })
    });
    moved.data()
}

/// Reads a range of a file.
async fn of_range(
    columns: &Columns,
    (scan, wanted, range): (&Arc<dyn ExecutionPlan>, Exprs<'_>, usize),
    to: (To, Stripes),
    shared: &[Arc<OfColumn>],
    context: Arc<TaskContext>,
) -> Result<OfRange, Failed> {
    let rows = scan.execute(range, Arc::clone(&context));
    let rows = rows.map_err(failed)?;
    stored(columns, rows, wanted, to, (shared, &context)).await
}

/// Packs rows and stores them.
async fn stored(
    columns: &Columns,
    mut rows: impl Stream<Item = datafusion::error::Result<RecordBatch>> + Unpin,
    wanted: Exprs<'_>,
    to: (To, Stripes),
    (shared, context): (&[Arc<OfColumn>], &Arc<TaskContext>),
) -> Result<OfRange, Failed> {
    let memory = MemoryConsumer::new("columns for a device").register(context.memory_pool());
    // A number and whether there is one; then the same packed.
    let held = CHUNK_ROWS * shared.len() * 2 * (size_of::<i64>() + 1);
    memory.try_grow(held).map_err(failed)?;
    let mut packers: Vec<Packer> = shared.iter().map(|_| Packer::default()).collect();
    let mut stored: OfRange = shared.iter().map(|_| Vec::new()).collect();
    // Bytes of texts, until they are in memory of the engine.
    let mut until_stored = 0;
    while let Some(batch) = rows.next().await {
        let mut batch = batch.map_err(|error| not_read(error, wanted))?;
        if shared.iter().any(|it| it.texts.has_ended()) {
            return Err(failed(Unpackable::Ended));
        }
        while batch.num_rows() > 0 {
            let packed = packers.first().map_or(0, Packer::rows);
            let taken = (CHUNK_ROWS - packed).min(batch.num_rows());
            let head = batch.slice(0, taken);
            for (index, expr) in wanted.iter().enumerate() {
                let values = expr.evaluate(&head).and_then(|it| it.into_array(taken));
                let values = values.map_err(|error| match error.find_root() {
                    // There may be memory later.
                    DataFusionError::ResourcesExhausted(_) => failed(error),
                    _ => Failed::Column(index, Reason::of(error)),
                })?;
                let cannot = |error| match error {
                    Unpackable::NoMemory(_) | Unpackable::Ended => failed(error),
                    error => Failed::Column(index, Reason::of(error)),
                };
                match Kept::place_of(expr) {
                    Some(Place::Host) => {
                        let bytes = packers[index].push_rows(&values).map_err(cannot)?;
                        memory.try_grow(bytes).map_err(failed)?;
                        shared[index].add_texts(index, bytes)?;
                    }
                    Some(Place::Engine) => {
                        // Three copies at once: the parts, all in one piece, and with separators.
                        let bytes = 3 * packers[index].push_rows(&values).map_err(cannot)?;
                        let grown = memory.try_grow(bytes);
                        grown.map_err(|it| Failed::Texts(index, Reason::of(it)))?;
                        until_stored += bytes;
                    }
                    Some(Place::Dictionary) | None => {
                        let pushed = shared[index].push(&mut packers[index], values);
                        pushed.await?.map_err(cannot)?;
                    }
                }
            }
            batch = batch.slice(taken, batch.num_rows() - taken);
            if packed + taken == CHUNK_ROWS {
                let of = (wanted, &mut *packers, shared);
                store(columns, to, of, &mut stored).await?;
                memory.shrink(std::mem::take(&mut until_stored));
            }
        }
    }
    if packers.first().is_some_and(|packer| packer.rows() > 0) {
        store(columns, to, (wanted, &mut packers, shared), &mut stored).await?;
    }
    Ok(stored)
}

/// Packs and stores the rows of all columns.
async fn store(
    columns: &Columns,
    (to, stripes): (To, Stripes),
    (wanted, packers, shared): (Exprs<'_>, &mut [Packer], &[Arc<OfColumn>]),
    stored: &mut OfRange,
) -> Result<(), Failed> {
    let stripe = stripes.of_chunk(stored.first().map_or(0, Vec::len));
    for (index, (packer, of_column)) in packers.iter_mut().zip(shared).enumerate() {
        stored[index].push(match Kept::place_of(&wanted[index]) {
            Some(Place::Engine) => {
                let texts = packer.take_texts();
                let texts = texts.map_err(|it| Failed::Column(index, Reason::of(it)))?;
                let chunk = columns.store_texts(texts, stripe, to.need()).await;
                chunk.map_err(|reason| Failed::Texts(index, reason))?
            }
            _ => {
                let packed = packer.pack(&of_column.packing);
                match to {
                    To::Engine(need) => columns.store(packed, stripe, need).await,
                    To::Disk => Ok(Chunk::unplaced(packed, stripe)),
                }
                .map_err(Failed::Load)?
            }
        });
    }
    Ok(())
}
