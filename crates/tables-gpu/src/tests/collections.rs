//! Collections of documents: their columns are kept until the documents change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bson::{Document, RawDocumentBuf, doc};
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{ClientContext, Command, Documents, Rights};
use forebay_tables::{Code, TableVersion, VersionedTable, parse};
use forebay_tables_documents::{Clients, Collections};
use futures_util::future::BoxFuture;

use super::emulated;
use super::sessions::{Fixture, ON, lines, rows};
use crate::column::Column;
use crate::columns::{Columns, State};
use crate::fragment::Source;
use crate::giving_way::{Freeing, Need};
use crate::load::load;
use crate::origin::Origin;

const QUERY: &str = "SELECT kind, count(*), sum(n), min(at), max(price) FROM shop.items WHERE n > 10 AND ok GROUP BY kind";

/// Users who may do everything or nothing.
#[derive(Debug)]
struct Users {
    may: Arc<AtomicBool>,
}

impl Clients for Users {
    fn client(&self, _: Option<&str>) -> ClientContext {
        let rights = match self.may.load(Ordering::Relaxed) {
            true => Rights::Everything,
            false => Rights::Roles(Arc::default()),
        };
        ClientContext {
            rights,
            ..ClientContext::default()
        }
    }
}

/// A documents server whose collections are tables.
struct Shop {
    documents: Arc<Documents>,
    /// Whether users of SQL may do something.
    may: Arc<AtomicBool>,
    fixture: Fixture,
}

impl Shop {
    fn new() -> Shop {
        let spec: DeviceSpec = "host:1".parse().expect("a device");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a thread");
        let documents = Documents::open(Default::default(), Arc::new(devices)).expect("a store");
        let may = Arc::new(AtomicBool::new(true));
        let users = Users {
            may: Arc::clone(&may),
        };
        let source = Collections::new(Arc::clone(&documents), Box::new(users));
        Shop {
            fixture: Fixture::with_source(Arc::new(source)),
            documents,
            may,
        }
    }

    async fn run(&self, mut command: Document) {
        command.insert("$db", "shop");
        let body = RawDocumentBuf::try_from(&command).expect("a command");
        let client = ClientContext::default();
        let reply = self.documents.run(&client, Command::from_body(body)).await;
        assert_eq!(
            reply.get_f64("ok").ok(),
            Some(1.0),
            "{command} -> {reply:?}"
        );
    }

    async fn insert(&self, ids: std::ops::Range<i32>) {
        let documents = ids.map(|id| {
            let mut document = doc! {
                "_id": id,
                "n": id % 40,
                "price": f64::from(id) / 4.0,
                "at": bson::DateTime::from_millis(1_700_000_000_000 + 86_400_000 * i64::from(id)),
                "ok": id % 4 > 0,
            };
            if id % 7 > 0 {
                document.insert("kind", ["a", "b", "c"][id as usize % 3]);
            }
            document
        });
        let documents: Vec<Document> = documents.collect();
        self.run(doc! { "insert": "items", "documents": documents })
            .await;
    }

    /// Returns the rows of a query, which are those of the CPU, and what `EXPLAIN ANALYZE` tells.
    async fn asked(&self, query: &str) -> (Vec<String>, String) {
        let mut with = self.fixture.session(ON).await;
        let mut without = self.fixture.session("SET forebay.gpu = off").await;
        let wanted = rows(&mut without, query).await.expect(query);
        let found = rows(&mut with, query).await.expect(query);
        assert_eq!(found, wanted, "{query}");
        let plan = rows(&mut with, &format!("EXPLAIN ANALYZE {query}")).await;
        (found, plan.expect(query).join("\n"))
    }

