//! A naive model of the cache, random documents and expressions, and the comparison of cache and model.
#![allow(dead_code, reason = "each suite uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use forebay_cancel::Stop;
use forebay_device::{DeviceOptions, Devices};
use forebay_documents_cache::{
    Cache, CacheSettings, CollectionCache, Expr, FieldValue, Predicate, SearchAnswer,
    SearchRequest, ValueCount, Want,
};
use forebay_text::{Limits, Options, Pattern, Program};

/// The value of a field in a document of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Missing,
    Null,
    Other,
    String(String),
    Strings(Vec<String>),
    Recheck,
}

impl Value {
    pub fn field_value(&self) -> FieldValue<'_> {
        match self {
            Value::Missing => FieldValue::Missing,
            Value::Null => FieldValue::Null,
            Value::Other => FieldValue::Other,
            Value::String(value) => FieldValue::String(value.as_bytes()),
            Value::Strings(values) => {
                FieldValue::Strings(values.iter().map(String::as_bytes).collect())
            }
            Value::Recheck => FieldValue::Recheck,
        }
    }

    fn strings(&self) -> &[String] {
        match self {
            Value::String(value) => std::slice::from_ref(value),
            Value::Strings(values) => values,
            _ => &[],
        }
    }

    /// Returns whether one of the strings meets `is_it`.
    fn any(&self, is_it: impl Fn(&[u8]) -> bool) -> bool {
        self.strings().iter().any(|value| is_it(value.as_bytes()))
    }

    fn meets(&self, predicate: &Predicate) -> bool {
        match predicate {
            Predicate::Equals(wanted) => self.any(|value| value == wanted),
            Predicate::In(wanted) => self.any(|value| wanted.iter().any(|one| one == value)),
            Predicate::Program(program) => self.any(|value| program.is_match(value)),
            Predicate::IsNull => matches!(self, Value::Null | Value::Missing),
            Predicate::IsMissing => *self == Value::Missing,
        }
    }
}

/// The documents, by number.
#[derive(Debug, Default, Clone)]
pub struct Model {
    pub documents: BTreeMap<u32, Vec<Value>>,
}

impl Model {
    fn matches(document: &[Value], expr: &Expr) -> bool {
        match expr {
            Expr::All => true,
            Expr::Leaf { field, predicate } => document[*field].meets(predicate),
            Expr::And(parts) => parts.iter().all(|part| Model::matches(document, part)),
            Expr::Or(parts) => parts.iter().any(|part| Model::matches(document, part)),
            Expr::Not(inner) => !Model::matches(document, inner),
        }
    }

    fn recheck(&self, fields: &BTreeSet<usize>) -> BTreeSet<u32> {
        let odd = |document: &[Value]| {
            fields
                .iter()
                .any(|field| document[*field] == Value::Recheck)
        };
        let odd = self.documents.iter().filter(|(_, document)| odd(document));
        odd.map(|(number, _)| *number).collect()
    }

    fn found(&self, expr: &Expr, recheck: &BTreeSet<u32>) -> BTreeSet<u32> {
        let found = self.documents.iter().filter(|(number, document)| {
            !recheck.contains(number) && Model::matches(document, expr)
        });
        found.map(|(number, _)| *number).collect()
    }

    /// Panics if `answer` is not a correct answer to the request.
    pub fn check(&self, expr: &Expr, want: Want, answer: &SearchAnswer) {
        let mut fields = fields(expr);
        if let Want::ValueCounts { field, .. } = want {
            fields.insert(field);
        }
        let recheck = self.recheck(&fields);
        let found = self.found(expr, &recheck);
        let context = format!("{expr:?} {want:?} {:?}", answer.report);
        assert_eq!(
            answer.recheck.iter().collect::<BTreeSet<_>>(),
            recheck,
            "{context}"
        );
        match want {
            Want::Count => assert_eq!(answer.count, found.len() as u64, "{context}"),
            Want::Numbers { limit } => check_numbers(&found, limit, answer, &context),
            Want::ValueCounts {
                field, elements, ..
            } => {
                assert_eq!(answer.count, found.len() as u64, "{context}");
                self.check_values(&found, field, elements, answer, &context);
            }
        }
    }

    fn check_values(
        &self,
        found: &BTreeSet<u32>,
        field: usize,
        elements: bool,
        answer: &SearchAnswer,
        context: &str,
    ) {
        let values = answer.values.as_ref().expect("values were wanted");
        let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let (mut other, mut arrays, mut null, mut missing) = (vec![], vec![], 0, 0);
        for number in found {
            let value = &self.documents[number][field];
            match value {
                Value::Other => other.push(*number),
                Value::Null => null += 1,
                Value::Missing => missing += 1,
                Value::Strings(_) => arrays.push(*number),
                Value::String(_) | Value::Recheck => {}
            }
            if elements || !matches!(value, Value::Strings(_)) {
                for distinct in value.strings().iter().collect::<BTreeSet<_>>() {
                    *counts.entry(distinct.clone().into_bytes()).or_default() += 1;
                }
            }
        }
        let counts: Vec<_> = counts
            .into_iter()
            .map(|(value, count)| ValueCount { value, count })
            .collect();
        assert_eq!(values.values, counts, "{context}");
        assert_eq!((values.null, values.missing), (null, missing), "{context}");
        assert_eq!(values.other.iter().collect::<Vec<_>>(), other, "{context}");
        assert_eq!(
            values.arrays.iter().collect::<Vec<_>>(),
            arrays,
            "{context}"
        );
    }
}

