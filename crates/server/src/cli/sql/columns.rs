//! Which columns of a table a terminal has room for, and how wide they are.

/// Minimum width to which a column is narrowed.
const WIDTH_MIN: usize = 8;
/// Width to which a column of numbers is narrowed at most: a number that is cut says little.
const NUMBER_WIDTH_MIN: usize = 24;
/// Maximum width if the output is not a terminal. A longer cell moves the cells at its right.
const WIDTH_MAX: usize = 1_000;
/// Columns of a terminal that a column takes besides its width: a space on both sides, and a line.
const BORDER: usize = 3;

/// A column that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Index of the column; `None` in place of those that are left out.
    pub index: Option<usize>,
    /// Width of its cells.
    pub width: usize,
    /// Whether its cells are aligned at their right.
    pub is_number: bool,
}

/// Chooses columns and widths. `widths` are the widths of whole cells. If they need more than `room`, columns become
/// narrower. If that is not enough, columns in the middle are left out.
pub fn fit(widths: &[usize], numbers: &[bool], room: Option<usize>) -> Vec<Shown> {
    let shown = |index: usize| Shown {
        index: Some(index),
        width: widths[index].min(room.unwrap_or(WIDTH_MAX)),
        is_number: numbers[index],
    };
    let mut columns: Vec<Shown> = (0..widths.len()).map(shown).collect();
    let Some(room) = room else {
        return columns;
    };
    if taken(&columns, least) > room {
        columns = leave_out(&columns, room);
    }
    narrow(&mut columns, room);
    columns
}

/// Returns the columns of a terminal that a table takes.
fn taken(columns: &[Shown], width: impl Fn(&Shown) -> usize) -> usize {
    let widths: usize = columns.iter().map(|column| width(column) + BORDER).sum();
    // No line is at the right of the last column.
    widths.saturating_sub(1)
}

/// Returns the width to which a column may be narrowed.
fn least(column: &Shown) -> usize {
    let min = match column.is_number {
        true => NUMBER_WIDTH_MIN,
        false => WIDTH_MIN,
    };
    column.width.min(min)
}

/// Returns as many columns of the start and of the end as there is room for, at least one, and a gap between them.
fn leave_out(columns: &[Shown], room: usize) -> Vec<Shown> {
    let gap = Shown {
        index: None,
        width: 1,
        is_number: false,
    };
    let pick = |count: usize| -> Vec<Shown> {
        let (start, end) = (count.div_ceil(2), count / 2);
        let end = &columns[columns.len() - end..];
        [&columns[..start], &[gap], end].concat()
    };
    let fits = |count: &usize| taken(&pick(*count), least) <= room;
    let most = (1..columns.len()).take_while(fits).last();
    match columns {
        [only] => vec![*only],
        _ => pick(most.unwrap_or(1)),
    }
}

/// Narrows the widest columns until the table fits.
fn narrow(columns: &mut [Shown], room: usize) {
    let widest = columns.iter().map(|column| column.width.min(room)).max();
    let narrowed = |column: &Shown, max: usize| column.width.min(max.max(least(column)));
    let fits = |max: &usize| taken(columns, |column| narrowed(column, *max)) <= room;
    let max = (1..=widest.unwrap_or(0)).rev().find(fits).unwrap_or(1);
    for column in columns.iter_mut() {
        column.width = narrowed(column, max);
    }
    // The least width of the only column that is left may still be too much for a narrow terminal.
    let surplus = taken(columns, |column| column.width).saturating_sub(room);
    if let Some(first) = columns.first_mut() {
        first.width = first.width.saturating_sub(surplus).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(columns: &[Shown]) -> Vec<usize> {
        columns.iter().map(|column| column.width).collect()
    }

    #[test]
    fn the_widest_columns_are_narrowed() {
        let numbers = [true, false, false];
        let columns = fit(&[10, 100, 20], &numbers, Some(80));
        assert_eq!(widths(&columns), [10, 42, 20]);
        assert_eq!(taken(&columns, |column| column.width), 80);
        assert_eq!(widths(&fit(&[10, 100, 20], &numbers, None)), [10, 100, 20]);
        assert_eq!(widths(&fit(&[5, 5, 5], &numbers, Some(80))), [5, 5, 5]);
        assert_eq!(widths(&fit(&[1 << 20], &[true], None)), [WIDTH_MAX]);
    }

    #[test]
    fn columns_in_the_middle_are_left_out() {
        let columns = fit(&[20; 30], &[false; 30], Some(80));
        let indexes: Vec<_> = columns.iter().map(|column| column.index).collect();
        assert_eq!(
            indexes,
            [
                Some(0),
                Some(1),
                Some(2),
                Some(3),
                None,
                Some(27),
                Some(28),
                Some(29)
            ]
        );
    }

    #[test]
    fn every_table_fits() {
        for room in [10, 20, 33, 80, 200] {
            for count in 1..40 {
                for width in [1, 7, 12, 90] {
                    let numbers: Vec<bool> = (0..count).map(|index| index % 2 == 0).collect();
                    let columns = fit(&vec![width; count], &numbers, Some(room));
                    let taken = taken(&columns, |column| column.width);
                    assert!(
                        taken <= room,
                        "{count} columns of {width} in {room}: {taken}"
                    );
                }
            }
        }
    }
}
