//! The kernels of a fragment as they are run: first those that store the rows of joins in tables, then the one that
//! adds the totals.

use std::sync::Arc;

use crate::columns::{Columns, Resident};
use crate::engine::{KernelLaunch, Keys, Launch, Memory};
use crate::giving_way::Need;
use crate::groups::{Groups, Place};
use crate::load::tables;
use crate::program::Compiled;
use crate::reason::Reason;
use crate::source::{Build, Kernel};
use crate::spread::Spread;

type Result<T> = std::result::Result<T, Reason>;

/// Maximum bytes of the tables of a fragment's joins.
const TABLES_BYTES_MAX: u64 = 8 << 30;
/// Alignment of an array in these tables. Some bytes are behind each, so that kernels read whole words.
const ALIGNMENT: u64 = 256;

/// The tables of the joins of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    /// Addresses of the words, in the order of the joins.
    words: Vec<u64>,
    /// The keys of each join.
    keys: Vec<Keys>,
    memory: Option<Memory>,
}

/// Returns the kernels that store the rows of all joins on a device, and the tables that they fill. Columns that were
/// used before `used` give way to them.
///
/// # Errors
/// If there is no room for the tables.
pub(crate) fn joins_of(
    resident: &[Resident],
    compiled: &Compiled,
    (columns, device, used): (&Columns, usize, u64),
    waits: bool,
) -> Result<(Launch, Joins)> {
    let bytes: u64 = compiled.kernel.builds.iter().map(bytes_of).sum();
    if bytes > TABLES_BYTES_MAX {
        return Err(Reason::new("the tables of its joins are too large"));
    }
    let memory = columns.allocate(device, bytes, Need::Query(used))?;
    let mut launch = Launch {
        zeroed: Some((memory.clone(), bytes)),
        results_bytes: compiled.mark_words * 4,
        memory: vec![memory.clone()],
        ..Launch::new(waits)
    };
    let mut end = memory.address;
    let mut joins = Joins {
        memory: Some(memory),
        ..Joins::default()
    };
    for build in &compiled.kernel.builds {
        joins.add(&mut launch, (resident, compiled, device), build, &mut end)?;
    }
    Ok((launch, joins))
}

fn area(elements: u64, bits: u32) -> u64 {
    let bytes = elements.saturating_mul(bits.into()).div_ceil(8);
    (bytes + 4).next_multiple_of(ALIGNMENT)
}

/// Returns the bytes of the table of a join and of those of its rows.
fn bytes_of(build: &Build) -> u64 {
    let words = build.words.iter().filter(|bits| **bits > 1).chain([&1]);
    let words: u64 = words.map(|bits| area(build.elements, *bits)).sum();
    let own = words.saturating_add(match build.is_hashed {
        true => area(build.elements, u64::BITS),
        false => 0,
    });
    own.saturating_add(build.kernel.builds.iter().map(bytes_of).sum())
}

impl Joins {
    /// Adds the kernel of a join to a launch, behind those of its rows' joins.
    fn add(
        &mut self,
        launch: &mut Launch,
        of: (&[Resident], &Compiled, usize),
        build: &Build,
        end: &mut u64,
    ) -> Result<()> {
        let mut inner = Joins::default();
        for build in &build.kernel.builds {
            inner.add(launch, of, build, end)?;
        }
        let mut place = |bits| {
            let begin = *end;
            *end += area(build.elements, bits);
            begin
        };
        let seen = place(1);
        let own_words = build.words.iter().map(|bits| match bits {
            // The bit that tells whether there is a row.
            1 => seen,
            bits => place(*bits),
        });
        let own_words: Vec<u64> = own_words.collect();
        let own_keys = match build.is_hashed {
            true => Keys {
                address: place(u64::BITS),
                bits: build.elements.ilog2(),
            },
            false => Keys::default(),
        };
        self.words.extend(&own_words);
        self.keys.push(own_keys);
        let kernel = KernelLaunch {
            words: inner.words,
            keys: inner.keys,
            own_words,
            own_keys,
            seen,
            ..kernel(launch, of, &build.kernel, (None, None))?
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
        })
    }
}

/// Returns the kernel that adds the totals of a device's rows, to memory of the device or to its results.
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
    let kernel = KernelLaunch {
        words: joins.words.clone(),
        keys: joins.keys.clone(),
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
            (resident, compiled, device),
            &compiled.kernel,
            (Some(groups), Some(spread)),
        )?
    };
    launch.kernels.push(kernel);
    match totals {
        Some(totals) => {
            launch.zeroed = Some((totals.memory.clone(), totals.bytes));
            launch.memory.push(totals.memory.clone());
        }
        None => launch.results_bytes = groups.bytes(&compiled.totals),
    }
    Ok(launch)
}

/// Returns a kernel of a device without what joins and groups need: over all rows, or over those that a spread gives
/// the device. The launch holds its columns.
fn kernel(
    launch: &mut Launch,
    (resident, compiled, device): (&[Resident], &Compiled, usize),
    kernel: &Kernel,
    (groups, spread): (Option<&Groups>, Option<&Spread>),
) -> Result<KernelLaunch> {
    let resident = &resident[kernel.of_source];
    let mut chunks = compiled.counting.rows(kernel.of_source, resident.chunks()?);
    if let Some(spread) = spread {
        spread.keep(device, &mut chunks);
    }
    let of_keys = groups.map_or(&[][..], |groups| &groups.tables);
    let (tables, table_offsets) = tables(kernel, of_keys, chunks.len());
    let mut parts = Vec::new();
    for columns in &resident.files {
        for column in &kernel.columns {
            if columns[column].is_on_disk {
                return Err(Reason::new("columns of a join have no room in memory"));
            }
            parts.push(columns[column].parts(device));
            launch.held.push(Arc::clone(&columns[column]));
        }
    }
    let mut constants = kernel.constants.clone();
    for (index, constant) in groups.into_iter().flat_map(|groups| &groups.constants) {
        constants[*index] = *constant;
    }
    Ok(KernelLaunch {
        chunks,
        columns: kernel.columns.len(),
        parts,
        tables,
        table_offsets,
        ..KernelLaunch::new(kernel.program(groups.map(|groups| groups.place)), constants)
    })
}
