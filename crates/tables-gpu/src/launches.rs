//! The kernels of a fragment as they are run: first those that store the rows of joins in tables, then the one that
//! adds the totals.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_device::cuda::Program;

use crate::column::Bytes;
use crate::columns::{Columns, Resident};
use crate::domain;
use crate::engine::{KernelLaunch, Keys, Launch, Memory};
use crate::giving_way::Need;
use crate::groups::{Groups, Place};
use crate::joined::SLOTS_MIN;
use crate::partitions::{Area, Partitions, Side};
use crate::program::Compiled;
use crate::reason::Reason;
use crate::selection::COUNTS_BYTES;
use crate::slice::{HASH_PLACES, KeyColumn, SLICES_MAX, Slice, Turn};
use crate::source::{Build, Kernel};
use crate::spread::Spread;

type Result<T> = std::result::Result<T, Reason>;
/// Columns of the sources, kernels, and the device that runs them.
pub(crate) type Of<'a> = (&'a [Resident], &'a Compiled, usize);

/// Alignment of an array in the tables of joins. Some bytes are behind each, so that kernels read whole words.
const ALIGNMENT: u64 = if cfg!(test) { 16 } else { 256 };
/// Minimum number of slots of a slice of a hash table. In few slots, the keys of one slice may be more than half.
const SLOTS_OF_SLICE_MIN: u64 = if cfg!(test) { 64 } else { SLOTS_MIN };
/// Maximum bytes of the tables over values that the kernels of a launch read.
const TABLES_OF_VALUES_MAX: usize = 256 << 20;

/// The memory of the tables of a kernel's joins. Tables that have no room as a whole are made slice by slice, and the
/// kernel runs after each.
#[derive(Debug)]
pub(crate) struct Joins {
    memory: Option<Memory>,
    bytes: u64,
    /// Bytes of the tables if they were whole.
    whole_bytes: u64,
    /// Number of slices of the table of each join.
    pub(crate) counts: Vec<u64>,
    /// The same without tables that are made together with one before: the turns are the product.
    factors: Vec<u64>,
    /// The slices of all tables, for each time that they are made.
    pub(crate) turns: Vec<Turn>,
    /// The rows that are divided by slices.
    pub(crate) partitions: Vec<Partitions>,
}

impl Default for Joins {
    /// Returns the tables of no joins.
    fn default() -> Joins {
        Joins {
            memory: None,
            bytes: 0,
            whole_bytes: 0,
            counts: Vec::new(),
            factors: Vec::new(),
            turns: vec![Vec::new()],
            partitions: Vec::new(),
        }
    }
}

/// A table while kernels use it.
struct Table<'a> {
    build: &'a Build,
    /// Those of its rows' joins.
    joins: Vec<Table<'a>>,
    /// Addresses of its words.
    words: Vec<u64>,
    keys: Keys,
    /// Address of the bits that tell which elements have a row.
    seen: u64,
    /// Number of rows that have room, if the join repeats rows.
    rows: u64,
    slice: Slice,
    /// The rows of the slice, if they are divided.
    partition: Option<&'a Resident>,
}

fn area(elements: u64, bits: u32) -> u64 {
    let bytes = elements.saturating_mul(bits.into()).div_ceil(8);
    (bytes + 4).next_multiple_of(ALIGNMENT)
}

/// Returns the number of elements of a slice of a table that is made in `slices` of them.
fn elements_of(build: &Build, slices: u64) -> u64 {
    let elements = build.stored.elements.div_ceil(slices);
    match build.stored.is_hashed {
        true => elements.next_power_of_two().max(SLOTS_OF_SLICE_MIN),
        false => elements,
    }
}

/// Returns the number of places of a table, which slices are ranges of.
pub(crate) fn places_of(build: &Build) -> u64 {
    match build.stored.is_hashed {
        true => HASH_PLACES,
        false => build.stored.elements,
    }
}

