//! A proxy to another Forebay. Clients write through the proxy and directly, while either server is killed. Every
//! client reads its own writes through the proxy. Once the writers stop, searches through the proxy equal the
//! upstream's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, doc};
use fastrand::Rng;
use forebay_testkit::{Server, own_address, seed, wait_for};
use mongodb::{Collection, Database};
use tokio::task::JoinSet;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
const HISTORY: [&str; 2] = ["--documents-change-history-bytes-max", "1GiB"];
/// Number of writers through the proxy, and number of direct writers.
const WRITERS: i32 = 3;
/// Number of distinct `_id`s of a writer.
const IDS: i32 = 300;
/// Maximum time after the last write until the proxy equals the upstream.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of write commands that the upstream runs between two kills.
const WRITES: i64 = 1_500;
const PATTERNS: [&str; 4] = ["^web", "pool", "-pack$", "x.*x"];

struct Pair {
    upstream: Server,
    proxy: Server,
}

impl Pair {
    fn start(arguments: &[&str]) -> Result<Pair> {
        let listen = own_address()?.to_string();
        let upstream = Server::start(
            BINARY,
            &[&HISTORY[..], &["--mongodb-listen", &listen]].concat(),
        )?;
        let uri = format!("mongodb://{listen}");
        let always = ["--upstream", &uri, "--devices", "host:2"];
        let proxy = Server::start(BINARY, &[&always[..], arguments].concat())?;
        Ok(Pair { upstream, proxy })
    }

    async fn direct(&self) -> Result<Database> {
        Ok(self.upstream.client().await?.database("shop"))
    }

    async fn proxied(&self) -> Result<Database> {
        Ok(self.proxy.client().await?.database("shop"))
    }
}

async fn declare(db: &Database) -> Result<()> {
    let index = doc! { "key": { "name": "cache" }, "name": "name_cache" };
    let create = doc! { "createIndexes": "things", "indexes": [index] };
    db.run_command(create).await?;
    Ok(())
}

/// Returns why the cache does not answer a count by name; `None` if the cache answers it.
async fn reason(db: &Database) -> Result<Option<String>> {
    let count = doc! { "count": "things", "query": { "name": "x" } };
    let explained = db.run_command(doc! { "explain": count }).await?;
    let reason = explained.get_document("forebay").ok();
    Ok(reason.and_then(|it| it.get_str("reason").ok().map(str::to_owned)))
}

async fn wait_until_cached(db: &Database) -> Result<()> {
    let mut last = None;
    let cached = wait_for("a cache", PATIENCE, async || {
        last = match reason(db).await {
            // A proxy retries an unreachable upstream once per second.
            Err(error) if format!("{error:#}").contains("(ShutdownInProgress)") => {
                Some(error.to_string())
            }
            reason => reason?,
        };
        Ok(last.is_none().then_some(()))
    });
    let cached = cached.await;
    cached.with_context(|| format!("not cached: {last:?}"))
}

fn name(rng: &mut Rng) -> String {
    let words = ["pool", "stream", "web", "pack", "x", "Ä"];
    let words = (0..rng.usize(1..4)).map(|_| words[rng.usize(..words.len())]);
    words.collect::<Vec<_>>().join("-")
}

/// Makes a random write to `_id`s from `first` upwards. Returns the `_id` and the new name of the changed document, if
/// they are known.
async fn write(
    things: &Collection<Document>,
    first: i32,
    rng: &mut Rng,
) -> mongodb::error::Result<Option<(i32, String)>> {
    let id = first + rng.i32(0..IDS);
    let own = doc! { "_id": { "$gte": first, "$lt": first + IDS } };
    let new = name(rng);
    match rng.u8(..6) {
        0 => {
            let document = doc! { "_id": id, "name": &new, "n": rng.i32(0..9) };
            let replaced = things.replace_one(doc! { "_id": id }, document);
            replaced.upsert(true).await?;
            return Ok(Some((id, new)));
        }
        1 => {
            let change = doc! { "$set": { "name": &new } };
            let updated = things.update_one(doc! { "_id": id }, change);
            updated.upsert(true).await?;
            return Ok(Some((id, new)));
        }
        2 => {
            things.delete_one(doc! { "_id": id }).await?;
        }
        3 => {
            let mut some = own;
            some.insert("n", rng.i32(0..9));
            let change = doc! { "$set": { "name": new } };
            things.update_many(some, change).await?;
        }
        4 => {
            let mut some = own;
            some.insert("name", new);
            things.delete_many(some).await?;
        }
        _ => {
            let change = doc! { "$set": { "name": &new } };
            things.find_one_and_update(own, change).await?;
        }
    }
    Ok(None)
}

