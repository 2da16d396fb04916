//! The status listener (metrics, health and page), and the log of slow searches.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use forebay_peers::ferretdb::FerretDb;
use forebay_peers::process::ServerProcess;
use forebay_peers::wire::WireClient;
use forebay_testkit::Server;
use futures_util::TryStreamExt;
use mongodb::Collection;
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
const STATUS: [&str; 2] = ["--status-listen", "127.0.0.1:0"];

/// Starts a server with a status listener and two host devices.
fn start(arguments: &[&str]) -> Result<Server> {
    Server::start(BINARY, &[&STATUS, arguments].concat())
}

/// Returns `HOST:PORT` of the status listener.
fn address(process: &ServerProcess) -> Result<String> {
    let page = process.status_page().context("a status page")?;
    let address = page
        .strip_prefix("http://")
        .context("the status page's URL has no http://")?;
    Ok(address.trim_end_matches('/').to_owned())
}

/// Sends bytes to the status listener and returns its answer.
fn exchange(address: &str, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

/// Sends a GET request. Returns status code, head and body of the answer.
fn get(address: &str, path: &str) -> Result<(u16, String, String)> {
    let reply = exchange(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"),
    )?;
    let (head, body) = reply.split_once("\r\n\r\n").context("an empty line")?;
    let code = head.split(' ').nth(1).context("a code")?.parse()?;
    Ok((code, head.to_ascii_lowercase(), body.to_owned()))
}

fn json(address: &str) -> Result<Value> {
    let (code, _, body) = get(address, "/status.json")?;
    ensure!(code == 200, "{code}: {body}");
    Ok(serde_json::from_str(&body)?)
}

/// Returns the value of a sample, given its name and labels as in the metrics text.
fn sample(address: &str, name: &str) -> Result<f64> {
    let (code, _, body) = get(address, "/metrics")?;
    ensure!(code == 200, "{code}: {body}");
    let line = body.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(' '))
    });
    let line = line.with_context(|| format!("no {name} in\n{body}"))?;
    Ok(line[name.len() + 1..].parse()?)
}