/// Returns the number of rows for which a slice of the table of a join that repeats rows has room: a quarter more than
/// the mean, as keys are not evenly spread. A kernel that finds more names the table. The slice is then divided, and
/// if it cannot be, the query begins again with twice the skew.
pub(crate) fn rows_of(build: &Build, slices: u64) -> u64 {
    let (rows, places) = (build.stored.rows, places_of(build));
    if slices == 1 {
        return rows;
    }
    let of_slice = u128::from(rows) * u128::from(places.div_ceil(slices));
    let mean = of_slice.div_ceil(places.max(1).into()) as u64;
    let most = mean.saturating_mul(build.stored.skew);
    most.saturating_add(most / 4 + 1).min(rows)
}

/// Returns the elements of each word of a slice of the table of a join, and their bits. Of rows that are repeated, the
/// last word is that of the table, and the others are those of the rows; before the elements is the number of rows. A
/// word may tell of all rows.
fn words_of(build: &Build, slices: u64) -> Vec<(u64, u32)> {
    let elements = elements_of(build, slices);
    let last = build.words.len() - 1;
    let words = build.words.iter().enumerate();
    let words = words.map(|(word, bits)| match build.repeats {
        _ if Some(word) == build.word_of_all => (1, *bits),
        true if word == last => (elements + 1, *bits),
        true => (rows_of(build, slices), *bits),
        false => (elements, *bits),
    });
    words.collect()
}

/// Returns the bytes of a slice of the table of a join, and of the tables of its rows.
fn bytes_of(build: &Build, slices: u64) -> u64 {
    let elements = elements_of(build, slices);
    let words = words_of(build, slices).into_iter();
    let words = words.filter(|(_, bits)| *bits > 1).chain([(elements, 1)]);
    let words: u64 = words.map(|(count, bits)| area(count, bits)).sum();
    let own = words.saturating_add(match build.stored.is_hashed {
        true => area(elements, u64::BITS),
        false => 0,
    });
    let of_rows = build.kernel.builds.iter().map(|it| bytes_of(it, 1));
    own.saturating_add(of_rows.sum())
}

/// Returns the index of the first join whose slices have the same rows as those of this one.
pub(crate) fn first_alike(builds: &[Build], index: usize) -> usize {
    let mut before = builds[..index].iter();
    let first = before.position(|it| builds[index].has_slices_of(it));
    first.unwrap_or(index)
}

/// Returns the number of slices of each table, and the bytes of one of each together, for which there is room. Tables
/// with enough places have at least `least` slices. Tables whose slices have the same rows, of which `of_first` has
/// the first one, have the same number.
fn counts_of(
    builds: &[Build],
    of_first: &[usize],
    (least, room): (u64, u64),
) -> Result<(Vec<u64>, u64)> {
    let counts = builds.iter();
    let counts = counts.map(|it| least.clamp(1, places_of(it).max(1)));
    let mut counts: Vec<u64> = counts.collect();
    loop {
        let mut of_firsts = vec![0_u64; builds.len()];
        for (index, first) in of_first.iter().enumerate() {
            let bytes = bytes_of(&builds[index], counts[index]);
            of_firsts[*first] = of_firsts[*first].saturating_add(bytes);
        }
        let bytes = of_firsts
            .iter()
            .fold(0_u64, |all, it| all.saturating_add(*it));
        if bytes <= room {
            return Ok((counts, bytes));
        }
        // Those that take most are divided further, if a slice has several places.
        let firsts = (0..builds.len()).filter(|index| of_first[*index] == *index);
        let divisible = firsts.clone();
        let divisible = divisible.filter(|index| counts[*index] < places_of(&builds[*index]));
        let largest = divisible.max_by_key(|index| of_firsts[*index]);
        for (count, first) in counts.iter_mut().zip(of_first) {
            *count += u64::from(Some(*first) == largest);
        }
        let slices: u64 = firsts.map(|index| counts[index]).product();
        if largest.is_none() || slices > SLICES_MAX {
            let text =
                format!("the tables of its joins need {bytes} bytes, and there is room for {room}");
            let reason = Reason::no_room(text);
            return Err(match builds.iter().any(|it| it.repeats) {
                true => reason.of_repeated_rows(),
                false => reason,
            });
        }
    }
}