    /// Returns the columns that are here, in the order of their addresses.
    fn here(&self) -> Vec<Arc<Column>> {
        let known = self.fixture.columns.known.lock();
        let here = known.columns.values().filter_map(|it| match &it.state {
            State::Here(column) => Some(Arc::clone(column)),
            State::Away(_) | State::Refused(_) => None,
        });
        let mut here: Vec<_> = here.collect();
        here.sort_by_key(Arc::as_ptr);
        here
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_collections_are_kept_until_documents_change() {
    if !emulated::has_compiler() {
        return;
    }
    let shop = Shop::new();
    shop.insert(0..300).await;
    let (mut last, plan) = shop.asked(QUERY).await;
    assert!(plan.contains("ran there"), "{plan}");
    let before = shop.here();
    assert!(before.len() >= 5);
    shop.asked(QUERY).await;
    let after = shop.here();
    let are_same = before
        .iter()
        .map(Arc::as_ptr)
        .eq(after.iter().map(Arc::as_ptr));
    assert!(are_same);
    let of_kind = |kind: &str| doc! { "kind": kind };
    for writes in [
        vec![doc! { "insert": "items", "documents": [{ "_id": 1000, "n": 900, "ok": true }] }],
        vec![
            doc! { "update": "items", "updates": [{ "q": of_kind("a"), "u": { "$inc": { "n": 1 } }, "multi": true }] },
        ],
        vec![doc! { "delete": "items", "deletes": [{ "q": of_kind("b"), "limit": 0 }] }],
        vec![
            doc! { "drop": "items" },
            doc! { "insert": "items", "documents": [
                { "_id": 1, "n": 70, "kind": "d", "ok": true, "price": 0.5, "at": bson::DateTime::from_millis(7) },
            ] },
        ],
    ] {
        for write in writes {
            shop.run(write).await;
        }
        let (found, plan) = shop.asked(QUERY).await;
        assert!(plan.contains("ran there"), "{plan}");
        assert_ne!(found, last);
        // Those of the version before are forgotten.
        assert_eq!(shop.here().len(), before.len());
        last = found;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_kept_of_collections_is_told() {
    if !emulated::has_compiler() {
        return;
    }
    let shop = Shop::new();
    shop.insert(0..300).await;
    // The sample of both ends does not have the text, and the filter of the CPU leaves it out.
    let mixed = (0..1000).map(|id| match id {
        500 => doc! { "_id": id, "n": "five hundred" },
        _ => doc! { "_id": id, "n": id },
    });
    let mixed: Vec<Document> = mixed.collect();
    shop.run(doc! { "insert": "mixed", "documents": mixed })
        .await;
    let (_, plan) = shop
        .asked("SELECT sum(n) FROM shop.mixed WHERE n > 10")
        .await;
    assert!(plan.contains("has a value of type string"), "{plan}");
    let (_, plan) = shop
        .asked("SELECT count(a.n), count(b._id) FROM shop.items AS a FULL JOIN shop.items AS b ON a.n = b._id")
        .await;
    let reason = "OnCpuExec: two parts of the plan read a table that may change between them";
    assert!(plan.contains(reason), "{plan}");
    let cache = doc! { "key": { "kind": "cache" }, "name": "kind" };
    shop.run(doc! { "createIndexes": "items", "indexes": [cache] })
        .await;
    let (_, plan) = shop
        .asked("SELECT sum(n) FROM shop.items WHERE kind = 'a'")
        .await;
    let reason = "OnCpuExec: conditions that the documents server answers from its cache";
    assert!(plan.contains(reason), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_was_prepared_before_a_write_sees_it() {
    if !emulated::has_compiler() {
        return;
    }
    let shop = Shop::new();
    shop.insert(0..300).await;
    let (before, plan) = shop.asked(QUERY).await;
    assert!(plan.contains("ran there"), "{plan}");
    let mut session = shop.fixture.session(ON).await;
    let parsed = parse(QUERY).expect("a query").remove(0);
    let prepared = session.prepare(parsed, &[]).await.expect("a plan");
    shop.run(doc! { "delete": "items", "deletes": [{ "q": { "kind": "b" }, "limit": 0 }] })
        .await;
    let outcome = session.execute(&prepared, Vec::new()).await.expect("rows");
    let found = lines(outcome).await.expect("rows");
    assert_ne!(found, before);
    assert_eq!(found, shop.asked(QUERY).await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_run_of_a_prepared_statement_needs_the_rights() {
    if !emulated::has_compiler() {
        return;
    }
    let shop = Shop::new();
    shop.insert(0..300).await;
    // The GPU has the columns, and needs no document.
    let (_, plan) = shop.asked(QUERY).await;
    assert!(plan.contains("ran there"), "{plan}");
    let (counts, never_kept) = (
        "SELECT count(*) FROM shop.items",
        "SELECT now(), n FROM shop.items",
    );
    for settings in [ON, "SET forebay.gpu = off"] {
        for query in [QUERY, counts, never_kept] {
            let mut session = shop.fixture.session(settings).await;
            let parsed = parse(query).expect("a query").remove(0);
            let prepared = session.prepare(parsed, &[]).await.expect("a plan");
            for may in [false, true, false] {
                shop.may.store(may, Ordering::Relaxed);
                let ran = session.execute(&prepared, Vec::new()).await;
                let refused = ran.err().map(|error| error.code);
                let wanted = (!may).then_some(Code::InsufficientPrivilege);
                assert_eq!(refused, wanted, "{query}, {settings}");
            }
            shop.may.store(true, Ordering::Relaxed);
        }
    }
}

/// A table that is of its version when it is first asked, this many times.
#[derive(Debug)]
struct Changing {
    version: TableVersion,
    rows: RecordBatch,
    current: usize,
    asked: AtomicUsize,
}

impl VersionedTable for Changing {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    fn version(&self) -> &TableVersion {
        &self.version
    }

    fn is_current(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) < self.current
    }

    fn scan_all<'a>(
        &'a self,
        columns: &'a [usize],
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        let rows = [vec![self.rows.clone()]];
        let columns = Some(columns.to_vec());
        let scan = MemorySourceConfig::try_new_exec(&rows, self.rows.schema(), columns);
        Box::pin(async move { Ok(scan? as Arc<dyn ExecutionPlan>) })
    }
}

#[tokio::test]
async fn columns_of_a_table_that_changes_meanwhile_are_not_kept() {
    let columns = Columns::new(emulated::device(), &Freeing::default(), None);
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).expect("a column");
    // It is asked before, for each batch, and after.
    for current in 0..4 {
        let version = TableVersion {
            name: format!("documents.shop.changing{current}"),
            id: "one".to_owned(),
            number: 7,
            bytes: 800,
        };
        let table = Changing {
            version,
            rows: batch.clone(),
            current,
            asked: AtomicUsize::new(0),
        };
        let source = Source::of(Origin::Table(Arc::new(table)), vec![0]);
        let files = source.origin.files().expect("one");
        let key = Columns::key(&files[0].0, &source, 0);
        let reads = vec![(Arc::new(source), files)];
        let loading = Arc::clone(&columns.loading).lock_owned().await;
        let with = (Arc::default(), Need::Query(1));
        let loaded = load(Arc::clone(&columns), reads, with, loading).await;
        let is_kept = columns.column_here(&key).is_some();
        assert_eq!((loaded.is_ok(), is_kept), (current == 3, current == 3));
    }
}