/// Writes until `stop` is set or a server is killed. If `looks` is set, searches for each name that it has written.
async fn write_on(
    db: Database,
    first: i32,
    looks: bool,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> Result<u32> {
    let things = db.collection::<Document>("things");
    let mut rng = Rng::with_seed(seed);
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(known) = write(&things, first, &mut rng).await else {
            return Ok(written);
        };
        written += 1;
        let Some((id, name)) = known.filter(|_| looks) else {
            continue;
        };
        let filter = doc! { "name": &name, "_id": id };
        match things.count_documents(filter).await {
            Ok(found) => ensure!(
                found == 1,
                "a client does not read {id}: {name}, which it wrote"
            ),
            Err(_) => return Ok(written),
        }
    }
    Ok(written)
}

/// Runs writers on both servers until the upstream has run [`WRITES`] write commands. Returns the number of writes.
async fn storm(pair: &Pair, seed: u64) -> Result<u32> {
    let upstream = pair.direct().await?;
    let before = write_commands(&upstream).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS * 2 {
        let looks = writer < WRITERS;
        let db = match looks {
            true => pair.proxied().await?,
            false => pair.direct().await?,
        };
        let seed = seed ^ u64::from(writer.unsigned_abs() + 1);
        writers.spawn(write_on(db, writer * IDS, looks, seed, stop.clone()));
    }
    wait_for("writes", PATIENCE, async || {
        let run = write_commands(&upstream).await? - before;
        Ok((run >= WRITES).then_some(()))
    })
    .await?;
    stop.store(true, Ordering::Relaxed);
    let mut written = 0;
    while let Some(ended) = writers.join_next().await {
        written += ended??;
    }
    Ok(written)
}

/// Returns the number of write commands that a server has run, from `serverStatus`.
async fn write_commands(db: &Database) -> Result<i64> {
    let status = db.run_command(doc! { "serverStatus": 1 }).await?;
    let counters = status.get_document("opcounters")?;
    let kinds = ["insert", "update", "delete"];
    let of = |kind| {
        counters
            .get(kind)
            .and_then(|count| count.as_i64().or(count.as_i32().map(i64::from)))
    };
    let counts = kinds.map(|kind| of(kind).with_context(|| format!("a count of {kind}")));
    counts.into_iter().sum()
}

async fn counts(db: &Database) -> Result<Vec<i64>> {
    let mut counts = Vec::new();
    for pattern in PATTERNS {
        let query = doc! { "name": { "$regex": pattern } };
        let reply = db.run_command(doc! { "count": "things", "query": query });
        let reply = reply.await?;
        let n = reply.get("n").context("a count")?;
        counts.push(
            n.as_i64()
                .or(n.as_i32().map(i64::from))
                .context("a number")?,
        );
    }
    Ok(counts)
}

/// Waits until the cache answers, and searches return the same counts through the proxy as on the upstream.
async fn agree(pair: &Pair) -> Result<()> {
    let (direct, proxied) = (pair.direct().await?, pair.proxied().await?);
    wait_until_cached(&proxied).await?;
    let mut last = (Vec::new(), Vec::new());
    let agreed = wait_for("equal counts", PATIENCE, async || {
        last = (counts(&direct).await?, counts(&proxied).await?);
        Ok((last.0 == last.1).then_some(()))
    });
    let agreed = agreed.await;
    agreed.with_context(|| format!("the upstream counts {:?}, the proxy {:?}", last.0, last.1))
}

/// A copy of the upstream's files, which simulates the disk after a power cut.
struct Disk {
    folder: PathBuf,
    copy: tempfile::TempDir,
}

impl Disk {
    /// Syncs the upstream, and copies its files.
    async fn synced(pair: &Pair) -> Result<Disk> {
        let insert = doc! { "insert": "synced", "documents": [{}], "writeConcern": { "j": true } };
        pair.direct().await?.run_command(insert).await?;
        let folder = pair.upstream.folder().to_owned();
        let copy = tempfile::tempdir()?;
        copy_folder(&folder, copy.path())?;
        Ok(Disk { folder, copy })
    }

