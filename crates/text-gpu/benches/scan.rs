//! Searches in the memory of one GPU, timed by its own events; every count is compared with the host engine's.
//!
//! `cargo bench -p forebay-text-gpu --bench scan -- [--smoke] [--only CASE] [--device cuda:0] [--names FILE] [--record FILE]`.
//! `--sorted` sorts the values of each block, as caches do.
//! With two devices, `--device cuda:0,cuda:1`, it also searches twice the values on both.
//! It prints one JSON object a figure and appends them to `--record`. Without a GPU it says so and does nothing.

use std::fs::OpenOptions;
use std::hint;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use forebay_cancel::Stop;
use forebay_device::{Device, DeviceContext, DeviceOptions, Devices, Step};
use forebay_text::{Limits, Options, Pattern, Program, Rows, SEPARATOR};
use forebay_text_gpu::{ScanFound, ScanOrder, ScanQueue, ScanTable, ScanWant, TiledRows, prepare};
use serde::Serialize;

/// Rows of a block: those of a bucket.
const BLOCK_ROWS: usize = 131_072;

/// Timed runs of a search, after two that are not.
const RUNS: usize = 25;

/// Loads of the same values.
const LOADS: usize = 5;

/// Searches that are sent at once where clients share passes.
const CLIENTS: usize = 64;

/// Values to search.
#[derive(Clone, Copy)]
enum Data {
    /// Random letters: rows, bytes of each.
    Letters(usize, usize),
    /// The names of a file, one a line, sorted.
    Names,
}

/// A case: its data, and what is searched for in it.
struct Case {
    name: &'static str,
    data: Data,
    searches: &'static [&'static str],
}

/// Searches are written as patterns; `=`, `<`, `>` and `*` before one make it a literal to equal, begin, end, contain.
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
                // Cargo's own.
                "--bench" => {}
                other => panic!("unknown argument {other}"),
            }
        }
        arguments
    }
}

/// Waits until a device has done what it was given: compiling kernels takes seconds the first time.
fn wait_for(device: &Device) {
    let (done, is_done) = channel();
    let tell = move |_: &mut DeviceContext| {
        let _ = done.send(());
        Ok(Step::Done)
    };
    device.submit(Box::new(tell)).expect("room in the queue");
    is_done.recv().expect("the device works");
}

/// A line of the record.
#[derive(Serialize)]
struct Figure<'a> {
    bench: &'static str,
    case: String,
    engine: &'static str,
    device: &'a str,
    driver: &'a str,
    metric: &'static str,
    median: f64,
    min: f64,
    max: f64,
    n: usize,
    expect: Option<u64>,
    commit: &'a str,
    date: &'a str,
    command: &'a str,
}

/// A device and the searches that wait for it.
struct Gpu {
    device: Arc<Device>,
    queue: Arc<ScanQueue>,
}

/// One run: the devices, and what all its figures share.
struct Bench {
    gpus: Vec<Gpu>,
    model: String,
    driver: String,
    commit: String,
    date: String,
    command: String,
    record: Option<String>,
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok()
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
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
        let gpus = devices.list().iter().map(gpu).collect();
        let nvidia = [
            "--query-gpu=name,driver_version",
            "--format=csv,noheader",
            "--id=0",
        ];
        let card = said_by("nvidia-smi", &nvidia);
        let (model, driver) = card.split_once(", ").unwrap_or((&card, "unknown"));
        let given: Vec<String> = std::env::args().skip(1).collect();
        let commit = std::env::var("FOREBAY_COMMIT");
        Some(Bench {
            gpus,
            model: model.to_owned(),
            driver: driver.to_owned(),
            commit: commit.unwrap_or_else(|_| said_by("git", &["rev-parse", "--short=12", "HEAD"])),
            date: said_by("date", &["-u", "+%FT%TZ"]),
            command: format!(
                "cargo bench -p forebay-text-gpu --bench scan -- {}",
                given.join(" ")
            ),
            record: arguments.record.clone(),
        })
    }

    fn report(&self, case: &str, metric: &'static str, samples: &[f64], expect: Option<u64>) {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let figure = Figure {
            bench: "scan",
            case: case.to_owned(),
            engine: "forebay cuda",
            device: &self.model,
            driver: &self.driver,
            metric,
            median: sorted[sorted.len() / 2],
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            n: sorted.len(),
            expect,
            commit: &self.commit,
            date: &self.date,
            command: &self.command,
        };
        let line = serde_json::to_string(&figure).expect("numbers are finite");
        println!("{line}");
        if let Some(path) = &self.record {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let written = file.and_then(|mut file| writeln!(file, "{line}"));
            written.unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }

    /// Sends searches to the first device at once and waits for all; what they found in order, and the wall time in
    /// seconds.
    fn search(&self, table: &Arc<ScanTable>, programs: &[Arc<Program>]) -> (Vec<ScanFound>, f64) {
        let searches: Vec<Search<'_>> = programs
            .iter()
            .map(|program| (&self.gpus[0], table, program))
            .collect();
        search(&searches, |answers| answers.iter().collect())
    }
}

/// A program to search a table for, on the device that has it.
type Search<'a> = (&'a Gpu, &'a Arc<ScanTable>, &'a Arc<Program>);

/// What was found, with the position of the search.
type Answer = (usize, ScanFound);

