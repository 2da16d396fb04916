//! Kernels that do not compile, and those that are compiled while queries run.

use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::thread::{self, available_parallelism};

use forebay_device::cuda::{Arch, CompileError, Program, ProgramSpec, compile, nvrtc_version};
use forebay_device::{JobFailure, KernelError};
use forebay_memory::Share;
use forebay_tables::Session;
use parking_lot::Mutex;

use super::data::Sizes;
use super::devices::gpus;
use super::emulated::{self, Emulated};
use super::sessions::{Fixture, ON, rows};
use super::{is_full, limits};
use crate::engine::{KernelLaunch, Launch};
use crate::giving_way::Freeing;
use crate::gpu::open_all;
use crate::reason::Reason;
use crate::source::{headers, options};

/// Compiles the longest kernels for each architecture, if there is NVRTC.
pub(super) fn compile_all(emulated: &Emulated) {
    compile_those(emulated, |_| true);
}

/// Compiles the longest of some kernels for each architecture, if there is NVRTC.
pub(super) fn compile_those(emulated: &Emulated, are_wanted: impl Fn(&ProgramSpec) -> bool) {
    compile_longest(emulated, are_wanted, [3, 10, 3]);
}

/// Compiles the longest of some kernels, this many for each architecture, if there is NVRTC. With
/// `FOREBAY_TEST_FULL=1` all are compiled.
pub(super) fn compile_longest(
    emulated: &Emulated,
    are_wanted: impl Fn(&ProgramSpec) -> bool,
    counts: [usize; 3],
) {
    if let Err(error) = nvrtc_version() {
        let required = std::env::var_os("FOREBAY_REQUIRE_NVRTC").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no NVRTC");
        return;
    }
    let kernels = emulated.kernels.lock();
    let mut specs: Vec<_> = kernels.values().filter(|it| are_wanted(it)).collect();
    // The longest have the most registers.
    specs.sort_by_key(|spec| std::cmp::Reverse(spec.source.len()));
    let archs = [8, 9, 10].map(|major| Arch { major, minor: 0 });
    let wanted = archs.into_iter().zip(counts).flat_map(|(arch, count)| {
        let count = if is_full() { specs.len() } else { count };
        specs.iter().take(count).map(move |spec| (arch, *spec))
    });
    let wanted = Mutex::new(wanted);
    let compile_some = || {
        let next = || wanted.lock().next();
        while let Some((arch, spec)) = next() {
            let cubin = compile(spec, arch).unwrap_or_else(|error| panic!("{error}"));
            for kernel in cubin.entries {
                assert_eq!(kernel.local_bytes, 0, "{arch}:\n{}", spec.source);
            }
        }
    };
    let threads = available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(compile_some);
        }
    });
}

const BACKGROUND: &str = "SET forebay.gpu = on; SET forebay.compile = background";

/// Queries of each kind of operator.
const QUERIES: [&str; 4] = [
    "SELECT flag, count(*), sum(b) FROM t WHERE a > 3 GROUP BY flag",
    "SELECT flag, count(DISTINCT a), count(DISTINCT quantity), count(*) FROM t GROUP BY flag",
    "SELECT a, b FROM t WHERE b > 1000",
    "SELECT a, rank() OVER (ORDER BY b) FROM t WHERE a > 3",
];

/// Queries, a constant in each and another one, and how often each runs at most until a device computes it. Kernels
/// that run after others have returned something are compiled after these.
const SHAPES: [(&str, &str, &str, usize); 6] = [
    (
        "SELECT flag, count(*), sum(b) FROM t WHERE quantity < 24 GROUP BY flag",
        "24",
        "23",
        2,
    ),
    (
        "SELECT count(*), sum(b) FROM t JOIN d ON a = k WHERE quantity < 24",
        "24",
        "23",
        2,
    ),
    (
        "SELECT label, sum(price), count(*) FROM t JOIN d ON a = k WHERE day > DATE '1995-03-15' GROUP BY label",
        "1995-03-15",
        "1996-01-01",
        3,
    ),
    (
        "SELECT day, flag, sum(b) AS s FROM t WHERE quantity < 44 GROUP BY 1, 2 ORDER BY s DESC NULLS LAST, 1, 2 LIMIT 7",
        "44",
        "43",
        3,
    ),
    (
        "SELECT a, b FROM t WHERE quantity < 24 ORDER BY b DESC, a LIMIT 5",
        "24",
        "23",
        3,
    ),
    (
        "SELECT a, rank() OVER (ORDER BY b) FROM t WHERE quantity < 24",
        "24",
        "23",
        4,
    ),
];

