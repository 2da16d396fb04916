//! Times searches in the memory of one GPU with CUDA events; every count is compared with the host engine's.
//!
//! `cargo bench -p forebay-text-gpu --bench scan -- [--smoke] [--only CASE] [--device cuda:0] [--names FILE] [--record
//! FILE]`. `--sorted` sorts the values of each block, as caches do. With two devices, `--device cuda:0,cuda:1`, it also
//! searches twice as many values, on one device and divided between both. It prints one JSON object per result and
//! appends them to `--record`. Without a GPU it prints a message and does nothing.

mod common;

use std::hint;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::Instant;

use common::record::{Figure, Record};
use common::search::{Answer, Search, search_all};
use common::{Blocks, program, wait_for};
use forebay_device::{Device, DeviceOptions, Devices};
use forebay_text::Program;
use forebay_text_gpu::{ScanFound, ScanQueue, ScanTable, ScanWant, prepare};

/// Timed runs of a search, after two untimed ones.
const RUNS: usize = 25;

/// Number of times that the same values are loaded.
const LOADS: usize = 5;

/// Number of searches sent together in cases where clients share passes.
const CLIENTS: usize = 64;

/// Values to search.
#[derive(Clone, Copy)]
enum Data {
    /// Random letters: number of rows, and bytes of each row.
    Letters(usize, usize),
    /// The names in a file, one per line, sorted.
    Names,
}

/// A benchmark case: its data, and the searches in it.
struct Case {
    name: &'static str,
    data: Data,
    searches: &'static [&'static str],
}

/// The cases. Searches are patterns; a prefix `=`, `<`, `>` or `*` makes the rest a literal that the value must equal,
/// begin with, end with or contain.
const CASES: &[Case] = &[
    Case {
        name: "regex-100m-8b",
        data: Data::Letters(100_000_000, 8),
        searches: &[
            "a.*[xyz].*q",
            "(ab|cd|ef)[aeiou]",
            "^[a-m]{3}.*z$",
            "[aeiou]{3}[^aeiou]{2}[aeiou]",
        ],
    },
    Case {
        name: "literal-100m-8b",
        data: Data::Letters(100_000_000, 8),
        searches: &["=forebays", "<fore", ">bay", "*eba"],
    },
    Case {
        name: "regex-40m-100b",
        data: Data::Letters(40_000_000, 100),
        searches: &[
            "abc.*xyz",
            "q[aeiou]{4}[^aeiou]",
            "(fore|back)bay.*(gpu|cpu)",
            "[xyz]{4}.*[abc]{4}",
        ],
    },
    Case {
        name: "substring-40m-100b",
        data: Data::Letters(40_000_000, 100),
        searches: &["*fore", "*bay", "*forebays"],
    },
    Case {
        name: "regex-names",
        data: Data::Names,
        searches: &[
            "webpack.*plugin",
            "^@[a-z]+/react-.*hook",
            "(mongo|postgres|mysql).*(driver|client)$",
            "[0-9]{4}",
        ],
    },
];

struct Arguments {
    smoke: bool,
    only: Option<String>,
    device: String,
    names: Option<String>,
    record: Option<String>,
    sorted: bool,
}

impl Arguments {
    fn parse() -> Arguments {
        let mut arguments = Arguments {
            smoke: false,
            only: None,
            device: "cuda:0".to_owned(),
            names: None,
            record: None,
            sorted: false,
        };
        let mut given = std::env::args().skip(1);
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--smoke" => arguments.smoke = true,
                "--only" => arguments.only = given.next(),
                "--device" => arguments.device = given.next().expect("--device takes a name"),
                "--names" => arguments.names = given.next(),
                "--record" => arguments.record = given.next(),
                "--sorted" => arguments.sorted = true,
                // Passed by Cargo.
                "--bench" => {}
                other => panic!("unknown argument {other}"),
            }
        }
        arguments
    }
}

/// A device and its queue of searches.
struct Gpu {
    device: Arc<Device>,
    queue: Arc<ScanQueue>,
}

impl Gpu {
    fn search<'a>(&'a self, table: &'a Arc<ScanTable>, program: &'a Arc<Program>) -> Search<'a> {
        Search {
            device: &self.device,
            queue: &self.queue,
            table,
            program,
        }
    }
}

/// The devices of a run, and its record.
struct Bench {
    gpus: Vec<Gpu>,
    record: Record,
}

impl Bench {
    fn start(arguments: &Arguments) -> Option<Bench> {
        let spec = arguments.device.parse().expect("a device, as in cuda:0");
        let devices = Devices::new(&spec, DeviceOptions::default());
        let devices = devices.map_err(|error| println!("skipped: {error}")).ok()?;
        let gpu = |device: &Arc<Device>| {
            prepare(device).expect("an empty queue");
            wait_for(device);
            Gpu {
                device: Arc::clone(device),
                queue: Arc::default(),
            }
        };
        Some(Bench {
            gpus: devices.list().iter().map(gpu).collect(),
            record: Record::begin("scan", arguments.record.clone()),
        })
    }