/// Returns the slices of all tables, for each time that they are made: all combinations of those of the first tables.
fn turns_of(builds: &[Build], of_first: &[usize], counts: &[u64]) -> Vec<Turn> {
    let mut turns = vec![Vec::new()];
    for (index, build) in builds.iter().enumerate() {
        if of_first[index] < index {
            let again = |turn: &mut Turn| turn.push(turn[of_first[index]]);
            turns.iter_mut().for_each(again);
            continue;
        }
        let (count, places) = (counts[index], places_of(build));
        let slices = (0..count).map(|slice| Slice::nth(slice, count, places));
        let with = |slice: Slice| {
            let before = turns.iter();
            before.map(move |turn| [turn.as_slice(), &[slice]].concat())
        };
        turns = slices.flat_map(with).collect();
    }
    turns
}

impl Joins {
    /// Allocates memory of a device for the tables, in as few slices as it has room for. Columns that were used before
    /// `used` give way to them.
    ///
    /// # Errors
    /// If there is no room, or they would need more than [`SLICES_MAX`] slices.
    pub(crate) fn new(
        compiled: &Compiled,
        (columns, device, used): (&Columns, usize, u64),
    ) -> Result<Joins> {
        let builds = &compiled.kernel.builds;
        let of_first: Vec<usize> = (0..builds.len())
            .map(|index| first_alike(builds, index))
            .collect();
        let least = columns.slices_min.load(Ordering::Relaxed);
        let room = columns.room_of_tables(device);
        let (counts, bytes) = counts_of(builds, &of_first, (least, room))?;
        let firsts = (0..builds.len()).filter(|index| of_first[*index] == *index);
        let factors = firsts.map(|index| counts[index]).collect();
        let turns = turns_of(builds, &of_first, &counts);
        let whole = builds.iter().map(|it| bytes_of(it, 1));
        Ok(Joins {
            memory: Some(columns.allocate(device, bytes, Need::Query(used))?),
            bytes,
            whole_bytes: whole.fold(0, u64::saturating_add),
            counts,
            factors,
            turns,
            partitions: Vec::new(),
        })
    }

    /// Returns how often the tables are made: once if they are whole.
    pub(crate) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Returns the bytes of the tables if they were whole.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Returns whether the tables over values of the kernels of all turns have more bytes than those of a launch may.
    pub(crate) fn have_many_values(&self, kernel: &Kernel) -> bool {
        self.turns() * kernel.value_bytes_of_all() > TABLES_OF_VALUES_MAX
    }

