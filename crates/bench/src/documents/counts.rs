//! Measures counts of names that match a pattern. Compares counts of all names with ripgrep, and counts of a million
//! names with FerretDB.

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

/// Number of rounds. Each round measures one device, ripgrep and two devices, so that other load on the machine affects
/// all three alike.
const ROUNDS: usize = 9;
/// Repetitions of each count in a round.
const ROUND_REPEAT: Repeat = Repeat {
    count: 3,
    budget: Duration::from_secs(5),
};
/// Repetitions of a count with FerretDB. They are few, because each count takes half a minute.
const FERRETDB_REPEAT: Repeat = Repeat {
    count: 3,
    budget: Duration::from_secs(20),
};
/// Collection of a million names, for the comparison with FerretDB.
const MILLION: &str = "million";

/// Measures every case with one device, with ripgrep on one thread, and with two devices, in every round.
pub async fn beside_ripgrep(session: &mut Session) -> Result<()> {
    session.server.wait_until_idle().await;
    let mut times: Vec<CaseTimes> = COUNT_CASES.iter().map(|_| CaseTimes::default()).collect();
    for _ in 0..if session.smoke { 1 } else { ROUNDS } {
        client::remove_last_device(&session.client).await?;
        for (case, times) in COUNT_CASES.iter().zip(&mut times) {
            let (count, time) = count_with_forebay(session, case).await?;
            times.one.push(time);
            times
                .ripgrep
                .push(count_with_ripgrep(session, case, count)?);
        }
        client::add_device(&session.client, "host:1").await?;
        for (case, times) in COUNT_CASES.iter().zip(&mut times) {
            let (count, time) = count_with_forebay(session, case).await?;
            times.two.push(time);
            times.count = count;
        }
    }
    for (case, times) in COUNT_CASES.iter().zip(&times) {
        report(session, case.case, times)?;
    }
    Ok(())
}

/// Latencies of a case in milliseconds, one per round.
#[derive(Default)]
struct CaseTimes {
    one: Vec<f64>,
    two: Vec<f64>,
    ripgrep: Vec<f64>,
    count: u64,
}

/// Counts with Forebay. Returns the count and the median latency.
async fn count_with_forebay(session: &Session, case: &CountCase) -> Result<(u64, f64)> {
    let (db, filter) = (session.database(), case.filter());
    let (count, time) = timed::count(&db, NAMES, &filter, Plan::Chosen, ROUND_REPEAT).await?;
    check_expectation(session, case, count)?;
    Ok((count, time.median))
}

/// Counts with ripgrep, and checks that its count equals `found`. Returns the median time in milliseconds.
fn count_with_ripgrep(session: &Session, case: &CountCase, found: u64) -> Result<f64> {
    let (pattern, ignore_case) = (case.pattern, case.ignore_case);
    let (expected, time) =
        timed::ripgrep_count(&session.names_file, pattern, ignore_case, ROUND_REPEAT)?;
    ensure!(
        found == expected,
        "{}: Forebay counts {found} matches, ripgrep {expected}",
        case.case
    );
    Ok(time.median)
}

fn report(session: &mut Session, case: &str, times: &CaseTimes) -> Result<()> {
    let version = ripgrep::version()?;
    let times_as_fast = |ours: &[f64], others: &[f64]| -> Vec<f64> {
        let rounds = ours.iter().zip(others);
        rounds.map(|(ours, other)| other / ours).collect()
    };
    let beside_ripgrep = times_as_fast(&times.one, &times.ripgrep);
    let beside_one = times_as_fast(&times.two, &times.one);
    for (engine, devices, metric, samples) in [
        ("forebay", "host:1", "client_ms", &times.one),
        (&version, "1 thread", "process_ms", &times.ripgrep),
        ("forebay", "host:1", "times_ripgrep", &beside_ripgrep),
        ("forebay", "host:2", "client_ms", &times.two),
        ("forebay", "host:2", "times_one_device", &beside_one),
    ] {
        let by = Measured {
            engine,
            devices,
            expect: Some(times.count),
        };
        let summary = Summary::of(samples).context("no round was timed")?;
        session.report.add(case, by, metric, summary)?;
    }
    Ok(())
}

/// Checks a count of the real names against the expected count.
fn check_expectation(session: &Session, case: &CountCase, count: u64) -> Result<()> {
    let known = !session.smoke && session.names.len() == NAMES_COUNT;
    ensure!(
        !known || count == case.expect,
        "{}: Forebay counts {count} matches instead of {}",
        case.case,
        case.expect
    );
    Ok(())
}

/// Compares the latency of counts in FerretDB and in Forebay. Both hold the same million names, and get the same
/// commands from the same driver.
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

/// Returns the number of names for the comparison with FerretDB.
pub fn million(session: &Session) -> usize {
    if session.smoke {
        session.names.len() / 10
    } else {
        FERRETDB_NAMES
    }
}

/// Runs the same counts in Forebay (database `ours`), and directly in FerretDB (database `theirs`). In the record, the
/// names of the cases start with `prefix`.
///
/// # Errors
/// If a count fails, or Forebay and FerretDB count differently.
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
        "{}: Forebay counts {found} matches, FerretDB {expected}",
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
    forebay_terminal::note(format_args!(
        "{name:22} {:.0} times as fast as FerretDB",
        rival.median / time.median
    ));
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