    fn report(&self, case: &str, metric: &'static str, samples: &[f64], expect: Option<u64>) {
        let figure = Figure {
            case,
            policy: None,
            metric,
            samples,
            expect,
        };
        println!("{}", self.record.append(&figure).0);
    }

    /// Queues all searches together on the first device. Returns their results in order, and the wall time in seconds.
    fn search(&self, table: &Arc<ScanTable>, programs: &[Arc<Program>]) -> (Vec<ScanFound>, f64) {
        let began = Instant::now();
        let searches = programs
            .iter()
            .map(|program| self.gpus[0].search(table, program));
        let found = search_all(searches, ScanWant::Count, |answers| {
            answers.iter().collect()
        });
        (found, began.elapsed().as_secs_f64())
    }
}

/// Waits for all answers without sleeping, because waking the client is not part of a search.
fn wait_awake(answers: &Receiver<Answer>) -> Vec<Answer> {
    let mut found = Vec::new();
    loop {
        match answers.try_recv() {
            Ok(answer) => found.push(answer),
            Err(TryRecvError::Empty) => hint::spin_loop(),
            Err(TryRecvError::Disconnected) => return found,
        }
    }
}

/// Returns one search for each of many clients. The searches are all different, but of the same kind.
fn for_clients(sort: &str) -> Vec<Arc<Program>> {
    let mut rng = fastrand::Rng::with_seed(64);
    let mut word = |length: usize| -> String { (0..length).map(|_| rng.char('a'..='z')).collect() };
    let search = |index: usize| match sort {
        "literal" => format!("*{}", word(4 + index % 3)),
        _ => format!("{}.*[{}].*{}", word(1), word(3), word(1)),
    };
    (0..CLIENTS)
        .map(search)
        .map(|search| program(&search))
        .collect()
}

fn run_case(bench: &Bench, case: &Case, blocks: &Blocks, table: &Arc<ScanTable>) {
    for search in case.searches {
        let program = program(search);
        let expect = blocks.count(&program);
        let mut times = Vec::new();
        for run in 0..RUNS + 2 {
            let (found, _) = bench.search(table, std::slice::from_ref(&program));
            assert_eq!(found[0].matches, expect, "{} {search}", case.name);
            if run >= 2 {
                times.push(found[0].device_ms);
            }
        }
        let name = format!("{}: {search}", case.name);
        bench.report(&name, "device_ms", &times, Some(expect));
        let gigabytes = |ms: &f64| blocks.value_bytes as f64 / ms / 1e6;
        let rates: Vec<f64> = times.iter().map(gigabytes).collect();
        bench.report(&name, "value_gb_per_s", &rates, Some(expect));
    }
}

/// Measures searches per second on the device. One client sends them one after the other or all together, or several
/// clients send one each at a time.
fn run_clients(bench: &Bench, blocks: &Blocks, table: &Arc<ScanTable>, sort: &str) {
    let programs = for_clients(sort);
    let expect: Vec<u64> = programs
        .iter()
        .map(|program| blocks.count(program))
        .collect();
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let began = Instant::now();
        for (program, expect) in programs.iter().zip(&expect) {
            let (found, _) = bench.search(table, std::slice::from_ref(program));
            assert_eq!(found[0].matches, *expect, "{program:?}");
        }
        alone.push(CLIENTS as f64 / began.elapsed().as_secs_f64());
        let (found, seconds) = bench.search(table, &programs);
        let counts: Vec<u64> = found.iter().map(|found| found.matches).collect();
        assert_eq!(counts, expect);
        together.push(CLIENTS as f64 / seconds);
    }
    let in_turn: Vec<f64> = (0..5)
        .map(|_| searches_in_turn(bench, table, &programs))
        .collect();
    let total = Some(expect.iter().sum());
    bench.report(
        &format!("clients-1-{sort}"),
        "searches_per_s",
        &alone,
        total,
    );
    bench.report(
        &format!("clients-64-in-turn-{sort}"),
        "searches_per_s",
        &in_turn,
        total,
    );
    bench.report(
        &format!("clients-64-{sort}"),
        "searches_per_s",
        &together,
        total,
    );
}

