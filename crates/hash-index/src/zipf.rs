//! Random numbers by Zipf's distribution.

/// Zipf's distribution of ranks: the probability of the k-th rank is proportional to `1 / k^exponent`, for k from 1
/// to a count.
///
/// # Sources
/// Rejection-inversion: Hörmann and Derflinger, *Rejection-inversion to generate variates from monotone discrete
/// distributions*, 1996. The area below the continuous function is inverted, and a rank is rejected if the area
/// lies outside its bar of the discrete function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zipf {
    count: f64,
    exponent: f64,
    /// The area up to the end of the first rank's bar, less the bar, and the area up to the end of the last one's.
    areas: (f64, f64),
    /// Distance below which a rank is accepted without its area.
    near: f64,
}

impl Zipf {
    /// Returns the distribution of `count` ranks.
    ///
    /// # Panics
    /// If there are no ranks, or the exponent is negative or not a number.
    pub(crate) fn new(count: u64, exponent: f64) -> Zipf {
        assert!(count > 0 && exponent >= 0.0, "{count} ranks, {exponent}");
        let mut zipf = Zipf {
            count: count as f64,
            exponent,
            areas: (0.0, 0.0),
            near: 0.0,
        };
        zipf.areas = (zipf.area(1.5) - 1.0, zipf.area(zipf.count + 0.5));
        zipf.near = 2.0 - zipf.place(zipf.area(2.5) - zipf.height(2.0));
        zipf
    }

    /// Returns a random rank; 0 is the most frequent one. `draw` returns uniform random numbers from 0 to 1.
    pub(crate) fn rank(&self, mut draw: impl FnMut() -> f64) -> u64 {
        let (first, last) = self.areas;
        loop {
            let area = last + draw() * (first - last);
            let place = self.place(area);
            let rank = place.round().clamp(1.0, self.count);
            let is_near = rank - place <= self.near;
            if is_near || area >= self.area(rank + 0.5) - self.height(rank) {
                return rank as u64 - 1;
            }
        }
    }

    /// Returns `x^-exponent`.
    fn height(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// Returns the area below the function from 1 to `x`.
    fn area(&self, x: f64) -> f64 {
        let (power, log) = (1.0 - self.exponent, x.ln());
        match power == 0.0 {
            true => log,
            false => (power * log).exp_m1() / power,
        }
    }

    /// Returns the `x` up to which the area below the function is `area`.
    fn place(&self, area: f64) -> f64 {
        let power = 1.0 - self.exponent;
        match power == 0.0 {
            true => area.exp(),
            // Rounding may give a logarithm of a number just below zero.
            false => ((area * power).max(-1.0).ln_1p() / power).exp(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_frequent_as_the_formula_says() {
        const DRAWS: usize = 200_000;
        for (count, exponent) in [
            (1, 1.0),
            (2, 0.5),
            (10, 0.0),
            (10, 1.0),
            (50, 1.25),
            (9, 1.75),
        ] {
            let zipf = Zipf::new(count, exponent);
            let mut random = fastrand::Rng::with_seed(7);
            let mut found = vec![0_u32; count as usize];
            for _ in 0..DRAWS {
                found[zipf.rank(|| random.f64()) as usize] += 1;
            }
            let weight = |rank: usize| (rank as f64 + 1.0).powf(-exponent);
            let sum: f64 = (0..found.len()).map(weight).sum();
            for (rank, found) in found.iter().enumerate() {
                let expected = weight(rank) / sum * DRAWS as f64;
                // Six standard deviations.
                let tolerance = 6.0 * expected.sqrt() + 1.0;
                assert!(
                    (f64::from(*found) - expected).abs() < tolerance,
                    "rank {rank} of {count}, exponent {exponent}: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn ranks_of_large_counts_are_in_range() {
        for exponent in [0.0, 0.5, 1.0, 1.75] {
            let zipf = Zipf::new(1 << 31, exponent);
            for random in [0.0, 0.25, 0.5, 0.75, 1.0] {
                let (mut first, mut others) = (Some(random), fastrand::Rng::with_seed(7));
                let rank = zipf.rank(|| first.take().unwrap_or_else(|| others.f64()));
                assert!(rank < 1 << 31, "{random}: {rank}");
            }
        }
    }
}
