//! Rows that are divided by the slices of the table of a join, so that kernels read each row only for its slice.
//!
//! A chunk becomes one chunk for each slice, packed as before. Kernels write these chunks behind each other to memory
//! of the device. If they go to the host, kernels divide some chunks at a time to the device, which copies them to
//! the host while kernels divide the next ones.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_device::cuda::DeviceType;
use futures_util::future::{BoxFuture, try_join};

use crate::arguments::Part;
use crate::column::{Bytes, Chunk, Column};
use crate::columns::{Columns, Resident};
use crate::engine::Memory;
use crate::figures::{Divided, Figures};
use crate::giving_way::Need;
use crate::gpu::words;
use crate::launches::{Joins, Of, bytes_read, chunks, rows_of};
use crate::packed::TILE_ROWS;
use crate::program::Compiled;
use crate::reason::{Reason, Repeated};
use crate::source::{Division, Kernel};
use crate::work::{Ready, Work};

type Result<T> = std::result::Result<T, Reason>;

/// Rows of a group, which is packed in whole words. A chunk of a slice begins at a group.
const GROUP_ROWS: u32 = 256;
/// Words of a unit, in which the begin of a column is given to kernels, as in `partitions.cuh`.
const UNIT_WORDS: u64 = 32;
const UNIT_BYTES: u64 = 4 * UNIT_WORDS;
/// Number of bytes of device memory that kernels read in the time of a byte of host memory.
const DEVICE_RATE: u64 = 50;
/// Maximum number of chunks of all partitions of a side.
const CHUNKS_MAX: usize = 1 << 20;
/// Minimum ratio of the bytes of a batch to those of the tables over values, which are copied for each batch.
const PART_OF_VALUES: u64 = 8;
/// Time for which rows are not divided to memory of the host after it had no room.
pub(crate) const WAIT_FOR_ROOM: Duration = Duration::from_secs(60);

/// Rows that are divided by the slices of the table of a join.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side {
    /// Index of the join.
    pub(crate) join: usize,
    pub(crate) division: Division,
}

/// The rows of the slices of the table of a join.
#[derive(Debug)]
pub(crate) struct Partitions {
    pub(crate) side: Side,
    /// Number of places of a slice.
    pub(crate) places: u64,
    pub(crate) slices: Vec<Resident>,
}

/// The memory to which a kernel writes the rows of some chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area<'a> {
    /// Memory of the device, of which it uses `bytes`.
    pub(crate) memory: &'a Memory,
    pub(crate) bytes: u64,
    /// For each chunk, the first group of each slice. Then, for each column, the first unit of its numbers, and that
    /// of the bits that tell which rows have a value.
    pub(crate) words: &'a [u32],
}

/// Chunks that are divided by one kernel.
#[derive(Debug, Default)]
struct Batch {
    /// The file of each chunk, its index in the file, and its number of rows.
    chunks: Vec<(usize, usize, u32)>,
    /// The words of its [`Area`].
    words: Vec<u32>,
    units: u64,
}

/// Where the rows of a chunk are: its batch, the index of its first word in the batch, and that of its first count.
#[derive(Debug, Clone, Copy)]
struct Place {
    batch: usize,
    word: usize,
    count: usize,
}

/// Where the rows of all chunks are.
#[derive(Debug)]
struct Layout<'a> {
    resident: &'a Resident,
    columns: &'a [usize],
    slices: usize,
    /// The numbers of rows of each slice, for each chunk with rows that was read.
    counts: &'a [u32],
    batches: Vec<Batch>,
    /// The places of the chunks of each file; `None` for a chunk of which no row is kept.
    places: Vec<Vec<Option<Place>>>,
}

/// Estimated times of kernels. The unit is the time to read a byte of device memory.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// Reads of the rows for each slice.
    slices: u64,
    /// Reads of the rows to divide them.
    once: u64,
    /// How often kernels read each partition.
    reads: u64,
}

impl Side {
    /// Returns whether the rows are those that are stored in the table.
    pub(crate) fn is_stored(self) -> bool {
        self.division.join.is_none()
    }

    /// Returns the kernel that reads the rows.
    pub(crate) fn kernel(self, compiled: &Compiled) -> &Kernel {
        match self.is_stored() {
            true => &compiled.kernel.builds[self.join].kernel,
            false => &compiled.kernel,
        }
    }
}

