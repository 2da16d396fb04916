//! Counts by pattern, beside ripgrep over a file and beside FerretDB over a million documents.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use mongodb::Database;

use super::cases::{COUNT_CASES, CountCase, FERRETDB_CASES, FERRETDB_NAMES};
use super::session::{NAMES, Session};
use crate::client::{self, Plan};
use crate::data::NAMES_COUNT;
use crate::record::Measured;
use crate::rivals::ferretdb::{self, FerretDb};
use crate::rivals::ripgrep;
use crate::statistics::{Repeat, Summary};

/// Rounds in which Forebay and ripgrep take turns, so that a busy moment of the machine meets both.
const ROUNDS: usize = 7;
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

/// Every case with two devices and with one, and by ripgrep with one thread.
pub async fn beside_ripgrep(session: &mut Session) -> Result<()> {
    let two = measure_round(session, 2).await?;
    let removed = remove_one_device(session).await?;
    let one = measure_round(session, 1).await?;
    if removed {
        add_device(session).await?;
    }
    if !session.smoke {
        summarise(&two, &one);
    }
    Ok(())
}

/// The time of each case by Forebay and by ripgrep, in milliseconds.
type Round = Vec<(&'static str, f64, f64)>;

async fn measure_round(session: &mut Session, devices: usize) -> Result<Round> {
    let mut round = Vec::new();
    for case in &COUNT_CASES {
        let (forebay, ripgrep) = measure_case(session, case, devices).await?;
        round.push((case.case, forebay.median, ripgrep.median));
    }
    Ok(round)
}

/// Forebay and ripgrep in turns on one case.
async fn measure_case(
    session: &mut Session,
    case: &CountCase,
    devices: usize,
) -> Result<(Summary, Summary)> {
    let db = session.database();
    let rounds = if session.smoke { 1 } else { ROUNDS };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut count = 0;
    for _ in 0..rounds {
        let (found, time) =
            client::timed_count(&db, NAMES, &case.filter(), Plan::Chosen, ROUND_REPEAT).await?;
        let (expected, rival) = ripgrep::timed_count(
            &session.names_file,
            case.pattern,
            case.ignore_case,
            ROUND_REPEAT,
        )?;
        ensure!(
            found == expected,
            "{}: {found} by Forebay, {expected} by ripgrep",
            case.case
        );
        ours.push(time.median);
        theirs.push(rival.median);
        count = found;
    }
    check_expectation(session, case, count)?;
    let ours = Summary::of(&ours).context("at least one round")?;
    let theirs = Summary::of(&theirs).context("at least one round")?;
    let on = format!("host:{devices}");
    let expect = Some(count);
    session.report.add(
        case.case,
        Measured {
            engine: "forebay",
            devices: &on,
            expect,
        },
        "client_ms",
        ours,
    )?;
    let version = ripgrep::version()?;
    session.report.add(
        case.case,
        Measured {
            engine: &version,
            devices: "1 thread",
            expect,
        },
        "process_ms",
        theirs,
    )?;
    Ok((ours, theirs))
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

/// Leaves one device; false if there was one only.
async fn remove_one_device(session: &Session) -> Result<bool> {
    let admin = session.client.database("admin");
    let reply = admin.run_command(doc! { "forebayDevices": 1 }).await?;
    let devices = reply.get_array("devices").context("a list of devices")?;
    let Some(last) = devices
        .last()
        .and_then(|device| device.as_document())
        .filter(|_| devices.len() > 1)
    else {
        return Ok(false);
    };
    let id = last.get("id").context("a device has an id")?;
    admin
        .run_command(doc! { "forebayDevices": 1, "remove": id })
        .await?;
    Ok(true)
}

async fn add_device(session: &Session) -> Result<()> {
    session
        .client
        .database("admin")
        .run_command(doc! { "forebayDevices": 1, "add": "host:1" })
        .await?;
    Ok(())
}

/// How the two compare, for whoever watches; the record holds the figures themselves.
fn summarise(two: &Round, one: &Round) {
    for ((case, ours_two, _), (_, ours_one, theirs)) in two.iter().zip(one) {
        let (speed, scaling) = (theirs / ours_one, ours_one / ours_two);
        eprintln!("{case:22} one device {speed:.2} x ripgrep, two devices {scaling:.2} x one");
    }
}

/// A million names in FerretDB and here, through the same driver and the same command.
pub async fn beside_ferretdb(session: &mut Session) -> Result<()> {
    let count = if session.smoke {
        session.names.len() / 10
    } else {
        FERRETDB_NAMES
    };
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
    for case in COUNT_CASES
        .iter()
        .filter(|case| FERRETDB_CASES.contains(&case.case))
    {
        compare_case(session, case, &ours, &theirs).await?;
    }
    ours.collection::<Document>(MILLION).drop().await?;
    Ok(())
}

async fn compare_case(
    session: &mut Session,
    case: &CountCase,
    ours: &Database,
    theirs: &Database,
) -> Result<()> {
    let filter = case.filter();
    let (found, time) =
        client::timed_count(ours, MILLION, &filter, Plan::Chosen, ROUND_REPEAT).await?;
    let (expected, rival) =
        client::timed_count(theirs, MILLION, &filter, Plan::Chosen, FERRETDB_REPEAT).await?;
    ensure!(
        found == expected,
        "{}: {found} by Forebay, {expected} by FerretDB",
        case.case
    );
    let name = format!("million-{}", case.case);
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
