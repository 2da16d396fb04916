//! The kernels that sort the rows of a list in device memory, and compute window functions over them.
//!
//! While a list is made, each row gets words that compare as the row does. A radix sort (Knuth, *The Art of Computer
//! Programming*, volume 3, 5.2.5) sorts the numbers of the rows by these words, by eight bits at a time, the least
//! significant first. The rows are then copied in this order. One segmented scan gives the functions: the state after
//! a row is that of the row before, combined with the row's own totals (Blelloch, *Prefix sums and their
//! applications*, 1990).

use std::fmt::Write;
use std::ops::Range;

use forebay_device::cuda::{Program, ProgramSpec};

use crate::arguments::CONSTANTS_MAX;
use crate::columns::Columns;
use crate::engine::{KernelLaunch, Keys, Launch, Memory};
use crate::giving_way::Need;
use crate::launches::InMemory;
use crate::program::{THREADS, Total, group_words};
use crate::reason::Reason;
use crate::slice::Slice;
use crate::source::{array, headers, options};
use crate::window::{Frame, Window};

type Result<T> = std::result::Result<T, Reason>;

/// Maximum number of stripes of a list, and bits of a digit, as in `order.cuh`.
const STRIPES_MAX: u64 = 512;
const DIGIT_BITS: u32 = 8;
const DIGITS: u64 = 1 << DIGIT_BITS;
/// Minimum number of rows of a sort that lets kernels of other queries run between its passes, each of which takes a
/// millisecond or more.
const ROWS_TO_STOP: u64 = 1 << 24;
/// Maximum number of words of a state: the states of all threads of a block are in its shared memory.
const STATE_WORDS_MAX: usize = 14;
/// Alignment of an array.
const ALIGNMENT: u64 = 256;

/// What a kernel does, as in `order.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Load,
    Count,
    Place,
    Scatter,
    Gather,
    Reduce,
    Scan,
    Apply,
    Spread,
}

/// A word of a row that orders it. The first word is the most significant.
#[derive(Debug, Clone)]
pub(crate) struct SortWord {
    /// The code of the word.
    pub(crate) code: String,
    /// Number of bits.
    pub(crate) bits: u32,
    /// Number of low bits that may differ within a partition.
    pub(crate) not_of_partition: u32,
    /// Number of low bits that may differ among peers.
    pub(crate) not_of_peers: u32,
}

/// The slots of a row that a window uses.
#[derive(Debug, Default)]
pub(crate) struct OrderSlots {
    /// The words that rows are sorted by.
    pub(crate) words: Vec<(SortWord, usize)>,
    /// The slots of the totals of aggregates.
    pub(crate) states: Range<usize>,
    pub(crate) row_number: Option<usize>,
    pub(crate) rank: Option<usize>,
    pub(crate) dense_rank: Option<usize>,
    /// Place of the first peer or of the first row of the partition; `None` if frames end with the current row.
    pub(crate) start: Option<usize>,
}

/// The kernel of all steps, for lists whose rows have the same words.
#[derive(Debug)]
pub(crate) struct Order {
    program: Program,
    /// The index of each word that rows are sorted by.
    words: Vec<(SortWord, usize)>,
    has_functions: bool,
    /// Whether rows get the totals of the last row of their partition, or of their last peer.
    spreads: bool,
    /// Number of words of a row, and of the totals of a state.
    row_words: usize,
    state_words: usize,
}

impl Order {
    /// Writes the kernel for rows with these totals, if they have a window.
    ///
    /// # Errors
    /// If the functions have too many totals.
    pub(crate) fn of(
        window: Option<(&Window, OrderSlots)>,
        totals: &[Total],
    ) -> Result<Option<Order>> {
        let order = window.map(|(window, slots)| Order::new(window, slots, totals));
        order.transpose()
    }