    /// Returns the launch that divides the rows of chunks of a side. With an area, the kernel writes the rows to it.
    /// Without one, the launch makes the tables that the kernel looks up, and the kernel counts the rows. The results
    /// are then numbers of 32 bits: for each chunk with rows, the number of rows of each slice.
    ///
    /// # Errors
    /// If the columns of a file do not have the same rows.
    pub(crate) fn dividing(
        &self,
        of: Of<'_>,
        side: Side,
        (chunks, area): (Vec<Vec<u32>>, Option<Area<'_>>),
        waits: bool,
    ) -> Result<Launch> {
        let (kernel, slices) = (side.kernel(of.1), self.slices(side.join));
        let count = chunks.iter().flatten().filter(|rows| **rows > 0).count();
        let marks_at = (4 * slices * count).next_multiple_of(ALIGNMENT as usize);
        let mut launch = Launch {
            // The marks are not read.
            results_bytes: marks_at + of.1.mark_words * 4,
            memory: self.memory.iter().cloned().collect(),
            ..Launch::new(waits)
        };
        let tables = self.tables(of.1, &self.turns[0]);
        let mut columns = kernel.columns.len();
        if area.is_none() {
            let before = kernel.joins_of(side.division.steps);
            self.make(before.map(|it| &tables[it]), of, &mut launch, marks_at)?;
            columns = side.division.columns;
        }
        let program = (kernel.dividing(side.division), columns);
        let rows = &of.0[kernel.of_source];
        // Rows that are stored look up nothing.
        let looked_up: &[Table<'_>] = match side.is_stored() {
            true => &[],
            false => &tables,
        };
        let with = (kernel, looked_up, None);
        let mut divides = over(&mut launch, (rows, of.2), chunks, with, program)?;
        divides.own_slice = self.turns[0][side.join];
        divides.own_rows = slices as u32;
        // A block has two counts for each slice.
        divides.shared_bytes = 8 * slices as u32;
        divides.groups = divides.tables.len() as u32;
        if let Some(area) = area {
            divides.seen = area.memory.address;
            divides.tables.extend(area.words);
            launch.zeroed = Some((area.memory.clone(), area.bytes));
            launch.memory.push(area.memory.clone());
        }
        launch.kernels.push(divides);
        Ok(launch)
    }

    /// Returns the kernels that make the slices of these turns, one turn after the other.
    ///
    /// # Errors
    /// If the columns of a file do not have the same rows.
    pub(crate) fn made(&self, of: Of<'_>, turns: &[Turn], waits: bool) -> Result<Launch> {
        let mut launch = Launch {
            results_bytes: of.1.mark_words * 4,
            memory: self.memory.iter().cloned().collect(),
            ..Launch::new(waits)
        };
        for turn in turns {
            self.make(&self.tables(of.1, turn), of, &mut launch, 0)?;
        }
        Ok(launch)
    }

    /// Returns the tables with these slices.
    fn tables<'a>(&'a self, compiled: &'a Compiled, turn: &[Slice]) -> Vec<Table<'a>> {
        let mut end = self.memory.as_ref().map_or(0, |it| it.address);
        let builds = compiled.kernel.builds.iter().enumerate();
        builds
            .map(|(join, build)| Table {
                partition: self.partition(turn, Some(join)),
                ..Table::new(build, (turn[join], self.counts[join]), &mut end)
            })
            .collect()
    }

    /// Returns the rows of the slices of a turn, if they are divided: those that are stored in the table of a join, or
    /// those that look up the tables.
    fn partition(&self, turn: &[Slice], stored: Option<usize>) -> Option<&Resident> {
        let is_wanted = |side: Side| match stored {
            Some(join) => side.is_stored() && side.join == join,
            None => !side.is_stored(),
        };
        let mut all = self.partitions.iter();
        let divided = all.find(|it| is_wanted(it.side))?;
        // A part of a slice reads the rows of the whole slice.
        let index = turn[divided.side.join].first / divided.places;
        divided.slices.get(index as usize)
    }

    /// Adds the kernels that make tables to a launch. They write marks of keys to results from `marks_at` on.
    fn make<'t, 'b: 't>(
        &self,
        tables: impl IntoIterator<Item = &'t Table<'b>>,
        of: Of<'_>,
        launch: &mut Launch,
        marks_at: usize,
    ) -> Result<()> {
        let first = launch.kernels.len();
        for table in tables {
            table.make(launch, of, marks_at)?;
        }
        if let Some(kernel) = launch.kernels.get_mut(first) {
            kernel.zeroed = self.memory.clone().map(|memory| (memory, self.bytes));
        }
        Ok(())
    }
}

