//! Imports the demonstration's data, unless an earlier run has imported it.

use anyhow::{Result, ensure};
use bson::{Document, RawDocumentBuf, doc};
use forebay_peers::client::{self, Plan};
use forebay_terminal::note;
use indicatif::{ProgressBar, ProgressStyle};
use mongodb::Database;

use crate::data;

/// The collection of package names.
pub const NAMES: &str = "names";
/// The collection of films.
pub const MOVIES: &str = "movies";
/// Number of names to generate if the real ones cannot be fetched.
const GENERATED_COUNT: usize = 500_000;
/// Cached fields of the films.
const MOVIE_FIELDS: [&str; 3] = ["Title", "Director", "Distributor"];

/// The data to import.
#[derive(Debug)]
pub struct Source {
    names: Vec<String>,
    movies: Vec<Document>,
}

impl Source {
    /// Fetches the real data. Generates names instead if `generated` is set or npm fails.
    pub fn find(generated: Option<usize>) -> Source {
        if let Some(count) = generated {
            return Source::generated(count);
        }
        note("Fetching package names and films (kept for later runs) ...");
        match data::names().and_then(|names| {
            Ok(Source {
                names,
                movies: data::movies()?,
            })
        }) {
            Ok(source) => source,
            Err(error) => {
                note(format_args!(
                    "The real data could not be fetched: {error:#}"
                ));
                note(format_args!(
                    "Searching {GENERATED_COUNT} generated names instead."
                ));
                Source::generated(GENERATED_COUNT)
            }
        }
    }

    fn generated(count: usize) -> Source {
        Source {
            names: data::generated_names(count),
            movies: Vec::new(),
        }
    }

    /// Returns whether the films were fetched.
    pub fn has_movies(&self) -> bool {
        !self.movies.is_empty()
    }
}

/// Imports missing data and declares the caches. Replaces other documents in the demonstration's collections only if
/// `may_replace` is set.
///
/// # Errors
/// If the server refuses a command, or if a collection has other documents and `may_replace` is not set.
pub async fn load(db: &Database, source: &Source, may_replace: bool, quiet: bool) -> Result<()> {
    let names = client::name_documents(&source.names);
    make_room(db, NAMES, source.names.len(), may_replace).await?;
    if source.has_movies() {
        make_room(db, MOVIES, source.movies.len(), may_replace).await?;
    }
    import(db, NAMES, names, source.names.len(), quiet).await?;
    declare(db, NAMES, &["name"]).await?;
    if source.has_movies() {
        let movies = source
            .movies
            .iter()
            .map(RawDocumentBuf::try_from)
            .collect::<Result<Vec<_>, _>>()?;
        let count = movies.len();
        import(db, MOVIES, movies.into_iter(), count, quiet).await?;
        declare(db, MOVIES, &MOVIE_FIELDS).await?;
    }
    Ok(())
}

/// Drops a collection that has documents, unless it has `count` documents.
async fn make_room(db: &Database, name: &str, count: usize, may_replace: bool) -> Result<()> {
    let found = client::count(db, name, &doc! {}, Plan::Chosen).await?;
    if found == 0 || found == count as u64 {
        return Ok(());
    }
    ensure!(
        may_replace,
        "the collection `{name}` of the database `{}` has {found} documents, which the demonstration would replace: \
         drop it, or use another server",
        db.name()
    );
    Ok(db.collection::<Document>(name).drop().await?)
}

/// Imports a collection, unless it already has `count` documents.
async fn import(
    db: &Database,
    name: &str,
    documents: impl Iterator<Item = RawDocumentBuf>,
    count: usize,
    quiet: bool,
) -> Result<()> {
    if client::count(db, name, &doc! {}, Plan::Chosen).await? == count as u64 {
        note(format_args!(
            "{name}: {count} documents from an earlier run are used."
        ));
        return Ok(());
    }
    let progress = progress_bar(name, count, quiet);
    client::insert_all(&db.collection(name), documents, &progress).await?;
    progress.finish();
    Ok(())
}

async fn declare(db: &Database, collection: &str, fields: &[&str]) -> Result<()> {
    for field in fields {
        client::declare_cache(db, collection, field).await?;
    }
    Ok(())
}

fn progress_bar(name: &str, count: usize, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{prefix:8} {bar:30} {human_pos}/{human_len}  {per_sec}  {eta} left",
    )
    .expect("the template is right: every run of the demonstration uses it");
    ProgressBar::new(count as u64)
        .with_style(style)
        .with_prefix(name.to_owned())
}