/// Returns the estimated time of a read.
fn time(bytes: Bytes) -> u64 {
    bytes.device + DEVICE_RATE * (bytes.host + bytes.disk)
}

impl Times {
    /// Returns whether it takes less time to divide rows into partitions of this many bytes. A write takes half of
    /// the time of a read, as the bus carries both directions at once.
    fn are_better(self, bytes: u64, are_on_host: bool) -> bool {
        let of_bytes = if are_on_host {
            DEVICE_RATE * bytes
        } else {
            bytes
        };
        2 * self.slices > 2 * self.once + of_bytes * (1 + 2 * self.reads)
    }
}

/// Returns the units that the numbers of a column with this many groups take, and those that its bits take. Kernels
/// read all rows of the last tile.
fn units_of(chunk: &Chunk, groups: u64) -> [u64; 2] {
    let padded = groups + (TILE_ROWS as u64 / u64::from(GROUP_ROWS) - 1);
    let numbers = padded * u64::from(chunk.width * GROUP_ROWS / u32::BITS) / UNIT_WORDS;
    let bits = padded * u64::from(GROUP_ROWS / u32::BITS);
    match chunk.valid {
        Some(_) => [numbers, bits.div_ceil(UNIT_WORDS)],
        None => [numbers, 0],
    }
}

impl<'a> Layout<'a> {
    /// Returns where rows go. Each batch has at most this many bytes, or one chunk. `chunks` are the numbers of rows
    /// of the chunks that were read.
    ///
    /// # Errors
    /// If a batch has more units than a word can count.
    fn new(
        (resident, columns): (&'a Resident, &'a [usize]),
        (slices, counts): (usize, &'a [u32]),
        chunks: &[Vec<u32>],
        bytes_max: u64,
    ) -> Result<Layout<'a>> {
        let (mut batches, mut count) = (vec![Batch::default()], 0);
        let files = chunks.iter().map(|rows| vec![None; rows.len()]);
        let mut places: Vec<Vec<Option<Place>>> = files.collect();
        for (file, rows) in chunks.iter().enumerate() {
            for (index, rows) in rows.iter().enumerate().filter(|(_, rows)| **rows > 0) {
                let of_slices = &counts[count..count + slices];
                let groups = of_slices.iter().map(|it| it.div_ceil(GROUP_ROWS));
                let all: u64 = groups.clone().map(u64::from).sum();
                let of_columns = columns.iter().map(|column| {
                    let column = &resident.files[file][column];
                    units_of(&column.chunks[index], all)
                });
                let of_columns: Vec<[u64; 2]> = of_columns.collect();
                let units: u64 = of_columns.iter().flatten().sum();
                let held = batches.last().map_or(0, |it| it.units);
                if held > 0 && (held + units) * UNIT_BYTES > bytes_max {
                    batches.push(Batch::default());
                }
                let last = batches.len() - 1;
                let batch = &mut batches[last];
                if all > 0 {
                    batch.chunks.push((file, index, *rows));
                    places[file][index] = Some(Place {
                        batch: last,
                        word: batch.words.len(),
                        count,
                    });
                    batch.add(groups, &of_columns)?;
                }
                count += slices;
            }
        }
        Ok(Layout {
            resident,
            columns,
            slices,
            counts,
            batches,
            places,
        })
    }

    fn bytes(&self) -> u64 {
        self.batches.iter().map(Batch::bytes).sum()
    }

    /// Returns the numbers of rows of the chunks of each file; 0 for chunks of other batches.
    fn rows_in(&self, batch: &Batch) -> Vec<Vec<u32>> {
        let files = self.places.iter().map(|places| vec![0; places.len()]);
        let mut all: Vec<Vec<u32>> = files.collect();
        for (file, index, rows) in &batch.chunks {
            all[*file][*index] = *rows;
        }
        all
    }