    /// Replaces the upstream's files with the copy, so that all later writes are lost. The upstream must not be
    /// running.
    fn cut_power(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            match path.is_dir() {
                true => std::fs::remove_dir_all(path)?,
                false => std::fs::remove_file(path)?,
            }
        }
        copy_folder(self.copy.path(), &self.folder)
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => {
                std::fs::create_dir(&to)?;
                copy_folder(&entry.path(), &to)?;
            }
            false => drop(std::fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}

/// Writes documents through the proxy, and checks that the proxy finds them. The upstream will lose these documents
/// later.
async fn write_in_vain(pair: &Pair) -> Result<()> {
    let proxied = pair.proxied().await?;
    let things = proxied.collection::<Document>("things");
    things.delete_one(doc! { "_id": 1 }).await?;
    let change = doc! { "$set": { "name": "x, lost pool" } };
    let update = things.update_one(doc! { "_id": 2 }, change);
    update.upsert(true).await?;
    let phantom = doc! { "_id": 5_000, "name": "x, lost pool" };
    things.insert_one(phantom).await?;
    let found = things.count_documents(doc! { "name": { "$regex": "lost" } });
    ensure!(found.await? == 2, "a client does not read what it wrote");
    Ok(())
}

async fn named_x(pair: &Pair) -> Result<()> {
    let things = pair.direct().await?.collection::<Document>("things");
    let documents = (0..5).map(|id| doc! { "_id": id, "name": "x-x" });
    things.insert_many(documents).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_follows_direct_writes() -> Result<()> {
    let seed = seed("upstream_streams");
    let mut pair = Pair::start(&[])?;
    pair.direct().await?.create_collection("things").await?;
    declare(&pair.proxied().await?).await?;
    wait_until_cached(&pair.proxied().await?).await?;
    ensure!(storm(&pair, seed).await? > 0, "there was no write");
    agree(&pair).await?;
    // The proxy, once it is started again, applies the writes made while it was down.
    pair.proxy.kill();
    let things = pair.direct().await?.collection::<Document>("things");
    things
        .insert_one(doc! { "_id": -1, "name": "written meanwhile, x and x" })
        .await?;
    pair.proxy.restart()?;
    agree(&pair).await?;
    storm(&pair, seed + 1).await?;
    pair.upstream.kill();
    pair.upstream.restart()?;
    agree(&pair).await?;
    storm(&pair, seed + 2).await?;
    agree(&pair).await?;
    pair.proxy.stop()?;
    pair.upstream.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_proxy_has_nothing_that_its_upstream_lost() -> Result<()> {
    let seed = seed("upstream_streams_lost");
    let mut pair = Pair::start(&[])?;
    named_x(&pair).await?;
    declare(&pair.proxied().await?).await?;
    wait_until_cached(&pair.proxied().await?).await?;
    // Make enough writes that the proxy stores its position in the stream.
    storm(&pair, seed).await?;
    agree(&pair).await?;
    let disk = Disk::synced(&pair).await?;
    write_in_vain(&pair).await?;
    pair.proxy.kill();
    pair.upstream.kill();
    disk.cut_power()?;
    pair.upstream.restart()?;
    pair.proxy.restart()?;
    agree(&pair).await?;
    pair.proxy.stop()?;
    pair.upstream.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_answers_nothing_that_its_upstream_lost() -> Result<()> {
    let mut pair = Pair::start(&[])?;
    named_x(&pair).await?;
    declare(&pair.proxied().await?).await?;
    agree(&pair).await?;
    for _ in 0..3 {
        let disk = Disk::synced(&pair).await?;
        write_in_vain(&pair).await?;
        pair.upstream.kill();
        disk.cut_power()?;
        pair.upstream.restart()?;
        let (direct, proxied) = (pair.direct().await?, pair.proxied().await?);
        let has = counts(&direct).await?;
        wait_for("an answer of the cache", PATIENCE, async || {
            ensure!(
                counts(&proxied).await? == has,
                "the proxy answers with lost documents"
            );
            Ok(reason(&proxied).await?.is_none().then_some(()))
        })
        .await?;
        ensure!(counts(&proxied).await? == has);
    }
    pair.proxy.stop()?;
    pair.upstream.stop()
}

/// The stream position is stored with the replica, not in a collection that clients could access.
#[tokio::test(flavor = "multi_thread")]
async fn notes_of_a_proxy_are_in_no_collection() -> Result<()> {
    let seed = seed("upstream_streams_apart");
    let mut pair = Pair::start(&[])?;
    let proxied = pair.proxied().await?;
    declare(&proxied).await?;
    let own = pair.proxy.client().await?.database("forebay");
    let index = doc! { "key": { "token": "cache" }, "name": "token_cache" };
    own.run_command(doc! { "createIndexes": "resume_tokens", "indexes": [index] })
        .await?;
    wait_until_cached(&proxied).await?;
    storm(&pair, seed).await?;
    let tokens = own.collection::<Document>("resume_tokens");
    let kept = doc! { "token": { "$not": { "$regex": "x" } } };
    let found = tokens.count_documents(kept).await?;
    ensure!(found == 0, "the upstream has no such collection");
    pair.proxy.kill();
    pair.proxy.restart()?;
    agree(&pair).await?;
    pair.proxy.stop()?;
    pair.upstream.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_follows_the_drop_of_a_collection() -> Result<()> {
    let pair = Pair::start(&[])?;
    let (direct, proxied) = (pair.direct().await?, pair.proxied().await?);
    let things = direct.collection::<Document>("things");
    things.insert_one(doc! { "_id": 1, "name": "x-x" }).await?;
    declare(&proxied).await?;
    agree(&pair).await?;
    things.drop().await?;
    things.insert_one(doc! { "_id": 2, "name": "pool" }).await?;
    agree(&pair).await?;
    ensure!(counts(&proxied).await? == [0, 1, 0, 0]);
    pair.proxy.stop()?;
    pair.upstream.stop()
}

/// Returns the names of the indexes that the proxy lists for a collection.
async fn indexes(db: &Database, collection: &str) -> Result<Vec<String>> {
    let collection = db.collection::<Document>(collection);
    Ok(collection.list_index_names().await?)
}

/// Sends `dropIndexes` through the proxy; `index` names the indexes to drop. Returns the number of indexes before the
/// drop, and the names of the indexes that remain.
async fn drop_indexes(db: &Database, index: impl Into<Bson>) -> Result<(i32, Vec<String>)> {
    let command = doc! { "dropIndexes": "things", "index": index.into() };
    let before = db.run_command(command).await?.get_i32("nIndexesWas")?;
    Ok((before, indexes(db, "things").await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn caches_are_dropped_together_with_other_indexes() -> Result<()> {
    let pair = Pair::start(&[])?;
    let db = pair.proxied().await?;
    let create = async |fields: &[&str]| {
        for field in fields {
            let index = doc! { "key": { *field: 1 }, "name": *field };
            let create = doc! { "createIndexes": "things", "indexes": [index] };
            db.run_command(create).await?;
        }
        declare(&db).await
    };
    create(&["a", "b"]).await?;
    let none = drop_indexes(&db, vec!["name_cache", "no"]).await;
    let none = none.expect_err("an unknown index").to_string();
    ensure!(none.contains("[no]"), "{none}");
    let some = drop_indexes(&db, vec!["name_cache", "a"]).await?;
    assert_eq!(some, (4, vec!["_id_".to_owned(), "b".to_owned()]));
    create(&[]).await?;
    let caches = drop_indexes(&db, vec!["name_cache"]).await?.1;
    assert_eq!(caches, ["_id_", "b"]);
    create(&["a"]).await?;
    assert_eq!(drop_indexes(&db, "*").await?, (4, vec!["_id_".to_owned()]));
    pair.proxy.stop()?;
    pair.upstream.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn caches_follow_a_collection_to_its_new_name() -> Result<()> {
    for mode in ["shared", "exclusive"] {
        let mut pair = Pair::start(&["--upstream-writes", mode])?;
        let db = pair.proxied().await?;
        let old = db.collection::<Document>("old");
        old.insert_one(doc! { "name": "x-x" }).await?;
        let index = doc! { "key": { "name": "cache" }, "name": "name_cache" };
        let create = doc! { "createIndexes": "old", "indexes": [&index] };
        db.run_command(create).await?;
        let replaced = db.collection::<Document>("things");
        replaced.insert_one(doc! { "name": "pool" }).await?;
        let rename = doc! { "renameCollection": "shop.old", "to": "shop.things" };
        let admin = db.client().database("admin");
        let refused = admin.run_command(rename.clone()).await;
        ensure!(refused.is_err(), "the target exists");
        assert_eq!(indexes(&db, "old").await?, ["_id_", "name_cache"]);
        let mut rename = rename;
        rename.insert("dropTarget", true);
        admin.run_command(rename).await?;
        wait_until_cached(&db).await?;
        assert_eq!(counts(&db).await?, [0, 0, 0, 1]);
        old.insert_one(doc! { "name": "web" }).await?;
        assert_eq!(indexes(&db, "old").await?, ["_id_"]);
        // The list of caches on disk contains only the new name of the collection.
        pair.proxy.shutdown_and_restart()?;
        let db = pair.proxied().await?;
        assert_eq!(indexes(&db, "things").await?, ["_id_", "name_cache"]);
        assert_eq!(indexes(&db, "old").await?, ["_id_"]);
        pair.proxy.stop()?;
        pair.upstream.stop()?;
    }
    Ok(())
}

/// Runs a command of the binary. Returns whether it succeeded, and what it printed.
fn run(arguments: &[&str]) -> Result<(bool, String)> {
    let output = Command::new(BINARY)
        .args(arguments)
        .env("FOREBAY_PASSWORD", "secret")
        .output()?;
    let printed = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(printed)?))
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_for_a_proxy_explain_what_its_store_has_not() -> Result<()> {
    let upstream = Server::start(BINARY, &["--mongodb-test-commands"])?;
    let to = [
        "--upstream",
        upstream.uri(),
        "--upstream-writes",
        "exclusive",
    ];
    let proxy = Server::start(BINARY, &to)?;
    let unknown = ["usersInfo", "createUser", "dropUser", "forebayBuckets"];
    let fail = doc! {
        "configureFailPoint": "failCommand", "mode": "alwaysOn",
        "data": { "failCommands": &unknown[..], "errorCode": 59 },
    };
    let admin = upstream.client().await?.database("admin");
    admin.run_command(fail).await?;
    for action in [&["list"][..], &["add", "ada"], &["remove", "ada"]] {
        let command = [&["user"][..], action, &["--uri", proxy.uri()]].concat();
        let (succeeded, printed) = run(&command)?;
        let expected = "this server is a proxy without users of its own";
        ensure!(!succeeded && printed.contains(expected), "{printed}");
    }
    let buckets = ["debug", "buckets", "--uri", proxy.uri(), "shop.things.name"];
    let (succeeded, printed) = run(&buckets)?;
    let expected = "the proxy has no cache of the field 'shop.things.name'";
    ensure!(!succeeded && printed.contains(expected), "{printed}");
    let db = proxy.client().await?.database("shop");
    let things = db.collection::<Document>("things");
    things.insert_one(doc! { "name": "web" }).await?;
    declare(&db).await?;
    wait_until_cached(&db).await?;
    let (succeeded, printed) = run(&buckets)?;
    ensure!(succeeded && printed.contains("firstPrefix"), "{printed}");
    proxy.stop()?;
    upstream.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_serves_stale_answers_without_its_upstream() -> Result<()> {
    let mut pair = Pair::start(&["--upstream-serve-stale"])?;
    let (direct, proxied) = (pair.direct().await?, pair.proxied().await?);
    let things = direct.collection::<Document>("things");
    things.insert_one(doc! { "_id": 1, "name": "x-x" }).await?;
    declare(&proxied).await?;
    agree(&pair).await?;
    pair.upstream.kill();
    // Both the existing and a new connection get answers from the cache, because the upstream let all clients read.
    for db in [&proxied, &pair.proxied().await?] {
        ensure!(counts(db).await? == [0, 0, 0, 1]);
        let other = db.collection::<Document>("things");
        ensure!(
            other.find_one(doc! {}).await.is_err(),
            "the upstream is away"
        );
        ensure!(other.insert_one(doc! { "_id": 2 }).await.is_err());
    }
    let status = proxied.run_command(doc! { "serverStatus": 1 }).await;
    ensure!(status.is_err(), "only the upstream answers that");
    pair.upstream.restart()?;
    let things = pair.direct().await?.collection::<Document>("things");
    things.insert_one(doc! { "_id": 3, "name": "pool" }).await?;
    agree(&pair).await?;
    ensure!(counts(&proxied).await? == [0, 1, 0, 1]);
    pair.proxy.stop()?;
    pair.upstream.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_stops_without_its_upstream() -> Result<()> {
    let mut pair = Pair::start(&[])?;
    let proxied = pair.proxied().await?;
    let things = pair.direct().await?.collection::<Document>("things");
    things.insert_one(doc! { "_id": 1, "name": "x-x" }).await?;
    declare(&proxied).await?;
    agree(&pair).await?;
    pair.upstream.kill();
    ensure!(counts(&proxied).await.is_err());
    pair.upstream.restart()?;
    agree(&pair).await?;
    pair.proxy.stop()?;
    pair.upstream.stop()
}

/// Loads a collection that is large enough for parallel cursors, with `_id`s of several types.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_collection_is_loaded_in_parts() -> Result<()> {
    let pair = Pair::start(&[])?;
    let things = pair.direct().await?.collection::<Document>("things");
    let mut rng = Rng::with_seed(3);
    let mut documents: Vec<Document> = (0..120_000)
        .map(|id| doc! { "_id": id, "name": name(&mut rng) })
        .collect();
    documents.push(doc! { "_id": "a word", "name": "pool" });
    documents.push(doc! { "_id": f64::NAN, "name": "web" });
    for documents in documents.chunks(20_000) {
        things.insert_many(documents).await?;
    }
    declare(&pair.proxied().await?).await?;
    agree(&pair).await?;
    pair.proxy.stop()?;
    pair.upstream.stop()
}
