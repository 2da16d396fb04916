//! Figures 9 to 12: exact searches and regular expressions by documents, over devices and beside rivals.

use anyhow::Result;

use super::bed::{self, Serving};
use super::samples::Samples;
use super::{Answers, Figure, Figures, REGEX, rivals};
use crate::documents::random;
use crate::record::Measured;

/// The figures of this sweep.
pub const FIGURES: [Figure; 4] = [
    Figure::ExactBySize,
    Figure::RegexBySize,
    Figure::ExactBesideRivals,
    Figure::RegexBesideRivals,
];
/// Documents of the paper's figures.
const DOCUMENTS: [usize; 4] = [100_000, 1_000_000, 10_000_000, 100_000_000];
/// The same in a run that only checks the definitions.
const SMOKE_DOCUMENTS: [usize; 2] = [random::BATCH, 2 * random::BATCH];

/// Measures those that were asked for, in one sweep over a collection that grows.
pub async fn measure(figures: &mut Figures) -> Result<()> {
    let mut serving = Serving::in_memory(&figures.devices).await?;
    let mut filled = 0;
    let sizes: &[usize] = if figures.smoke {
        &SMOKE_DOCUMENTS
    } else {
        &DOCUMENTS
    };
    let max = match figures.documents_max {
        Some(max) if !figures.smoke => max,
        _ => usize::MAX,
    };
    for &documents in sizes {
        if documents > max {
            figures.report.note(&format!(
                "skipped: {documents} documents are more than --rows allows"
            ));
            break;
        }
        if let Some(why) = bed::cannot_hold(documents - filled) {
            figures.report.note(&why);
            break;
        }
        serving.insert(filled..documents, random::one_field).await?;
        filled = documents;
        serving.cache("v").await?;
        let answers = Answers::of(documents)?;
        if figures.wants(&[Figure::ExactBySize, Figure::RegexBySize]) {
            sweep_devices(figures, &mut serving, documents, &answers).await?;
        }
        if figures.wants(&[Figure::ExactBesideRivals, Figure::RegexBesideRivals]) {
            rivals::measure(figures, &mut serving, documents, &answers).await?;
        }
    }
    serving.stop()
}

/// One number of documents with one device, two, and so on.
async fn sweep_devices(
    figures: &mut Figures,
    serving: &mut Serving,
    documents: usize,
    answers: &Answers,
) -> Result<()> {
    let mut samples = Samples::default();
    for _ in 0..figures.rounds() {
        for count in 1..=figures.devices.len() {
            serving.set_devices(count).await?;
            let devices = serving.devices();
            let by = |expect| Measured {
                engine: "forebay",
                devices: &devices,
                expect,
            };
            if figures.wants(&[Figure::ExactBySize]) {
                let rate = serving
                    .exact_rate(&answers.known, figures.rate_duration())
                    .await?;
                samples.add(
                    &format!("figure-9/{documents}"),
                    by(None),
                    "searches_per_s",
                    rate,
                );
            }
            if figures.wants(&[Figure::RegexBySize]) {
                let time = serving.regex_time(REGEX, answers.regex()).await?;
                let by = by(Some(answers.regex()));
                samples.add(&format!("figure-10/{documents}"), by, "client_ms", time);
            }
        }
    }
    samples.report(&mut figures.report)
}
