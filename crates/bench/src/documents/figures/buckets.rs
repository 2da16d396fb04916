//! Figures 6, 7 and 8: exact searches, regular expressions, and devices joining and leaving, for each bucket size.

use anyhow::Result;

use super::fixture::{Fixture, RunningServer};
use super::samples::Samples;
use super::{ExpectedCounts, Figure, Figures, REGEX};
use crate::documents::random;
use crate::record::Measured;

/// The figures that this module measures.
pub const FIGURES: [Figure; 3] = [
    Figure::ExactByBucket,
    Figure::RegexByBucket,
    Figure::JoinLeave,
];
/// Number of documents for the paper's figures.
const DOCUMENTS: usize = 10_000_000;
/// Maximum values per bucket, as exponents of two.
const BUCKET_EXPONENTS: std::ops::RangeInclusive<u32> = 10..=19;
/// The exponents in a smoke run.
const SMOKE_EXPONENTS: std::ops::RangeInclusive<u32> = 10..=11;

/// Measures those of [`FIGURES`] that the run includes, in one sweep over the bucket sizes.
pub async fn measure(figures: &mut Figures) -> Result<()> {
    if figures.wants(&[Figure::JoinLeave]) && figures.devices.len() < 2 {
        figures.report.note("skipped: figure 8 needs two devices");
    }
    let documents = figures.at_most(DOCUMENTS);
    let mut fixture = Fixture::new(&figures.devices, random::one_field)?;
    fixture.grow(documents).await?;
    let expected = ExpectedCounts::of(documents)?;
    let exponents = if figures.smoke {
        SMOKE_EXPONENTS
    } else {
        BUCKET_EXPONENTS
    };
    let mut samples = Samples::default();
    for _ in 0..figures.rounds() {
        for exponent in exponents.clone() {
            let values_max = 1_usize << exponent;
            let setting = values_max.to_string();
            let server = fixture
                .serve(&["--documents-bucket-values-max", &setting])
                .await?;
            sweep_devices(figures, server, values_max, &expected, &mut samples).await?;
        }
    }
    samples.report(&mut figures.report)
}

/// Measures searches with one bucket size: with one device, with two devices, and so on. Then measures how long a
/// device takes to join and to leave.
async fn sweep_devices(
    figures: &Figures,
    mut server: RunningServer,
    values_max: usize,
    expected: &ExpectedCounts,
    samples: &mut Samples,
) -> Result<()> {
    server.cache("v").await?;
    for count in 1..=figures.devices.len() {
        server.set_devices(count).await?;
        searches(figures, &server, values_max, expected, samples).await?;
    }
    if figures.wants(&[Figure::JoinLeave]) && figures.devices.len() > 1 {
        server.set_devices(1).await?;
        let by = Measured {
            engine: "forebay",
            devices: &server.devices(),
            expect: None,
        };
        let joined = server.join().await?;
        samples.add(
            &format!("figure-8: one more joins/{values_max}"),
            by,
            "client_ms",
            joined,
        );
        let left = server.leave().await?;
        samples.add(
            &format!("figure-8: it leaves/{values_max}"),
            by,
            "client_ms",
            left,
        );
        server.regex_time(REGEX, expected.regex()).await?;
    }
    server.stop()
}

async fn searches(
    figures: &Figures,
    server: &RunningServer,
    values_max: usize,
    expected: &ExpectedCounts,
    samples: &mut Samples,
) -> Result<()> {
    let devices = server.devices();
    let by = |expect| Measured {
        engine: "forebay",
        devices: &devices,
        expect,
    };
    if figures.wants(&[Figure::ExactByBucket]) {
        let rate = server
            .exact_rate(&expected.known, figures.rate_duration())
            .await?;
        samples.add(
            &format!("figure-6/{values_max}"),
            by(None),
            "searches_per_s",
            rate,
        );
    }
    if figures.wants(&[Figure::RegexByBucket]) {
        let time = server.regex_time(REGEX, expected.regex()).await?;
        samples.add(
            &format!("figure-7/{values_max}"),
            by(Some(expected.regex())),
            "client_ms",
            time,
        );
    }
    Ok(())
}
