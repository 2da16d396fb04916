//! Caches of an upstream: after any writes, every answer through the proxy equals the upstream's own answer.

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use fastrand::Rng;
use forebay_peers::ferretdb::FerretDb;
use forebay_testkit::Server;
use futures_util::TryStreamExt;
use mongodb::options::ReturnDocument;
use mongodb::{Client, Collection, Database};

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Number of random writes in the differential test.
const WRITES: usize = 150;

struct Pair {
    _upstream: FerretDb,
    proxy: Server,
    direct: Database,
    proxied: Database,
}

impl Pair {
    async fn start(arguments: &[&str]) -> Result<Pair> {
        let upstream = FerretDb::start()?;
        let all = [
            &["--upstream", upstream.uri(), "--devices", "host:2"][..],
            arguments,
        ]
        .concat();
        let proxy = Server::start(BINARY, &all)?;
        let direct = Client::with_uri_str(upstream.uri()).await?.database("shop");
        let proxied = proxy.client().await?.database("shop");
        Ok(Pair {
            _upstream: upstream,
            proxy,
            direct,
            proxied,
        })
    }

    fn things(&self) -> Collection<Document> {
        self.proxied.collection("things")
    }
}

async fn declare(db: &Database, field: &str) -> Result<Document> {
    let index = doc! { "key": { field: "cache" }, "name": format!("{field}_cache") };
    Ok(db
        .run_command(doc! { "createIndexes": "things", "indexes": [index] })
        .await?)
}

/// Returns why the cache does not answer a count by name; `None` if the cache answers it.
async fn reason(db: &Database) -> Result<Option<String>> {
    let count = doc! { "count": "things", "query": { "name": "x" } };
    let explained = db.run_command(doc! { "explain": count }).await?;
    Ok(match explained.get_document("forebay") {
        Ok(forebay) => Some(forebay.get_str("reason")?.to_owned()),
        Err(_) => None,
    })
}

async fn wait_until_cached(db: &Database) -> Result<()> {
    while let Some(reason) = reason(db).await? {
        ensure!(reason.contains("load"), "{reason}");
    }
    Ok(())
}

fn name(rng: &mut Rng) -> String {
    let words = ["pool", "stream", "web", "pack", "Älpha", "x", ""];
    (0..rng.usize(1..4))
        .map(|_| words[rng.usize(..words.len())])
        .collect::<Vec<_>>()
        .join("-")
}

fn thing(rng: &mut Rng) -> Document {
    let mut thing = doc! { "_id": rng.i64(0..200), "n": rng.i64(0..10) };
    match rng.u8(0..8) {
        0 => {}
        1 => drop(thing.insert("name", bson::Bson::Null)),
        2 => drop(thing.insert("name", rng.i64(0..3))),
        3 => drop(thing.insert("name", vec![name(rng), name(rng)])),
        _ => drop(thing.insert("name", name(rng))),
    }
    thing
}

fn filter(rng: &mut Rng) -> Document {
    let patterns = [
        "pool",
        "^web",
        "pack$",
        "(?i)STREAM",
        "^x-.*-x",
        "[äÄ]",
        "^$",
        "-",
    ];
    let pattern = patterns[rng.usize(..patterns.len())];
    match rng.u8(0..7) {
        0 => doc! { "name": name(rng) },
        1 => doc! { "name": { "$in": [name(rng), name(rng)] } },
        2 => doc! { "name": { "$not": { "$regex": pattern } } },
        3 => doc! { "name": { "$regex": pattern }, "n": { "$gt": rng.i64(0..10) } },
        4 => doc! { "$or": [{ "name": { "$regex": pattern } }, { "name": name(rng) }] },
        5 => doc! { "name": { "$exists": rng.bool() } },
        _ => doc! { "name": { "$regex": pattern } },
    }
}

/// Returns the results of all kinds of searches, sorted if the search does not define an order.
async fn answers(db: &Database, filter: &Document) -> Result<Vec<String>> {
    let things = db.collection::<Document>("things");
    let count = db
        .run_command(doc! { "count": "things", "query": filter.clone() })
        .await?;
    let found: Vec<_> = things
        .find(filter.clone())
        .sort(doc! { "_id": 1 })
        .await?
        .try_collect()
        .await?;
    let names = things
        .find(filter.clone())
        .projection(doc! { "name": 1 })
        .sort(doc! { "_id": 1 });
    let names: Vec<_> = names.await?.try_collect().await?;
    let mut unsorted: Vec<Document> = things.find(filter.clone()).await?.try_collect().await?;
    unsorted.sort_by_key(|document| document.get_i64("_id").unwrap_or_default());
    let mut distinct: Vec<_> = things
        .distinct("name", filter.clone())
        .await?
        .iter()
        .map(ToString::to_string)
        .collect();
    distinct.sort();
    Ok(vec![
        count.get("n").map(ToString::to_string).unwrap_or_default(),
        things.count_documents(filter.clone()).await?.to_string(),
        format!("{found:?}"),
        format!("{unsorted:?}"),
        format!("{names:?}"),
        format!("{distinct:?}"),
    ])
}