/// Returns the reason that a GPU gives if a kernel does not compile.
fn does_not_compile() -> Reason {
    let error = CompileError::Refused {
        program: "tables/fragment.cu".to_owned(),
        arch: Arch { major: 9, minor: 0 },
        code: "NVRTC_ERROR_COMPILATION".to_owned(),
        log: "fragment.cu(3): error: identifier \"v7\" is undefined".to_owned(),
        numbered_source: String::new(),
    };
    Reason::of(JobFailure::from(KernelError::from(Box::new(error))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cpu_answers_if_a_kernel_does_not_compile() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(ON).await;
    let mut strict = fixture
        .session(&format!("{ON}; SET forebay.strict = on"))
        .await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    // The plan of the first query is kept before.
    let mut wanted = rows(&mut without, QUERIES[0]).await;
    for _ in 0..2 {
        assert_eq!(rows(&mut session, QUERIES[0]).await, wanted);
    }
    assert_eq!(fixture.runs_again(), 1);
    *fixture.emulated.compile_error.lock() = Some(does_not_compile());
    let reason = "tables/fragment.cu does not compile for sm_90 (NVRTC_ERROR_COMPILATION)";
    for query in QUERIES {
        wanted = rows(&mut without, query).await;
        assert!(wanted.is_ok(), "{query}: {wanted:?}");
        for _ in 0..2 {
            assert_eq!(rows(&mut session, query).await, wanted, "{query}");
        }
        let plan = rows(&mut session, &format!("EXPLAIN ANALYZE {query}")).await;
        let plan = plan.expect(query).join("\n");
        let told = format!("ran on the CPU: program {reason}");
        assert!(plan.contains(&told), "{query}: {plan}");
        let error = rows(&mut strict, query).await.expect_err(query);
        assert!(error.contains(reason), "{query}: {error}");
    }
    let figures = fixture.tables.gpu_figures().remove(0);
    let mut on_cpu = figures.on_cpu.iter();
    assert!(on_cpu.any(|(text, count)| text.contains(reason) && *count >= 12));
    // Nothing of it lasts.
    *fixture.emulated.compile_error.lock() = None;
    for query in QUERIES {
        wanted = rows(&mut without, query).await;
        assert_eq!(rows(&mut strict, query).await, wanted, "{query}");
    }
}

/// Runs a query until a device computes it. Returns how often it ran.
async fn calls(fixture: &Fixture, session: &mut Session, (query, most): (&str, usize)) -> usize {
    let mut without = fixture.session("SET forebay.gpu = off").await;
    let wanted = rows(&mut without, query).await;
    assert!(wanted.is_ok(), "{query}: {wanted:?}");
    for call in 1..=most {
        let before = fixture.columns.counts.on_device();
        assert_eq!(rows(session, query).await, wanted, "{query}");
        if fixture.columns.counts.on_device() > before {
            return call;
        }
    }
    panic!("not computed on a device in {most} calls: {query}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_constants_compile_nothing() {
    if !emulated::has_compiler() {
        return;
    }
    for (settings, waits) in [(BACKGROUND, false), (ON, true)] {
        let fixture = Fixture::new(Sizes(&[700, 1]));
        let behind = &fixture.emulated.compiles_behind;
        behind.store(true, Ordering::Relaxed);
        let mut session = fixture.session(settings).await;
        let compiled = || fixture.emulated.kernels.lock().len();
        for (query, constant, other, most) in SHAPES {
            let (before, most) = (compiled(), if waits { 1 } else { most });
            let first = calls(&fixture, &mut session, (query, most)).await;
            let kernels = compiled();
            println!("{} kernels in {first} calls: {query}", kernels - before);
            // The first call of a shape that was not seen is the CPU's.
            assert!(kernels > before && (first == 1) == waits, "{query}");
            let other = query.replace(constant, other);
            assert_eq!(calls(&fixture, &mut session, (other.as_str(), 1)).await, 1);
            assert_eq!(compiled(), kernels, "{other}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_that_does_not_compile_leaves_a_gpu_to_others() {
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
    let launch = |body: &str| {
        let head = "#include \"arguments.cuh\"\nextern \"C\" __global__ void fragment";
        let source = format!("{head}(const __grid_constant__ Fragment f) {{ {body} }}\n");
        let program = Program::new(ProgramSpec {
            name: "tables/refused.cu".to_owned(),
            source: source.into(),
            headers: headers(),
            options: options(),
            entries: vec!["fragment".to_owned()],
        });
        let mut launch = Launch::new(true);
        launch.kernels.push(KernelLaunch::new(program, Vec::new()));
        launch
    };
    for _ in 0..2 {
        let reason = engine.run(launch("no_such_thing();")).await;
        let reason = reason.expect_err("no such thing").to_string();
        let told = "program tables/refused.cu does not compile for sm_";
        assert!(reason.starts_with(told), "{reason}");
        engine.run(launch("")).await.expect("no rows");
    }
    drop(engine);
    devices.halt();
}