    /// Returns a chunk of a slice, from the memory of each batch. `column` is the index of the column among those that
    /// are read.
    fn chunk(
        &self,
        (file, index): (usize, usize),
        (column, slice): (usize, usize),
        memory: &[Memory],
    ) -> Chunk {
        let source = &self.resident.files[file][&self.columns[column]].chunks[index];
        let Some(place) = self.places[file][index] else {
            return Chunk {
                rows: 0,
                bytes: 0,
                texts: None,
                ..source.clone()
            };
        };
        let words = &self.batches[place.batch].words[place.word..];
        let memory = &memory[place.batch];
        let rows = self.counts[place.count + slice];
        let group_words = (source.width * GROUP_ROWS / u32::BITS) as usize;
        let bit_words = (GROUP_ROWS / u32::BITS) as usize;
        let first = words[slice] as usize;
        let begin = |of: usize| {
            let unit = words[self.slices + 2 * column + of];
            unit as usize * UNIT_WORDS as usize
        };
        let valid = source.valid.as_ref();
        let valid = valid.map(|_| memory.at_word(begin(1) + first * bit_words));
        let of_group = group_words + valid.as_ref().map_or(0, |_| bit_words);
        Chunk {
            rows,
            memory: memory.at_word(begin(0) + first * group_words),
            bytes: 4 * u64::from(rows.div_ceil(GROUP_ROWS)) * of_group as u64,
            valid,
            // Numbers of texts remain row numbers of the file, whose chunks have the texts.
            texts: None,
            ..source.clone()
        }
    }

    /// Returns the rows of each slice for kernels of a device, from the memory of each batch.
    ///
    /// # Errors
    /// If there is no room for the descriptions of their chunks, or the device fails.
    async fn residents(
        &self,
        memory: &[Memory],
        (columns, device, used): (&Columns, usize, u64),
    ) -> Result<Vec<Resident>> {
        let (mut parts, mut made) = (Vec::<Part>::new(), Vec::new());
        for slice in 0..self.slices {
            for (file, places) in self.places.iter().enumerate() {
                for column in 0..self.columns.len() {
                    let chunks = (0..places.len())
                        .map(|index| self.chunk((file, index), (column, slice), memory));
                    let chunks: Vec<Chunk> = chunks.collect();
                    parts.extend(chunks.iter().map(Chunk::part));
                    made.push((file, column, chunks));
                }
            }
        }
        let told = words(&DeviceType::bytes_of(&parts));
        let told = columns.copied(told, device, Need::Query(used)).await?;
        let files = self.places.len();
        let empty = || Resident {
            files: vec![HashMap::new(); files],
        };
        let mut residents: Vec<Resident> = (0..self.slices).map(|_| empty()).collect();
        let (of_slice, mut first) = (files * self.columns.len(), 0);
        for (number, (file, column, chunks)) in made.into_iter().enumerate() {
            let index = self.columns[column];
            let texts = Arc::clone(&self.resident.files[file][&index].texts);
            let mut parts = vec![None; columns.engines.len()];
            parts[device] = Some(told.at_word(first * size_of::<Part>() / 4));
            first += chunks.len();
            let column = Column {
                parts,
                ..Column::new(chunks, texts)
            };
            residents[number / of_slice].files[file].insert(index, Arc::new(column));
        }
        Ok(residents)
    }
}

impl Batch {
    fn bytes(&self) -> u64 {
        // An allocation has at least one unit.
        (self.units * UNIT_BYTES).max(UNIT_BYTES)
    }

    /// Adds the words of a chunk with these numbers of groups of its slices, and units of its columns.
    fn add(&mut self, groups: impl Iterator<Item = u32>, of_columns: &[[u64; 2]]) -> Result<()> {
        let mut first = 0;
        for count in groups {
            self.words.push(first);
            first += count;
        }
        for units in of_columns.iter().flatten() {
            let unit = u32::try_from(self.units);
            self.words
                .push(unit.map_err(|_| Reason::no_room("too many bytes of divided rows"))?);
            self.units += units;
        }
        Ok(())
    }

    fn area<'a>(&'a self, memory: &'a Memory) -> Area<'a> {
        Area {
            memory,
            bytes: self.bytes(),
            words: &self.words,
        }
    }
}

impl Joins {
    /// Returns the number of slices of the table of a join.
    pub(crate) fn slices(&self, join: usize) -> usize {
        self.counts[join] as usize
    }

