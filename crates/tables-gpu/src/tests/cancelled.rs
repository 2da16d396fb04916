//! Queries that are cancelled: their kernels end early, and nothing of them is used.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_device::cuda::{Program, ProgramSpec};
use forebay_memory::Share;

use super::data::Sizes;
use super::devices::gpus;
use super::emulated::{self, Emulated};
use super::{Fixture, limits};
use crate::engine::{CANCELLED, Engine, KernelLaunch, Keys, Launch, Memory};
use crate::giving_way::Freeing;
use crate::gpu::open_all;
use crate::launches::InMemory;
use crate::program::{THREADS, group_words};
use crate::reason::Reason;
use crate::slice::Slice;
use crate::source::{headers, options};

/// A kernel over rows without columns. Each warp counts the tiles that it reads. If `kWaits`, it waits for the flag
/// in its first.
const TILES: &str = "constexpr unsigned kBlocks = 1, kTilesAhead = 0;
constexpr bool kIsSliced = false, kIsDividing = false;
constexpr unsigned kDividedJoin = 0, kStepsBefore = 0, kColumnsBefore = 0;
#define TOTALS Registers
#include \"arguments.cuh\"
constexpr u32 kColumns = 0, kCursors = 0, kWidthsDiffer = 99, kTables = 0, kKeptTables = 0;
constexpr u32 kSlots = 1, kGroupWords = 1, kSteps = 1, kJoins = 0, kJoinWords = 0, kSource = 0;
constexpr u32 kOwnWords = 0, kCommonWord = 0, kIsUnique = 0, kIsOwnHashed = 0, kOwnRepeats = 0;
constexpr u32 kOwnTellsOfAll = 0, kAreRepeated = 0;
constexpr u64 kMatchesMax = 1;
constexpr u32 kTurnsMax = 1;
constexpr u32 kWidths[] = {{}}, kSlotWord[] = {0}, kOwnBits[] = {{}}, kFirstWord[] = {0}, kWordBits[] = {{}};
constexpr bool kIsFloat[] = {{}}, kIsMaximum[] = {false}, kIsWide[] = {false}, kIsHashed[] = {{}}, kRepeats[] = {{}};
constexpr u32 kStepJoin[] = {0xFFFFFFFFu};
struct Out {
    u32 word, shift, bits;
};
constexpr Out kOuts[][1] = {{}};
#include \"columns.cuh\"
#include \"totals.cuh\"
#include \"joins.cuh\"
using Totals = TOTALS;
template <u32 kStep> __device__ inline void load(Columns&, bool) {}
template <u32 kStep>
__device__ inline bool keeps(const Fragment&, const Columns&, Joined&, const u32, const bool) {
    return true;
}
__device__ inline void add(const Fragment& f, const Columns&, Joined&, const u32 i, const bool, Totals&) {
    if (i != 0 || threadIdx.x % 32 != 0) return;
    atomicAdd(reinterpret_cast<u64*>(f.own_words[0]), u64{1});
    while (kWaits && load_relaxed(f.flag) == 0) {}
}
#include \"fragment.cuh\"
";

/// Returns the launch of the kernel over this many rows, which counts in memory of 8 bytes.
fn launch(waits: bool, rows: u32, counter: &Memory) -> Launch {
    let head =
        format!("constexpr bool kWaits = {waits};\nconstexpr unsigned kThreads = {THREADS};\n");
    let program = Program::new(ProgramSpec {
        name: "tables/tiles.cu".to_owned(),
        source: (head + TILES).into(),
        headers: headers(),
        options: options(),
        entries: vec!["fragment".to_owned()],
    });
    let kernel = KernelLaunch {
        chunks: vec![vec![rows]],
        own_words: vec![counter.address],
        ..KernelLaunch::new(program, Vec::new())
    };
    Launch {
        kernels: vec![kernel],
        results_bytes: 8,
        memory: vec![counter.clone()],
        ..Launch::new(true)
    }
}