/// Measures searches on the first device alone, and on the first two with half of the blocks each.
fn run_two(bench: &Bench, rows: usize) {
    let blocks = Blocks::of_letters(rows, 8, false);
    let (even, odd): (Vec<usize>, Vec<usize>) =
        (0..blocks.blocks.len()).partition(|block| block % 2 == 0);
    let (one, two) = (&bench.gpus[0], &bench.gpus[1]);
    let whole = blocks.load(&one.device);
    let halves = [
        (one, blocks.load_some(&one.device, &even)),
        (two, blocks.load_some(&two.device, &odd)),
    ];
    for text in CASES[0].searches {
        let program = program(text);
        let expect = blocks.count(&program);
        let alone = vec![(one, &whole)];
        let both: Vec<_> = halves.iter().map(|(gpu, table)| (*gpu, table)).collect();
        // One device and two devices are measured alternately. Records the wall time, and the device time of the slower
        // device.
        let mut times =
            [("one", alone), ("two", both)].map(|(name, of)| (name, of, vec![], vec![]));
        for run in 0..RUNS + 2 {
            for (_, tables, wall, device) in &mut times {
                let began = Instant::now();
                let searches = tables
                    .iter()
                    .map(|(gpu, table)| gpu.search(table, &program));
                let found = search_all(searches, ScanWant::Count, wait_awake);
                let seconds = began.elapsed().as_secs_f64();
                let count: u64 = found.iter().map(|found| found.matches).sum();
                assert_eq!(count, expect, "{text}");
                if run >= 2 {
                    wall.push(seconds * 1e3);
                    device.push(
                        found
                            .iter()
                            .map(|found| found.device_ms)
                            .fold(0.0, f64::max),
                    );
                }
            }
        }
        let (one, two) = (&times[0].2, &times[1].2);
        let ratios: Vec<f64> = one.iter().zip(two).map(|(one, two)| one / two).collect();
        for (name, _, wall, device) in &times {
            let case = format!("{name}-gpu-regex: {text}");
            bench.report(&case, "wall_ms", wall, Some(expect));
            bench.report(&case, "device_ms", device, Some(expect));
        }
        let case = format!("two-gpu-regex: {text}");
        bench.report(&case, "times_one_gpu", &ratios, Some(expect));
    }
}

/// Returns the searches per second of all clients together. There are as many clients as programs, and each client
/// sends its next search when it has the result of the previous one.
fn searches_in_turn(bench: &Bench, table: &Arc<ScanTable>, programs: &[Arc<Program>]) -> f64 {
    const ROUNDS: usize = 20;
    let began = Instant::now();
    thread::scope(|scope| {
        for client in 0..programs.len() {
            let program = move |round: usize| &programs[(client + round) % programs.len()];
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    bench.search(table, std::slice::from_ref(program(round)));
                }
            });
        }
    });
    (ROUNDS * programs.len()) as f64 / began.elapsed().as_secs_f64()
}

/// Copies all blocks to a device and drops them there; returns GB of values per second.
fn load_rate(device: &Arc<Device>, blocks: &Blocks) -> f64 {
    let began = Instant::now();
    blocks.load(device);
    blocks.value_bytes as f64 / began.elapsed().as_secs_f64() / 1e9
}

fn main() {
    let arguments = Arguments::parse();
    let Some(bench) = Bench::start(&arguments) else {
        return;
    };
    if bench.gpus.len() >= 2 {
        run_two(
            &bench,
            if arguments.smoke {
                200_000
            } else {
                200_000_000
            },
        );
    }
    let mut letters: Option<((usize, usize), Blocks, Arc<ScanTable>)> = None;
    for case in CASES {
        if arguments
            .only
            .as_ref()
            .is_some_and(|only| !case.name.contains(only.as_str()))
        {
            continue;
        }
        match case.data {
            Data::Letters(rows, bytes) => {
                let rows = if arguments.smoke { rows / 1000 } else { rows };
                if letters
                    .as_ref()
                    .is_none_or(|(shape, ..)| *shape != (rows, bytes))
                {
                    drop(letters.take());
                    let blocks = Blocks::of_letters(rows, bytes, arguments.sorted);
                    let rates: Vec<f64> = (0..LOADS)
                        .map(|_| load_rate(&bench.gpus[0].device, &blocks))
                        .collect();
                    bench.report(
                        &format!("load-{rows}-{bytes}b"),
                        "value_gb_per_s",
                        &rates,
                        None,
                    );
                    let table = blocks.load(&bench.gpus[0].device);
                    letters = Some(((rows, bytes), blocks, table));
                }
                let (_, blocks, table) = letters.as_ref().expect("made above");
                run_case(&bench, case, blocks, table);
                if case.name == "literal-100m-8b" {
                    run_clients(&bench, blocks, table, "literal");
                    run_clients(&bench, blocks, table, "regex");
                }
            }
            Data::Names => {
                let Some(path) = &arguments.names else {
                    continue;
                };
                let blocks = Blocks::of_names(path);
                let table = blocks.load(&bench.gpus[0].device);
                run_case(&bench, case, &blocks, &table);
            }
        }
    }
}
