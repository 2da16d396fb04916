//! Runs more endless commands than the server has threads. Other commands are still answered. The endless commands end
//! when they are killed, when their clients disconnect, and when the server stops.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bson::raw::CString;
use bson::{Bson, Document, Regex, cstr, doc};
use forebay_peers::wire::WireClient;
use forebay_testkit::{Server, wait_for};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Timeout of a short command.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Number of endless commands: more than the server has threads for them.
const CROWD: usize = 640;
/// Maximum processor time that the server uses from the moment when a search should stop until it ends. The documented
/// limit is 100 ms. This maximum is higher, because a server compiled without optimization is slower, and because the
/// server answers other clients meanwhile.
const LATE_MAX: Duration = Duration::from_secs(10);
/// Number of slow searches: more than the server has threads to compute them.
const SEARCHES: usize = 150;
/// Bytes of a value that a large automaton needs minutes to scan.
const LARGE_VALUE_BYTES: usize = 15 << 20;

/// Commands that [`operations`] leaves out.
const NOT_COUNTED: &[&str] = &["currentOp", "endSessions", "hello", "isMaster"];

/// Held by each test with many clients, because this process has file descriptors for only one such test at a time.
static CROWDS: Mutex<()> = Mutex::const_new(());

/// Clients that wait for a reply, and disconnect when this value is dropped.
type Waiting = JoinSet<Result<()>>;

/// Returns an expression that sums too many numbers to ever finish.
fn endless() -> Document {
    let nested = |inner: Document| {
        doc! { "$sum": { "$map": { "input": { "$range": [0, 100_000] }, "in": inner } } }
    };
    nested(nested(nested(doc! { "$add": [1, 1] })))
}

/// Sends the command from `clients` clients.
fn send(server: &Server, command: &Document, clients: usize) -> Waiting {
    let mut waiting = JoinSet::new();
    for _ in 0..clients {
        let (address, command) = (server.process().address().to_owned(), command.clone());
        waiting.spawn(async move {
            let mut client = WireClient::connect(&address).await?;
            client.run(&command).await.map(drop)
        });
    }
    waiting
}

async fn client(server: &Server) -> Result<WireClient> {
    WireClient::connect(server.process().address()).await
}

async fn ping(server: &Server) -> Result<()> {
    let ping = doc! { "ping": 1, "$db": "admin" };
    let answer = async { client(server).await?.run(&ping).await };
    timeout(TIMEOUT, answer)
        .await
        .context("no answer to ping")??;
    Ok(())
}

/// Returns the ids of the operations in progress, except the `currentOp` itself and what drivers send on their own.
/// [`expire`] drops a driver, which then sends `endSessions` from the background: counted, it would be killed in place
/// of the search that follows.
async fn operations(server: &Server) -> Result<Vec<i32>> {
    let current = doc! { "currentOp": 1, "$db": "admin" };
    let answer = async { client(server).await?.run(&current).await };
    let answer = timeout(TIMEOUT, answer)
        .await
        .context("no answer to currentOp")??;
    let mut numbers = Vec::new();
    for operation in answer.get_array("inprog")? {
        let operation = operation?.as_document().context("a document")?;
        let command = operation.get_document("command")?;
        let (name, _) = command.iter().next().context("an empty command")??;
        if !NOT_COUNTED.contains(&name.as_str()) {
            numbers.push(operation.get_i32("opid")?);
        }
    }
    Ok(numbers)
}

/// Waits until `wanted` commands are in progress.
async fn until_there_are(server: &Server, wanted: usize) -> Result<Vec<i32>> {
    wait_for("that many operations", TIMEOUT, async || {
        let operations = operations(server).await?;
        Ok((operations.len() == wanted).then_some(operations))
    })
    .await
    .with_context(|| format!("{wanted} operations"))
}

