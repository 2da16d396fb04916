//! Times searches that run as commands in this process, without a network:
//! `cargo run --release --example search_speed -- 300000`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document, RawDocumentBuf, doc};
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{ClientContext, Command, Documents, Settings};

/// Time for which each search is repeated.
const PERIOD: Duration = Duration::from_millis(800);

async fn run(documents: &Arc<Documents>, command: &RawDocumentBuf) -> RawDocumentBuf {
    let client = ClientContext::default();
    documents
        .run(&client, Command::from_body(command.clone()))
        .await
}

fn raw(mut command: Document) -> RawDocumentBuf {
    command.insert("$db", "speed");
    RawDocumentBuf::try_from(&command).expect("a command is a document")
}

/// Returns a random name that resembles package names: words of a few syllables, joined by dashes.
fn name(rng: &mut fastrand::Rng) -> String {
    const PARTS: [&str; 16] = [
        "react", "node", "js", "lib", "core", "ui", "data", "fast", "tiny", "web", "type", "mono",
        "api", "kit", "map", "log",
    ];
    let parts: Vec<&str> = (0..rng.usize(2..5))
        .map(|_| PARTS[rng.usize(..PARTS.len())])
        .collect();
    format!("{}-{}", parts.join("-"), rng.u32(..100_000))
}

async fn fill(documents: &Arc<Documents>, count: usize) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(1);
    let names: Vec<String> = (0..count).map(|_| name(&mut rng)).collect();
    let began = Instant::now();
    for (batch, chunk) in names.chunks(1000).enumerate() {
        let documents_of = |(place, name): (usize, &String)| doc! { "_id": (batch * 1000 + place) as i64, "name": name, "n": place as i32 };
        let rows: Vec<Document> = chunk.iter().enumerate().map(documents_of).collect();
        run(
            documents,
            &raw(doc! { "insert": "names", "documents": rows }),
        )
        .await;
    }
    println!(
        "{:.0} inserts/s",
        count as f64 / began.elapsed().as_secs_f64()
    );
    names
}

async fn time(documents: &Arc<Documents>, what: &str, commands: &[RawDocumentBuf]) {
    let mut times = Vec::new();
    let began = Instant::now();
    for command in commands.iter().cycle() {
        let start = Instant::now();
        let reply = run(documents, command).await;
        times.push(start.elapsed());
        assert!(reply.get_f64("ok").is_ok_and(|ok| ok == 1.0), "{reply:?}");
        if began.elapsed() > PERIOD {
            break;
        }
    }
    times.sort_unstable();
    println!(
        "{what}: median {:?} of {}",
        times[times.len() / 2],
        times.len()
    );
}

/// Times a prefix search that matches about 30 of 100,000 documents in one batch. Reading the documents dominates.
async fn wide_finds(documents: &Arc<Documents>) {
    let filter = doc! { "name": { "$regex": "^react-lib-[12]" } };
    let count = raw(doc! { "count": "names", "query": filter.clone() });
    let found = run(documents, &count).await;
    println!("{} documents:", found.get_i32("n").unwrap_or_default());
    time(documents, "counted", &[count]).await;
    let find = doc! { "find": "names", "filter": filter, "batchSize": 100_000 };
    time(documents, "found", &[raw(find.clone())]).await;
    let mut ids = find;
    ids.insert("projection", doc! { "_id": 1 });
    time(documents, "found, `_id` only", &[raw(ids)]).await;
}

async fn searches(documents: &Arc<Documents>, names: &[String]) {
    let exact = |name: &String| raw(doc! { "find": "names", "filter": { "name": name } });
    let exact: Vec<_> = names
        .iter()
        .step_by(names.len() / 1000)
        .map(exact)
        .collect();
    time(documents, "find exact", &exact).await;
    for pattern in ["^react-lib", "kit-map", "(ui|web).*-9[0-9]+7$", "[0-9]{5}"] {
        let filter = doc! { "name": { "$regex": pattern } };
        let count = raw(doc! { "count": "names", "query": filter.clone() });
        time(documents, &format!("count {pattern}"), &[count]).await;
        let find = raw(doc! { "find": "names", "filter": filter.clone() });
        time(documents, &format!("find {pattern}, first batch"), &[find]).await;
        let find = raw(doc! { "find": "names", "filter": filter, "limit": 10 });
        time(documents, &format!("find {pattern}, limit 10"), &[find]).await;
    }
}

#[tokio::main]
async fn main() {
    let count = std::env::args()
        .nth(1)
        .and_then(|count| count.parse().ok())
        .unwrap_or(300_000);
    let devices =
        Devices::new(&DeviceSpec::auto(), DeviceOptions::default()).expect("host devices");
    let documents =
        Documents::open(Settings::default(), Arc::new(devices)).expect("the door opens");
    let index = doc! { "key": { "name": "cache" }, "name": "name_cache" };
    run(
        &documents,
        &raw(doc! { "createIndexes": "names", "indexes": [index] }),
    )
    .await;
    let names = fill(&documents, count).await;
    if let Some(cache) = documents.cache().get("speed.names") {
        cache.flush();
    }
    wide_finds(&documents).await;
    searches(&documents, &names).await;
}
