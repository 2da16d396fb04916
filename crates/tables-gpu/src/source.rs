//! The source of a kernel: constants of its shape, generated functions, and the headers around them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::AtomicU64;

use forebay_device::cuda::{KernelArguments, Program, ProgramSpec, device_header};
use parking_lot::Mutex;

use crate::arguments::{Fragment as Arguments, JOIN_WORDS_MAX, OWN_WORDS_MAX};
use crate::arithmetic::divides;
use crate::comments::{self, list};
use crate::domain::Table;
use crate::draft::Draft;
use crate::engine::SOURCES_MAX;
use crate::expression::Function;
use crate::fingerprint::has_fingerprints;
use crate::floats::is_float;
use crate::groups::Place;
use crate::halves::has_halves;
use crate::join::{Join, JoinKind};
use crate::joined::{MATCHES_MAX, Stored, TURNS_MAX, Word, layout, words_of};
use crate::program::{THREADS, Total, group_words};
use crate::reason::Reason;
use crate::uses::{CURSORS_MAX, KEPT_TABLES_MAX};

type Result<T> = std::result::Result<T, Reason>;

/// Bits of the word behind those of a row of `NOT IN`, which tells of all rows.
const WORD_OF_ALL: Word = 32;
/// Bits of the words behind those of a row that a join repeats: the place of the next row with its key, and of an
/// element that of its first row.
const WORDS_OF_REPEATED: [Word; 2] = [32, 32];

/// The reason for tables of joins without room for all columns.
pub(crate) const MANY_COLUMNS: &str = "joins with many columns";
/// Instead of the bits of a packed number in `kWidths`: they differ between chunks.
const WIDTHS_DIFFER: u32 = 99;

/// The place of the totals, `None` for a kernel that stores rows of a join; whether tables or totals are made in
/// slices; and how the kernel divides rows, `None` if it does not.
type Variant = (Option<Place>, bool, Option<Division>);

/// How a kernel divides its rows by the slices of the table of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    /// Index of the join whose table they look up; `None` if the kernel stores the rows in the table.
    pub(crate) join: Option<usize>,
    /// Number of steps that leave out rows before they are divided.
    pub(crate) steps: usize,
    /// Number of columns that the kernel reads to compute the slice of a row: the first ones.
    pub(crate) columns: usize,
}

/// A step of a kernel, which leaves out rows.
#[derive(Debug)]
struct Step {
    /// The join that it looks up.
    join: Option<usize>,
    /// Number of columns that this step and those before read, if they are the first ones.
    columns: Option<usize>,
}

/// A kernel, and what it is run with.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The source without its head, which depends on the place of the totals.
    source: String,
    /// Whether chunks of a column have numbers of different bits.
    do_widths_differ: bool,
    /// Index of the source that it reads.
    pub(crate) of_source: usize,
    /// Indexes of the columns in the table, in the order of the kernel's parts.
    pub(crate) columns: Vec<usize>,
    pub(crate) tables: Vec<Table>,
    pub(crate) constants: Vec<i128>,
    /// What fills the tables of its joins.
    pub(crate) builds: Vec<Build>,
    steps: Vec<Step>,
    /// For each join, the other joins whose columns its keys use.
    key_joins: Vec<Vec<usize>>,
    /// Bytes of its divided rows by the last count; 0 if they were never counted.
    pub(crate) divided_bytes: AtomicU64,
    /// The programs that were made of it.
    programs: Mutex<Vec<(Variant, Program)>>,
}

/// A kernel that stores rows of a join in a table.
#[derive(Debug)]
pub(crate) struct Build {
    pub(crate) kernel: Kernel,
    pub(crate) stored: Stored,
    /// Whether a word of an element is compared with a number.
    has_common_word: bool,
    /// Bits of the words of an element. The first of one bit is also the bit that tells whether there is a row.
    pub(crate) words: Vec<Word>,
    /// Whether the join repeats rows: then `words` are those of the rows, with two more, as `joins.cuh` tells.
    pub(crate) repeats: bool,
    /// Index of the word that tells of all rows, if there is one.
    pub(crate) word_of_all: Option<usize>,
}

