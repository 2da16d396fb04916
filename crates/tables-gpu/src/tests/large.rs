//! Numbers of rows, groups and bytes that need more than 32 bits, without the memory that they would take.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
use datafusion::arrow::datatypes::DataType;
use forebay_device::cuda::{Program, ProgramSpec};
use forebay_movement::Tier;

use crate::column::{Chunk, Column};
use crate::columns::Resident;
use crate::engine::{KernelLaunch, Memory};
use crate::groups::{Groups, Key, Place, RowTexts, Values};
use crate::joined::{SLOTS_MAX, capacity};
use crate::packed::{CHUNK_ROWS, Packer, Unpackable, words_of};
use crate::program::Total;
use crate::slice::{KeyColumn, Slice};

/// A total of 64 bits.
const TOTAL: Total = Total {
    is_maximum: false,
    word: 0,
    is_wide: false,
};

fn memory(address: u64) -> Memory {
    Memory {
        address,
        device: 0,
        tier: Tier::Device,
        held: Arc::new(()),
    }
}

/// Returns a full chunk of numbers from the first on.
fn chunk(first: i64) -> Chunk {
    let range = (first, first + CHUNK_ROWS as i64 - 1);
    Chunk::at(memory(1 << 40), CHUNK_ROWS as u32, None, (range, 32))
}

#[test]
fn words_are_found_behind_four_gib() {
    let behind = memory(1 << 40).at_word(1 << 31);
    assert_eq!(behind.address, (1 << 40) + (1 << 33));
    let valid = memory(1 << 40).at_word(5 << 30);
    let chunk = Chunk {
        valid: Some(valid),
        ..chunk(0)
    };
    assert_eq!(chunk.first_valid(), Some(5 << 30));
    let valid = chunk.moved(memory(1 << 42)).valid;
    assert_eq!(valid.map(|it| it.address), Some((1 << 42) + (5 << 32)));
    assert_eq!(words_of(1 << 31, 64), (1 << 32, 1 << 26));
}

#[test]
fn texts_of_four_billion_rows_are_those_of_their_rows() {
    // The first of each chunk. No others are looked up.
    let column = |text: &str, chunks: usize| {
        let chunk = Chunk {
            texts: Some(StringArray::from(vec![text; 8])),
            ..chunk(0)
        };
        Arc::new(Column::new(vec![chunk; chunks], Arc::default()))
    };
    // The first file has 2^32 rows.
    let files = [column("low", 1 << 14), column("high", 1)];
    let texts = RowTexts::new(&files, DataType::Utf8);
    assert_eq!(texts.rows(), (1 << 32) + CHUNK_ROWS as u64);
    assert_eq!(texts.firsts(), [0, 1 << 32]);
    let last = (1 << 32) - CHUNK_ROWS as u64;
    let taken = Values::Rows(texts).take(vec![5, last, 1 << 32, (1 << 32) + 7]);
    let wanted: ArrayRef = Arc::new(StringArray::from(vec!["low", "low", "high", "high"]));
    assert_eq!(&taken.expect("texts"), &wanted);
}

/// Returns a key of this many numbers.
fn key(count: i64, constant: usize) -> Key {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
    Key::new(Values::Array(numbers), constant)
}

#[test]
fn groups_have_more_combinations_than_four_billion() {
    let rows = 1 << 33;
    let keys = [key(1 << 17, 0), key(1 << 16, 1)];
    let groups = Groups::new(&keys, &[TOTAL], (rows, rows), None);
    let mut groups = groups.expect("33 bits");
    assert_eq!(groups.place, Place::Hashed);
    assert_eq!(groups.combinations, 1 << 33);
    // Kernels know slots, and rows of lists, by numbers of 32 bits.
    let mut lists = Groups::listed(&[TOTAL], (rows, rows), None, true);
    for groups in [&mut groups, &mut lists] {
        assert!(u32::try_from(groups.count).is_ok());
        while groups.grow(&[TOTAL], u64::MAX).is_ok() {
            assert!(u32::try_from(groups.count).is_ok());
        }
    }
    assert_eq!(capacity(1 << 30).ok(), Some(SLOTS_MAX));
    assert_eq!(capacity(1 << 32).ok(), None);
    assert_eq!(capacity(1 << 33).ok(), None);
}

#[test]
fn totals_of_groups_have_more_bytes_than_four_gib() {
    let rows = 1 << 30;
    let keys = [key(1 << 15, 0), key(1 << 15, 1)];
    let groups = Groups::new(&keys, &[TOTAL], (rows, rows), None);
    let groups = groups.expect("30 bits");
    assert_eq!((groups.place, groups.count), (Place::OfAll, 1 << 30));
    assert_eq!(groups.bytes(&[TOTAL]), 1 << 33);
    // In slices that have room.
    let slices = groups.sliced(&[TOTAL], 5 << 30, (1, 64));
    let mut end = 0;
    for slice in &slices {
        assert_eq!(slice.slice.first, end);
        assert!(slice.bytes(&[TOTAL]) <= 5 << 30);
        end += slice.count as u64;
    }
    assert_eq!((slices.len(), end), (2, 1 << 30));
}

#[test]
fn slices_begin_behind_four_billion_places() {
    let key = KeyColumn {
        column: 0,
        first: -7,
        places: 1 << 34,
    };
    // The chunk is in the third of four slices.
    let column = Column::new(vec![chunk(1 << 33)], Arc::default());
    let resident = Resident {
        files: vec![HashMap::from([(0, Arc::new(column))])],
    };
    let has_rows = (0..4).map(|index| {
        let mut rows = [vec![CHUNK_ROWS as u32]];
        Slice::nth(index, 4, 1 << 34).keep(&key, &resident, &mut rows);
        rows[0][0] > 0
    });
    assert_eq!(has_rows.collect::<Vec<_>>(), [false, false, true, false]);
}

#[test]
fn sums_of_four_billion_rows_are_checked() {
    let program = Program::new(ProgramSpec {
        name: String::new(),
        source: "".into(),
        headers: Vec::new(),
        options: Vec::new(),
        entries: Vec::new(),
    });
    let mut kernel = KernelLaunch::new(program, Vec::new());
    kernel.addend_max = 1 << 31;
    assert!(kernel.check_sums(1 << 31).is_ok());
    assert!(kernel.check_sums(1 << 32).is_err());
    assert!(kernel.check_sums(1 << 33).is_err());
    kernel.matches_max = 1 << 33;
    assert!(kernel.check_sums(1).is_err());
}

/// The texts of a chunk have offsets of 32 bits on a device, also with a separator behind each.
#[test]
fn texts_of_a_chunk_have_fewer_bytes_than_four_gib() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(1 << 20)]));
    let mut packer = Packer::default();
    let mut pushed = 0;
    let error = loop {
        match packer.push_rows(&texts) {
            Ok(_) => pushed += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Unpackable::LongTexts);
    assert!((pushed << 20) + CHUNK_ROWS < u32::MAX as usize, "{pushed}");
}
