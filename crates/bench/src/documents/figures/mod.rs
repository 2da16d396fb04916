//! `forebay bench documents --figure`: measures figures 6 to 13 of the paper on the devices of this machine.
//!
//! The documents, the searches and the sizes are the paper's (section 4): random values of eight letters, an exact
//! search and a regular expression, buckets of 2^10 to 2^19 values, 100 thousand to 100 million documents.

mod buckets;
mod fixture;
mod rivals;
mod samples;
mod sizes;
mod writes;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use forebay_text::Program;

use super::DocumentsArgs;
use super::random::{BATCH, expected, known_values, program};
use super::report::Report;
use crate::record::Record;
use crate::statistics::Repeat;

/// Default devices.
const DEVICES: &str = "host:2";
/// Regular expression of figures 7 and 10. It is ours, because the paper does not print the one that it measured. It
/// has no required literal that a search could use.
const REGEX: &str = "a.*[xyz].*q";
/// Patterns of figure 12 by name: the regular expression above, one with alternatives, and a rare literal. For the rare
/// literal, a trigram index reads only a few values.
const PATTERNS: [(&str, &str); 3] = [
    ("regex", REGEX),
    ("alternatives", "(ab|cd|ef)[aeiou]"),
    ("substring", "fore"),
];
/// Number of values that exact searches look for in rotation.
const KNOWN_VALUES: usize = 64;

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Figure {
    /// Exact searches, for each bucket size.
    #[value(name = "6")]
    ExactByBucket,
    /// Regular expressions, for each bucket size.
    #[value(name = "7")]
    RegexByBucket,
    /// Time for a device to join and to leave, for each bucket size.
    #[value(name = "8")]
    JoinLeave,
    /// Exact searches, for each number of documents and devices.
    #[value(name = "9")]
    ExactBySize,
    /// Regular expressions, for each number of documents and devices.
    #[value(name = "10")]
    RegexBySize,
    /// Exact searches, for each number of documents, compared with programs that have an index.
    #[value(name = "11")]
    ExactBesideRivals,
    /// Regular expressions, for each number of documents, compared with other programs.
    #[value(name = "12")]
    RegexBesideRivals,
    /// Inserts with zero to five cached fields, compared with indexed fields and other programs.
    #[value(name = "13")]
    Writes,
    /// All figures.
    All,
}

/// A benchmark run: the figures to measure, the size of the run, and the results so far.
struct Figures {
    wanted: Vec<Figure>,
    smoke: bool,
    documents_max: Option<usize>,
    devices: Vec<String>,
    report: Report,
}

/// Measures the figures named in `args`.
///
/// # Errors
/// If a server or a rival fails, or a search returns a wrong count.
pub async fn measure(args: &DocumentsArgs) -> Result<Vec<Record>> {
    let devices = fixture::each_device(args.devices.as_deref().unwrap_or(DEVICES))?;
    let mut figures = Figures {
        wanted: args.figure.clone(),
        smoke: args.smoke,
        documents_max: args.rows,
        devices,
        report: Report::begin(args),
    };
    if figures.wants(&buckets::FIGURES) {
        buckets::measure(&mut figures).await?;
    }
    if figures.wants(&sizes::FIGURES) {
        sizes::measure(&mut figures).await?;
    }
    if figures.wants(&[Figure::Writes]) {
        writes::measure(&mut figures).await?;
    }
    Ok(figures.report.finish())
}

impl Figures {
    /// Returns whether the run includes any of these figures.
    fn wants(&self, any: &[Figure]) -> bool {
        let all = self.wanted.contains(&Figure::All);
        all || any.iter().any(|figure| self.wanted.contains(figure))
    }

    /// Returns `documents`, or the run's maximum number of documents if that is smaller.
    fn at_most(&self, documents: usize) -> usize {
        match (self.smoke, self.documents_max) {
            (true, _) => BATCH,
            (false, Some(max)) => documents.min(max),
            (false, None) => documents,
        }
    }

    /// Returns the number of rounds; each round measures all programs once.
    fn rounds(&self) -> usize {
        if self.smoke { 1 } else { 3 }
    }

    /// Returns `repeat`, or a single repetition if this is a smoke run.
    fn repeat(&self, repeat: Repeat) -> Repeat {
        let once = Repeat {
            count: 1,
            budget: Duration::ZERO,
        };
        if self.smoke { once } else { repeat }
    }

    /// Returns the duration of a rate measurement.
    fn rate_duration(&self) -> Duration {
        Duration::from_millis(if self.smoke { 50 } else { 1_000 })
    }
}

/// Expected counts of searches in a generated collection.
struct ExpectedCounts {
    /// Values, each with the number of documents that have it.
    known: Vec<(String, u64)>,
    /// For each of [`PATTERNS`], the number of documents that match it.
    patterns: Vec<u64>,
}

impl ExpectedCounts {
    fn of(documents: usize) -> Result<ExpectedCounts> {
        let programs = PATTERNS.iter().map(|(_, pattern)| program(pattern));
        let programs = programs.collect::<Result<Vec<Program>>>()?;
        Ok(ExpectedCounts {
            known: known_values(documents, KNOWN_VALUES),
            patterns: expected(documents, &programs),
        })
    }

    /// Returns the number of documents that match [`REGEX`].
    fn regex(&self) -> u64 {
        self.patterns[0]
    }
}