    /// Returns the rows that can be divided: those that are stored in tables in slices, and those that look up the
    /// tables. Of the tables that can divide the latter, the one with the most slices does.
    fn sides(&self, kernel: &Kernel) -> Vec<Side> {
        let mut sliced: Vec<usize> = (0..self.counts.len()).collect();
        sliced.retain(|join| self.counts[*join] > 1);
        sliced.sort_by_key(|join| Reverse(self.counts[*join]));
        let side = |join: usize, division| Side { join, division };
        let stored = sliced.iter().filter_map(|join| {
            let division = kernel.builds[*join].division();
            division.map(|it| side(*join, it))
        });
        let rows = sliced.iter().find_map(|join| {
            let division = kernel.division(*join, &self.counts);
            division.map(|it| side(*join, it))
        });
        stored.chain(rows).collect()
    }

    /// Checks that slices of a table have room for their rows. `counts` are the rows of each slice of each chunk.
    ///
    /// # Errors
    /// If a slice has no room. The query then begins again before the rows are divided.
    fn check_rows(&self, compiled: &Compiled, side: Side, counts: &[u32]) -> Result<()> {
        let (build, slices) = (&compiled.kernel.builds[side.join], self.slices(side.join));
        let of_slice = |slice| counts.iter().skip(slice).step_by(slices);
        let rows = (0..slices).map(|slice| of_slice(slice).map(|it| u64::from(*it)).sum::<u64>());
        let is_full = rows.max() > Some(rows_of(build, slices as u64));
        match side.is_stored() && build.repeats && is_full {
            true => Err(Reason::of_joins(Repeated {
                same_keys: Vec::new(),
                many_rows: vec![build.kernel.of_source],
            })),
            false => Ok(()),
        }
    }

    /// Returns the bytes of the rows of a side that kernels read for all slices, if these are not divided.
    ///
    /// # Errors
    /// If the columns of a file do not have the same rows.
    fn bytes_of_turns(&self, of: Of<'_>, side: Side) -> Result<Bytes> {
        let (kernel, builds) = (side.kernel(of.1), &of.1.kernel.builds);
        let resident = &of.0[kernel.of_source];
        let mut bytes = Bytes::default();
        for turn in &self.turns {
            let own = (turn[side.join], builds[side.join].stored.own_column);
            let others = builds.iter().map(|it| it.stored.key_column);
            let slices = match side.is_stored() {
                true => vec![own],
                false => turn.iter().copied().zip(others).collect(),
            };
            let chunks = chunks(of.1, (kernel, resident), slices.into_iter())?;
            bytes += bytes_read(resident, &kernel.columns, &chunks);
        }
        Ok(bytes)
    }
}

impl Columns {
    /// Returns whether memory of the host had no room lately for this many bytes of divided rows.
    fn had_no_room(&self, bytes: u64) -> bool {
        let refused = *self.refused_partitions.lock();
        refused.is_some_and(|(least, at)| bytes >= least && at.elapsed() < WAIT_FOR_ROOM)
    }

    /// Puts off dividing rows of at least this many bytes to memory of the host, which had no room for them.
    fn put_off_partitions(&self, bytes: u64) {
        *self.refused_partitions.lock() = Some((bytes, Instant::now()));
    }
}

impl Work {
    /// Divides rows that look up tables in slices, and those that are stored there, if that takes less time than to
    /// read all rows for each slice, and there is room for them.
    ///
    /// # Errors
    /// If a slice of a table has no room for its rows.
    pub(crate) async fn divide(&self, ready: &mut Ready, figures: &mut Figures) -> Result<()> {
        let kernel = &ready.compiled.kernel;
        let is_alone = ready.joins.len() == 1 && ready.compiled.place.is_none();
        if !is_alone || ready.joins[0].have_many_values(kernel) {
            return Ok(());
        }
        // Kernels end when a list has enough rows, perhaps after reading few.
        let has_enough = ready.fragment.limit.enough().is_some();
        let mut sides = ready.joins[0].sides(kernel);
        sides.retain(|side| side.is_stored() || !has_enough);
        for side in sides {
            let divided = self.divided(ready, side, figures).await;
            match divided {
                Ok(partitions) => ready.joins[0].partitions.extend(partitions),
                Err(reason) if reason.repeated().is_some() => return Err(reason),
                Err(reason) => tracing::debug!(%reason, "rows are not divided"),
            }
        }
        Ok(())
    }