fn check_numbers(
    found: &BTreeSet<u32>,
    limit: Option<usize>,
    answer: &SearchAnswer,
    context: &str,
) {
    let numbers: BTreeSet<u32> = answer.numbers.iter().collect();
    let expected = limit.map_or(found.len(), |limit| limit.min(found.len()));
    assert_eq!(numbers.len(), expected, "{context}");
    assert_eq!(answer.count, expected as u64, "{context}");
    assert!(numbers.is_subset(found), "{context}");
}

fn fields(expr: &Expr) -> BTreeSet<usize> {
    match expr {
        Expr::All => BTreeSet::new(),
        Expr::Leaf { field, .. } => BTreeSet::from([*field]),
        Expr::And(parts) | Expr::Or(parts) => parts.iter().flat_map(fields).collect(),
        Expr::Not(inner) => fields(inner),
    }
}

/// A cache and its model, which receive the same writes.
pub struct Pair {
    pub cache: Arc<Cache>,
    pub collection: Arc<CollectionCache>,
    pub model: Model,
    runtime: tokio::runtime::Runtime,
}

/// Starts the devices in `FOREBAY_TEST_DEVICES` if it is set, so that a suite can run on GPUs. Otherwise starts the
/// devices in `spec`.
pub fn start_devices(spec: &str, options: DeviceOptions) -> Devices {
    let named = std::env::var("FOREBAY_TEST_DEVICES");
    let spec = named.as_deref().unwrap_or(spec);
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(1 << 30),
        ..options
    };
    Devices::new(&spec.parse().expect("a valid specification"), options).expect("devices start")
}

/// Starts one more device: the first GPU if the suite runs on GPUs and has lost it, otherwise a host device.
pub fn join_device(cache: &Cache) {
    let gpu = std::env::var("FOREBAY_TEST_DEVICES").is_ok_and(|named| named.contains("cuda:0"));
    let devices = cache.devices();
    let add = |spec: &str| devices.add(&spec.parse().expect("a valid specification"));
    let started = gpu.then(|| add("cuda:0").ok()).flatten();
    let started = started.unwrap_or_else(|| add("host:1").expect("a thread"));
    for device in started {
        cache.wait_for_moves(device.id());
    }
}

