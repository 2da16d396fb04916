//! Figures 9 to 12: exact searches and regular expressions, for each number of documents. Figures 9 and 10 vary the
//! number of devices. Figures 11 and 12 compare Forebay with rivals.

use anyhow::Result;

use super::fixture::{self, RunningServer};
use super::samples::Samples;
use super::{ExpectedCounts, Figure, Figures, REGEX, rivals};
use crate::documents::random;
use crate::record::Measured;

/// The figures that this module measures.
pub const FIGURES: [Figure; 4] = [
    Figure::ExactBySize,
    Figure::RegexBySize,
    Figure::ExactBesideRivals,
    Figure::RegexBesideRivals,
];
/// Numbers of documents in the paper's figures.
const DOCUMENTS: [usize; 4] = [100_000, 1_000_000, 10_000_000, 100_000_000];
/// Numbers of documents in a smoke run.
const SMOKE_DOCUMENTS: [usize; 2] = [random::BATCH, 2 * random::BATCH];

/// Measures those of [`FIGURES`] that the run includes, in one sweep over a growing collection.
pub async fn measure(figures: &mut Figures) -> Result<()> {
    let mut server = RunningServer::in_memory(&figures.devices).await?;
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
        if let Some(why) = fixture::cannot_hold(documents - filled) {
            figures.report.note(&why);
            break;
        }
        server.insert(filled..documents, random::one_field).await?;
        filled = documents;
        server.cache("v").await?;
        let expected = ExpectedCounts::of(documents)?;
        if figures.wants(&[Figure::ExactBySize, Figure::RegexBySize]) {
            sweep_devices(figures, &mut server, documents, &expected).await?;
        }
        if figures.wants(&[Figure::ExactBesideRivals, Figure::RegexBesideRivals]) {
            rivals::measure(figures, &mut server, documents, &expected).await?;
        }
    }
    server.stop()
}

/// Measures searches in a collection of one size: with one device, with two devices, and so on.
async fn sweep_devices(
    figures: &mut Figures,
    server: &mut RunningServer,
    documents: usize,
    expected: &ExpectedCounts,
) -> Result<()> {
    let mut samples = Samples::default();
    for _ in 0..figures.rounds() {
        for count in 1..=figures.devices.len() {
            server.set_devices(count).await?;
            let devices = server.devices();
            let by = |expect| Measured {
                engine: "forebay",
                devices: &devices,
                expect,
            };
            if figures.wants(&[Figure::ExactBySize]) {
                let rate = server
                    .exact_rate(&expected.known, figures.rate_duration())
                    .await?;
                samples.add(
                    &format!("figure-9/{documents}"),
                    by(None),
                    "searches_per_s",
                    rate,
                );
            }
            if figures.wants(&[Figure::RegexBySize]) {
                let time = server.regex_time(REGEX, expected.regex()).await?;
                let by = by(Some(expected.regex()));
                samples.add(&format!("figure-10/{documents}"), by, "client_ms", time);
            }
        }
    }
    samples.report(&mut figures.report)
}
