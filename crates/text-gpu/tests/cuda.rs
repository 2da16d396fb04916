//! Tests that GPU, host engine and PCRE2 agree. Without a GPU the tests print `skipped: no GPU`, or fail if
//! `FOREBAY_REQUIRE_GPU=1`.
//!
//! `FOREBAY_TEST_SEED` repeats a run; `FOREBAY_GPU_PAIRS` sets how many pairs of a pattern and a value are compared.
//! `FOREBAY_GPU_ROWS` sets the maximum rows of a block in the test of searches that share a pass.

#[path = "../../text/tests/common/mod.rs"]
mod common;
#[path = "../benches/common/search.rs"]
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

use common::generate::Generator;
use common::{Block, judge, programs};
use fastrand::Rng;
use forebay_cancel::Stop;
use forebay_device::cuda::{Priority, gpus};
use forebay_device::{Device, DeviceContext, DeviceOptions, Devices, Step};
use forebay_text::{Limits, Options, Pattern, Program, Tier};
use forebay_text_gpu::{
    Lists, Policy, ScanFound, ScanOrder, ScanQueue, ScanTable, ScanWant, TiledRows, prepare,
};
use search::{Search, search_all};

/// A GPU and its queues, one for each kind of [`Lists`], shared by all tests of a process.
struct Gpu {
    device: Arc<Device>,
    queues: Vec<Arc<ScanQueue>>,
}

fn queues() -> Vec<Arc<ScanQueue>> {
    let policy = Policy::of(gpus().expect("a GPU")[0].arch);
    let with = |lists| {
        let policy = Policy {
            lists,
            ..policy.clone()
        };
        Arc::new(ScanQueue::with_policy(policy))
    };
    [Lists::Direct, Lists::Staged].map(with).into()
}

fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let start = || {
        let options = DeviceOptions {
            cuda_memory_budget_bytes: Some(8 << 30),
            ..DeviceOptions::default()
        };
        let spec = "cuda:0".parse().expect("a valid specification");
        match Devices::new(&spec, options) {
            Ok(devices) => {
                let device = Arc::clone(&devices.list()[0]);
                prepare(&device).expect("an empty queue");
                Some(Gpu {
                    device,
                    queues: queues(),
                })
            }
            Err(error) => {
                let required =
                    std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
                assert!(!required, "{error}");
                println!("skipped: no GPU");
                None
            }
        }
    };
    GPU.get_or_init(start).as_ref()
}

impl Gpu {
    fn load(&self, block: &Block) -> Arc<TiledRows> {
        Arc::new(TiledRows::load(&self.device, block.rows()).expect("there is room"))
    }

    /// Runs several programs that are queued at the same time.
    fn scan(
        &self,
        queue: &Arc<ScanQueue>,
        table: &Arc<ScanTable>,
        programs: &[Arc<Program>],
        want: ScanWant,
    ) -> Vec<ScanFound> {
        let searches = programs.iter().map(|program| Search {
            device: &self.device,
            queue,
            table,
            program,
        });
        search_all(searches, want, |answers| answers.iter().collect())
    }

    /// Compares counts and rows of the programs with the expected rows, which are ascending.
    fn check(
        &self,
        table: &Arc<ScanTable>,
        programs: &[Arc<Program>],
        expected: &[Vec<u32>],
        context: &str,
    ) {
        for want in [ScanWant::Count, ScanWant::Rows] {
            for queue in &self.queues {
                let found = self.scan(queue, table, programs, want.clone());
                for ((found, program), rows) in found.iter().zip(programs).zip(expected) {
                    check(found, rows, &want, || {
                        format!("{context}: {program:?}, {want:?}")
                    });
                }
            }
        }
    }
}

impl Gpu {
    /// Compares the device's result for one program with the matching rows. A program that confirms on the host may
    /// find more.
    fn check_one(&self, table: &Arc<ScanTable>, program: Program, matching: &Vec<u32>, seed: u64) {
        let context = format!("FOREBAY_TEST_SEED={seed}");
        let program = [Arc::new(program)];
        if !program[0].confirms_on_host() {
            return self.check(table, &program, std::slice::from_ref(matching), &context);
        }
        let found = self.scan(&self.queues[0], table, &program, ScanWant::Rows);
        let candidates: BTreeSet<u32> = found[0].list.iter().copied().collect();
        let missed = matching.iter().find(|row| !candidates.contains(row));
        assert_eq!(missed, None, "{context}: {:?} lost a row", program[0]);
    }
}