impl Pair {
    pub fn new(
        devices: usize,
        options: DeviceOptions,
        settings: CacheSettings,
        fields: usize,
    ) -> Pair {
        let devices = Arc::new(start_devices(&format!("host:{devices}"), options));
        let cache = Cache::new(devices, settings);
        let names: Vec<String> = (0..fields).map(|field| format!("f{field}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let collection = cache.declare("db.c", &names);
        Pair {
            cache,
            collection,
            model: Model::default(),
            runtime: runtime(),
        }
    }

    pub fn insert(&mut self, number: u32, values: Vec<Value>) {
        let given: Vec<_> = values.iter().map(Value::field_value).collect();
        self.collection
            .insert(number, &given)
            .expect("a new number");
        self.model.documents.insert(number, values);
    }

    pub fn update(&mut self, number: u32, values: Vec<Value>) {
        let old = self
            .model
            .documents
            .insert(number, values.clone())
            .expect("a known number");
        let old: Vec<_> = old.iter().map(Value::field_value).collect();
        let new: Vec<_> = values.iter().map(Value::field_value).collect();
        self.collection
            .update(number, &old, &new)
            .expect("the right old values");
    }

    pub fn remove(&mut self, number: u32) {
        let old = self
            .model
            .documents
            .remove(&number)
            .expect("a known number");
        let old: Vec<_> = old.iter().map(Value::field_value).collect();
        self.collection
            .remove(number, &old)
            .expect("the right old values");
    }

    pub fn search(&self, expr: &Expr, want: Want) -> SearchAnswer {
        let request = SearchRequest {
            expr: expr.clone(),
            want,
            stop: Stop::never(),
        };
        self.runtime
            .block_on(self.collection.search(request))
            .expect("an answer")
    }

    /// Searches, and compares the answer with the model's.
    pub fn check(&self, expr: &Expr, want: Want) -> SearchAnswer {
        let answer = self.search(expr, want);
        self.model.check(expr, want, &answer);
        answer
    }

    pub fn check_all_wants(&self, expr: &Expr) {
        for want in [
            Want::Count,
            Want::Numbers { limit: None },
            Want::Numbers { limit: Some(3) },
            Want::ValueCounts {
                field: 0,
                elements: true,
                bytes_max: usize::MAX,
            },
            Want::ValueCounts {
                field: 0,
                elements: false,
                bytes_max: usize::MAX,
            },
        ] {
            self.check(expr, want);
        }
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Returns settings without a background thread, and with small buckets and chunks, so that few rows cause splits,
/// merges and compactions.
pub fn small_settings() -> CacheSettings {
    CacheSettings {
        bucket_values_max: 24,
        delta_values_max: 32,
        chunk_values_max: 8,
        prefix_bytes: 1,
        background: false,
        ..CacheSettings::default()
    }
}

pub fn options(memory_budget_bytes: u64) -> DeviceOptions {
    DeviceOptions {
        memory_budget_bytes,
        ..DeviceOptions::default()
    }
}

/// Runs a test with `count` seeds, or with the one in `FOREBAY_TEST_SEED`. The output of a failed test names the seed.
pub fn with_seeds(count: u64, mut test: impl FnMut(Rng)) {
    let given = std::env::var("FOREBAY_TEST_SEED").ok();
    let given = given.map(|seed| seed.parse().expect("FOREBAY_TEST_SEED is a number"));
    let count = std::env::var("FOREBAY_TEST_SEEDS").map_or(count, |wanted| {
        wanted.parse().expect("FOREBAY_TEST_SEEDS is a number")
    });
    let seeds = given.map_or(0..count, |seed: u64| seed..seed + 1);
    for seed in seeds {
        println!("to repeat: FOREBAY_TEST_SEED={seed}");
        test(Rng::with_seed(seed));
    }
    await_end_of_gpu_threads();
}

/// Waits until the threads of GPUs have ended. Otherwise they might use the driver while the process unloads it at
/// exit, which crashes under compute-sanitizer.
fn await_end_of_gpu_threads() {
    let is_gpu = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with("cuda:"))
    };
    let tasks = || std::fs::read_dir("/proc/self/task").expect("Linux lists threads");
    while tasks().flatten().any(is_gpu) {
        std::thread::yield_now();
    }
}

pub fn leaf(field: usize, predicate: Predicate) -> Expr {
    Expr::Leaf { field, predicate }
}

pub fn regex(pattern: &str) -> Predicate {
    let limits = Limits::default();
    let pattern = Pattern::new(pattern, Options::default(), &limits).expect("a valid pattern");
    Predicate::Program(Arc::new(Program::compile(pattern, &limits)))
}

/// Returns a short string made of a few different pieces, so that values, prefixes and substrings recur.
pub fn random_string(rng: &mut Rng) -> String {
    const PIECES: [&str; 10] = ["a", "b", "ab", "\n", "\0", "é", "z", "aaaaaaaa", "A", " "];
    (0..rng.usize(..5))
        .map(|_| PIECES[rng.usize(..PIECES.len())])
        .collect()
}

pub fn random_value(rng: &mut Rng) -> Value {
    match rng.u32(..40) {
        0 => Value::Missing,
        1 => Value::Null,
        2 => Value::Other,
        3 => Value::Recheck,
        4..8 => Value::Strings((0..rng.usize(..4)).map(|_| random_string(rng)).collect()),
        _ => Value::String(random_string(rng)),
    }
}

pub fn random_predicate(rng: &mut Rng) -> Predicate {
    const PATTERNS: [&str; 10] = [
        "a", "^a", "b$", "^$", "a.*b", "^(a|b)", "[é\\n]", "^ab.*z", "\\0", "(a)\\1",
    ];
    match rng.u32(..9) {
        0 => Predicate::Equals(random_string(rng).into_bytes()),
        1 => Predicate::In(
            (0..rng.usize(..4))
                .map(|_| random_string(rng).into_bytes())
                .collect(),
        ),
        2 => Predicate::Program(Arc::new(Program::prefix(&random_string(rng)))),
        3 => Predicate::Program(Arc::new(Program::substring(&random_string(rng)))),
        4 => Predicate::Program(Arc::new(Program::suffix(&random_string(rng)))),
        5 => Predicate::IsNull,
        6 => Predicate::IsMissing,
        _ => regex(PATTERNS[rng.usize(..PATTERNS.len())]),
    }
}

pub fn random_expr(rng: &mut Rng, fields: usize, depth: u32) -> Expr {
    let parts = |rng: &mut Rng| {
        (0..rng.usize(..3))
            .map(|_| random_expr(rng, fields, depth - 1))
            .collect()
    };
    match rng.u32(..if depth == 0 { 8 } else { 14 }) {
        0 => Expr::All,
        1..8 => leaf(rng.usize(..fields), random_predicate(rng)),
        8..10 => Expr::And(parts(rng)),
        10..12 => Expr::Or(parts(rng)),
        _ => Expr::Not(Box::new(random_expr(rng, fields, depth - 1))),
    }
}