/// What a kernel does with the rows that it keeps.
pub(crate) struct Ending {
    /// The totals of a group, one for each slot.
    pub(crate) totals: Vec<Total>,
    pub(crate) add: Function,
    /// Words of an element that is stored.
    pub(crate) words: Vec<Word>,
    /// Index of the common word of an element, as `joins.cuh` tells.
    pub(crate) common_word: Option<usize>,
    /// Whether each element may have one row only.
    pub(crate) is_unique: bool,
    /// Whether the elements are those of a hash table.
    pub(crate) is_hashed: bool,
    /// Whether the join repeats rows.
    pub(crate) repeats: bool,
    /// Whether a word tells of all rows.
    pub(crate) tells_of_all: bool,
}

impl Kernel {
    /// Returns the program with the totals at this place, or that stores rows of a join. `is_sliced` tells whether
    /// tables or totals are made in slices.
    pub(crate) fn program(&self, place: Option<Place>, is_sliced: bool) -> Program {
        self.variant((place, is_sliced, None))
    }

    /// Returns the program that divides the rows.
    pub(crate) fn dividing(&self, division: Division) -> Program {
        // No total is added.
        let place = division.join.map(|_| Place::Registers);
        self.variant((place, false, Some(division)))
    }

    fn variant(&self, wanted: Variant) -> Program {
        let mut known = self.programs.lock();
        if let Some((_, program)) = known.iter().find(|(of, _)| *of == wanted) {
            return program.clone();
        }
        let program = Program::new(self.spec(wanted));
        known.push((wanted, program.clone()));
        program
    }

    /// Returns the source of that program without slices.
    pub(crate) fn source(&self, place: Option<Place>) -> String {
        self.spec((place, false, None)).source.to_string()
    }

    /// Returns how the kernel divides rows by the slices of the table of a join that they look up; `None` if it
    /// cannot. `slices` are the numbers of slices of all tables. The steps before look up only whole tables, in which
    /// a row has at most one match.
    pub(crate) fn division(&self, join: usize, slices: &[u64]) -> Option<Division> {
        let is_left_out = |it: usize| slices[it] > 1 || self.builds[it].repeats;
        let mut steps = self.steps.iter();
        let before = steps.position(|step| step.join.is_some_and(is_left_out))?;
        let known: Vec<usize> = self.joins_of(before).collect();
        let are_known = self.key_joins[join].iter().all(|it| known.contains(it));
        let step = self.steps.iter().find(|it| it.join == Some(join))?;
        let can = are_known && self.columns.len() <= CURSORS_MAX;
        can.then_some(Division {
            join: Some(join),
            steps: before,
            columns: step.columns?,
        })
    }

    /// Returns the bytes of its tables over values, without those of keys.
    pub(crate) fn value_bytes(&self) -> usize {
        4 * self.tables.iter().map(Table::len).sum::<usize>()
    }

    /// Returns the bytes of the tables over values of the kernel, and of those that fill the tables of its joins.
    pub(crate) fn value_bytes_of_all(&self) -> usize {
        let builds = self.builds.iter().map(|it| it.kernel.value_bytes_of_all());
        self.value_bytes() + builds.sum::<usize>()
    }

    /// Returns the joins that the first steps look up.
    pub(crate) fn joins_of(&self, steps: usize) -> impl Iterator<Item = usize> {
        self.steps[..steps].iter().filter_map(|it| it.join)
    }