/// Returns memory for a number, which is 0.
async fn counter(engine: &Arc<dyn Engine>) -> Memory {
    let memory = engine.allocate(8).expect("room");
    engine.write(vec![0; 2], &memory).await.expect("a device");
    memory
}

async fn counted(engine: &Arc<dyn Engine>, counter: &Memory) -> u64 {
    let words = engine.read(counter, 8).await.expect("a device");
    u64::from(words[0]) | u64::from(words[1]) << 32
}

#[tokio::test]
async fn a_kernel_reads_few_tiles_after_its_query_was_cancelled() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let engine = emulated::devices(&emulated, 1).remove(0);
    // Each of three blocks of two warps has 100 tiles of 512 rows, and looks before the first and at each 64th. The
    // first thread reads all its tiles before the others begin.
    for (looks, tiles) in [(None, 600), (Some(0), 0), (Some(1), 0), (Some(2), 64)] {
        let counter = counter(&engine).await;
        *emulated.cancels.lock() = looks.map(|looks| (0, looks));
        let ran = engine.run(launch(false, 300 * 512, &counter)).await;
        let is_cancelled = ran.err() == Some(Reason::new(CANCELLED));
        assert_eq!(is_cancelled, looks.is_some());
        assert_eq!(counted(&engine, &counter).await, tiles, "{looks:?} looks");
    }
}

/// Queries with all kinds of kernels: scans, tables of joins, groups in all places, lists, selections, columns of
/// groups, sorts and window functions.
const QUERIES: &[&str] = &[
    "SELECT count(*), sum(b) FROM t WHERE a > 3",
    "SELECT day, flag, sum(b) AS s, count(*) FROM t GROUP BY 1, 2 ORDER BY s DESC NULLS LAST, 1, 2 LIMIT 7",
    "SELECT b, count(*), sum(quantity) FROM t GROUP BY b",
    "SELECT v, label, count(*), sum(b) FROM t JOIN m ON a = m.k JOIN d ON a = d.k GROUP BY 1, 2",
    "SELECT flag, count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v > quantity - 9) GROUP BY flag",
    "SELECT s, count(*) FROM (SELECT b, day, count(a) AS s, min(wide) AS m FROM t GROUP BY 1, 2) WHERE m < 0 GROUP BY s",
    "SELECT a, day, sum(quantity) OVER (PARTITION BY a ORDER BY day) FROM t WHERE quantity < 20",
    "SELECT flag, sum(price) FROM (SELECT flag, price, row_number() OVER (PARTITION BY flag, a ORDER BY moment, b, price) AS n
        FROM t) AS x WHERE n <= 2 GROUP BY flag",
];

/// Kernels behind one that has ended early find memory that nothing has written. None leaves the memory, and no row
/// comes of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_cancelled_at_any_kernel_returns_nothing() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    emulated.poisons.store(true, Ordering::Relaxed);
    let sizes = Sizes(&[3000, 1, 512, 513]);
    let fixture = Fixture::new(emulated::devices(&emulated, 2), sizes).await;
    for query in QUERIES {
        let (wanted, _) = Fixture::rows(&fixture.without, query).await;
        assert!(wanted.is_ok(), "{query}");
        let mut cancelled = 0;
        // Sorts have more than twenty kernels.
        for kernel in [0, 1, 2, 3, 5, 8, 13, 20] {
            for looks in [0, 1, 70] {
                *emulated.cancels.lock() = Some((kernel, looks));
                match Fixture::rows(&fixture.with, query).await.0 {
                    Err(error) => {
                        assert!(error.contains(CANCELLED), "{query}: {error}");
                        cancelled += 1;
                    }
                    // The kernel did not look so often, or others were tried after it.
                    rows => assert_eq!(rows, wanted, "{query}: kernel {kernel}"),
                }
            }
            if emulated.cancels.lock().take().is_some() {
                break;
            }
        }
        assert!(cancelled > 0, "{query}");
        let (rows, _) = Fixture::rows(&fixture.with, query).await;
        assert_eq!(rows, wanted, "{query}");
    }
}