    /// Returns the rows of a side, divided; `None` if they stay as they are.
    async fn divided(
        &self,
        ready: &Ready,
        side: Side,
        figures: &mut Figures,
    ) -> Result<Option<Partitions>> {
        let (compiled, joins) = (&*ready.compiled, &ready.joins[0]);
        let kernel = side.kernel(compiled);
        let rows = &ready.resident[kernel.of_source];
        let chunks = compiled.counting.rows(kernel.of_source, rows.chunks()?);
        if rows.is_on_disk() || chunks.iter().flatten().all(|rows| *rows == 0) {
            return Ok(None);
        }
        // A file without chunks has columns, too.
        let of_slice: usize = chunks.iter().map(|it| it.len().max(1)).sum();
        let count = of_slice * kernel.columns.len() * joins.slices(side.join);
        if count > CHUNKS_MAX {
            return Ok(None);
        }
        let times = self.times(ready, side, &chunks)?;
        let always = self.columns.always_divides.load(Ordering::Relaxed);
        let are_divided = |bytes: u64| {
            let are_on_host = !self.has_room_of_partitions(ready, bytes);
            let has_room = !are_on_host || !self.columns.had_no_room(bytes);
            has_room && (always || times.is_some_and(|it| it.are_better(bytes, are_on_host)))
        };
        // The bytes are known if an earlier run counted the rows.
        if !are_divided(kernel.divided_bytes.load(Ordering::Relaxed)) {
            return Ok(None);
        }
        let counts = self.counted_rows(ready, side, &chunks, figures).await?;
        joins.check_rows(compiled, side, &counts)?;
        let columns = (rows, kernel.columns.as_slice());
        let slices = (joins.slices(side.join), counts.as_slice());
        let layout = Layout::new(columns, slices, &chunks, u64::MAX)?;
        let bytes = layout.bytes();
        kernel.divided_bytes.store(bytes, Ordering::Relaxed);
        if !are_divided(bytes) {
            return Ok(None);
        }
        let held_bytes = count * size_of::<Chunk>();
        figures.held.try_grow(held_bytes).map_err(Reason::of)?;
        let written = self.written_rows(ready, side, layout, &chunks, figures);
        Ok(Some(written.await?))
    }

    /// Returns the times with and without partitions; `None` if slices read nothing from the host, or tables over
    /// values are large.
    fn times(&self, ready: &Ready, side: Side, chunks: &[Vec<u32>]) -> Result<Option<Times>> {
        let (kernel, joins) = (side.kernel(&ready.compiled), &ready.joins[0]);
        let slices = joins.bytes_of_turns(of(ready), side)?;
        let (rows, columns) = (&ready.resident[kernel.of_source], &kernel.columns);
        let read = |columns: &[usize]| time(bytes_read(rows, columns, chunks));
        let are_small =
            PART_OF_VALUES * kernel.value_bytes() as u64 <= self.columns.pass_bytes_max();
        Ok((slices.host > 0 && are_small).then(|| Times {
            slices: time(slices),
            once: read(columns) + read(&columns[..side.division.columns]),
            reads: (joins.turns() / joins.slices(side.join)) as u64,
        }))
    }

    /// Returns whether divided rows of this many bytes have room in free memory of the device, beside totals.
    fn has_room_of_partitions(&self, ready: &Ready, bytes: u64) -> bool {
        let device = ready.spread.devices[0];
        let wanted = bytes.saturating_add(self.columns.room_of_tables(device));
        !self.has_demoted.load(Ordering::Relaxed)
            && self.columns.engines[device].free_bytes() >= wanted
    }

    /// Counts the rows of each slice, for each chunk with rows.
    async fn counted_rows(
        &self,
        ready: &Ready,
        side: Side,
        chunks: &[Vec<u32>],
        figures: &mut Figures,
    ) -> Result<Vec<u32>> {
        let (joins, waits) = (&ready.joins[0], self.options.waits);
        let rows = (chunks.to_vec(), None);
        let launch = joins.dividing(of(ready), side, rows, waits)?;
        let ran = self.run(ready.spread.devices[0], launch, figures).await?;
        let with_rows = chunks.iter().flatten().filter(|rows| **rows > 0);
        let mut counts = words(ran.results());
        counts.truncate(with_rows.count() * joins.slices(side.join));
        Ok(counts)
    }

