//! Figures 6, 7 and 8: exact searches, regular expressions, and devices that join and leave, by bucket size.

use anyhow::Result;

use super::bed::{Bed, Serving};
use super::samples::Samples;
use super::{Answers, Figure, Figures, REGEX};
use crate::documents::random;
use crate::record::Measured;

/// The figures of this sweep.
pub const FIGURES: [Figure; 3] = [
    Figure::ExactByBucket,
    Figure::RegexByBucket,
    Figure::JoinLeave,
];
/// Documents of the paper's figures.
const DOCUMENTS: usize = 10_000_000;
/// Most values in a bucket, as powers of two.
const BUCKET_EXPONENTS: std::ops::RangeInclusive<u32> = 10..=19;
/// The same in a run that only checks the definitions.
const SMOKE_EXPONENTS: std::ops::RangeInclusive<u32> = 10..=11;

/// Measures those that were asked for, in one sweep.
pub async fn measure(figures: &mut Figures) -> Result<()> {
    if figures.wants(&[Figure::JoinLeave]) && figures.devices.len() < 2 {
        figures.report.note("skipped: figure 8 needs two devices");
    }
    let documents = figures.at_most(DOCUMENTS);
    let mut bed = Bed::new(&figures.devices, random::one_field)?;
    bed.grow(documents).await?;
    let answers = Answers::of(documents)?;
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
            let serving = bed
                .serve(&["--documents-bucket-values-max", &setting])
                .await?;
            sweep_devices(figures, serving, values_max, &answers, &mut samples).await?;
        }
    }
    samples.report(&mut figures.report)
}

/// One bucket size with one device, two, and so on.
async fn sweep_devices(
    figures: &Figures,
    mut serving: Serving,
    values_max: usize,
    answers: &Answers,
    samples: &mut Samples,
) -> Result<()> {
    serving.cache("v").await?;
    for count in 1..=figures.devices.len() {
        serving.set_devices(count).await?;
        searches(figures, &serving, values_max, answers, samples).await?;
    }
    if figures.wants(&[Figure::JoinLeave]) && figures.devices.len() > 1 {
        serving.set_devices(1).await?;
        let by = Measured {
            engine: "forebay",
            devices: &serving.devices(),
            expect: None,
        };
        let joined = serving.join().await?;
        samples.add(
            &format!("figure-8: one more joins/{values_max}"),
            by,
            "client_ms",
            joined,
        );
        let left = serving.leave().await?;
        samples.add(
            &format!("figure-8: it leaves/{values_max}"),
            by,
            "client_ms",
            left,
        );
        serving.regex_time(REGEX, answers.regex()).await?;
    }
    serving.stop()
}

async fn searches(
    figures: &Figures,
    serving: &Serving,
    values_max: usize,
    answers: &Answers,
    samples: &mut Samples,
) -> Result<()> {
    let devices = serving.devices();
    let by = |expect| Measured {
        engine: "forebay",
        devices: &devices,
        expect,
    };
    if figures.wants(&[Figure::ExactByBucket]) {
        let rate = serving
            .exact_rate(&answers.known, figures.rate_duration())
            .await?;
        samples.add(
            &format!("figure-6/{values_max}"),
            by(None),
            "searches_per_s",
            rate,
        );
    }
    if figures.wants(&[Figure::RegexByBucket]) {
        let time = serving.regex_time(REGEX, answers.regex()).await?;
        samples.add(
            &format!("figure-7/{values_max}"),
            by(Some(answers.regex())),
            "client_ms",
            time,
        );
    }
    Ok(())
}
