//! `forebay bench documents --figure`: what figures 6 to 13 of the paper show, on the devices of this machine.
//!
//! The documents, the searches and the sizes are the paper's (section 4): random values of eight letters, an exact
//! search and a regular expression, buckets of 2^10 to 2^19 values, 100 thousand to 100 million documents.

mod bed;
mod buckets;
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

/// Devices, if nothing else is said.
const DEVICES: &str = "host:2";
/// The regular expression of figures 7 and 10; the paper does not tell its own. An automaton without a literal to look
/// for.
const REGEX: &str = "a.*[xyz].*q";
/// The patterns of figure 12 by name: the one above, one of alternatives, and a rare literal, which an index of
/// trigrams finds without reading the values.
const PATTERNS: [(&str, &str); 3] = [
    ("regex", REGEX),
    ("alternatives", "(ab|cd|ef)[aeiou]"),
    ("substring", "fore"),
];
/// Values that exact searches look for in turn.
const KNOWN_VALUES: usize = 64;

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Figure {
    /// Exact searches by bucket size.
    #[value(name = "6")]
    ExactByBucket,
    /// Regular expressions by bucket size.
    #[value(name = "7")]
    RegexByBucket,
    /// Time in which a device joins and leaves, by bucket size.
    #[value(name = "8")]
    JoinLeave,
    /// Exact searches by documents and devices.
    #[value(name = "9")]
    ExactBySize,
    /// Regular expressions by documents and devices.
    #[value(name = "10")]
    RegexBySize,
    /// Exact searches by documents, beside rivals with an index.
    #[value(name = "11")]
    ExactBesideRivals,
    /// Regular expressions by documents, beside rivals.
    #[value(name = "12")]
    RegexBesideRivals,
    /// Inserts with no to five cached fields, beside indexed fields and rivals.
    #[value(name = "13")]
    Writes,
    /// All of them.
    All,
}

/// A run: which figures, of what size, and what was found so far.
struct Figures {
    wanted: Vec<Figure>,
    smoke: bool,
    documents_max: Option<usize>,
    devices: Vec<String>,
    report: Report,
}

/// Measures the figures that were asked for.
///
/// # Errors
/// If a server or a rival fails, or a search does not find what it must.
pub async fn measure(args: &DocumentsArgs) -> Result<Vec<Record>> {
    let devices = bed::each_device(args.devices.as_deref().unwrap_or(DEVICES))?;
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
    /// Whether any of these was asked for.
    fn wants(&self, any: &[Figure]) -> bool {
        let all = self.wanted.contains(&Figure::All);
        all || any.iter().any(|figure| self.wanted.contains(figure))
    }

    /// The paper's number of documents, or fewer.
    fn at_most(&self, documents: usize) -> usize {
        match (self.smoke, self.documents_max) {
            (true, _) => BATCH,
            (false, Some(max)) => documents.min(max),
            (false, None) => documents,
        }
    }

    /// How often the compared take turns.
    fn rounds(&self) -> usize {
        if self.smoke { 1 } else { 3 }
    }

    /// How often a search is repeated in a round.
    fn repeat(&self, repeat: Repeat) -> Repeat {
        let once = Repeat {
            count: 1,
            budget: Duration::ZERO,
        };
        if self.smoke { once } else { repeat }
    }

    /// How long a rate is measured.
    fn rate_duration(&self) -> Duration {
        Duration::from_millis(if self.smoke { 50 } else { 1_000 })
    }
}

/// What searches of so many documents must find.
struct Answers {
    /// Values, each with how many documents have it.
    known: Vec<(String, u64)>,
    /// How many documents match each of [`PATTERNS`].
    patterns: Vec<u64>,
}

impl Answers {
    fn of(documents: usize) -> Result<Answers> {
        let programs = PATTERNS.iter().map(|(_, pattern)| program(pattern));
        let programs = programs.collect::<Result<Vec<Program>>>()?;
        Ok(Answers {
            known: known_values(documents, KNOWN_VALUES),
            patterns: expected(documents, &programs),
        })
    }

    /// How many documents match [`REGEX`].
    fn regex(&self) -> u64 {
        self.patterns[0]
    }
}