    fn spec(&self, (place, is_sliced, division): Variant) -> ProgramSpec {
        // Blocks of a multiprocessor, which limit the registers of a thread. Lookups in tables of joins wait long, so
        // that more threads are better than more registers.
        let blocks = match self.columns.len() {
            // All columns of rows that are divided are in registers.
            _ if division.is_some() => 1,
            // Wide rows.
            len if len > CURSORS_MAX => 1,
            // A list has a total for each column of its rows.
            _ if self.builds.iter().any(|it| it.repeats) => 1,
            _ if place == Some(Place::Listed) && self.do_widths_differ => 1,
            _ if place == Some(Place::Listed) => 2,
            // What is compared, a search in a hash table, and widths that are not known take more registers.
            _ if self.builds.iter().any(|it| it.has_common_word) && self.do_widths_differ => 1,
            _ if self.builds.iter().any(|it| it.has_common_word) => 2,
            _ if self.builds.iter().any(|it| it.stored.is_hashed) => 3,
            _ if !self.builds.is_empty() && self.do_widths_differ && self.columns.len() > 3 => 2,
            _ if !self.builds.is_empty() && self.do_widths_differ => 3,
            _ if !self.builds.is_empty() => 4,
            0..=4 if place != Some(Place::Private) => 3,
            _ => 2,
        };
        // Bounds of slices take more, and so do division, numbers of 128 bits and fingerprints.
        let takes_more = is_sliced
            || divides(&self.source)
            || has_halves(&self.source)
            || has_fingerprints(&self.source);
        let blocks = if takes_more { blocks.min(2) } else { blocks };
        // Few threads have totals of their own, and their reads alone would leave the memory idle.
        let tiles_ahead = if place == Some(Place::Private) { 4 } else { 0 };
        let totals = place.map_or("Table", Place::class);
        let fewer = match blocks {
            1 => "constexpr unsigned kBlocks = 1".to_owned(),
            _ => format!(
                "#ifndef FEWER_BLOCKS\n#define FEWER_BLOCKS 0\n#endif\n\
                 constexpr unsigned kBlocks = {blocks} > FEWER_BLOCKS ? {blocks} - FEWER_BLOCKS : 1"
            ),
        };
        let is_dividing = division.is_some();
        let (join, steps, columns) =
            division.map_or((0, 0, 0), |it| (it.join.unwrap_or(0), it.steps, it.columns));
        let source = format!(
            "{fewer}, kTilesAhead = {tiles_ahead};\n\
             constexpr bool kIsSliced = {is_sliced}, kIsDividing = {is_dividing};\n\
             constexpr unsigned kDividedJoin = {join}, kStepsBefore = {steps}, kColumnsBefore = {columns};\n\
             #define TOTALS {totals}\n{}",
            self.source
        );
        ProgramSpec {
            name: "tables/fragment.cu".to_owned(),
            source: source.into(),
            headers: headers(),
            options: options(),
            entries: vec!["fragment".to_owned()],
        }
    }

    /// Writes a kernel. `steps` are the functions that tell whether a row is kept.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn new(draft: Draft<'_>, steps: Vec<Function>, ending: &Ending) -> Result<Kernel> {
        let source = source(&draft, &steps, ending)?;
        let mut loaded = BTreeSet::new();
        let steps = steps.into_iter().map(|step| {
            loaded.extend(step.columns);
            let are_first = loaded.last().is_none_or(|last| *last < loaded.len());
            Step {
                join: step.join,
                columns: are_first.then_some(loaded.len()),
            }
        });
        let steps = steps.collect();
        let joins = draft.rows.joins.iter();
        let key_joins = joins.map(|join| draft.joins_of(&join.keys)).collect();
        let builds = draft.joins.into_iter().zip(&draft.rows.joins);
        let mut columns = draft.uses.columns.iter();
        Ok(Kernel {
            do_widths_differ: columns.any(|it| draft.scanned.width_of(*it).is_none()),
            source,
            of_source: draft.rows.source,
            columns: draft.uses.columns,
            tables: draft.uses.tables,
            constants: draft.uses.constants,
            programs: Mutex::default(),
            steps,
            key_joins,
            divided_bytes: AtomicU64::new(0),
            builds: builds
                .map(|(draft, join)| Build::new(draft, join))
                .collect::<Result<_>>()?,
        })
    }
}

