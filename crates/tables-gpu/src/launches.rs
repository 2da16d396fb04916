//! The kernels of a fragment as they are run: first those that store the rows of joins in tables, then the one that
//! adds the totals.

use std::sync::Arc;

use crate::columns::{Columns, Resident};
use crate::engine::{KernelLaunch, Launch, Memory};
use crate::groups::{Groups, Place};
use crate::load::tables;
use crate::program::{Compiled, group_words};
use crate::reason::Reason;
use crate::source::{Build, Kernel};

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
    memory: Option<Memory>,
}

/// Returns the kernels that store the rows of all joins, and the tables that they fill. Columns that were used before
/// `used` give way to them.
///
/// # Errors
/// If there is no room for the tables.
pub(crate) fn joins_of(
    resident: &[Resident],
    compiled: &Compiled,
    (columns, used): (&Columns, u64),
    waits: bool,
) -> Result<(Launch, Joins)> {
    let bytes: u64 = compiled.kernel.builds.iter().map(bytes_of).sum();
    if bytes > TABLES_BYTES_MAX {
        return Err(Reason::new("the tables of its joins are too large"));
    }
    let memory = columns.allocate(bytes, used)?;
    let mut launch = Launch {
        zeroed: Some((memory.clone(), bytes)),
        results_bytes: compiled.mark_words * 4,
        memory: vec![memory.clone()],
        ..Launch::new(waits)
    };
    let mut end = memory.address;
    let mut words = Vec::new();
    for build in &compiled.kernel.builds {
        words.extend(add(&mut launch, (resident, compiled), build, &mut end)?);
    }
    let memory = Some(memory);
    Ok((launch, Joins { words, memory }))
}

fn area(elements: u64, bits: u32) -> u64 {
    let bytes = elements.saturating_mul(bits.into()).div_ceil(8);
    (bytes + 4).next_multiple_of(ALIGNMENT)
}

/// Returns the bytes of the table of a join and of those of its rows.
fn bytes_of(build: &Build) -> u64 {
    let words = build.words.iter().filter(|bits| **bits > 1).chain([&1]);
    let own: u64 = words.map(|bits| area(build.elements, *bits)).sum();
    own.saturating_add(build.kernel.builds.iter().map(bytes_of).sum())
}

/// Adds the kernel of a join, behind those of its rows' joins. Returns the addresses of its words.
fn add(
    launch: &mut Launch,
    of: (&[Resident], &Compiled),
    build: &Build,
    end: &mut u64,
) -> Result<Vec<u64>> {
    let mut words = Vec::new();
    for inner in &build.kernel.builds {
        words.extend(add(launch, of, inner, end)?);
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
    let kernel = KernelLaunch {
        words,
        own_words: own_words.clone(),
        seen,
        ..kernel(launch, of, &build.kernel, None)?
    };
    launch.kernels.push(kernel);
    Ok(own_words)
}

/// Returns the kernel that adds the totals, to the memory `totals` or to its results.
///
/// # Errors
/// If the columns of a file do not have the same rows.
pub(crate) fn last(
    resident: &[Resident],
    (compiled, groups, joins): (&Compiled, &Groups, &Joins),
    totals: Option<&Memory>,
    waits: bool,
) -> Result<Launch> {
    let mut launch = Launch {
        memory: joins.memory.iter().cloned().collect(),
        ..Launch::new(waits)
    };
    let kernel = KernelLaunch {
        words: joins.words.clone(),
        groups: groups.count as u32,
        totals: totals.map(|it| it.address),
        shared_bytes: groups.shared_bytes(compiled.totals.len()),
        addend_max: match groups.place {
            Place::OfAll => 0,
            _ => compiled.addend_max,
        },
        ..kernel(
            &mut launch,
            (resident, compiled),
            &compiled.kernel,
            Some(groups),
        )?
    };
    launch.kernels.push(kernel);
    let bytes = groups.count * 8 * group_words(&compiled.totals);
    match totals {
        Some(totals) => {
            launch.zeroed = Some((totals.clone(), bytes as u64));
            launch.memory.push(totals.clone());
        }
        None => launch.results_bytes = bytes,
    }
    Ok(launch)
}

/// Returns a kernel without what joins and groups need. The launch holds its columns.
fn kernel(
    launch: &mut Launch,
    (resident, compiled): (&[Resident], &Compiled),
    kernel: &Kernel,
    groups: Option<&Groups>,
) -> Result<KernelLaunch> {
    let resident = &resident[kernel.of_source];
    let chunks = compiled.counting.rows(kernel.of_source, resident.chunks()?);
    let of_keys = groups.map_or(&[][..], |groups| &groups.tables);
    let (tables, table_offsets) = tables(kernel, of_keys, chunks.len());
    let mut parts = Vec::new();
    for columns in &resident.files {
        for column in &kernel.columns {
            parts.push(columns[column].parts());
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