async fn begun(engine: &Arc<dyn Engine>, counter: &Memory) {
    while counted(engine, counter).await == 0 {}
}

/// Starts kernels of which the first counts tiles, and cancels them as soon as it does. Returns when all have ended.
async fn cancelled(engine: &Arc<dyn Engine>, launched: Launch, counter: &Memory) {
    // It is compiled, and does not run.
    let none = || launch(true, 0, counter);
    engine.run(none()).await.expect("no rows");
    let running = engine.run(launched);
    let in_time = Duration::from_secs(60);
    let begun = tokio::time::timeout(in_time, begun(engine, counter)).await;
    begun.expect("the kernel begins");
    drop(running);
    // It runs behind the others.
    let next = tokio::time::timeout(in_time, engine.run(none())).await;
    next.expect("the others end").expect("no rows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_ends_a_scan_that_is_cancelled() {
    let Some(devices) = gpus() else { return };
    let freeing = Freeing::default();
    let engines = open_all(
        devices.list(),
        limits(1 << 28),
        Share::default(),
        None,
        &freeing,
    );
    let engine = engines.expect("room").remove(0);
    let counter = counter(&engine).await;
    // A thousand tiles for each of a thousand blocks, or more.
    let rows = 1 << 31;
    cancelled(&engine, launch(true, rows, &counter), &counter).await;
    let tiles = counted(&engine, &counter).await;
    let all = u64::from(rows / (8 * THREADS) * (THREADS / 32));
    assert!(tiles < all / 4, "{tiles} of {all}");
    drop((engine, counter));
    devices.halt();
}

/// Runs a sort behind a kernel that waits until the query is cancelled.
async fn cancel_sort(fixture: &Fixture) {
    let all = fixture.columns.written.all();
    let with_order = all.iter().find_map(|it| Some((it, it.order.as_ref()?)));
    let (compiled, order) = with_order.expect("a sort");
    // A list of rows of ones.
    let (engine, rows) = (&fixture.columns.engines[0], 1 << 16);
    let words = 2 * group_words(&compiled.totals) * rows;
    let memory = engine.allocate(4 * words as u64).expect("room");
    let written = engine.write(vec![1; words], &memory).await;
    written.expect("a device");
    let list = InMemory {
        address: memory.address,
        counter: 0,
        bytes: 4 * words as u64,
        keys: Keys::default(),
        slice: Slice::default(),
        memory,
    };
    let counter = counter(engine).await;
    let mut launched = launch(true, 1 << 20, &counter);
    let with = (&*fixture.columns, fixture.columns.now());
    let sorted = order.sort(&list, rows as u64, with, &mut launched);
    let sorted = sorted.expect("room");
    let zeroed = engine.write(vec![0; words], &sorted.memory).await;
    zeroed.expect("a device");
    cancelled(engine, launched, &counter).await;
    let sorted = engine.read(&sorted.memory, sorted.bytes).await;
    let sorted = sorted.expect("a device");
    assert!(sorted.iter().all(|word| *word == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_ends_a_sort_that_is_cancelled() {
    let Some(devices) = gpus() else { return };
    let freeing = Freeing::default();
    let engines = open_all(
        devices.list(),
        limits(1 << 28),
        Share::default(),
        None,
        &freeing,
    );
    let fixture = Fixture::new(engines.expect("room"), Sizes(&[3000])).await;
    let query = "SELECT a, day, sum(quantity) OVER (PARTITION BY a ORDER BY day) FROM t WHERE quantity < 20";
    let (rows, _) = Fixture::rows(&fixture.with, query).await;
    rows.expect(query);
    cancel_sort(&fixture).await;
    drop(fixture);
    devices.halt();
}