/// Waits until the delta is empty and buckets hold all values, so that devices do the search. Values in the delta are
/// searched by host threads.
async fn until_buckets_hold_all(server: &Server, search: &Document) -> Result<()> {
    let explain = doc! { "explain": search.clone(), "$db": "test" };
    wait_for("an empty delta", TIMEOUT, async || {
        let explained = client(server).await?.run(&explain).await?;
        let explained = Document::try_from(explained)?.to_string();
        Ok(explained.contains("\"deltaRows\": 0").then_some(()))
    })
    .await
}

async fn insert(server: &Server, documents: Vec<Document>) -> Result<()> {
    insert_into(server, "c", documents).await
}

async fn insert_into(server: &Server, collection: &str, documents: Vec<Document>) -> Result<()> {
    let insert = doc! { "insert": collection, "documents": documents, "$db": "test" };
    client(server).await?.run(&insert).await.map(drop)
}

async fn kill(server: &Server, operations: Vec<i32>) -> Result<()> {
    for operation in operations {
        let kill = doc! { "killOp": 1, "op": operation, "$db": "admin" };
        client(server).await?.run(&kill).await?;
    }
    Ok(())
}

/// Runs a command, which must end when its time limit expires.
async fn expire(server: &Server, command: &Document, limit: Duration) -> Result<()> {
    let mut limited = command.clone();
    limited.remove("$db");
    limited.insert("maxTimeMS", i64::try_from(limit.as_millis())?);
    let driver = server.client().await?.database("test");
    let answer = timeout(TIMEOUT, driver.run_command(limited)).await;
    let refusal = answer.context("no answer")?.err().context("no error")?;
    ensure!(
        refusal.to_string().contains("MaxTimeMSExpired"),
        "{refusal}"
    );
    Ok(())
}

/// Runs `work`, which ends when the server has stopped a command. Checks that the server used at most `allowed` plus
/// [`LATE_MAX`] of processor time.
async fn assert_soon(
    server: &Server,
    allowed: Duration,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    let worked = || server.process().processor_time().context("no /proc");
    let before = worked()?;
    work.await?;
    let worked = worked()? - before;
    ensure!(worked < allowed + LATE_MAX, "{worked:?}");
    Ok(())
}

/// Returns random letters a and b. An automaton whose state depends on many earlier letters reaches a new state after
/// almost every letter.
fn letters(bytes: usize) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    let letter = || if random.bool() { 'a' } else { 'b' };
    std::iter::repeat_with(letter).take(bytes).collect()
}

/// Checks that a search that takes minutes ends at its time limit, when it is killed and when its client disconnects.
async fn assert_stops(server: &Server, search: &Document) -> Result<()> {
    let limit = Duration::from_millis(300);
    assert_soon(server, limit, expire(server, search, limit))
        .await
        .context("maxTimeMS")?;
    let waiting = send(server, search, 1);
    let running = until_there_are(server, 1).await?;
    assert_soon(server, Duration::ZERO, async {
        kill(server, running).await?;
        until_there_are(server, 0).await.map(drop)
    })
    .await
    .context("killOp")?;
    drop(waiting);
    let waiting = send(server, search, 1);
    until_there_are(server, 1).await?;
    assert_soon(server, Duration::ZERO, async {
        drop(waiting);
        until_there_are(server, 0).await.map(drop)
    })
    .await
    .context("a client that leaves")
}

