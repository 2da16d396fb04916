//! Counts by pattern, beside ripgrep over a file and beside FerretDB over a million documents.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bson::Document;
use forebay_peers::client::{self, Plan};
use forebay_peers::ferretdb::{self, FerretDb};
use forebay_peers::ripgrep;
use mongodb::Database;

use super::cases::{COUNT_CASES, CountCase, FERRETDB_CASES, FERRETDB_NAMES};
use super::session::{NAMES, Session};
use crate::data::NAMES_COUNT;
use crate::record::Measured;
use crate::statistics::{Repeat, Summary};
use crate::timed;

/// Rounds in which one device, ripgrep and two devices take turns, so that a busy moment of the machine meets all.
const ROUNDS: usize = 9;
/// Runs of each in a round.
const ROUND_REPEAT: Repeat = Repeat {
    count: 3,
    budget: Duration::from_secs(5),
};
/// Runs of FerretDB: each takes half a minute.
const FERRETDB_REPEAT: Repeat = Repeat {
    count: 3,
    budget: Duration::from_secs(20),
};
/// The collection of the million names.
const MILLION: &str = "million";

/// Every case with one device, by ripgrep with one thread, and with two devices, in every round.
pub async fn beside_ripgrep(session: &mut Session) -> Result<()> {
    session.server.rest().await;
    let mut turns: Vec<Turns> = COUNT_CASES.iter().map(|_| Turns::default()).collect();
    for _ in 0..if session.smoke { 1 } else { ROUNDS } {
        client::remove_last_device(&session.client).await?;
        for (case, turns) in COUNT_CASES.iter().zip(&mut turns) {
            let (count, time) = count_here(session, case).await?;
            turns.one.push(time);
            turns.ripgrep.push(count_there(session, case, count)?);
        }
        client::add_device(&session.client, "host:1").await?;
        for (case, turns) in COUNT_CASES.iter().zip(&mut turns) {
            let (count, time) = count_here(session, case).await?;
            turns.two.push(time);
            turns.count = count;
        }
    }
    for (case, turns) in COUNT_CASES.iter().zip(&turns) {
        report(session, case.case, turns)?;
    }
    Ok(())
}

/// The times of a case, one a round, in milliseconds.
#[derive(Default)]
struct Turns {
    one: Vec<f64>,
    two: Vec<f64>,
    ripgrep: Vec<f64>,
    count: u64,
}

/// What is found, and the median time of a few runs.
async fn count_here(session: &Session, case: &CountCase) -> Result<(u64, f64)> {
    let (db, filter) = (session.database(), case.filter());
    let (count, time) = timed::count(&db, NAMES, &filter, Plan::Chosen, ROUND_REPEAT).await?;
    check_expectation(session, case, count)?;
    Ok((count, time.median))
}

/// The same of ripgrep, which has to find as much.
fn count_there(session: &Session, case: &CountCase, found: u64) -> Result<f64> {
    let (pattern, ignore_case) = (case.pattern, case.ignore_case);
    let (expected, time) =
        timed::ripgrep_count(&session.names_file, pattern, ignore_case, ROUND_REPEAT)?;
    ensure!(
        found == expected,
        "{}: {found} by Forebay, {expected} by ripgrep",
        case.case
    );
    Ok(time.median)
}

fn report(session: &mut Session, case: &str, turns: &Turns) -> Result<()> {
    let version = ripgrep::version()?;
    let times_as_fast = |ours: &[f64], others: &[f64]| -> Vec<f64> {
        let rounds = ours.iter().zip(others);
        rounds.map(|(ours, other)| other / ours).collect()
    };
    let beside_ripgrep = times_as_fast(&turns.one, &turns.ripgrep);
    let beside_one = times_as_fast(&turns.two, &turns.one);
    for (engine, devices, metric, samples) in [
        ("forebay", "host:1", "client_ms", &turns.one),
        (&version, "1 thread", "process_ms", &turns.ripgrep),
        ("forebay", "host:1", "times_ripgrep", &beside_ripgrep),
        ("forebay", "host:2", "client_ms", &turns.two),
        ("forebay", "host:2", "times_one_device", &beside_one),
    ] {
        let by = Measured {
            engine,
            devices,
            expect: Some(turns.count),
        };
        let summary = Summary::of(samples).context("at least one round")?;
        session.report.add(case, by, metric, summary)?;
    }
    Ok(())
}