fn check(found: &ScanFound, rows: &[u32], want: &ScanWant, context: impl Fn() -> String) {
    assert_eq!(found.matches, rows.len() as u64, "{}", context());
    let mut list = found.list.clone();
    list.sort_unstable();
    let wanted = match want {
        ScanWant::Rows => rows,
        ScanWant::Count | ScanWant::Marks(_) => &[],
    };
    assert_eq!(list, wanted, "{}", context());
}

fn seed() -> u64 {
    let text = std::env::var("FOREBAY_TEST_SEED").ok();
    text.map_or_else(
        || fastrand::u64(..),
        |text| text.parse().expect("FOREBAY_TEST_SEED is a number"),
    )
}

fn pairs_wanted() -> usize {
    let text = std::env::var("FOREBAY_GPU_PAIRS").ok();
    text.map_or(200_000, |text| {
        text.parse().expect("FOREBAY_GPU_PAIRS is a number")
    })
}

/// Returns the rows that a device must find for a program, as found by the host engine. The program must not confirm
/// candidates on the host.
fn expected(program: &Program, block: &Block) -> Vec<u32> {
    assert!(!program.confirms_on_host());
    common::search(program, block.rows())
}

#[test]
fn generated_pairs_agree_with_pcre2() {
    let Some(gpu) = gpu() else { return };
    let seed = seed();
    println!("FOREBAY_TEST_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let narrow = Limits {
        determinize_bytes_max: 128 << 10,
        states_max: 64,
        ..Limits::default()
    };
    let mut pairs = 0;
    let mut tiers = BTreeMap::new();
    while pairs < pairs_wanted() {
        let mut generator = Generator::new(rng.fork());
        let (source, options) = (generator.pattern(), generator.options());
        let limits = if rng.bool() {
            Limits::default()
        } else {
            narrow.clone()
        };
        let parsed = Options::parse(&options).expect("generated letters");
        let Ok(pattern) = Pattern::new(&source, parsed, &limits) else {
            continue;
        };
        let values = (0..1000).map(|_| generator.value()).collect();
        let (values, by_pcre2) = judge(&pattern, values);
        let block = Block::new(values.iter().map(String::as_str));
        let rows = gpu.load(&block);
        let table = Arc::new(ScanTable::new([(rows, Vec::new())]));
        for (_, program) in programs(&pattern, &limits) {
            if !program.has_device_form() {
                continue;
            }
            *tiers.entry(program.tier()).or_insert(0) += 1;
            pairs += values.len();
            gpu.check_one(&table, program, &by_pcre2, seed);
        }
    }
    println!("{pairs} pairs, {tiers:?}");
    // A run with few pairs does not reach every tier.
    let every = [
        Tier::Suffix,
        Tier::Substring,
        Tier::BitParallel,
        Tier::Dfa,
        Tier::Approximate,
    ];
    for tier in every.into_iter().filter(|_| pairs >= 2_000_000) {
        assert!(
            tiers.contains_key(&tier),
            "FOREBAY_TEST_SEED={seed}: no program of tier {tier}"
        );
    }
}

/// Returns random words of the letters a to c, so that short patterns match often.
fn words(rng: &mut Rng, count: usize, longest: usize) -> Vec<String> {
    let word = |rng: &mut Rng| {
        let length = rng.usize(..=longest);
        (0..length).map(|_| rng.char('a'..='c')).collect()
    };
    (0..count).map(|_| word(rng)).collect()
}