impl Build {
    fn new(mut draft: Draft<'_>, join: &Join) -> Result<Build> {
        let steps = draft.steps()?;
        let (places, mut words) = layout(&draft, join);
        let stored = draft.stored.take();
        let stored = stored.ok_or_else(|| Reason::new("a join that is not looked up"))?;
        let of_row = words.len();
        words.extend(words_behind(join, Some(&stored)));
        if words.len() > OWN_WORDS_MAX {
            let reason = Reason::new(MANY_COLUMNS);
            return Err(match join.repeats {
                true => reason.of_repeated_rows(),
                false => reason,
            });
        }
        // Places are of 32 bits.
        if join.repeats && stored.rows >= u32::MAX.into() {
            let reason = Reason::new("a join that repeats more than 2^32 rows");
            return Err(reason.of_repeated_rows());
        }
        if join.rows.source >= SOURCES_MAX {
            return Err(Reason::new("joins of too many tables"));
        }
        let common_word = draft.outs.iter().position(|it| it.is_common);
        let mut add = std::mem::take(&mut draft.store);
        if draft.has_comments {
            let keys = list(&join.keys_of_rows);
            add.comments.push(format!(
                "stored by {keys}, for the {}",
                comments::of_join(join)
            ));
        }
        let mut conditions = vec!["is_wanted".to_owned()];
        conditions.extend(stored.index.conditions.iter().cloned());
        let conditions = conditions.join(" & ");
        let own = words_of(&draft.outs, &places, of_row).join(", ");
        if let Some(has_key) = &stored.has_key {
            let told = format!("totals.tell_of_all(f, is_wanted, {has_key});");
            add.lines.push(told);
        }
        add.lines.push(format!("const Words words = {{{own}}};"));
        add.lines.push(format!(
            "totals.store(f, {}, {}, words);",
            stored.index.text, conditions
        ));
        for (number, first) in &draft.marks {
            add.lines.push(format!(
                "totals.mark(f, static_cast<u32>(f.constants[{first}]), static_cast<u32>({number}), {conditions});"
            ));
        }
        let ending = Ending {
            totals: Vec::new(),
            add,
            words: words.clone(),
            common_word: common_word.map(|index| places[index].word),
            is_unique: join.is_unique(),
            is_hashed: stored.is_hashed,
            repeats: join.repeats,
            tells_of_all: stored.has_key.is_some(),
        };
        Ok(Build {
            kernel: Kernel::new(draft, steps, &ending)?,
            word_of_all: ending.tells_of_all.then_some(of_row),
            stored,
            has_common_word: common_word.is_some(),
            words,
            repeats: join.repeats,
        })
    }

    /// Returns how the rows that are stored are divided by the slices of the table. Returns `None` if they have joins
    /// of their own, or if each slice needs facts about all rows, as for `NOT IN`.
    pub(crate) fn division(&self) -> Option<Division> {
        let kernel = &self.kernel;
        let is_plain = kernel.builds.is_empty() && self.word_of_all.is_none();
        let can = is_plain && kernel.columns.len() <= CURSORS_MAX;
        can.then_some(Division {
            join: None,
            steps: kernel.steps.len(),
            columns: kernel.columns.len(),
        })
    }

    /// Returns whether each row is in the same slice of the tables of both.
    pub(crate) fn has_slices_of(&self, other: &Build) -> bool {
        let (one, other) = (&self.stored, &other.stored);
        let are_known = one.keys.is_some() && one.keys == other.keys;
        let are_alike = (one.elements, one.is_hashed) == (other.elements, other.is_hashed);
        are_known && are_alike && one.dense == other.dense
    }
}

/// Returns the options of the compiler for every kernel.
pub(crate) fn options() -> Vec<String> {
    let options = ["--device-int128", "--device-as-default-execution-space"];
    options.map(str::to_owned).to_vec()
}

/// Returns the headers of every kernel.
pub(crate) fn headers() -> Vec<(String, String)> {
    let arguments = format!(
        "#pragma once\n#include \"device.cuh\"\n{}",
        Arguments::header()
    );
    vec![
        device_header(),
        ("arguments.cuh".to_owned(), arguments),
        header("cancelled.cuh", include_str!("kernels/cancelled.cuh")),
        header("numbers.cuh", include_str!("kernels/numbers.cuh")),
        header("arithmetic.cuh", include_str!("kernels/arithmetic.cuh")),
        header("hash.cuh", include_str!("kernels/hash.cuh")),
        header("merge.cuh", include_str!("kernels/merge.cuh")),
        header("select.cuh", include_str!("kernels/select.cuh")),
        header("order.cuh", include_str!("kernels/order.cuh")),
        header("times.cuh", include_str!("kernels/times.cuh")),
        header("columns.cuh", include_str!("kernels/columns.cuh")),
        header("totals.cuh", include_str!("kernels/totals.cuh")),
        header("joins.cuh", include_str!("kernels/joins.cuh")),
        header("partitions.cuh", include_str!("kernels/partitions.cuh")),
        header("fragment.cuh", include_str!("kernels/fragment.cuh")),
    ]
}

fn header(name: &str, text: &str) -> (String, String) {
    (name.to_owned(), text.to_owned())
}

/// Returns an array of constants; C++ has none without elements.
pub(crate) fn array(declared: &str, elements: impl IntoIterator<Item = impl ToString>) -> String {
    let elements: Vec<_> = elements.into_iter().map(|it| it.to_string()).collect();
    let elements = match elements.is_empty() {
        true => "{}".to_owned(),
        false => elements.join(", "),
    };
    format!("constexpr {declared}[] = {{{elements}}};\n")
}

