//! The kernels of a fragment as they are run: first those that store the rows of joins in tables, then the one that
//! adds the totals.

use std::sync::Arc;

use crate::column::Bytes;
use crate::columns::{Columns, Resident};
use crate::engine::{KernelLaunch, Keys, Launch, Memory};
use crate::giving_way::Need;
use crate::groups::{Groups, Place};
use crate::load::tables;
use crate::program::Compiled;
use crate::reason::Reason;
use crate::selection::COUNTS_BYTES;
use crate::slice::{HASH_PLACES, KeyColumn, SLICES_MAX, Slice};
use crate::source::{Build, Kernel};
use crate::spread::Spread;

type Result<T> = std::result::Result<T, Reason>;
/// Columns of the sources, kernels, and the device that runs them.
type Of<'a> = (&'a [Resident], &'a Compiled, usize);

/// Alignment of an array in the tables of joins. Some bytes are behind each, so that kernels read whole words.
const ALIGNMENT: u64 = if cfg!(test) { 16 } else { 256 };

/// The memory of the tables of a kernel's joins. Tables that have no room as a whole are made slice by slice, and the
/// kernel runs after each.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    memory: Option<Memory>,
    bytes: u64,
    /// Number of slices of the table of each join.
    counts: Vec<u64>,
    /// The slices of all tables, for each time that they are made.
    turns: Vec<Vec<Slice>>,
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
    slice: Slice,
}

fn area(elements: u64, bits: u32) -> u64 {
    let bytes = elements.saturating_mul(bits.into()).div_ceil(8);
    (bytes + 4).next_multiple_of(ALIGNMENT)
}

/// Returns the number of elements of one of so many slices of a table.
fn elements_of(build: &Build, slices: u64) -> u64 {
    let elements = build.stored.elements.div_ceil(slices);
    match build.stored.is_hashed {
        true => elements.next_power_of_two(),
        false => elements,
    }
}

