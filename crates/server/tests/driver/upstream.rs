//! `forebay serve --upstream`: drivers use an upstream through the proxy.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use forebay_peers::ferretdb::FerretDb;
use forebay_peers::wire::WireClient;
use forebay_testkit::{Server, own_address};
use futures_util::TryStreamExt;
use mongodb::{Client, Collection};

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

/// Starts a proxy to `uri`, with further `arguments`.
fn in_front_of(uri: &str, arguments: &[&str]) -> Result<Server> {
    Server::start(BINARY, &[&["--upstream", uri][..], arguments].concat())
}

async fn things(uri: &str) -> Result<Collection<Document>> {
    let client = Client::with_uri_str(uri).await?;
    Ok(client.database("shop").collection("things"))
}

/// Runs the commands of an application, and returns all their results.
async fn session(things: &Collection<Document>) -> Result<Vec<Document>> {
    let documents = (0..500).map(|id| doc! { "_id": id, "n": id % 7, "text": "x".repeat(2_000) });
    things.insert_many(documents).await?;
    let updated = things
        .update_many(doc! { "n": 1 }, doc! { "$inc": { "n": 10 } })
        .await?;
    let deleted = things.delete_many(doc! { "n": 0 }).await?;
    let again = things.insert_one(doc! { "_id": 1 }).await;
    ensure!(again.is_err(), "the _id is there already");
    let mut results = vec![doc! {
        "updated": updated.modified_count as i64, "deleted": deleted.deleted_count as i64,
        "error": again.expect_err("a duplicate key").to_string(),
    }];
    let found = things.find(doc! {}).sort(doc! { "_id": 1 }).batch_size(30);
    results.extend(found.await?.try_collect::<Vec<_>>().await?);
    results
        .push(doc! { "count": things.count_documents(doc! { "n": { "$gt": 3 } }).await? as i64 });
    things.drop().await?;
    Ok(results)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_sees_no_difference() -> Result<()> {
    let upstream = FerretDb::start()?;
    let proxy = in_front_of(upstream.uri(), &[])?;
    let direct = session(&things(upstream.uri()).await?).await?;
    for options in ["", "/?compressors=zstd", "/?compressors=snappy,zlib"] {
        let uri = format!("{}{options}", proxy.uri());
        assert_eq!(session(&things(&uri).await?).await?, direct, "{options}");
    }
    proxy.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_do_not_learn_where_the_upstream_is() -> Result<()> {
    let upstream = FerretDb::start_with(&["--repl-set-name=rs0"])?;
    let proxy = in_front_of(upstream.uri(), &[])?;
    let mut client = WireClient::connect(proxy.process().address()).await?;
    let hello = client.run(&doc! { "hello": 1, "$db": "admin" }).await?;
    for hidden in ["hosts", "me", "primary", "setName"] {
        ensure!(hello.get(hidden)?.is_none(), "{hello:?}");
    }
    assert_eq!(hello.get_str("msg")?, "isdbgrid");
    assert!(hello.get_i32("maxWireVersion")? <= 21);
    // A driver that discovers the topology stays with the proxy, and reaches the upstream through it.
    let direct = format!("{}/?directConnection=true", upstream.uri());
    assert_eq!(
        session(&things(proxy.uri()).await?).await?,
        session(&things(&direct).await?).await?
    );
    proxy.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_and_tls_go_through() -> Result<()> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let file = |name: &str| data.join(name).to_string_lossy().into_owned();
    let (certificate, key) = (file("tls_cert.pem"), file("tls_key.pem"));
    let upstream = Server::start(
        BINARY,
        &["--auth", "--tls-cert", &certificate, "--tls-key", &key],
    )?;
    let tls = format!("tls=true&tlsCAFile={}", file("tls_ca.pem"));
    let uri = format!("mongodb://{}/?{tls}", upstream.process().address());
    let proxy = in_front_of(&uri, &[])?;
    let added = Command::new(BINARY)
        .args(["user", "add", "ada", "--uri", &uri])
        .env("FOREBAY_PASSWORD", "secret")
        .status()?;
    ensure!(added.success(), "the first user is made");
    let address = proxy.process().address();
    let known = things(&format!("mongodb://ada:secret@{address}/?authSource=admin")).await?;
    assert!(session(&known).await?.len() > 100);
    let stranger = things(proxy.uri()).await?.find_one(doc! {}).await;
    let refused = stranger
        .expect_err("the client has not authenticated")
        .to_string();
    assert!(refused.contains("requires authentication"), "{refused}");
    let wrong = things(&format!("mongodb://ada:guess@{address}/?authSource=admin")).await?;
    wrong.find_one(doc! {}).await.expect_err("a wrong password");
    proxy.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_away_is_away_for_clients() -> Result<()> {
    let upstream = own_address()?.to_string();
    let proxy = in_front_of(&format!("mongodb://{upstream}"), &[])?;
    let uri = format!("{}/?serverSelectionTimeoutMS=1000", proxy.uri());
    let refused = things(&uri).await?.find_one(doc! {}).await;
    let error = refused.expect_err("no upstream answers").to_string();
    ensure!(
        error.contains(&format!("the upstream {upstream} cannot be reached")),
        "{error}"
    );
    let mut client = WireClient::connect(proxy.process().address()).await?;
    for _ in 0..2 {
        let answer = client.run(&doc! { "ping": 1, "$db": "admin" }).await;
        answer.err().context("no upstream answers")?;
    }
    proxy.stop()
}