/// Returns the bits of the words behind those of a row in the table of a join.
fn words_behind(join: &Join, stored: Option<&Stored>) -> Vec<Word> {
    let mut words = Vec::new();
    if stored.is_some_and(|it| it.has_key.is_some()) {
        words.push(WORD_OF_ALL);
    }
    if join.repeats {
        words.extend(WORDS_OF_REPEATED);
    }
    words
}

/// Returns the constants that tell where the values of joins are.
fn of_joins(draft: &Draft<'_>, steps: &[Function]) -> Result<String> {
    let joins = draft.joins.iter().zip(&draft.rows.joins);
    let layouts = joins.map(|(draft, join)| {
        let (places, mut words) = layout(draft, join);
        words.extend(words_behind(join, draft.stored.as_ref()));
        (places, words)
    });
    let layouts: Vec<_> = layouts.collect();
    let words: Vec<Word> = layouts
        .iter()
        .flat_map(|(_, words)| words.clone())
        .collect();
    if words.len() > JOIN_WORDS_MAX {
        return Err(Reason::new(MANY_COLUMNS));
    }
    let mut first = 0;
    let mut firsts = vec![0];
    firsts.extend(layouts.iter().map(|(_, words)| {
        first += words.len();
        first
    }));
    let places = layouts.iter().zip(&firsts).map(|((places, _), first)| {
        let places = places.iter().map(|place| {
            let word = first + place.word;
            format!("{{{word}, {}, {}}}", place.shift, place.bits)
        });
        // An element, since C++ has no arrays without one.
        let places: Vec<_> = places.chain(["{0, 0, 0}".to_owned()]).collect();
        places
    });
    let places: Vec<_> = places.collect();
    let most = places.iter().map(Vec::len).max().unwrap_or(1);
    let places = places
        .iter()
        .map(|places| format!("{{{}}}", places.join(", ")));
    let mut text = format!(
        "constexpr u32 kJoins = {};\nconstexpr u32 kJoinWords = {};\n",
        draft.joins.len(),
        words.len()
    );
    text += &array("u32 kFirstWord", firsts);
    text += &array("u32 kWordBits", words);
    let stored = draft.joins.iter().map(|it| it.stored.as_ref());
    text += &array(
        "bool kIsHashed",
        stored.map(|it| it.is_some_and(|it| it.is_hashed)),
    );
    text += &array(
        "bool kRepeats",
        draft.rows.joins.iter().map(|it| it.repeats),
    );
    let of_steps = steps.iter().map(|it| it.join.unwrap_or(u32::MAX as usize));
    text += &array("u32 kStepJoin", of_steps.map(|it| format!("{it}u")));
    text += "struct Out {\n    u32 word, shift, bits;\n};\n";
    let places = places.collect::<Vec<_>>().join(", ");
    let places = if places.is_empty() { "{}" } else { &places };
    let _ = writeln!(text, "constexpr Out kOuts[][{most}] = {{{places}}};");
    Ok(text)
}

/// Returns the constants that tell which joins have a condition that several rows of a key may meet, and of which
/// joins a word tells of all rows.
fn conditions(draft: &Draft<'_>) -> String {
    let mut text = String::new();
    for (index, (join, other)) in draft.rows.joins.iter().zip(&draft.joins).enumerate() {
        let stored = other.stored.as_ref();
        let compares_keys = stored.is_some_and(|it| it.dense.is_none());
        let search = match join.kind {
            JoinKind::Semi => "kSemi",
            JoinKind::Anti => "kAnti",
            _ => "kMark",
        };
        if join.searches() {
            let _ = writeln!(
                text,
                "template <> constexpr Search kSearch<{index}> = Search::{search};"
            );
        } else if join.repeats
            && join.kind == JoinKind::Outer
            && (join.condition.is_some() || compares_keys)
        {
            let _ = writeln!(
                text,
                "template <> constexpr bool kHasCondition<{index}> = true;"
            );
        }
        if stored.is_some_and(|it| it.has_key.is_some()) {
            let _ = writeln!(
                text,
                "template <> constexpr bool kTellsOfAll<{index}> = true;"
            );
        }
    }
    text
}