/// Creates a collection with a cached field, and waits until the cache is built.
async fn cached(server: &Server) -> Result<Collection<Document>> {
    let things: Collection<Document> = server.client().await?.database("shop").collection("things");
    let documents = (0..2_000).map(|n| doc! { "_id": n, "name": format!("item-{n}"), "n": n });
    things.insert_many(documents).await?;
    let create = doc! { "createIndexes": "things", "indexes": [{ "key": { "name": "cache" }, "name": "by_name" }] };
    let database = server.client().await?.database("shop");
    database.run_command(create).await?;
    loop {
        let explain = doc! { "explain": { "count": "things", "query": { "name": "item-1" } } };
        let explained = database.run_command(explain).await?.to_string();
        if explained.contains("CACHE_COUNT") {
            return Ok(things);
        }
        ensure!(explained.contains("is being built"), "{explained}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_are_counted_by_source() -> Result<()> {
    let server = start(&["--devices", "host:2"])?;
    let address = address(server.process())?;
    let things = cached(&server).await?;
    let counted = |answered_by: &str, tier: &str| {
        let labels = format!("{{answered_by=\"{answered_by}\",tier=\"{tier}\"}}");
        let total = sample(
            &address,
            &format!("forebay_documents_searches_total{labels}"),
        )?;
        let timed = sample(
            &address,
            &format!("forebay_documents_search_duration_seconds_count{labels}"),
        )?;
        ensure!(total == timed, "{labels}: {total} and {timed}");
        Ok(total)
    };
    let before = counted("cache", "substring")?;
    for _ in 0..3 {
        let found = things
            .count_documents(doc! { "name": { "$regex": "item-19" } })
            .await?;
        assert_eq!(found, 111);
    }
    assert_eq!(
        counted("cache", "prefix")? + counted("cache", "substring")?,
        before + 3.0
    );
    things.find_one(doc! { "name": "item-7" }).await?;
    things
        .distinct("name", doc! { "name": { "$regex": "^item-1999$" } })
        .await?;
    let exact = counted("cache", "exact")?;
    assert!(exact >= 1.0, "{exact}");
    let reason = "forebay_documents_search_cache_not_used_total{reason=\"no-cached-field\"}";
    assert_eq!(
        (counted("scan", "none")?, sample(&address, reason)?),
        (0.0, 0.0)
    );
    things.count_documents(doc! { "n": { "$gt": 5 } }).await?;
    things
        .update_many(doc! { "n": { "$gt": 1_990 } }, doc! { "$set": { "m": 1 } })
        .await?;
    assert_eq!(
        (counted("scan", "none")?, sample(&address, reason)?),
        (2.0, 2.0)
    );
    // A find by `_id`, and commands without a filter, are not counted as searches.
    things.find_one(doc! { "_id": 3 }).await?;
    things
        .update_one(doc! { "_id": 3 }, doc! { "$set": { "m": 2 } })
        .await?;
    things.count_documents(doc! {}).await?;
    assert_eq!(counted("scan", "none")?, 2.0);
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_devices_and_caches_is_shown() -> Result<()> {
    let server = start(&[
        "--devices",
        "host:2",
        "--documents-bucket-values-max",
        "100",
    ])?;
    let address = address(server.process())?;
    cached(&server).await?;
    let field = "{namespace=\"shop.things\",field=\"name\"}";
    assert_eq!(
        sample(&address, &format!("forebay_documents_cache_values{field}"))?,
        2_000.0
    );
    let admin = server.client().await?.database("admin");
    let joined = admin
        .run_command(doc! { "forebayDevices": 1, "add": "host:1" })
        .await?;
    let left = admin
        .run_command(doc! { "forebayDevices": 1, "remove": 0_i64 })
        .await?;
    let shown = json(&address)?;
    let names: Vec<&str> = shown["devices"]
        .as_array()
        .context("devices")?
        .iter()
        .filter_map(|device| device["name"].as_str())
        .collect();
    assert_eq!(names, ["host:1", "host:2"], "{joined} {left}");
    let events: Vec<_> = shown["deviceEvents"]
        .as_array()
        .context("events")?
        .iter()
        .map(|event| (event["device"].as_str(), event["change"].as_str()))
        .collect();
    assert_eq!(events[0], (Some("host:0"), Some("left")));
    assert_eq!(events[1], (Some("host:2"), Some("joined")));
    let count = |change: &str| {
        sample(
            &address,
            &format!("forebay_device_events_total{{event=\"{change}\"}}"),
        )
    };
    assert_eq!(
        (count("joined")?, count("left")?, count("lost")?),
        (3.0, 1.0, 0.0)
    );
    let field = &shown["caches"][0]["fields"][0];
    let rows: u64 = field["cells"]
        .as_array()
        .context("cells")?
        .iter()
        .filter_map(|cell| cell["rows"].as_u64())
        .sum();
    assert_eq!(
        rows + field["deltaRows"].as_u64().unwrap_or(0),
        2_000,
        "{field}"
    );
    assert!(
        field["buckets"].get("0").is_none(),
        "the device has left: {field}"
    );
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_devices_is_shown_by_tenant() -> Result<()> {
    let server = start(&["--devices", "host:1"])?;
    let address = address(server.process())?;
    cached(&server).await?;
    let of = |tenant: &str| {
        let labels = format!("{{device=\"host:0\",tenant=\"{tenant}\"}}");
        let used = sample(&address, &format!("forebay_device_pool_used_bytes{labels}"))?;
        let max = sample(&address, &format!("forebay_device_pool_max_bytes{labels}"))?;
        anyhow::Ok((used, max))
    };
    // The values move to the device in the background; before, it has no tenant.
    while !of("documents").is_ok_and(|(used, _)| used > 0.0) {
        tokio::task::yield_now().await;
    }
    let device = &json(&address)?["devices"][0];
    let tenants = device["tenants"].as_array().context("tenants")?;
    let names: Vec<_> = tenants.iter().map(|it| it["name"].as_str()).collect();
    assert_eq!(names, [Some("documents"), Some("other")], "{device}");
    let budget = device["memoryBudgetBytes"].as_f64().context("a budget")?;
    assert_eq!((of("documents")?.1, of("other")?), (budget, (0.0, budget)));
    server.stop()
}

#[test]
fn requests_that_are_wrong_or_harmful_get_clear_answers() -> Result<()> {
    let server = start(&["--memory"])?;
    let address = address(server.process())?;
    let answer = |request: &str| exchange(&address, request);
    let host = format!("Host: {address}\r\n");
    for (request, code, words) in [
        (
            format!("GET /nothing HTTP/1.1\r\n{host}\r\n"),
            404,
            "/metrics",
        ),
        (
            format!("POST /metrics HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n"),
            405,
            "Only GET",
        ),
        (
            format!("DELETE / HTTP/1.1\r\n{host}\r\n"),
            405,
            "allow: GET, HEAD",
        ),
        (
            "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(),
            403,
            "or localhost",
        ),
        ("nonsense\r\n\r\n".to_owned(), 400, ""),
        (
            format!("GET / HTTP/1.1\r\n{host}A: {}\r\n\r\n", "x".repeat(100_000)),
            431,
            "",
        ),
    ] {
        let reply = answer(&request)?;
        ensure!(
            reply.starts_with(&format!("HTTP/1.1 {code} ")),
            "{request:.40}: {reply}"
        );
        ensure!(reply.contains(words), "{request:.40}: {reply}");
    }
    let head = answer(&format!("HEAD /metrics HTTP/1.1\r\n{host}\r\n"))?;
    ensure!(
        head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    let (code, head, page) = get(&address, "/")?;
    ensure!(code == 200 && page.contains("<title>Forebay</title>"));
    for expected in [
        "default-src 'none'",
        "x-content-type-options: nosniff",
        "script-src 'self'",
    ] {
        ensure!(head.contains(expected), "{head}");
    }
    server.stop()
}

#[test]
fn silent_clients_do_not_delay_others() -> Result<()> {
    let server = start(&["--memory"])?;
    let address = address(server.process())?;
    // Open more connections than the listener serves concurrently. The listener closes them after a timeout, because
    // they send nothing.
    let idle = (0..300)
        .map(|_| TcpStream::connect(&address))
        .collect::<Result<Vec<_>, _>>()?;
    let (code, _, body) = get(&address, "/health")?;
    assert_eq!(
        (code, body.trim()),
        (200, r#"{"status":"ok","problems":[]}"#)
    );
    drop(idle);
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_of_the_upstream_is_reported() -> Result<()> {
    let store = FerretDb::start()?;
    let front = start(&["--upstream", store.uri()])?;
    let address = address(front.process())?;
    assert_eq!(get(&address, "/health")?.0, 200);
    let mut client = WireClient::connect(front.process().address()).await?;
    client.run(&doc! { "ping": 1, "$db": "admin" }).await?;
    let unknown = client.run(&doc! { "madeUp": 1, "$db": "admin" }).await;
    ensure!(unknown.is_err(), "the upstream has no such command");
    let passed_on = |name: &str| {
        sample(
            &address,
            &format!("forebay_documents_upstream_commands_total{{command=\"{name}\"}}"),
        )
    };
    assert_eq!((passed_on("ping")?, passed_on("other")?), (1.0, 1.0));
    drop(store);
    // The server reuses a health result for a second.
    let (code, body) = loop {
        let (code, _, body) = get(&address, "/health")?;
        if code != 200 {
            break (code, body);
        }
    };
    ensure!(
        code == 503 && body.contains("the upstream"),
        "{code}: {body}"
    );
    front.stop()
}

/// Waits for a log line of a slow search, and returns the fields of the line. The line must contain `part`. The server
/// writes the line before it replies, but the line may arrive later.
fn logged(process: &ServerProcess, part: &str) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let lines = process.last_lines();
        let mut slow = lines.lines().filter(|line| line.contains("slow_search"));
        if let Some(line) = slow.find(|line| line.contains(part)) {
            return Ok(serde_json::from_str::<Value>(line)?["fields"].clone());
        }
        ensure!(
            Instant::now() < deadline,
            "no slow search with {part} in\n{lines}"
        );
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_searches_are_logged_with_details() -> Result<()> {
    let server = start(&["--documents-slow-search-ms", "0", "--log-format", "json"])?;
    let address = address(server.process())?;
    let things = cached(&server).await?;
    let secret = "secret".repeat(100);
    things
        .find_one(doc! { "name": { "$regex": &secret }, "n": 7 })
        .await?;
    things.count_documents(doc! { "n": &secret }).await?;
    things.distinct("n", doc! {}).await?;
    let prefixes = "forebay_documents_searches_total{answered_by=\"cache\",tier=\"prefix\"}";
    let paged = things.find(doc! { "name": { "$regex": "^item-" } });
    let paged = paged.limit(250).batch_size(100).await?;
    let (before, found) = (
        sample(&address, prefixes)?,
        paged.try_collect::<Vec<_>>().await?,
    );
    assert_eq!((found.len(), sample(&address, prefixes)?), (250, before));
    let logged = |part: &str| logged(server.process(), part);
    let found = logged("\"command\":\"find\"")?;
    assert_eq!(found["ns"], "shop.things");
    assert_eq!(found["filter"], "{$and: [{name: {$regex: ?}}, {n: ?}]}");
    assert_eq!(
        (&found["answered_by"], &found["tier"]),
        (&"cache".into(), &"substring".into())
    );
    let explain: Value = serde_json::from_str(found["explain"].as_str().context("text")?)?;
    assert_eq!(explain["stage"], "CACHE_SEARCH");
    assert_eq!(explain["leaves"][0]["rows"].as_i64(), Some(2_000));
    let paged = logged("\"command\":\"getMore\"")?;
    assert_eq!(paged["filter"], "{name: {$regex: ?}}");
    let scanned = logged("COLLSCAN")?;
    assert_eq!(scanned["answered_by"], "scan");
    assert_eq!(
        scanned["cache_not_used"],
        "the filter has no condition on a cached field"
    );
    let all = logged("\"command\":\"distinct\"")?;
    assert_eq!(all["answered_by"], "scan", "of everything");
    let lines = server.process().last_lines();
    ensure!(
        !lines.contains(&secret[..200]),
        "the log contains the value: {lines}"
    );
    server.stop()
}

#[test]
fn without_the_setting_there_is_no_status_page() -> Result<()> {
    let server = Server::start(BINARY, &["--memory"])?;
    ensure!(address(server.process()).is_err());
    let port = server.process().address();
    let taken = Command::new(BINARY)
        .args([
            "serve",
            "--memory",
            "--mongodb-listen",
            "127.0.0.1:0",
            "--status-listen",
            port,
        ])
        .output()?;
    let text = String::from_utf8_lossy(&taken.stderr).into_owned();
    ensure!(
        text.contains("is in use") && text.contains("--status-listen"),
        "{text}"
    );
    server.stop()
}