    /// Writes the kernel for rows with these totals.
    ///
    /// # Errors
    /// If the functions have too many totals, or the order too many words.
    fn new(window: &Window, slots: OrderSlots, totals: &[Total]) -> Result<Order> {
        let states = &totals[slots.states.clone()];
        let first = states.first().map_or(0, |it| it.word);
        let state_words = group_words(states).saturating_sub(first);
        if state_words > STATE_WORDS_MAX {
            return Err(Reason::new("window functions with many totals"));
        }
        // There are two constants for each word, and four others.
        if !window.functions.is_empty() && 4 + 2 * slots.words.len() > CONSTANTS_MAX {
            return Err(Reason::new("window functions with many sort expressions"));
        }
        let word = |slot: &Option<usize>| {
            slot.map_or("kNoWord".to_owned(), |it| totals[it].word.to_string())
        };
        let mut text = String::from("#include \"arguments.cuh\"\n");
        let ends = match window.frame {
            _ if slots.start.is_none() => 0,
            Frame::Rows => 0,
            Frame::Peers => 1,
            Frame::Partition => 2,
        };
        for (name, value) in [
            ("kThreads", THREADS as usize),
            ("kGroupWords", group_words(totals)),
            ("kSortWords", slots.words.len()),
            ("kStates", states.len()),
            ("kStateWords", state_words),
            ("kFirstState", first),
            ("kEndsWith", ends),
        ] {
            let _ = writeln!(text, "constexpr u32 {name} = {value};");
        }
        // The index of a word that rows do not have.
        text += "constexpr u32 kNoWord = 0xFFFFFFFFu;\n";
        for (name, slot) in [
            ("kRowNumberWord", &slots.row_number),
            ("kRankWord", &slots.rank),
            ("kDenseRankWord", &slots.dense_rank),
            ("kStartWord", &slots.start),
        ] {
            let _ = writeln!(text, "constexpr u32 {name} = {};", word(slot));
        }
        let words = slots.words.into_iter();
        let words: Vec<_> = words
            .map(|(word, slot)| (word, totals[slot].word))
            .collect();
        text += &array("u32 kSortWord", words.iter().map(|(_, word)| *word));
        text += &array(
            "bool kStateIsMaximum",
            states.iter().map(|it| it.is_maximum),
        );
        text += &array("bool kStateIsWide", states.iter().map(|it| it.is_wide));
        text += &array("u32 kStateWord", states.iter().map(|it| it.word - first));
        text += "#include \"order.cuh\"\n";
        let spec = ProgramSpec {
            name: "tables/order.cu".to_owned(),
            source: text.into(),
            headers: headers(),
            options: options(),
            entries: vec!["fragment".to_owned()],
        };
        Ok(Order {
            program: Program::new(spec),
            words,
            has_functions: !window.functions.is_empty(),
            spreads: ends != 0,
            row_words: group_words(totals),
            state_words,
        })
    }

    /// Returns whether there are functions over the rows.
    pub(crate) fn has_functions(&self) -> bool {
        self.has_functions
    }

    /// Returns the source of the kernel.
    pub(crate) fn source(&self) -> String {
        self.program.spec().source.to_string()
    }

    /// Adds the kernels that sort a list of this many rows, and compute the functions, to a launch. Returns the
    /// sorted list, in memory of the same device.
    ///
    /// # Errors
    /// If there is no room. Columns that were used before `used` give way.
    pub(crate) fn sort(
        &self,
        list: &InMemory,
        rows: u64,
        (columns, used): (&Columns, u64),
        launch: &mut Launch,
    ) -> Result<InMemory> {
        let arrays = Arrays::new(self, rows);
        let device = list.memory.device;
        let allocate =
            |bytes: u64| columns.allocate(device, bytes.max(ALIGNMENT), Need::Query(used));
        let bytes = 8 * self.row_words as u64 * rows;
        let (sorted, memory) = (allocate(bytes)?, allocate(arrays.bytes)?);
        let sorted = InMemory {
            address: sorted.address,
            memory: sorted,
            bytes,
            keys: Keys::default(),
            counter: 0,
            slice: Slice::default(),
        };
        self.add_sort((list, rows), &sorted, (&arrays, &memory), launch);
        if self.has_functions {
            self.add_functions((&sorted, rows), (&arrays, &memory), launch);
        }
        launch
            .memory
            .extend([list.memory.clone(), sorted.memory.clone(), memory]);
        Ok(sorted)
    }

    /// Adds the kernels that put the rows in order.
    fn add_sort(
        &self,
        list: (&InMemory, u64),
        sorted: &InMemory,
        (arrays, memory): (&Arrays, &Memory),
        launch: &mut Launch,
    ) {
        let at = |offset: u64| memory.address + offset;
        // Which of the two arrays has the keys and the row numbers now; the next pass writes the other.
        let mut turn = 0;
        let mut add = |step: Step, numbers: [u64; 3], turn: usize, gathered: Option<u64>| {
            let kernel = KernelLaunch {
                words: vec![at(arrays.keys[turn]), at(arrays.rows[turn])],
                own_words: vec![
                    gathered.unwrap_or(at(arrays.keys[1 - turn])),
                    at(arrays.rows[1 - turn]),
                    at(arrays.counts),
                ],
                ..self.kernel(step, numbers, list)
            };
            launch.kernels.push(kernel);
        };
        let mut is_first = true;
        for (word, index) in self.words.iter().rev() {
            // A word without bits orders nothing.
            if word.bits == 0 {
                continue;
            }
            add(Step::Load, [0, *index as u64, is_first.into()], turn, None);
            (turn, is_first) = (1 - turn, false);
            for shift in (0..word.bits).step_by(DIGIT_BITS as usize) {
                let numbers = [shift.into(), 0, 0];
                add(Step::Count, numbers, turn, None);
                add(Step::Place, numbers, turn, None);
                add(Step::Scatter, numbers, turn, None);
                turn = 1 - turn;
            }
        }
        if is_first {
            // All rows are equal.
            add(Step::Load, [0, 0, 1], turn, None);
            turn = 1 - turn;
        }
        add(Step::Gather, [0; 3], turn, Some(sorted.address));
    }