fn source(draft: &Draft<'_>, steps: &[Function], ending: &Ending) -> Result<String> {
    let uses = &draft.uses;
    let mut text = String::from("#include \"arguments.cuh\"\n#include \"arithmetic.cuh\"\n");
    let constants = [
        ("kThreads", THREADS as usize),
        ("kColumns", uses.columns.len()),
        ("kCursors", uses.columns.len().min(CURSORS_MAX)),
        ("kWidthsDiffer", WIDTHS_DIFFER as usize),
        ("kTables", uses.tables.len()),
        ("kKeptTables", uses.tables.len().min(KEPT_TABLES_MAX)),
        ("kSlots", ending.totals.len().max(1)),
        ("kGroupWords", group_words(&ending.totals)),
        ("kSteps", steps.len()),
        ("kOwnWords", ending.words.len()),
        (
            "kCommonWord",
            ending.common_word.unwrap_or(ending.words.len()),
        ),
        ("kIsUnique", ending.is_unique.into()),
        ("kIsOwnHashed", ending.is_hashed.into()),
        ("kOwnRepeats", ending.repeats.into()),
        ("kOwnTellsOfAll", ending.tells_of_all.into()),
        ("kAreRepeated", draft.rows.are_repeated().into()),
        ("kSource", draft.rows.source),
    ];
    for (name, value) in constants {
        let _ = writeln!(text, "constexpr u32 {name} = {value};");
    }
    let _ = writeln!(
        text,
        "constexpr u64 kMatchesMax = {MATCHES_MAX};\nconstexpr u32 kTurnsMax = {TURNS_MAX};"
    );
    let widths = uses.columns.iter();
    let widths = widths.map(|column| draft.scanned.width_of(*column).unwrap_or(WIDTHS_DIFFER));
    text += &array("u32 kWidths", widths);
    let are_floats = uses.columns.iter();
    let are_floats = are_floats.map(|column| is_float(&draft.scanned.data_type(*column)));
    text += &array("bool kIsFloat", are_floats);
    let totals = &ending.totals;
    text += &array("bool kIsMaximum", totals.iter().map(|it| it.is_maximum));
    text += &array("bool kIsWide", totals.iter().map(|it| it.is_wide));
    text += &array("u32 kSlotWord", totals.iter().map(|it| it.word));
    text += &array("u32 kOwnBits", &ending.words);
    text += &of_joins(draft, steps)?;
    for name in ["columns", "times", "totals", "joins"] {
        let _ = writeln!(text, "#include \"{name}.cuh\"");
    }
    text += "using Totals = TOTALS;\n";
    text += &conditions(draft);
    text += &functions(steps, &ending.add, uses.columns.len() > CURSORS_MAX);
    Ok(text + "#include \"fragment.cuh\"\n")
}

/// Returns the functions `load`, `keeps` and `add`. Each column is loaded for the first function that reads it; `add`
/// looks up those of wide rows.
fn functions(steps: &[Function], add: &Function, is_wide: bool) -> String {
    let arguments =
        "const Fragment& f, const Columns& c, Joined& joined, const u32 i, const bool is_wanted";
    let mut text = String::from(
        "template <u32 kStep> __device__ inline void load(Columns& c, bool is_wanted);\n",
    );
    let _ = writeln!(
        text,
        "template <u32 kStep> __device__ inline bool keeps({arguments});"
    );
    let mut loaded = BTreeSet::new();
    for (step, function) in steps.iter().chain([add]).enumerate() {
        let looks_up = is_wide && step == steps.len();
        let columns = function.columns.iter();
        let columns = columns.filter(|column| !looks_up && loaded.insert(**column));
        let loads = columns.map(|column| format!("    cursor_of<{column}>(c).load(is_wanted);\n"));
        let loads: String = loads.collect();
        let _ = write!(
            text,
            "template <> __device__ inline void load<{step}>(Columns& c, bool is_wanted) {{\n{loads}}}\n"
        );
        let head = match step == steps.len() {
            true => format!("__device__ inline void add({arguments}, Totals& totals)"),
            false => format!("template <> __device__ inline bool keeps<{step}>({arguments})"),
        };
        for comment in &function.comments {
            let _ = writeln!(text, "// {comment}");
        }
        let mut lines = function.lines.join("\n    ");
        if looks_up {
            lines = lines.replace("cursor_of<", "found_cursor<");
        }
        let _ = writeln!(text, "{head} {{\n    {lines}\n}}");
    }
    text
}