impl<'a> Table<'a> {
    /// Places a slice of a table that is made in `count` of them at an address, behind the tables of its rows.
    fn new(build: &'a Build, (slice, count): (Slice, u64), end: &mut u64) -> Table<'a> {
        let joins = build.kernel.builds.iter();
        let joins = joins
            .map(|it| Table::new(it, (Slice::default(), 1), end))
            .collect();
        let elements = elements_of(build, count);
        let mut place = |elements, bits| {
            let begin = *end;
            *end += area(elements, bits);
            begin
        };
        let seen = place(elements, 1);
        let words = words_of(build, count).into_iter();
        let words = words.map(|(elements, bits)| match bits {
            // The bit that tells whether there is a row.
            1 => seen,
            bits => place(elements, bits),
        });
        Table {
            build,
            joins,
            words: words.collect(),
            keys: match build.stored.is_hashed {
                true => Keys {
                    address: place(elements, u64::BITS),
                    bits: elements.ilog2(),
                },
                false => Keys::default(),
            },
            seen,
            rows: rows_of(build, count),
            slice,
            partition: None,
        }
    }

    /// Adds the kernel that makes the table to a launch, behind those of its rows' joins.
    fn make(&self, launch: &mut Launch, of: Of<'_>, marks_at: usize) -> Result<()> {
        for join in &self.joins {
            join.make(launch, of, marks_at)?;
        }
        let own = (self.slice, self.build.stored.own_column);
        let kernels = (&self.build.kernel, &self.joins[..], self.partition);
        let kernel = KernelLaunch {
            own_words: self.words.clone(),
            own_keys: self.keys,
            seen: self.seen,
            // Places of rows that are repeated are of 32 bits.
            own_rows: self.rows.try_into().unwrap_or(u32::MAX),
            results_at: marks_at,
            ..kernel(launch, of, kernels, (own, None, None))?
        };
        launch.kernels.push(kernel);
        Ok(())
    }
}

/// Returns the number of slices of each table, on the device that has most. Those that are made together count once.
pub(crate) fn factors(joins: &[Joins]) -> Vec<u64> {
    let most = joins.iter().max_by_key(|it| it.turns());
    most.map(|it| it.factors.clone()).unwrap_or_default()
}

/// Totals in memory of the engine. Before them are the keys of a hash table, or the counter of a list.
#[derive(Debug, Clone)]
pub(crate) struct InMemory {
    pub(crate) memory: Memory,
    pub(crate) bytes: u64,
    pub(crate) keys: Keys,
    /// Address of the counter of a list's rows.
    pub(crate) counter: u64,
    /// Address of the totals.
    pub(crate) address: u64,
    /// The groups that have totals.
    pub(crate) slice: Slice,
}

impl InMemory {
    /// Allocates memory of a device for the totals of groups. Columns that were used before `used` give way to them.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn new(
        compiled: &Compiled,
        groups: &Groups,
        (columns, device, used): (&Columns, usize, u64),
    ) -> Result<InMemory> {
        let head_bytes = match groups.place {
            Place::Hashed => 8 * groups.count as u64,
            Place::Listed => ALIGNMENT,
            _ => 0,
        };
        let bytes = head_bytes + groups.bytes(&compiled.totals) as u64;
        let memory = columns.allocate(device, bytes, Need::Query(used))?;
        let mut keys = Keys::default();
        if groups.place == Place::Hashed {
            (keys.address, keys.bits) = (memory.address, groups.count.ilog2());
        }
        Ok(InMemory {
            address: memory.address + head_bytes,
            counter: memory.address,
            memory,
            bytes,
            keys,
            slice: groups.slice,
        })
    }
}

