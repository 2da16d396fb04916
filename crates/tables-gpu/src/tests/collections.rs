//! Collections of documents: their columns are kept until the documents change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::{Document, RawDocumentBuf, doc};
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{ClientContext, Command, Documents, Namespace, Rights};
use forebay_tables::{Code, TableVersion, VersionedScan, VersionedTable, parse};
use forebay_tables_documents::{Clients, Collections};
use futures_util::future::BoxFuture;

use super::declared::{AUTO, assert_ran, failed, plan, table, until};
use super::emulated;
use super::sessions::{Fixture, ON, done, lines, rows};
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
    /// Whether users of SQL may do everything, or nothing.
    may: Arc<AtomicBool>,
    fixture: Fixture,
}

/// Returns the collections of a server. Users may do everything while `may` is `true`, and nothing otherwise.
fn source(documents: &Arc<Documents>, may: &Arc<AtomicBool>) -> Arc<Collections> {
    let may = Arc::clone(may);
    let users = Box::new(Users { may });
    Arc::new(Collections::new(Arc::clone(documents), users))
}

impl Shop {
    fn new() -> Shop {
        let spec: DeviceSpec = "host:1".parse().expect("a device");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a thread");
        let documents = Documents::open(Default::default(), Arc::new(devices)).expect("a store");
        let may = Arc::new(AtomicBool::new(true));
        let source = source(&documents, &may);
        Shop {
            fixture: Fixture::with_source(source),
            documents,
            may,
        }
    }