/// On the real names the count is known beforehand.
fn check_expectation(session: &Session, case: &CountCase, count: u64) -> Result<()> {
    let known = !session.smoke && session.names.len() == NAMES_COUNT;
    ensure!(
        !known || count == case.expect,
        "{}: {count} instead of {}",
        case.case,
        case.expect
    );
    Ok(())
}

/// A million names in FerretDB and here, through the same driver and the same command.
pub async fn beside_ferretdb(session: &mut Session) -> Result<()> {
    let count = million(session);
    let rival = FerretDb::start()?;
    let rival_client = client::connect(rival.uri()).await?;
    let theirs = rival_client.database(super::session::DATABASE);
    let ours = session.database();
    for db in [&ours, &theirs] {
        client::insert_all(
            &db.collection(MILLION),
            session.some_names(count),
            &session.progress(count),
        )
        .await?;
    }
    client::declare_cache(&ours, MILLION, "name").await?;
    compare_with_ferretdb(session, MILLION, MILLION, &ours, &theirs).await?;
    ours.collection::<Document>(MILLION).drop().await?;
    Ok(())
}

/// As many names as FerretDB is given.
pub fn million(session: &Session) -> usize {
    match session.smoke {
        true => session.names.len() / 10,
        false => FERRETDB_NAMES,
    }
}

/// Counts by Forebay and by FerretDB alone over the same names; `prefix` begins the names of the cases.
///
/// # Errors
/// If a count fails, or the two differ.
pub async fn compare_with_ferretdb(
    session: &mut Session,
    prefix: &str,
    collection: &str,
    ours: &Database,
    theirs: &Database,
) -> Result<()> {
    let both = [ours, theirs];
    let cases = COUNT_CASES.iter();
    for case in cases.filter(|case| FERRETDB_CASES.contains(&case.case)) {
        compare_case(session, prefix, collection, case, both).await?;
    }
    Ok(())
}

async fn compare_case(
    session: &mut Session,
    prefix: &str,
    collection: &str,
    case: &CountCase,
    [ours, theirs]: [&Database; 2],
) -> Result<()> {
    let filter = case.filter();
    let (found, time) = timed::count(ours, collection, &filter, Plan::Chosen, ROUND_REPEAT).await?;
    let (expected, rival) =
        timed::count(theirs, collection, &filter, Plan::Chosen, FERRETDB_REPEAT).await?;
    ensure!(
        found == expected,
        "{}: {found} by Forebay, {expected} by FerretDB",
        case.case
    );
    let name = format!("{prefix}-{}", case.case);
    let engine = format!("FerretDB {} SQLite", ferretdb::VERSION);
    let expect = Some(found);
    let forebay = Measured {
        engine: "forebay",
        devices: super::session::HOST_DEVICES,
        expect,
    };
    session.report.add(&name, forebay, "client_ms", time)?;
    session.report.add(
        &name,
        Measured {
            engine: &engine,
            devices: "its own",
            expect,
        },
        "client_ms",
        rival,
    )?;
    eprintln!("{name:22} {:.0} times FerretDB", rival.median / time.median);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ferretdb_case_is_a_case() {
        assert!(
            FERRETDB_CASES
                .iter()
                .all(|name| COUNT_CASES.iter().any(|case| case.case == *name))
        );
    }

    #[test]
    fn generated_names_meet_the_patterns_so_that_a_smoke_run_checks_something() {
        let names = crate::data::generated_names(20_000);
        assert!(names.iter().any(|name| name.contains("react")));
        assert!(names.iter().any(|name| name.contains("webpack-plugin")));
    }
}