/// Returns the kernel that adds the totals of a device's rows, to memory of the device or to its results: after each
/// of these turns of the tables of joins.
///
/// # Errors
/// If the columns of a file do not have the same rows.
pub(crate) fn last(
    resident: &[Resident],
    (compiled, groups, joins, turns): (&Compiled, &Groups, &Joins, &[Turn]),
    (spread, device): (&Spread, usize),
    totals: Option<&InMemory>,
    waits: bool,
) -> Result<Launch> {
    let mut launch = Launch {
        memory: joins.memory.iter().cloned().collect(),
        ..Launch::new(waits)
    };
    match totals {
        Some(totals) => {
            launch.zeroed = Some((totals.memory.clone(), totals.bytes));
            launch.memory.push(totals.memory.clone());
        }
        None => launch.results_bytes = groups.bytes(&compiled.totals),
    }
    let of = (resident, compiled, device);
    let is_sliced = joins.turns() > 1;
    // These marks are not read. They are behind all other results.
    let marks_at = launch
        .results_bytes
        .max(COUNTS_BYTES)
        .next_multiple_of(ALIGNMENT as usize);
    if is_sliced && compiled.mark_words > 0 {
        launch.results_bytes = marks_at + compiled.mark_words * 4;
    }
    for turn in turns {
        let tables = joins.tables(compiled, turn);
        if is_sliced {
            joins.make(&tables, of, &mut launch, marks_at)?;
        }
        let own = (groups.slice, groups.key_column);
        let kernel = KernelLaunch {
            own_keys: totals.map_or(Keys::default(), |it| it.keys),
            seen: totals.map_or(0, |it| it.counter),
            groups: groups.count as u32,
            totals: totals.map(|it| it.address),
            shared_bytes: groups.shared_bytes(compiled.totals.len()),
            addend_max: match groups.place {
                Place::OfAll | Place::Hashed | Place::Listed => 0,
                _ => compiled.addend_max,
            },
            matches_max: compiled.matches_max(),
            ..kernel(
                &mut launch,
                of,
                (&compiled.kernel, &tables, joins.partition(turn, None)),
                (own, Some(groups), Some(spread)),
            )?
        };
        launch.kernels.push(kernel);
        let words: usize = launch.kernels.iter().map(|it| it.tables.len()).sum();
        if is_sliced && 4 * words > TABLES_OF_VALUES_MAX {
            return Err(Reason::new(
                "tables of joins in slices, with many values of columns",
            ));
        }
    }
    Ok(launch)
}

/// Returns the numbers of rows of the chunks of a kernel, with 0 for those without rows that count in these slices.
pub(crate) fn chunks(
    compiled: &Compiled,
    (kernel, resident): (&Kernel, &Resident),
    slices: impl Iterator<Item = (Slice, Option<KeyColumn>)>,
) -> Result<Vec<Vec<u32>>> {
    let mut chunks = compiled.counting.rows(kernel.of_source, resident.chunks()?);
    for (slice, key) in slices {
        if let Some(key) = key {
            slice.keep(&key, resident, &mut chunks);
        }
    }
    Ok(chunks)
}

/// Returns the bytes of columns in chunks with rows.
pub(crate) fn bytes_read(resident: &Resident, columns: &[usize], chunks: &[Vec<u32>]) -> Bytes {
    let mut bytes = Bytes::default();
    for (of_file, rows) in resident.files.iter().zip(chunks) {
        for column in columns {
            let read = of_file[column].chunks.iter().zip(rows);
            let read = read.filter(|(_, rows)| **rows > 0);
            bytes += Bytes::of(read.map(|(chunk, _)| chunk));
        }
    }
    bytes
}