    /// Returns the same documents with an engine of SQL that has just started.
    fn started_again(&self) -> Shop {
        let source = source(&self.documents, &self.may);
        Shop {
            fixture: self.fixture.started_with_source(source),
            documents: Arc::clone(&self.documents),
            may: Arc::clone(&self.may),
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

    /// Waits until declared columns of these names are here, and no others, of the version that the collection has.
    async fn until_here(&self, names: &[&str]) {
        let (namespace, began) = (Namespace::new("shop", "items"), Instant::now());
        loop {
            let version = self.documents.version(&namespace).map(|it| it.1);
            let mut found: Vec<String> = {
                let known = self.fixture.columns.known.lock();
                let here = known.columns.iter().filter(|(key, entry)| {
                    let is_here = matches!(entry.state, State::Here(_));
                    is_here && known.declared.has(key) && key.file.number == version
                });
                here.map(|(key, _)| key.names().1).collect()
            };
            found.sort();
            if found == names {
                return;
            }
            let is_late = began.elapsed() > Duration::from_secs(60);
            assert!(!is_late, "{found:?}, not {names:?}");
            tokio::task::yield_now().await;
        }
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
        // The columns of the version before are forgotten.
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

/// The CPU may read a later version of the collection that a join leaves out rows by, so that groups are not left out
/// by the version that kernels read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_of_the_cpu_leaves_out_no_groups_by_a_collection() {
    if !emulated::has_compiler() {
        return;
    }
    let shop = Shop::new();
    shop.insert(0..300).await;
    // Kernels do not compare texts of both sides.
    let (_, plan) = shop
        .asked(
            "SELECT m._id, s FROM (SELECT _id, kind FROM shop.items WHERE _id IN
                (SELECT _id FROM shop.items WHERE ok)) AS m
                LEFT JOIN (SELECT n, sum(_id) AS s FROM shop.items GROUP BY n) AS g
                ON g.n = m._id AND upper(m.kind) > CAST(s AS TEXT) ORDER BY 1, 2",
        )
        .await;
    // Those of the semi join alone.
    let with_tables = plan.matches("tables of joins").count();
    assert!(with_tables <= 1, "{plan}");
    assert!(plan.contains("ran there"), "{plan}");
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

const OF_KINDS: &str = "SELECT kind, count(*), sum(n) FROM shop.items WHERE n > 10 GROUP BY kind";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_collections_come_without_a_query_and_follow_writes() {
    if !emulated::has_compiler() {
        return;
    }
    let shop = Shop::new();
    shop.insert(0..300).await;
    let mut session = shop.fixture.session(AUTO).await;
    done(&mut session, "ALTER TABLE shop.items SET (gpu = 'N, kind')").await;
    assert_eq!(session.take_notices(), []);
    shop.until_here(&["kind", "n"]).await;
    assert_ran(&plan(&shop.fixture, AUTO, OF_KINDS).await);
    let update = doc! { "q": { "kind": "a" }, "u": { "$inc": { "n": 1 } }, "multi": true };
    shop.run(doc! { "update": "items", "updates": [update] })
        .await;
    shop.until_here(&["kind", "n"]).await;
    // The columns of the version before are forgotten.
    assert_eq!(shop.here().len(), 2);
    assert_ran(&plan(&shop.fixture, AUTO, OF_KINDS).await);
    let again = shop.started_again();
    again.until_here(&["kind", "n"]).await;
    assert_ran(&plan(&again.fixture, AUTO, OF_KINDS).await);
    done(
        &mut session,
        "ALTER TABLE documents.shop.items SET (gpu = on)",
    )
    .await;
    let all = ["_id", "at", "document", "kind", "n", "ok", "price"];
    shop.until_here(&all).await;
    done(&mut session, "ALTER TABLE shop.items RESET (gpu)").await;
    until(&shop.fixture, &[]).await;
    assert_eq!(shop.here().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declared_column_with_a_value_of_another_type_is_left_out_alone() {
    let shop = Shop::new();
    // The sample of both ends does not have the text.
    let mixed = (0..1000).map(|id| match id {
        400 => doc! { "_id": id, "a": id, "b": "x", "c": id },
        _ => doc! { "_id": id, "a": id, "b": id, "c": id },
    });
    let mixed: Vec<Document> = mixed.collect();
    shop.run(doc! { "insert": "items", "documents": mixed })
        .await;
    let refused = || {
        let known = shop.fixture.columns.known.lock();
        let states = known.columns.values().map(|it| &it.state);
        states.filter(|it| matches!(it, State::Refused(_))).count()
    };
    let mut session = shop.fixture.session(AUTO).await;
    done(&mut session, "ALTER TABLE shop.items SET (gpu = 'a, b, c')").await;
    shop.until_here(&["a", "c"]).await;
    assert_eq!(refused(), 1);
    // It is not tried again with the next version.
    let update = doc! { "q": { "_id": 7 }, "u": { "$inc": { "a": 1 } } };
    shop.run(doc! { "update": "items", "updates": [update] })
        .await;
    shop.until_here(&["a", "c"]).await;
    assert_eq!(refused(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_leave_with_the_rights_of_their_user() {
    let shop = Shop::new();
    shop.insert(0..10).await;
    let mut session = shop.fixture.session(AUTO).await;
    done(&mut session, "ALTER TABLE shop.items SET (gpu = n)").await;
    shop.until_here(&["n"]).await;
    shop.may.store(false, Ordering::Relaxed);
    until(&shop.fixture, &[]).await;
    assert_eq!(shop.here().len(), 0);
    shop.may.store(true, Ordering::Relaxed);
    // A declaration is looked at at once.
    done(&mut session, "ALTER TABLE shop.items SET (gpu = price)").await;
    shop.until_here(&["price"]).await;
}

/// Returns the sorted lines of the options of tables.
async fn options(shop: &Shop) -> Vec<String> {
    let mut session = shop.fixture.session(AUTO).await;
    let query = "SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL";
    rows(&mut session, query).await.expect(query)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declaration_ends_with_its_collection() {
    let shop = Shop::new();
    let mut session = shop.fixture.session(AUTO).await;
    for is_made_again in [true, false] {
        shop.insert(0..10).await;
        done(&mut session, "ALTER TABLE shop.items SET (gpu = n)").await;
        shop.until_here(&["n"]).await;
        let listed = options(&shop).await;
        assert!(listed.iter().any(|it| it.contains("gpu=n")), "{listed:?}");
        shop.run(doc! { "drop": "items" }).await;
        if is_made_again {
            shop.insert(0..10).await;
        }
        until(&shop.fixture, &[]).await;
        if !is_made_again {
            shop.insert(0..10).await;
        }
        let listed = options(&shop).await;
        assert!(!listed.iter().any(|it| it.contains("gpu=n")), "{listed:?}");
        shop.run(doc! { "drop": "items" }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collections_that_are_off_are_left_to_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let shop = Shop::new();
    shop.insert(0..300).await;
    let mut session = shop.fixture.session(AUTO).await;
    done(&mut session, "ALTER TABLE shop.items SET (gpu = 'n, kind')").await;
    shop.until_here(&["kind", "n"]).await;
    done(&mut session, "ALTER TABLE shop.items SET (gpu = off)").await;
    until(&shop.fixture, &[]).await;
    assert_eq!(shop.here().len(), 0);
    let off = "a table is declared with gpu = off";
    let found = plan(&shop.fixture, AUTO, OF_KINDS).await;
    assert!(found.contains(off), "{found}");
    // A session that asks for the GPU gets it.
    assert_ran(&plan(&shop.fixture, ON, OF_KINDS).await);
    let found = plan(&shop.started_again().fixture, AUTO, OF_KINDS).await;
    assert!(found.contains(off), "{found}");
    // Another collection of this name is not off.
    shop.run(doc! { "drop": "items" }).await;
    shop.insert(0..300).await;
    let found = plan(&shop.fixture, AUTO, OF_KINDS).await;
    assert!(!found.contains(off), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_declared_of_collections_is_told() {
    let shop = Shop::new();
    shop.insert(0..10).await;
    let mut session = shop.fixture.session(AUTO).await;
    for (table, value, code) in [
        ("shop.items", "nothing", Code::UndefinedColumn),
        ("shop.items", "'\"N\"'", Code::UndefinedColumn),
        ("shop.nothing", "on", Code::UndefinedTable),
        ("documents.shop.nothing", "on", Code::UndefinedTable),
        ("documents.nothing.items", "off", Code::UndefinedTable),
        ("nothing.shop.items", "on", Code::InvalidCatalogName),
    ] {
        let text = format!("ALTER TABLE {table} SET (gpu = {value})");
        assert_eq!(failed(&mut session, &text).await, code, "{text}");
    }
    done(
        &mut session,
        "ALTER TABLE IF EXISTS shop.nothing SET (gpu = on)",
    )
    .await;
    assert_eq!(session.take_notices().len(), 1);
    // A schema that was made hides the collections.
    done(&mut session, "CREATE SCHEMA shop").await;
    let text = "ALTER TABLE shop.items SET (gpu = on)";
    assert_eq!(failed(&mut session, text).await, Code::UndefinedTable);
    done(
        &mut session,
        "ALTER TABLE documents.shop.items SET (gpu = n)",
    )
    .await;
    shop.until_here(&["n"]).await;
}

/// A table with more columns than are read at once from a file. The first `current` calls of `is_current` return
/// `true`. `current` is also the number of its version.
#[derive(Debug)]
struct Changing {
    version: TableVersion,
    rows: RecordBatch,
    current: usize,
    asked: AtomicUsize,
}

impl Changing {
    fn new(current: usize) -> Changing {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
        let version = TableVersion {
            name: "documents.shop.changing".to_owned(),
            id: "one".to_owned(),
            number: current as u64,
            bytes: 800,
        };
        Changing {
            version,
            rows: RecordBatch::try_from_iter(
                ["n", "o", "p", "q", "r"].map(|it| (it, Arc::clone(&numbers))),
            )
            .expect("columns"),
            current,
            asked: AtomicUsize::new(0),
        }
    }
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
    // It is asked before, for each batch, and after.
    for current in 0..4 {
        let table = Arc::new(Changing::new(current));
        let source = Source::of(Origin::Table(table), vec![0]);
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

#[tokio::test]
async fn a_declared_table_that_changes_meanwhile_is_told() {
    let columns = Columns::new(emulated::device(), &Freeing::default(), None);
    let (name, context) = (table("changing"), Arc::default());
    for current in 0..5 {
        let table: Arc<dyn VersionedTable> = Arc::new(Changing::new(current));
        let scan = table.scan_all(&[0]).await.expect("rows");
        let scan = VersionedScan::new(scan, table, vec![0], None);
        let brought = columns.bring(&name, None, Arc::new(scan), &context);
        // After the load of all columns, `is_current` is called once more. No version waits because of earlier ones.
        assert_eq!(brought.await, Ok(current > 3));
        assert_eq!(columns.held().0, 5 * usize::from(current > 2), "{current}");
    }
}