/// Sends searches at once and waits for all; what they found in order, and the wall time in seconds.
fn search(
    searches: &[Search<'_>],
    wait: impl FnOnce(&Receiver<Answer>) -> Vec<Answer>,
) -> (Vec<ScanFound>, f64) {
    let (sender, answers) = channel();
    let began = Instant::now();
    for (index, (gpu, table, program)) in searches.iter().enumerate() {
        let order = ScanOrder {
            table: Arc::clone(table),
            program: Arc::clone(program),
            want: ScanWant::Count,
            limit: u64::MAX,
            stop: Stop::never(),
        };
        let sender = sender.clone();
        let answer = move |found| drop(sender.send((index, found)));
        gpu.queue
            .submit(&gpu.device, order, answer)
            .expect("the device takes searches");
    }
    drop(sender);
    let mut found = wait(&answers);
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(found.len(), searches.len(), "a device was lost");
    found.sort_by_key(|(index, _)| *index);
    (found.into_iter().map(|(_, found)| found).collect(), seconds)
}

/// Waits for all answers without sleeping, as waking the client is no part of a search.
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

/// Values in host memory, in blocks.
struct Blocks {
    blocks: Vec<(Vec<u8>, Vec<u32>)>,
    value_bytes: usize,
}

impl Blocks {
    fn of_letters(rows: usize, bytes: usize, sorted: bool) -> Blocks {
        let starts: Vec<usize> = (0..rows).step_by(BLOCK_ROWS).collect();
        let block = |start: usize| letters(start, BLOCK_ROWS.min(rows - start), bytes, sorted);
        Blocks {
            blocks: in_parallel(starts.len(), |index| block(starts[index])),
            value_bytes: rows * bytes,
        }
    }

    fn of_names(path: &str) -> Blocks {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut names: Vec<&str> = text.lines().collect();
        names.sort_unstable();
        let blocks = names.chunks(BLOCK_ROWS).map(|names| {
            let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
            for name in names {
                bytes.extend_from_slice(name.as_bytes());
                bytes.push(SEPARATOR);
                offsets.push(bytes.len() as u32);
            }
            (bytes, offsets)
        });
        Blocks {
            blocks: blocks.collect(),
            value_bytes: names.iter().map(|name| name.len()).sum(),
        }
    }

    fn rows(&self, index: usize) -> Rows<'_> {
        let (bytes, offsets) = &self.blocks[index];
        Rows { bytes, offsets }
    }

    fn load(&self, device: &Arc<Device>) -> Arc<ScanTable> {
        self.load_some(device, &(0..self.blocks.len()).collect::<Vec<usize>>())
    }

    /// Copies some of the blocks to a device.
    fn load_some(&self, device: &Arc<Device>, blocks: &[usize]) -> Arc<ScanTable> {
        let loading = in_parallel(blocks.len(), |index| {
            let rows = self.rows(blocks[index]);
            TiledRows::begin(device, rows).expect("the device has room")
        });
        let segments = loading.into_iter().map(|loading| {
            let tiled = loading.wait().expect("the device works");
            (Arc::new(tiled), Vec::new())
        });
        Arc::new(ScanTable::new(segments))
    }

    fn count(&self, program: &Program) -> u64 {
        let count = |index| {
            program
                .count_rows(self.rows(index), &Stop::never())
                .expect("nothing stops it")
        };
        in_parallel(self.blocks.len(), count).into_iter().sum()
    }
}

/// A block of random letters; `start` is the seed.
fn letters(start: usize, rows: usize, length: usize, sorted: bool) -> (Vec<u8>, Vec<u32>) {
    let mut rng = fastrand::Rng::with_seed(start as u64);
    let mut letters = || (0..length).map(|_| rng.u8(b'a'..=b'z')).collect();
    let mut values: Vec<Vec<u8>> = (0..rows).map(|_| letters()).collect();
    if sorted {
        values.sort_unstable();
    }
    let (mut bytes, mut offsets) = (Vec::with_capacity(rows * (length + 1)), vec![0]);
    for value in values {
        bytes.extend_from_slice(&value);
        bytes.push(SEPARATOR);
        offsets.push(bytes.len() as u32);
    }
    (bytes, offsets)
}

/// The results of `work` for 0 to `count`, by all cores.
fn in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = work(index);
                    done.lock().expect("no panic").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no panic");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn program(search: &str) -> Arc<Program> {
    let limits = Limits::default();
    let regex = |source: &str| {
        let pattern = Pattern::new(source, Options::default(), &limits).expect("a valid pattern");
        Program::compile(pattern, &limits)
    };
    Arc::new(match search.split_at(1) {
        ("=", literal) => Program::exact(literal),
        ("<", literal) => Program::prefix(literal),
        (">", literal) => Program::suffix(literal),
        ("*", literal) => Program::substring(literal),
        _ => regex(search),
    })
}

/// Different searches of one sort for many clients.
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

/// How many searches a second the device answers, one after the other and all waiting at once.
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

/// Searches on the first device alone, and on the first two with half of the blocks each.
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
        let alone: Vec<Search<'_>> = vec![(one, &whole, &program)];
        let both: Vec<Search<'_>> = halves
            .iter()
            .map(|(gpu, table)| (*gpu, table, &program))
            .collect();
        // In turns: wall time, and the device time of the slower.
        let mut times =
            [("one", alone), ("two", both)].map(|(name, of)| (name, of, vec![], vec![]));
        for run in 0..RUNS + 2 {
            for (_, searches, wall, device) in &mut times {
                let (found, seconds) = search(searches, wait_awake);
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

/// Searches a second of as many clients as there are programs, each of which searches again as soon as it has its answer.
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

/// Copies all blocks to a device and drops them there; billions of bytes of values a second.
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