fn some_programs(rng: &mut Rng) -> Vec<Arc<Program>> {
    let limits = Limits::default();
    let regex = |source: &str| {
        Program::compile(
            Pattern::new(source, Options::default(), &limits).expect("valid"),
            &limits,
        )
    };
    let mut programs = vec![
        Program::substring("abc"),
        Program::substring(""),
        Program::substring("abcabcabcabcabcabc"),
        Program::prefix("ab"),
        Program::prefix("abcabcabc"),
        Program::suffix("ca"),
        Program::suffix("abcaa"),
        Program::suffix(""),
        Program::exact(""),
        Program::exact("abcabcab"),
        Program::exact("ab"),
        regex("^a.*b$"),
        regex("a(b|c)+a"),
        regex("^[^a]*$"),
        regex("^.{8}$"),
        regex("(aa|bb|cc).*(ab|ba)"),
        regex("b{3}|c{4}"),
        regex("^$"),
        regex("(a|b).{9}c"),
        regex("[ab]c[ab]$"),
    ];
    for _ in 0..30 {
        let literal: String = words(rng, 1, 6).remove(0);
        programs.push(match rng.u8(..4) {
            0 => Program::exact(&literal),
            1 => Program::prefix(&literal),
            2 => Program::suffix(&literal),
            _ => Program::substring(&literal),
        });
    }
    rng.shuffle(&mut programs);
    programs.into_iter().map(Arc::new).collect()
}

#[test]
fn searches_that_share_a_pass_get_their_own_answers() {
    let Some(gpu) = gpu() else { return };
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    let max =
        std::env::var("FOREBAY_GPU_ROWS").map_or(usize::MAX, |max| max.parse().expect("rows"));
    let counts = [0, 1, 31, 32, 33, 255, 256, 257, 4095, 4096, 4097, 100_000];
    for count in counts.into_iter().filter(|count| *count <= max) {
        for longest in [0, 7, 8, 40, 300] {
            let count = if longest == 300 { count / 10 } else { count };
            let values = words(&mut rng, count, longest);
            let block = Block::new(values.iter().map(String::as_str));
            let table = Arc::new(ScanTable::new([(gpu.load(&block), Vec::new())]));
            let programs = some_programs(&mut rng);
            let rows: Vec<Vec<u32>> = programs
                .iter()
                .map(|program| expected(program, &block))
                .collect();
            let context =
                format!("FOREBAY_TEST_SEED={seed}: {count} rows of up to {longest} bytes");
            gpu.check(&table, &programs, &rows, &context);
            for (program, rows) in programs.into_iter().zip(rows) {
                gpu.check(&table, &[program], &[rows], &context);
            }
        }
    }
}

#[test]
fn blocks_dead_rows_and_limits() {
    let Some(gpu) = gpu() else { return };
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    let (mut segments, mut values, mut alive) = (Vec::new(), Vec::new(), Vec::new());
    for count in [1000, 1, 0, 40_000, 33] {
        let part = words(&mut rng, count, 12);
        let block = Block::new(part.iter().map(String::as_str));
        let mut dead = vec![0u32; count.div_ceil(32)];
        for row in 0..count {
            let dies = rng.u8(..3) == 0 && count != 33;
            dead[row / 32] |= u32::from(dies) << (row % 32);
            alive.push(!dies);
        }
        if dead.iter().all(|word| *word == 0) {
            dead.clear();
        }
        segments.push((gpu.load(&block), dead));
        values.extend(part);
    }
    let table = Arc::new(ScanTable::new(segments));
    assert_eq!(table.row_count() as usize, values.len());
    assert_eq!(
        [table.locate(0), table.locate(1000), table.locate(1001)],
        [(0, 0), (1, 0), (3, 0)]
    );
    let block = Block::new(values.iter().map(String::as_str));
    let programs = some_programs(&mut rng);
    let live = |program: &Arc<Program>| -> Vec<u32> {
        let rows = expected(program, &block).into_iter();
        rows.filter(|&row| alive[row as usize]).collect()
    };
    let rows: Vec<Vec<u32>> = programs.iter().map(live).collect();
    gpu.check(
        &table,
        &programs,
        &rows,
        &format!("FOREBAY_TEST_SEED={seed}"),
    );
    limits(gpu, &table, &programs, &rows);
    marks(gpu, &table, &programs, &rows);
}