    /// Divides the rows. `layout` has one batch, which goes to memory of the device if that has room.
    async fn written_rows(
        &self,
        ready: &Ready,
        side: Side,
        mut layout: Layout<'_>,
        chunks: &[Vec<u32>],
        figures: &mut Figures,
    ) -> Result<Partitions> {
        let (device, used) = (ready.spread.devices[0], figures.used);
        let bytes = layout.bytes();
        let need = Need::Query(used).stale();
        let on_device = match self.has_room_of_partitions(ready, bytes) {
            true => self.columns.allocate(device, bytes, need).ok(),
            false => None,
        };
        let are_on_host = on_device.is_none();
        let memory = match on_device {
            Some(memory) => {
                self.has_divided.store(true, Ordering::Relaxed);
                let of_batch = (&layout, &layout.batches[0], &memory);
                self.write_batch(ready, side, of_batch, figures).await?;
                vec![memory]
            }
            None => {
                let free_bytes = self.columns.engines[device].free_bytes();
                let most = self.columns.pass_bytes_max().min(free_bytes / 2);
                let columns = (layout.resident, layout.columns);
                let slices = (layout.slices, layout.counts);
                layout = Layout::new(columns, slices, chunks, most)?;
                let copied = self.on_host(ready, side, &layout, figures).await;
                copied.inspect_err(|_| self.columns.put_off_partitions(bytes))?
            }
        };
        let with = (&*self.columns, device, used);
        let slices = layout.residents(&memory, with).await?;
        let Divided {
            rows,
            count,
            bytes,
            host_bytes,
        } = &mut figures.divided;
        *rows += layout.counts.iter().map(|it| u64::from(*it)).sum::<u64>();
        *count = layout.slices.max(*count);
        *bytes += layout.bytes();
        *host_bytes += if are_on_host { layout.bytes() } else { 0 };
        Ok(Partitions {
            side,
            places: ready.joins[0].turns[0][side.join].count,
            slices,
        })
    }

    /// Divides the rows batch by batch. Returns the memory of the host that each is in.
    async fn on_host(
        &self,
        ready: &Ready,
        side: Side,
        layout: &Layout<'_>,
        figures: &mut Figures,
    ) -> Result<Vec<Memory>> {
        let device = ready.spread.devices[0];
        let bytes = layout.batches.iter().map(Batch::bytes);
        let most = bytes.max().unwrap_or(UNIT_BYTES);
        let need = Need::Query(figures.used).stale();
        // Kernels write to one area while the other is copied.
        let areas = layout.batches.len().min(2);
        let areas = (0..areas).map(|_| self.columns.allocate(device, most, need));
        let areas = areas.collect::<Result<Vec<_>>>()?;
        let mut memory = Vec::new();
        let mut copied: Option<BoxFuture<'static, Result<Memory>>> = None;
        for (index, batch) in layout.batches.iter().enumerate() {
            let area = &areas[index % areas.len()];
            let written = self.write_batch(ready, side, (layout, batch, area), figures);
            match copied.take() {
                Some(copied) => memory.push(try_join(written, copied).await?.1),
                None => written.await?,
            }
            let engine = &self.columns.engines[device];
            copied = Some(engine.copy_to_host(area, batch.bytes()));
        }
        if let Some(copied) = copied {
            memory.push(copied.await?);
        }
        Ok(memory)
    }

    /// Divides the rows of a batch, and writes them to memory of the device.
    async fn write_batch(
        &self,
        ready: &Ready,
        side: Side,
        (layout, batch, memory): (&Layout<'_>, &Batch, &Memory),
        figures: &mut Figures,
    ) -> Result<()> {
        let (joins, waits) = (&ready.joins[0], self.options.waits);
        let rows = (layout.rows_in(batch), Some(batch.area(memory)));
        let launch = joins.dividing(of(ready), side, rows, waits)?;
        self.run(ready.spread.devices[0], launch, figures).await?;
        Ok(())
    }
}

/// Returns the columns, the kernels and the device.
fn of(ready: &Ready) -> Of<'_> {
    let device = ready.spread.devices[0];
    (&*ready.resident, &*ready.compiled, device)
}
