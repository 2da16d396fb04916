//! Times searches with CUDA events on one GPU. Changes one parameter of the kernels' policy at a time; some cases list
//! many matches.
//!
//! `cargo bench -p forebay-text-gpu --bench policy -- [--smoke] [--only POLICY] [--device cuda:0] [--record FILE]`. It
//! prints a table with a row for each policy and a column for each case, and appends one JSON object per result to
//! `--record`. `--compile sm_90` compiles the policies, which needs no GPU, and prints the registers of their kernels.
//! Every result is compared with the host engine's. Without a GPU it prints a message and does nothing.

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::record::{Figure, Record};
use common::search::{Search, search_all};
use common::{Blocks, in_parallel, program, wait_for};
use forebay_device::cuda::{Arch, Cubin, KernelCache, gpus};
use forebay_device::{Device, DeviceOptions, Devices};
use forebay_text::Program;
use forebay_text_gpu::{
    Lists, Policy, Reads, ScanQueue, ScanTable, ScanWant, kernels_with, prepare,
};

/// Timed runs of a search, after two untimed ones.
const RUNS: usize = 15;

/// Size of the data to search: number of rows, and bytes of each row.
#[derive(Clone, Copy, PartialEq)]
struct Data {
    rows: usize,
    bytes: usize,
}

const SHORT: Data = Data {
    rows: 100_000_000,
    bytes: 8,
};

const LONG: Data = Data {
    rows: 40_000_000,
    bytes: 100,
};

/// Data with as many rows as a pass can list.
const LISTED: Data = Data {
    rows: 16_000_000,
    bytes: 8,
};

/// A benchmark case: searches that share a pass, in the syntax of [`program`].
struct Case {
    name: &'static str,
    data: Data,
    want: ScanWant,
    searches: &'static [&'static str],
}

const fn count(name: &'static str, data: Data, searches: &'static [&'static str]) -> Case {
    Case {
        name,
        data,
        want: ScanWant::Count,
        searches,
    }
}

const fn list(name: &'static str, data: Data, searches: &'static [&'static str]) -> Case {
    Case {
        name,
        data,
        want: ScanWant::Rows,
        searches,
    }
}

const CASES: [Case; 15] = [
    count("dfa-8b", SHORT, &["a.*[xyz].*q"]),
    count("dfa-early-8b", SHORT, &["^[a-m]{3}.*z$"]),
    count("literal-8b", SHORT, &["*eba"]),
    count(
        "4-dfas-8b",
        SHORT,
        &["a.*[xyz].*q", "b.*[xyz].*q", "c.*[xyz].*q", "d.*[xyz].*q"],
    ),
    count(
        "8-literals-8b",
        SHORT,
        &[
            "*eba", "*ebb", "*ebc", "*ebd", "*abe", "*abf", "*abg", "*abh",
        ],
    ),
    count("dfa-100b", LONG, &["abc.*xyz"]),
    count("literal-100b", LONG, &["*fore"]),
    count(
        "4-dfas-100b",
        LONG,
        &["abc.*xyz", "abd.*xyz", "abe.*xyz", "abf.*xyz"],
    ),
    count(
        "8-literals-100b",
        LONG,
        &[
            "*fore", "*forf", "*forg", "*forh", "*bay", "*bax", "*baw", "*bav",
        ],
    ),
    list("list-100b-1%", LONG, &["^a[a-g]"]),
    list("list-100b-10%", LONG, &["^[a-c][a-w]"]),
    list("list-8b-1%", LISTED, &["^a[a-g]"]),
    list("list-8b-10%", LISTED, &["^[a-c][a-w]"]),
    list("list-8b-50%", LISTED, &["^[a-m]"]),
    list("list-8b-100%", LISTED, &["^[a-z]"]),
];

/// Returns the policy of the architecture, and variants that each differ from it in one parameter.
fn policies(base: &Policy) -> Vec<(String, Policy)> {
    let mut policies = vec![("base".to_owned(), base.clone())];
    let mut add = |name: &str, change: &dyn Fn(&mut Policy)| {
        let mut policy = base.clone();
        change(&mut policy);
        if policy != *base {
            policies.push((name.to_owned(), policy));
        }
    };
    for (threads, blocks) in [(128, 8), (512, 2), (1024, 1)] {
        add(&format!("threads={threads},blocks={blocks}"), &|policy| {
            (policy.threads, policy.blocks) = (threads, blocks);
        });
    }
    for blocks in [2, 3, 5, 6, 8] {
        add(&format!("blocks={blocks}"), &|policy| {
            policy.blocks = blocks
        });
    }
    for short_tiles in [1, 2, 4, 8] {
        add(&format!("short_tiles={short_tiles}"), &|policy| {
            reads(policy, &|reads| reads.short_tiles = short_tiles);
        });
    }
    for words_ahead in [1, 2, 4, 8] {
        add(&format!("words_ahead={words_ahead}"), &|policy| {
            reads(policy, &|reads| reads.words_ahead = words_ahead);
        });
    }
    for kib in [4, 8, 16, 32, 64] {
        add(&format!("chunk={kib}KiB"), &|policy| {
            policy.chunk_bytes = kib << 10
        });
    }
    for lists in [Lists::Direct, Lists::Staged] {
        add(&format!("lists={lists:?}"), &|policy| policy.lists = lists);
    }
    policies
}

fn reads(policy: &mut Policy, change: &dyn Fn(&mut Reads)) {
    let each = [
        &mut policy.dfa,
        &mut policy.several_dfas,
        &mut policy.literal,
        &mut policy.shift_and,
    ];
    each.into_iter().for_each(change);
}

#[derive(Default)]
struct Arguments {
    smoke: bool,
    only: Option<String>,
    device: Option<String>,
    record: Option<String>,
    compile: Option<Arch>,
}

impl Arguments {
    fn parse() -> Arguments {
        let mut arguments = Arguments::default();
        let mut given = std::env::args().skip(1);
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--smoke" => arguments.smoke = true,
                "--only" => arguments.only = given.next(),
                "--device" => arguments.device = given.next(),
                "--record" => arguments.record = given.next(),
                "--compile" => {
                    let name = given.next().expect("--compile takes an architecture");
                    arguments.compile = Some(
                        name.parse()
                            .expect("--compile takes an architecture such as sm_90"),
                    );
                }
                // Passed by Cargo.
                "--bench" => {}
                other => panic!("unknown argument {other}"),
            }
        }
        arguments
    }

    /// Returns the policies to measure, always including the base policy.
    fn policies(&self, arch: Arch) -> Vec<(String, Policy)> {
        let is_wanted = |name: &str| {
            self.only
                .as_ref()
                .is_none_or(|only| name.contains(only.as_str()))
        };
        let mut policies = policies(&Policy::of(arch));
        policies.retain(|(name, _)| name == "base" || is_wanted(name));
        policies
    }
}

