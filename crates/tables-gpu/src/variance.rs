//! Variances of integers and decimals, from exact sums.
//!
//! A kernel adds the distances from the smallest value and the two halves of their squares. The variance does not
//! depend on where distances begin, and the difference of `n` times the sum of squares and the square of the sum is
//! computed without rounding, so that large values with a small variance lose nothing.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::CastExpr;

use crate::scanned::Scanned;

/// The functions with the number of rows, the mean, and the sum of squares of differences as states.
pub(crate) const VARIANCES: [&str; 4] = ["var", "var_pop", "stddev", "stddev_pop"];

/// Maximum distance, so that a square has 63 bits.
pub(crate) const DISTANCE_MAX: i128 = 3_037_000_499;
/// Maximum number of rows: products of it with a sum of squares have 127 bits.
pub(crate) const ROWS_MAX: u64 = 1 << 32;
/// Bits of the lower half of a square.
pub(crate) const HALF_BITS: u32 = 32;

/// What distances and their sums mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Distances {
    /// The smallest value, from which distances are.
    pub(crate) first: i64,
    /// The exponent of the power of ten that divides values.
    pub(crate) exponent: u32,
}

/// The sums of a group with rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) rows: u64,
    pub(crate) distances: i128,
    /// Of the upper and of the lower halves of squares.
    pub(crate) squares: [i128; 2],
}

impl Distances {
    fn power(self) -> f64 {
        10_f64.powi(self.exponent as i32)
    }

    /// Returns the mean of the values.
    pub(crate) fn mean(self, of: Sums) -> f64 {
        let sum = of.distances + i128::from(self.first) * i128::from(of.rows);
        sum as f64 / of.rows as f64 / self.power()
    }

    /// Returns the sum of the squares of differences from the mean.
    pub(crate) fn sum_of_squares(self, of: Sums) -> f64 {
        let rows = i128::from(of.rows);
        let squares = (of.squares[0] << HALF_BITS) + of.squares[1];
        let times_rows = (rows * squares).cast_unsigned() - of.distances.unsigned_abs().pow(2);
        times_rows as f64 / rows as f64 / self.power() / self.power()
    }
}

/// Returns the integers that an expression makes floats of; `None` if it is another.
pub(crate) fn integers<'a>(
    expr: &'a Arc<dyn PhysicalExpr>,
    scanned: &Scanned,
) -> Option<&'a Arc<dyn PhysicalExpr>> {
    let (inner, _) = decimals(expr, scanned)?;
    let data_type = inner.data_type(&scanned.schema).ok()?;
    data_type.is_integer().then_some(inner)
}

/// Returns the integers or decimals that an expression makes floats of, with their scale; `None` if it is another.
pub(crate) fn decimals<'a>(
    expr: &'a Arc<dyn PhysicalExpr>,
    scanned: &Scanned,
) -> Option<(&'a Arc<dyn PhysicalExpr>, u32)> {
    let cast = expr.downcast_ref::<CastExpr>()?;
    let scale = match cast.expr().data_type(&scanned.schema).ok()? {
        DataType::Decimal128(_, scale) => scale.try_into().ok()?,
        data_type if data_type.is_integer() => 0,
        _ => return None,
    };
    (*cast.cast_type() == DataType::Float64).then(|| (cast.expr(), scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(distances: &[i64], times: u64) -> Sums {
        let all = |of: fn(i64) -> i64| -> i128 {
            distances
                .iter()
                .map(|it| i128::from(of(*it)) * i128::from(times))
                .sum()
        };
        Sums {
            rows: distances.len() as u64 * times,
            distances: all(|it| it),
            squares: [
                all(|it| (it * it) >> HALF_BITS),
                all(|it| (it * it) & 0xFFFF_FFFF),
            ],
        }
    }

    #[test]
    fn variances_of_large_values_lose_nothing() {
        let distances = Distances {
            first: 1_700_000_000_000,
            exponent: 2,
        };
        let of = sums(&[0, 100, 200, 300], 1);
        assert_eq!(distances.mean(of), 17_000_000_001.5);
        assert_eq!(distances.sum_of_squares(of), 5.0);
    }

    #[test]
    fn the_most_rows_of_the_largest_distances_have_room() {
        let most = DISTANCE_MAX as i64;
        let distances = Distances {
            first: 0,
            exponent: 0,
        };
        let of = sums(&[0, most], ROWS_MAX / 2);
        let expected = ROWS_MAX as f64 * (most as f64 / 2.0).powi(2);
        assert!((distances.sum_of_squares(of) / expected - 1.0).abs() < 1e-15);
    }
}