/// Makes a random write through the proxy. The upstream may refuse all or part of it.
async fn write(things: &Collection<Document>, rng: &mut Rng) {
    let (query, new) = (filter(rng), name(rng));
    // Ignores refusals: only the documents that the upstream holds afterwards are compared.
    let _refused = match rng.u8(0..12) {
        0 => things.insert_one(thing(rng)).await.is_err(),
        1 | 2 => {
            let batch: Vec<_> = (0..5).map(|_| thing(rng)).collect();
            things.insert_many(batch).ordered(rng.bool()).await.is_err()
        }
        3 => things
            .update_one(query, doc! { "$set": { "name": new } })
            .await
            .is_err(),
        4 => things
            .update_many(query, doc! { "$set": { "name": new } })
            .await
            .is_err(),
        5 => things
            .update_many(query, doc! { "$inc": { "n": 1 } })
            .await
            .is_err(),
        6 => things
            .update_one(
                doc! { "_id": rng.i64(0..250) },
                doc! { "$unset": { "name": 1 } },
            )
            .upsert(true)
            .await
            .is_err(),
        7 => {
            let other = doc! { "name": new, "n": 7 };
            things
                .replace_one(doc! { "_id": rng.i64(0..250) }, other)
                .upsert(true)
                .await
                .is_err()
        }
        8 => things.delete_one(query).await.is_err(),
        9 => things
            .delete_many(doc! { "n": rng.i64(0..10), "name": new })
            .await
            .is_err(),
        10 => things.find_one_and_delete(query).await.is_err(),
        _ => {
            let change = doc! { "$set": { "name": new } };
            let found = things
                .find_one_and_update(query, change)
                .sort(doc! { "_id": -1 });
            found
                .upsert(false)
                .return_document(ReturnDocument::After)
                .await
                .is_err()
        }
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_through_forebay_are_those_of_the_upstream() -> Result<()> {
    let seed = std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(9);
    let mut rng = Rng::with_seed(seed);
    let pair = Pair::start(&[
        "--upstream-writes",
        "exclusive",
        "--upstream-compare-percent",
        "100",
    ])
    .await?;
    let things = pair.things();
    for id in 0..100 {
        things
            .insert_one(doc! { "_id": id * 2, "name": name(&mut rng), "n": id % 10 })
            .await?;
    }
    declare(&pair.proxied, "name").await?;
    // Some of the writes run during the load.
    for turn in 0..WRITES {
        write(&things, &mut rng).await;
        if turn == 20 {
            wait_until_cached(&pair.proxied).await?;
        }
        for _ in 0..2 {
            let filter = filter(&mut rng);
            let (direct, proxied) = (
                answers(&pair.direct, &filter).await?,
                answers(&pair.proxied, &filter).await?,
            );
            ensure!(
                direct == proxied,
                "seed {seed}, write {turn}, {filter}:\n{direct:?}\n{proxied:?}"
            );
        }
    }
    ensure!(
        reason(&pair.proxied).await?.is_none(),
        "the cache answers at the end"
    );
    let status = pair.proxied.run_command(doc! { "serverStatus": 1 }).await?;
    let counters = status.get_document("forebayUpstream")?;
    ensure!(counters.get_i64("compared")? > 0, "{counters}");
    ensure!(counters.get_i64("differed")? == 0, "{counters}");
    pair.proxy.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_exclusive_writes_the_cache_is_off_and_says_so() -> Result<()> {
    let pair = Pair::start(&[]).await?;
    pair.things()
        .insert_one(doc! { "_id": 1, "name": "x" })
        .await?;
    declare(&pair.proxied, "name").await?;
    let why = loop {
        let why = reason(&pair.proxied).await?.context("a reason")?;
        if !why.contains("is waiting") {
            break why;
        }
    };
    ensure!(why.contains("--upstream-writes exclusive"), "{why}");
    assert_eq!(
        pair.things().count_documents(doc! { "name": "x" }).await?,
        1
    );
    pair.proxy.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn declared_caches_are_listed_kept_and_dropped() -> Result<()> {
    let mut pair = Pair::start(&["--upstream-writes", "exclusive"]).await?;
    pair.things()
        .insert_many((0..50).map(|id| doc! { "_id": id, "name": format!("n-{id}") }))
        .await?;
    declare(&pair.proxied, "name").await?;
    let listed = pair.things().list_index_names().await?;
    ensure!(listed.contains(&"name_cache".to_owned()), "{listed:?}");
    pair.proxy.shutdown_and_restart()?;
    pair.proxied = pair.proxy.client().await?.database("shop");
    wait_until_cached(&pair.proxied).await?;
    assert_eq!(
        pair.things()
            .count_documents(doc! { "name": { "$regex": "^n-1" } })
            .await?,
        11
    );
    pair.things().drop_index("name_cache").await?;
    let listed = pair.things().list_index_names().await?;
    ensure!(!listed.contains(&"name_cache".to_owned()), "{listed:?}");
    pair.proxy.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_collection_is_empty_for_the_cache_too() -> Result<()> {
    let pair = Pair::start(&["--upstream-writes", "exclusive"]).await?;
    for round in 0..2 {
        pair.things()
            .insert_one(doc! { "_id": round, "name": "x" })
            .await?;
        declare(&pair.proxied, "name").await?;
        wait_until_cached(&pair.proxied).await?;
        assert_eq!(
            pair.things().count_documents(doc! { "name": "x" }).await?,
            1
        );
        match round {
            0 => pair.things().drop().await?,
            _ => pair.proxied.drop().await?,
        }
        assert_eq!(
            pair.things().count_documents(doc! { "name": "x" }).await?,
            0
        );
    }
    pair.proxy.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_declaration_changes_nothing() -> Result<()> {
    let pair = Pair::start(&["--upstream-writes", "exclusive"]).await?;
    pair.things()
        .insert_one(doc! { "_id": 1, "name": "x", "other": "y" })
        .await?;
    let both = ["name", "other"];
    for field in both {
        declare(&pair.proxied, field).await?;
        wait_until_cached(&pair.proxied).await?;
    }
    for field in both {
        let repeated = declare(&pair.proxied, field).await?;
        assert_eq!(repeated.get_str("note")?, "all indexes already exist");
        let why = reason(&pair.proxied).await?;
        ensure!(why.is_none(), "{field}: {why:?}");
    }
    pair.proxy.stop()
}