/// Compiles the kernels of every policy, on all cores, and stores them in the disk cache, from which the device loads
/// them.
fn compile(policies: &[(String, Policy)], arch: Arch) -> Vec<Cubin> {
    let cache = KernelCache::from_environment();
    let compile = |index: usize| {
        let spec = kernels_with(&policies[index].1).remove(0);
        cache
            .get(&spec, arch)
            .unwrap_or_else(|error| panic!("{}: {error}", policies[index].0))
    };
    in_parallel(policies.len(), compile)
}

/// Prints the registers per thread of each kernel, and the bytes of local memory of kernels that spill.
fn print_resources(policies: &[(String, Policy)], cubins: &[Cubin]) {
    for ((name, _), cubin) in policies.iter().zip(cubins) {
        let resources = |kernel: &forebay_device::cuda::KernelResources| match kernel.local_bytes {
            0 => format!("{} {}", kernel.name, kernel.registers),
            local => format!(
                "{} {} (spills {local} bytes)",
                kernel.name, kernel.registers
            ),
        };
        let kernels: Vec<String> = cubin.entries.iter().map(resources).collect();
        println!("{name}: {}", kernels.join(", "));
    }
}

/// The device of a run, and its record.
struct Bench {
    device: Arc<Device>,
    record: Record,
}

impl Bench {
    fn start(arguments: &Arguments) -> Option<Bench> {
        let spec = arguments.device.as_deref().unwrap_or("cuda:0");
        let spec = spec.parse().expect("a device, as in cuda:0");
        let devices = Devices::new(&spec, DeviceOptions::default());
        let devices = devices.map_err(|error| println!("skipped: {error}")).ok()?;
        let device = Arc::clone(&devices.list()[0]);
        prepare(&device).expect("an empty queue");
        wait_for(&device);
        Some(Bench {
            device,
            record: Record::begin("policy", arguments.record.clone()),
        })
    }
}

/// Returns the number of rows, and a hash of the row numbers that does not depend on their order.
fn digest(rows: &[u32]) -> (u64, u64) {
    let hash = |&row: &u32| {
        (u64::from(row) + 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    };
    let mixed = |row: &u32| hash(row).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let sum = rows.iter().map(mixed).fold(0, u64::wrapping_add);
    (rows.len() as u64, sum)
}

/// A case with its data on the device, and the expected results.
struct Ready<'a> {
    case: &'a Case,
    table: Arc<ScanTable>,
    value_bytes: usize,
    programs: Vec<Arc<Program>>,
    counts: Vec<u64>,
    lists: Vec<(u64, u64)>,
}