/// The marks of a search are those of the rows that match.
fn marks(gpu: &Gpu, table: &Arc<ScanTable>, programs: &[Arc<Program>], rows: &[Vec<u32>]) {
    let bytes = table.row_count().div_ceil(256) as usize * 128;
    for (program, rows) in programs.iter().zip(rows) {
        let mut expected = vec![0u32; bytes / 4];
        for row in rows.iter().map(|row| *row as usize) {
            expected[row / 256 * 32 + row % 32] |= 1 << (row / 32 % 8 * 4);
        }
        for queue in &gpu.queues {
            let memory = gpu.device.allocate(bytes as u64).expect("there is room");
            let memory = Arc::new(memory);
            let want = ScanWant::Marks(Arc::clone(&memory));
            let found = gpu.scan(queue, table, std::slice::from_ref(program), want);
            assert_eq!(found[0].matches, rows.len() as u64, "{program:?}");
            let (sender, read) = channel();
            let job = move |context: &mut DeviceContext| {
                let cuda = context.parts().cuda.expect("a GPU");
                let (stream, mut read) = (cuda.stream(Priority::Normal)?, vec![0; bytes]);
                cuda.read(&memory, 0, &mut read, &stream)?;
                drop(sender.send(read));
                Ok(Step::Done)
            };
            gpu.device.submit(Box::new(job)).expect("an empty queue");
            let read = read.recv().expect("an answer");
            let marks = read.as_chunks::<4>().0.iter();
            assert!(
                marks
                    .map(|it| u32::from_le_bytes(*it))
                    .eq(expected.iter().copied()),
                "{program:?}"
            );
        }
    }
}

/// A search with a limit must find at least that number of rows, or all matching rows if there are fewer. It must find
/// only rows that match.
fn limits(gpu: &Gpu, table: &Arc<ScanTable>, programs: &[Arc<Program>], rows: &[Vec<u32>]) {
    for (program, rows) in programs.iter().zip(rows) {
        let (sender, answer) = channel();
        let order = ScanOrder {
            table: Arc::clone(table),
            program: Arc::clone(program),
            want: ScanWant::Rows,
            limit: 10,
            stop: Stop::never(),
        };
        let send = move |found| drop(sender.send(found));
        gpu.queues[0]
            .submit(&gpu.device, order, send)
            .expect("the device accepts searches");
        let found = answer.recv().expect("an answer");
        assert!(found.list.len() >= rows.len().min(10), "{program:?}");
        assert!(
            found.list.iter().all(|row| rows.binary_search(row).is_ok()),
            "{program:?}"
        );
    }
}

#[test]
fn more_matches_than_a_list_has_room_for() {
    let Some(gpu) = gpu() else { return };
    const ROWS: u32 = 20_000_000;
    const PART: u32 = 131_072;
    let mut segments = Vec::new();
    for first in (0..ROWS).step_by(PART as usize) {
        let values: Vec<String> = (first..ROWS.min(first + PART))
            .map(|number| format!("{number:08}"))
            .collect();
        let block = Block::new(values.iter().map(String::as_str));
        segments.push((gpu.load(&block), Vec::new()));
    }
    let table = Arc::new(ScanTable::new(segments));
    let all = Arc::new(Program::substring("0"));
    let expected: Vec<u32> = (0..ROWS)
        .filter(|number| format!("{number:08}").contains('0'))
        .collect();
    let together = |queue| gpu.scan(queue, &table, &[all.clone(), all.clone()], ScanWant::Rows);
    for mut found in gpu.queues.iter().flat_map(together) {
        found.list.sort_unstable();
        assert_eq!(found.matches, expected.len() as u64);
        assert!(found.list == expected, "{} numbers", found.list.len());
    }
}

#[test]
fn long_rows_are_left_to_the_host() {
    let Some(gpu) = gpu() else { return };
    let values = [
        "a".repeat(4_096),
        "a".repeat(4_097),
        "a".repeat(100_000),
        "b".to_owned(),
    ];
    let block = Block::new(values.iter().map(String::as_str));
    let table = Arc::new(ScanTable::new([(gpu.load(&block), Vec::new())]));
    let oversize: Vec<(usize, Vec<u32>)> = table
        .oversize_rows()
        .map(|(segment, rows)| (segment, rows.to_vec()))
        .collect();
    assert_eq!(oversize, [(0, vec![1, 2])]);
    let found = gpu.scan(
        &gpu.queues[0],
        &table,
        &[Arc::new(Program::suffix("a"))],
        ScanWant::Rows,
    );
    assert_eq!(found[0].list, [0]);
}