/// Returns a kernel of a device with tables of joins, without what groups need: over all rows, those of a partition, or
/// those that a spread gives the device, except chunks without rows of the slices. The launch holds its columns.
fn kernel(
    launch: &mut Launch,
    (resident, compiled, device): Of<'_>,
    (kernel, joins, partition): (&Kernel, &[Table<'_>], Option<&Resident>),
    ((slice, key_column), groups, spread): (
        (Slice, Option<KeyColumn>),
        Option<&Groups>,
        Option<&Spread>,
    ),
) -> Result<KernelLaunch> {
    let resident = partition.unwrap_or(&resident[kernel.of_source]);
    let of_joins = joins
        .iter()
        .map(|it| (it.slice, it.build.stored.key_column));
    let slices = of_joins.chain([(slice, key_column)]);
    let mut chunks = chunks(compiled, (kernel, resident), slices)?;
    if let Some(spread) = spread {
        spread.keep(device, &mut chunks);
    }
    let mut slices = joins.iter().map(|it| it.slice);
    let is_sliced = !slices.all(Slice::is_all) || !slice.is_all();
    let place = groups.map(|groups| groups.place);
    let program = (kernel.program(place, is_sliced), kernel.columns.len());
    let with = (kernel, joins, groups);
    let over = over(launch, (resident, device), chunks, with, program)?;
    Ok(KernelLaunch {
        own_slice: slice,
        ..over
    })
}

/// Returns what launches a program of a kernel over these rows of chunks. The program reads the first `columns`
/// columns of the kernel. The launch holds all of them.
fn over(
    launch: &mut Launch,
    (resident, device): (&Resident, usize),
    chunks: Vec<Vec<u32>>,
    (kernel, joins, groups): (&Kernel, &[Table<'_>], Option<&Groups>),
    (program, columns): (Program, usize),
) -> Result<KernelLaunch> {
    let of_keys = groups.map_or(&[][..], |groups| &groups.tables);
    let (tables, table_offsets) = tables(kernel, of_keys, chunks.len());
    let mut parts = Vec::new();
    for of_file in &resident.files {
        for column in &kernel.columns {
            let column = &of_file[column];
            if column.is_on_disk {
                return Err(Reason::no_room("columns of a join have no room in memory"));
            }
            parts.push(column.parts(device));
            launch.held.push(Arc::clone(column));
        }
    }
    let bytes = bytes_read(resident, &kernel.columns[..columns], &chunks);
    let mut constants = kernel.constants.clone();
    for (index, constant) in groups.into_iter().flat_map(|groups| &groups.constants) {
        constants[*index] = *constant;
    }
    Ok(KernelLaunch {
        chunks,
        columns,
        parts,
        bytes,
        tables,
        table_offsets,
        words: joins.iter().flat_map(|it| it.words.clone()).collect(),
        keys: joins.iter().map(|it| it.keys).collect(),
        slices: joins.iter().map(|it| it.slice).collect(),
        ..KernelLaunch::new(program, constants)
    })
}

/// Returns the offsets of the columns' tables, file by file, and the words of all.
fn tables(kernel: &Kernel, of_keys: &[(usize, Vec<u32>)], files: usize) -> (Vec<u32>, Vec<u32>) {
    let mut words: Vec<u32> = Vec::new();
    let mut firsts: HashMap<(usize, usize), u32> = HashMap::new();
    for (index, table) in kernel.tables.iter().enumerate() {
        let of_files: Vec<&Vec<u32>> = match table {
            domain::Table::All(of_all) => vec![of_all],
            domain::Table::File(of_files) => of_files.iter().collect(),
            domain::Table::Key(_) => {
                let of_key = of_keys.iter().find(|(table, _)| *table == index);
                of_key.iter().map(|(_, words)| words).collect()
            }
        };
        for (file, of_file) in of_files.into_iter().enumerate() {
            firsts.insert((index, file), words.len() as u32);
            words.extend(of_file);
        }
    }
    let mut offsets = Vec::new();
    for file in 0..files {
        offsets.extend(kernel.tables.iter().enumerate().map(|(index, table)| {
            let file = match table {
                domain::Table::File(_) => file,
                _ => 0,
            };
            // Tables of keys are known only once the groups are, and kernels do not read them before.
            firsts.get(&(index, file)).copied().unwrap_or(0)
        }));
    }
    (words, offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_tables_may_have_more_bytes_than_four_gib() {
        for (elements, bits) in [(1_u64 << 32, 8), (1 << 30, 32), (1 << 31, u64::BITS)] {
            let bytes = elements * u64::from(bits) / 8;
            assert!((bytes..bytes + 4 + ALIGNMENT).contains(&area(elements, bits)));
        }
    }
}
