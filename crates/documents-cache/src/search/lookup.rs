//! Conditions that need no scan: binary searches in sorted segments.

use std::ops::Range;

use super::sink::Sink;
use crate::block::Block;
use crate::field::FieldState;
use crate::segment::Segment;

/// Adds the rows whose value is `value`. Adds no more rows of sorted segments once the sink has `limit` rows.
pub(super) fn equal(field: &FieldState, value: &[u8], sink: &mut Sink, limit: usize) {
    let position = field.directory.position(value);
    let bucket = &field.directory.buckets()[position];
    for segment in bucket.segments.iter().chain(field.runs.iter()) {
        add_rows(segment, segment.block().rows_equal(value), sink, limit);
    }
    add_unsorted(&field.open, |row| row == value, value.len(), sink);
}

/// Adds the rows whose value begins with `prefix`. Adds no more rows of sorted segments once the sink has `limit` rows.
pub(super) fn prefix(field: &FieldState, prefix: &[u8], sink: &mut Sink, limit: usize) {
    let positions = field.directory.positions(prefix);
    let buckets = &field.directory.buckets()[positions];
    let segments = buckets.iter().flat_map(|bucket| &bucket.segments);
    for segment in segments.chain(field.runs.iter()) {
        add_rows(
            segment,
            rows_with_prefix(segment.block(), prefix),
            sink,
            limit,
        );
    }
    add_unsorted(&field.open, |row| row.starts_with(prefix), 0, sink);
}

/// Adds live rows until the sink has `limit` rows.
fn add_rows(segment: &Segment, rows: Range<usize>, sink: &mut Sink, limit: usize) {
    let room = limit.saturating_sub(usize::try_from(sink.count()).unwrap_or(usize::MAX));
    if room >= rows.len() {
        sink.add_rows(segment, rows);
    } else {
        let live = rows.filter(|row| !segment.is_deleted(*row)).take(room);
        live.for_each(|row| sink.add_row(segment, row));
    }
}

/// Returns the rows of a sorted block whose values begin with `prefix`; all rows if `prefix` is empty.
pub(super) fn rows_with_prefix(block: &Block, prefix: &[u8]) -> Range<usize> {
    if prefix.is_empty() {
        0..block.len()
    } else {
        block.rows_with_prefix(prefix)
    }
}

/// Adds the rows of the open chunk that match. Skips values shorter than `len`, which cannot match.
fn add_unsorted(open: &Segment, matches: impl Fn(&[u8]) -> bool, len: usize, sink: &mut Sink) {
    let block = open.block();
    for row in 0..block.len() {
        if block.value_len(row) >= len && matches(block.value(row)) && !open.is_deleted(row) {
            sink.add_row(open, row);
        }
    }
}