async fn create_cache(server: &Server, collection: &str, field: &str) -> Result<()> {
    let index = doc! { "key": { field: "cache" }, "name": "cached" };
    let create = doc! { "createIndexes": collection, "indexes": [index], "$db": "test" };
    client(server).await?.run(&create).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_slow_commands_do_not_delay_other_clients() -> Result<()> {
    let _alone = CROWDS.lock().await;
    let server = Server::start(BINARY, &["--shutdown-timeout-ms", "500"])?;
    insert(&server, vec![doc! { "_id": 1 }]).await?;
    let reads = doc! { "aggregate": "c", "pipeline": [{ "$project": { "y": endless() } }], "cursor": {}, "$db": "test" };
    let writes = doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": [{ "$set": { "y": endless() } }] }], "$db": "test" };
    // Reads end when their clients disconnect. Writes continue, and end only when the server stops.
    let crowd = send(&server, &reads, CROWD);
    until_there_are(&server, CROWD).await?;
    ping(&server).await?;
    let reads_wait_for_no_write = send(&server, &writes, 1);
    until_there_are(&server, CROWD + 1).await?;
    drop(crowd);
    until_there_are(&server, 1).await?;
    let writers = send(&server, &writes, CROWD);
    until_there_are(&server, CROWD + 1).await?;
    ping(&server).await?;
    let find = doc! { "find": "c", "filter": { "$expr": { "$eq": ["$_id", 1] } }, "$db": "test" };
    let found = async { client(&server).await?.find_count(&find).await };
    ensure!(
        timeout(TIMEOUT, found)
            .await
            .context("no answer to find")??
            == 1
    );
    drop((writers, reads_wait_for_no_write));
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_write_delays_no_other_write() -> Result<()> {
    let _alone = CROWDS.lock().await;
    let server = Server::start(BINARY, &["--shutdown-timeout-ms", "500"])?;
    insert(&server, vec![doc! { "_id": 1 }, doc! { "_id": 2 }]).await?;
    insert_into(&server, "others", vec![doc! { "_id": 1 }]).await?;
    let update = |collection: &str, number: i32, change: Document| {
        let update = doc! { "q": { "_id": number }, "u": [{ "$set": { "y": change } }] };
        doc! { "update": collection, "updates": [update], "$db": "test" }
    };
    let alone = send(&server, &update("c", 1, endless()), 1);
    until_there_are(&server, 1).await?;
    for (collection, number) in [("others", 1), ("c", 2), ("c", 1)] {
        let short = update(collection, number, doc! { "$add": [1, 1] });
        let mut changed = send(&server, &short, CROWD);
        while let Some(changed) = timeout(TIMEOUT, changed.join_next())
            .await
            .with_context(|| format!("no answer to an update of {collection}"))?
        {
            changed??;
        }
    }
    until_there_are(&server, 1).await?;
    // The server stops although some writes wait for a permit, and others continue without their clients.
    let _waiting = send(&server, &update("c", 1, endless()), CROWD);
    until_there_are(&server, CROWD + 1).await?;
    drop(alone);
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_slow_searches_of_the_cache_do_not_delay_other_clients() -> Result<()> {
    let _alone = CROWDS.lock().await;
    let server = Server::start(BINARY, &["--memory", "--shutdown-timeout-ms", "500"])?;
    create_cache(&server, "c", "s").await?;
    insert(
        &server,
        vec![doc! { "s": "a".repeat(60_000) }, doc! { "s": "a needle" }],
    )
    .await?;
    let count = |pattern: &str| doc! { "count": "c", "query": { "s": { "$regex": pattern } }, "$db": "test" };
    until_buckets_hold_all(&server, &count("needle")).await?;
    let crowd = send(&server, &count(r"(*ANYCRLF)(a)(?:a?){15}\1[yz]"), SEARCHES);
    until_there_are(&server, SEARCHES).await?;
    ping(&server).await?;
    let quick = async { client(&server).await?.run(&count("needle")).await };
    let counted = timeout(TIMEOUT, quick)
        .await
        .context("no answer to count")??;
    ensure!(counted.get_i32("n")? == 1, "{counted:?}");
    drop(crowd);
    until_there_are(&server, 0).await?;
    let _at_the_end = send(&server, &count(r"(*LF)(a)(?:a?){15}\1[yz]"), SEARCHES);
    until_there_are(&server, SEARCHES).await?;
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_expression_is_evaluated_on_network_threads() -> Result<()> {
    let server = Server::start(BINARY, &["--memory", "--shutdown-timeout-ms", "500"])?;
    insert(&server, vec![doc! { "_id": 1 }]).await?;
    let slow = doc! { "$expr": { "$gt": [endless(), 0] } };
    let by_id = doc! { "_id": 1, "$expr": slow.get_document("$expr")?.clone() };
    let workers = std::thread::available_parallelism()?.get();
    for command in [
        doc! { "find": "c", "filter": { "_id": 1 }, "projection": { "y": endless() }, "$db": "test" },
        doc! { "find": "c", "filter": by_id.clone(), "$db": "test" },
        doc! { "find": "c", "filter": { "x": 1 }, "let": { "y": endless() }, "$db": "test" },
        doc! { "count": "c", "query": by_id.clone(), "$db": "test" },
        doc! { "listCollections": 1, "filter": slow.clone(), "$db": "test" },
        doc! { "listDatabases": 1, "filter": slow, "$db": "admin" },
        doc! { "aggregate": 1, "pipeline": [{ "$documents": [{ "y": endless() }] }], "cursor": {}, "$db": "test" },
    ] {
        let waiting = send(&server, &command, workers);
        until_there_are(&server, workers)
            .await
            .with_context(|| command.to_string())?;
        ping(&server).await.with_context(|| command.to_string())?;
        drop(waiting);
        until_there_are(&server, 0)
            .await
            .with_context(|| command.to_string())?;
    }
    // The server ends although endless writes are in progress, which continue without their clients.
    let delete = doc! { "delete": "c", "deletes": [{ "q": by_id, "limit": 1 }], "$db": "test" };
    let waiting = send(&server, &delete, workers);
    until_there_are(&server, workers).await?;
    ping(&server).await?;
    drop(waiting);
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_match_by_pcre2_ends_when_it_has_to() -> Result<()> {
    let server = Server::start(BINARY, &["--memory", "--shutdown-timeout-ms", "500"])?;
    // PCRE2's limit applies to each start position of a match separately, so these searches take hours.
    let text = "a".repeat(100_000);
    insert(
        &server,
        vec![doc! { "_id": 1, "s": text.as_str(), "a": [text.as_str()] }],
    )
    .await?;
    let regex = doc! { "$regex": r"(*ANYCRLF)(a)(?:a?){15}\1[yz]" };
    let set = doc! { "$set": { "a.$[x]": 1 } };
    let update = doc! { "q": { "_id": 1 }, "u": set, "arrayFilters": [{ "x": regex.clone() }] };
    for command in [
        doc! { "count": "c", "query": { "s": regex.clone() }, "$db": "test" },
        doc! { "find": "c", "filter": { "_id": 1 }, "projection": { "a": { "$elemMatch": regex.clone() } }, "$db": "test" },
        doc! { "update": "c", "updates": [update], "$db": "test" },
    ] {
        let waiting = send(&server, &command, 2);
        let running = until_there_are(&server, 2).await?;
        ping(&server).await?;
        kill(&server, running).await?;
        until_there_are(&server, 0)
            .await
            .with_context(|| command.to_string())?;
        drop(waiting);
    }
    let count = doc! { "count": "c", "query": { "s": regex }, "$db": "test" };
    expire(&server, &count, Duration::from_millis(100)).await?;
    let left = send(&server, &count, 1);
    until_there_are(&server, 1).await?;
    drop(left);
    until_there_are(&server, 0).await?;
    let _at_the_end = send(&server, &count, 4);
    until_there_are(&server, 4).await?;
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_by_a_large_automaton_ends_inside_one_value() -> Result<()> {
    let server = Server::start(BINARY, &["--memory", "--shutdown-timeout-ms", "500"])?;
    let text = letters(LARGE_VALUE_BYTES) + "q";
    for collection in ["plain", "cached"] {
        let document = doc! { "_id": 1, "v": text.as_str() };
        insert_into(&server, collection, vec![document]).await?;
    }
    create_cache(&server, "cached", "v").await?;
    let count = |collection: &str, pattern: &str| doc! { "count": collection, "query": { "v": { "$regex": pattern } }, "$db": "test" };
    for pattern in [
        "a[a-z]{3000}b[a-z]{3000}cq",
        r"a[a-z]{3000}b[a-z]{3000}c(q)\1",
    ] {
        for collection in ["plain", "cached"] {
            assert_stops(&server, &count(collection, pattern))
                .await
                .with_context(|| format!("{pattern} in {collection}"))?;
        }
    }
    let _at_the_end = send(&server, &count("plain", "a[a-z]{3000}b[a-z]{3000}cq"), 2);
    until_there_are(&server, 2).await?;
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_ten_thousand_patterns_ends_when_it_has_to() -> Result<()> {
    let server = Server::start(BINARY, &["--memory", "--shutdown-timeout-ms", "500"])?;
    for collection in ["plain", "cached"] {
        let documents = (0..2_000).map(|id| doc! { "_id": id, "v": letters(5_000) });
        insert_into(&server, collection, documents.collect()).await?;
    }
    create_cache(&server, "cached", "v").await?;
    // The first patterns use up the command's budget; PCRE2 evaluates the others.
    let patterns = (0..10_000).map(|n| {
        let pattern = CString::try_from(format!("(a|b)*{n}c.{{0,60}}(d|e)x"))?;
        let options = cstr!("").into();
        Ok(Bson::RegularExpression(Regex { pattern, options }))
    });
    let patterns = patterns.collect::<Result<Vec<Bson>>>()?;
    for collection in ["plain", "cached"] {
        let count = doc! { "count": collection, "query": { "v": { "$in": patterns.clone() } }, "$db": "test" };
        assert_stops(&server, &count).await.context(collection)?;
    }
    server.stop()
}

/// Each backtracking point stores all groups of a pattern. Without a limit, these patterns take hundreds of MB per
/// thread.
#[tokio::test(flavor = "multi_thread")]
async fn backtracking_for_many_clients_takes_bounded_memory() -> Result<()> {
    const CLIENTS: usize = 60;
    const THREAD_BYTES_MAX: u64 = 16 << 20;
    const REST_BYTES_MAX: u64 = 256 << 20;
    let server = Server::start(BINARY, &["--memory", "--shutdown-timeout-ms", "500"])?;
    for collection in ["plain", "cached"] {
        let documents = (0..100).map(|id| doc! { "_id": id, "v": "ab".repeat(30_000) });
        insert_into(&server, collection, documents.collect()).await?;
    }
    create_cache(&server, "cached", "v").await?;
    let threads = 8 * std::thread::available_parallelism()?.get() as u64;
    let bytes_max = threads.clamp(16, 128) * THREAD_BYTES_MAX + REST_BYTES_MAX;
    let pattern = format!(r"(*ANYCRLF){}(?:(a)|(b))*\1[yz]", "()".repeat(4_000));
    for collection in ["plain", "cached"] {
        let count = doc! { "count": collection, "query": { "v": { "$regex": pattern.as_str() } }, "$db": "test" };
        let crowd = send(&server, &count, CLIENTS);
        until_there_are(&server, CLIENTS).await?;
        let process = server.process();
        let enough = process.processor_time().context("no /proc")? + Duration::from_secs(4);
        wait_for("processor time", TIMEOUT, async || {
            let resident = process.resident_bytes().context("no /proc")?;
            ensure!(resident < bytes_max, "{resident} bytes in {collection}");
            let worked = process.processor_time().context("no /proc")?;
            Ok((worked > enough).then_some(()))
        })
        .await?;
        drop(crowd);
        assert_soon(&server, Duration::ZERO, async {
            until_there_are(&server, 0).await.map(drop)
        })
        .await?;
    }
    server.stop()
}
