//! `forebay bench documents`: its options, its sections, and their order.

mod cases;
mod counts;
mod figures;
mod finds;
mod letters;
mod memory;
mod random;
mod report;
mod session;
mod upstream;
mod writes;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::plot;
use crate::record::Record;
use figures::Figure;
use session::Session;

/// Options of `forebay bench documents`.
#[derive(Args, Clone, Debug)]
pub struct DocumentsArgs {
    /// Measure the host engine.
    #[arg(long)]
    pub host: bool,
    /// Measure GPUs: searches of random letters.
    #[arg(long, conflicts_with = "host")]
    pub cuda: bool,
    /// Measure these figures of the paper, on the devices of `--devices`.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', conflicts_with_all = ["host", "cuda"])]
    pub figure: Vec<Figure>,
    /// Devices for `--cuda` (cuda:0 by default) and `--figure` (host:2 by default).
    #[arg(long, value_name = "LIST")]
    pub devices: Option<String>,
    /// Number of documents for `--cuda` (100 million by default); maximum for `--figure` (the paper's number by
    /// default).
    #[arg(long, value_name = "COUNT")]
    pub rows: Option<usize>,
    /// Run quickly on little generated data, to check that every benchmark works; the measured times mean nothing.
    #[arg(long)]
    pub smoke: bool,
    /// Print one JSON object per result instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Run only these sections.
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    pub only: Vec<Section>,
    /// Draw the figures of the paper into this folder, with a page of their tables.
    #[arg(long, value_name = "FOLDER", requires = "figure")]
    pub plot: Option<PathBuf>,
    /// Append the results to this file of JSON lines.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// The sections of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    /// Counts of all names that match a pattern, compared with ripgrep.
    Counts,
    /// Counts of names that match a pattern, among a million names, compared with FerretDB on SQLite.
    Ferretdb,
    /// Exact finds: one client's latency, and the rate on 16 connections.
    Finds,
    /// Imports into a collection with one cached field.
    Import,
    /// Inserts without cached fields and with five.
    Inserts,
    /// Memory of a cache in addition to the bytes of its values.
    Memory,
    /// Forebay as a proxy of FerretDB on SQLite: the cost of forwarding commands, and counts answered by the proxy's
    /// caches.
    Upstream,
}

/// Every section.
const SECTIONS: [Section; 7] = [
    Section::Counts,
    Section::Memory,
    Section::Finds,
    Section::Import,
    Section::Inserts,
    Section::Ferretdb,
    Section::Upstream,
];

/// Runs the benchmarks that the options name.
pub(crate) async fn run(args: &DocumentsArgs) -> Result<()> {
    if args.host {
        measure(args).await?;
    } else if args.cuda {
        letters::measure(args).await?;
    } else if !args.figure.is_empty() {
        let records = figures::measure(args).await?;
        if let Some(folder) = &args.plot {
            plot::write(folder, &records)?;
        }
    } else {
        bail!("give --host, --cuda or --figure")
    }
    Ok(())
}

async fn measure(args: &DocumentsArgs) -> Result<Vec<Record>> {
    let mut session = Session::start(args).await?;
    for section in SECTIONS {
        if args.only.is_empty() || args.only.contains(&section) {
            measure_section(&mut session, section).await?;
        }
    }
    session.finish()
}

async fn measure_section(session: &mut Session, section: Section) -> Result<()> {
    if matches!(section, Section::Counts | Section::Memory | Section::Finds) {
        session.cache_names().await?;
    }
    match section {
        Section::Counts => counts::beside_ripgrep(session).await,
        Section::Ferretdb => counts::beside_ferretdb(session).await,
        Section::Finds => finds::exact(session).await,
        Section::Import => writes::import(session).await,
        Section::Inserts => writes::inserts(session).await,
        Section::Memory => memory::of_one_field(session).await,
        Section::Upstream => upstream::in_front_of_ferretdb(session).await,
    }
}