/// Returns the bytes of a slice of the table of a join, and of the tables of its rows.
fn bytes_of(build: &Build, slices: u64) -> u64 {
    let elements = elements_of(build, slices);
    let words = build.words.iter().filter(|bits| **bits > 1).chain([&1]);
    let words: u64 = words.map(|bits| area(elements, *bits)).sum();
    let own = words.saturating_add(match build.stored.is_hashed {
        true => area(elements, u64::BITS),
        false => 0,
    });
    let of_rows = build.kernel.builds.iter().map(|it| bytes_of(it, 1));
    own.saturating_add(of_rows.sum())
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
        let room = columns.room_of_tables(device);
        // The first join whose slices have the same rows as those of each join.
        let of_first: Vec<usize> = builds
            .iter()
            .enumerate()
            .map(|(index, build)| {
                let first = builds[..index]
                    .iter()
                    .position(|it| build.has_slices_of(it));
                first.unwrap_or(index)
            })
            .collect();
        let mut counts = vec![1; builds.len()];
        let bytes = loop {
            let of_each = builds
                .iter()
                .zip(&counts)
                .map(|(build, count)| bytes_of(build, *count));
            let mut of_firsts = vec![0; builds.len()];
            for (bytes, first) in of_each.zip(&of_first) {
                of_firsts[*first] += bytes;
            }
            let bytes = of_firsts.iter().sum();
            if bytes <= room {
                break bytes;
            }
            // Those that take most are divided further.
            let largest = (0..builds.len())
                .max_by_key(|index| of_firsts[*index])
                .unwrap_or(0);
            for (count, first) in counts.iter_mut().zip(&of_first) {
                *count += u64::from(*first == largest);
            }
            let firsts = (0..builds.len()).filter(|index| of_first[*index] == *index);
            if firsts.map(|index| counts[index]).product::<u64>() > SLICES_MAX {
                let text = format!(
                    "the tables of its joins need {bytes} bytes, and there is room for {room}"
                );
                return Err(Reason::new(text));
            }
        };
        let mut turns = vec![vec![Slice::default(); builds.len()]];
        for (index, build) in builds.iter().enumerate() {
            let places = match build.stored.is_hashed {
                true => HASH_PLACES,
                false => build.stored.elements,
            };
            let of = counts[index];
            let slices = (0..of).map(|slice| Slice::nth(slice, of, places));
            if of_first[index] != index {
                turns
                    .iter_mut()
                    .for_each(|turn| turn[index] = turn[of_first[index]]);
                continue;
            }
            turns = slices
                .flat_map(|slice| {
                    turns.iter().cloned().map(move |mut turn| {
                        turn[index] = slice;
                        turn
                    })
                })
                .collect();
        }
        Ok(Joins {
            memory: Some(columns.allocate(device, bytes, Need::Query(used))?),
            bytes,
            counts,
            turns,
        })
    }

    /// Returns how often the tables are made: once if they are whole.
    pub(crate) fn turns(&self) -> usize {
        self.turns.len().max(1)
    }

    /// Returns the kernels that make the tables, one slice after the other.
    ///
    /// # Errors
    /// If the columns of a file do not have the same rows.
    pub(crate) fn made(&self, of: Of<'_>, waits: bool) -> Result<Launch> {
        let mut launch = Launch {
            results_bytes: of.1.mark_words * 4,
            memory: self.memory.iter().cloned().collect(),
            ..Launch::new(waits)
        };
        for turn in &self.turns {
            self.make(&self.tables(of.1, turn), of, &mut launch, 0)?;
        }
        Ok(launch)
    }

    /// Returns the tables with these slices.
    fn tables<'a>(&self, compiled: &'a Compiled, turn: &[Slice]) -> Vec<Table<'a>> {
        let mut end = self.memory.as_ref().map_or(0, |it| it.address);
        let builds = compiled.kernel.builds.iter().zip(turn).zip(&self.counts);
        builds
            .map(|((build, slice), count)| Table::new(build, (*slice, *count), &mut end))
            .collect()
    }

    /// Adds the kernels that make tables to a launch. They write marks of keys to results from `marks_at` on.
    fn make(
        &self,
        tables: &[Table<'_>],
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
    /// Places one of so many slices of a table at an address, behind the tables of its rows.
    fn new(build: &'a Build, (slice, count): (Slice, u64), end: &mut u64) -> Table<'a> {
        let joins = build.kernel.builds.iter();
        let joins = joins
            .map(|it| Table::new(it, (Slice::default(), 1), end))
            .collect();
        let elements = elements_of(build, count);
        let mut place = |bits| {
            let begin = *end;
            *end += area(elements, bits);
            begin
        };
        let seen = place(1);
        let words = build.words.iter().map(|bits| match bits {
            // The bit that tells whether there is a row.
            1 => seen,
            bits => place(*bits),
        });
        Table {
            build,
            joins,
            words: words.collect(),
            keys: match build.stored.is_hashed {
                true => Keys {
                    address: place(u64::BITS),
                    bits: elements.ilog2(),
                },
                false => Keys::default(),
            },
            seen,
            slice,
        }
    }

    /// Adds the kernel that makes the table to a launch, behind those of its rows' joins.
    fn make(&self, launch: &mut Launch, of: Of<'_>, marks_at: usize) -> Result<()> {
        for join in &self.joins {
            join.make(launch, of, marks_at)?;
        }
        let own = (self.slice, self.build.stored.own_column);
        let kernel = KernelLaunch {
            own_words: self.words.clone(),
            own_keys: self.keys,
            seen: self.seen,
            results_at: marks_at,
            ..kernel(
                launch,
                of,
                (&self.build.kernel, &self.joins),
                (own, None, None),
            )?
        };
        launch.kernels.push(kernel);
        Ok(())
    }
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

/// Returns the kernel that adds the totals of a device's rows, to memory of the device or to its results: once, or after
/// each slice of the tables of joins.
///
/// # Errors
/// If the columns of a file do not have the same rows.
pub(crate) fn last(
    resident: &[Resident],
    (compiled, groups, joins): (&Compiled, &Groups, &Joins),
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
    // Nobody reads these marks. They are behind all other results.
    let marks_at = launch
        .results_bytes
        .max(COUNTS_BYTES)
        .next_multiple_of(ALIGNMENT as usize);
    if is_sliced && compiled.mark_words > 0 {
        launch.results_bytes = marks_at + compiled.mark_words * 4;
    }
    let whole = [Vec::new()];
    let turns = if joins.turns.is_empty() {
        &whole[..]
    } else {
        &joins.turns
    };
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
            ..kernel(
                &mut launch,
                of,
                (&compiled.kernel, &tables),
                (own, Some(groups), Some(spread)),
            )?
        };
        launch.kernels.push(kernel);
    }
    Ok(launch)
}

/// Returns a kernel of a device with tables of joins, without what groups need: over all rows, or over those that a
/// spread gives the device, but chunks without rows of the slices. The launch holds its columns.
fn kernel(
    launch: &mut Launch,
    (resident, compiled, device): Of<'_>,
    (kernel, joins): (&Kernel, &[Table<'_>]),
    ((slice, key_column), groups, spread): (
        (Slice, Option<KeyColumn>),
        Option<&Groups>,
        Option<&Spread>,
    ),
) -> Result<KernelLaunch> {
    let resident = &resident[kernel.of_source];
    let mut chunks = compiled.counting.rows(kernel.of_source, resident.chunks()?);
    if let Some(spread) = spread {
        spread.keep(device, &mut chunks);
    }
    let of_joins = joins
        .iter()
        .map(|it| (it.slice, it.build.stored.key_column));
    for (slice, key) in of_joins.chain([(slice, key_column)]) {
        if let Some(key) = key {
            slice.keep(&key, resident, &mut chunks);
        }
    }
    let mut slices = joins.iter().map(|it| it.slice);
    let is_sliced = !slices.all(Slice::is_all) || !slice.is_all();
    let of_keys = groups.map_or(&[][..], |groups| &groups.tables);
    let (tables, table_offsets) = tables(kernel, of_keys, chunks.len());
    let (mut parts, mut bytes) = (Vec::new(), Bytes::default());
    for (columns, rows) in resident.files.iter().zip(&chunks) {
        for column in &kernel.columns {
            if columns[column].is_on_disk {
                return Err(Reason::new("columns of a join have no room in memory"));
            }
            let read = columns[column]
                .chunks
                .iter()
                .zip(rows)
                .filter(|(_, rows)| **rows > 0);
            bytes += Bytes::of(read.map(|(chunk, _)| chunk));
            parts.push(columns[column].parts(device));
            launch.held.push(Arc::clone(&columns[column]));
        }
    }
    let mut constants = kernel.constants.clone();
    for (index, constant) in groups.into_iter().flat_map(|groups| &groups.constants) {
        constants[*index] = *constant;
    }
    let place = groups.map(|groups| groups.place);
    Ok(KernelLaunch {
        chunks,
        columns: kernel.columns.len(),
        parts,
        bytes,
        tables,
        table_offsets,
        words: joins.iter().flat_map(|it| it.words.clone()).collect(),
        keys: joins.iter().map(|it| it.keys).collect(),
        slices: joins.iter().map(|it| it.slice).collect(),
        own_slice: slice,
        ..KernelLaunch::new(kernel.program(place, is_sliced), constants)
    })
}