    /// Adds the kernels that compute the functions.
    fn add_functions(
        &self,
        sorted: (&InMemory, u64),
        (arrays, memory): (&Arrays, &Memory),
        launch: &mut Launch,
    ) {
        let last = self.spreads.then_some(Step::Spread);
        for step in [Step::Reduce, Step::Scan, Step::Apply]
            .into_iter()
            .chain(last)
        {
            launch.kernels.push(KernelLaunch {
                own_words: vec![
                    memory.address + arrays.states,
                    memory.address + arrays.rows[0],
                ],
                ..self.kernel(step, [0; 3], sorted)
            });
        }
    }

    /// Returns the launch of a step for a list of this many rows.
    fn kernel(
        &self,
        step: Step,
        numbers: [u64; 3],
        (list, rows): (&InMemory, u64),
    ) -> KernelLaunch {
        let numbers = [step as u64].into_iter().chain(numbers).map(i128::from);
        let words = self.words.iter();
        let bits = words.flat_map(|(word, _)| [word.not_of_peers, word.not_of_partition]);
        let shared_bytes = match step {
            Step::Load | Step::Gather | Step::Spread => 0,
            Step::Count => 4 * DIGITS as u32,
            Step::Place => 8 * THREADS,
            Step::Scatter => 4 * DIGITS as u32 * (1 + THREADS / 32),
            Step::Reduce | Step::Scan | Step::Apply => 8 * THREADS * (2 + self.state_words as u32),
        };
        KernelLaunch {
            may_stop: rows >= ROWS_TO_STOP && matches!(step, Step::Count | Step::Reduce),
            groups: rows as u32,
            totals: Some(list.address),
            are_groups_read: true,
            shared_bytes,
            ..KernelLaunch::new(
                self.program.clone(),
                numbers.chain(bits.map(i128::from)).collect(),
            )
        }
    }
}

/// Offsets of the arrays of a sort in its memory, in bytes.
struct Arrays {
    /// A word of each row: before a pass and after it.
    keys: [u64; 2],
    /// The numbers of the rows, as above.
    rows: [u64; 2],
    /// The rows of each digit in each stripe, and in all.
    counts: u64,
    /// The state of each stripe.
    states: u64,
    /// Bytes of all arrays.
    bytes: u64,
}

impl Arrays {
    /// Returns the offsets for a list of this many rows.
    fn new(order: &Order, rows: u64) -> Arrays {
        let mut bytes: u64 = 0;
        let mut place = |of: u64| {
            let first = bytes;
            bytes += of.next_multiple_of(ALIGNMENT);
            first
        };
        Arrays {
            keys: [place(8 * rows), place(8 * rows)],
            rows: [place(4 * rows), place(4 * rows)],
            counts: place(4 * DIGITS * (STRIPES_MAX + 1)),
            states: place(8 * STRIPES_MAX * (2 + order.state_words as u64)),
            bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_four_billion_rows_do_not_overlap() {
        let order = Order {
            program: Program::new(ProgramSpec {
                name: String::new(),
                source: "".into(),
                headers: Vec::new(),
                options: Vec::new(),
                entries: Vec::new(),
            }),
            words: Vec::new(),
            has_functions: true,
            spreads: false,
            row_words: 3,
            state_words: STATE_WORDS_MAX,
        };
        for rows in [0, 1, 1 << 29, 1 << 31, u32::MAX.into()] {
            let Arrays {
                keys,
                rows: numbers,
                counts,
                states,
                bytes,
            } = Arrays::new(&order, rows);
            let mut end = 0;
            for (first, bytes) in [
                (keys[0], 8 * rows),
                (keys[1], 8 * rows),
                (numbers[0], 4 * rows),
                (numbers[1], 4 * rows),
                (counts, 4 * DIGITS * (STRIPES_MAX + 1)),
                (states, 8 * STRIPES_MAX * (2 + STATE_WORDS_MAX as u64)),
            ] {
                assert!(first >= end, "{rows} rows: {first}, {end}");
                end = first + bytes;
            }
            assert!((end..end + ALIGNMENT).contains(&bytes), "{rows} rows");
        }
    }
}