impl<'a> Ready<'a> {
    fn new(case: &'a Case, blocks: &Blocks, table: &Arc<ScanTable>) -> Ready<'a> {
        let programs: Vec<Arc<Program>> =
            case.searches.iter().map(|search| program(search)).collect();
        let mut ready = Ready {
            case,
            table: Arc::clone(table),
            value_bytes: blocks.value_bytes,
            programs,
            counts: Vec::new(),
            lists: Vec::new(),
        };
        for program in &ready.programs {
            if matches!(case.want, ScanWant::Rows) {
                ready.lists.push(digest(&blocks.find(program)));
                ready.counts.push(ready.lists[ready.lists.len() - 1].0);
            } else {
                ready.counts.push(blocks.count(program));
            }
        }
        ready
    }

    /// Searches repeatedly with a policy; returns GB of values per second of device time.
    fn measure(&self, bench: &Bench, name: &str, policy: &Policy) -> f64 {
        let queue = Arc::new(ScanQueue::with_policy(policy.clone()));
        let (mut device, mut wall) = (Vec::new(), Vec::new());
        for run in 0..RUNS + 2 {
            let began = Instant::now();
            let searches = self.programs.iter().map(|program| Search {
                device: &bench.device,
                queue: &queue,
                table: &self.table,
                program,
            });
            let found = search_all(searches, self.case.want.clone(), |answers| {
                answers.iter().collect()
            });
            let wall_ms = began.elapsed().as_secs_f64() * 1e3;
            let counts: Vec<u64> = found.iter().map(|found| found.matches).collect();
            assert_eq!(counts, self.counts, "{} with {name}", self.case.name);
            if run == 0 && matches!(self.case.want, ScanWant::Rows) {
                let lists: Vec<_> = found.iter().map(|found| digest(&found.list)).collect();
                assert_eq!(lists, self.lists, "{} with {name}", self.case.name);
            }
            if run >= 2 {
                // Searches that arrive too late for the first pass share another one.
                let first = found
                    .iter()
                    .map(|found| found.device_ms)
                    .fold(0.0, f64::max);
                device.push(first);
                wall.push(wall_ms);
            }
        }
        let rate = |ms: &f64| self.value_bytes as f64 / ms / 1e6;
        let rates: Vec<f64> = device.iter().map(rate).collect();
        let append = |metric, samples: &[f64]| {
            let figure = Figure {
                case: self.case.name,
                policy: Some(name),
                metric,
                samples,
                expect: Some(self.counts.iter().sum()),
            };
            bench.record.append(&figure).1
        };
        append("wall_ms", &wall);
        append("device_ms", &device);
        append("value_gb_per_s", &rates)
    }
}

/// Prints GB/s of values, with a row for each policy and a column for each case.
fn print_table(policies: &[(String, Policy)], rates: &[Vec<f64>]) {
    let width = policies
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or(0);
    print!("{:width$}", "GB/s");
    CASES.iter().for_each(|case| print!("  {:>9}", case.name));
    println!();
    for (index, (name, _)) in policies.iter().enumerate() {
        print!("{name:width$}");
        for (case, rates) in CASES.iter().zip(rates) {
            print!("  {:>1$.0}", rates[index], case.name.len().max(9));
        }
        println!();
    }
}

fn main() {
    let arguments = Arguments::parse();
    if let Some(arch) = arguments.compile {
        let policies = arguments.policies(arch);
        return print_resources(&policies, &compile(&policies, arch));
    }
    let Some(bench) = Bench::start(&arguments) else {
        return;
    };
    let arch = gpus().expect("a device has started, so GPUs can be listed")[0].arch;
    let policies = arguments.policies(arch);
    print_resources(&policies, &compile(&policies, arch));
    let mut loaded: Option<(Data, Blocks, Arc<ScanTable>)> = None;
    let mut rates = Vec::new();
    for case in &CASES {
        if loaded.as_ref().is_none_or(|(data, ..)| *data != case.data) {
            drop(loaded.take());
            let rows = if arguments.smoke {
                case.data.rows / 1000
            } else {
                case.data.rows
            };
            let blocks = Blocks::of_letters(rows, case.data.bytes, false);
            let table = blocks.load(&bench.device);
            loaded = Some((case.data, blocks, table));
        }
        let (_, blocks, table) = loaded.as_ref().expect("made above");
        let ready = Ready::new(case, blocks, table);
        let measure = |(name, policy): &(String, Policy)| ready.measure(&bench, name, policy);
        rates.push(policies.iter().map(measure).collect());
    }
    print_table(&policies, &rates);
}
