//! Groups queries into launches, and builds the tables of each launch.
//!
//! The queries of one launch share one pass over the bytes: literals are packed into one 64-bit word, and automata
//! share byte classes. A query that cannot share has its own launch.

use std::collections::HashMap;

use crate::arguments::{
    AUTOMATA_MAX, DfaArguments, DfaQuery, GlushkovArguments, LiteralArguments, Matcher, Output,
    QUERIES_MAX, ShiftAndArguments,
};
use crate::policy::Policy;
use forebay_device::cuda::DeviceType;
use forebay_text::SEPARATOR;
use forebay_text::form::{DeviceForm, DfaForm, GlushkovForm, LiteralForm};

/// Bits of the word that packed literals share.
const PACKED_BITS: usize = 64;

/// Alignment of launch images in device memory.
pub(crate) const IMAGE_GRANULE_BYTES: usize = 256;

/// The kernels. Each has two entry functions: one counts matches, the other also lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Dfa,
    Dfa4,
    Dfa8,
    DfaWide,
    DfaLarge,
    Literal,
    LiteralStart,
    Glushkov,
    ShiftAnd,
}

impl Kernel {
    pub(crate) const ALL: [Kernel; 9] = [
        Kernel::Dfa,
        Kernel::Dfa4,
        Kernel::Dfa8,
        Kernel::DfaWide,
        Kernel::DfaLarge,
        Kernel::Literal,
        Kernel::LiteralStart,
        Kernel::Glushkov,
        Kernel::ShiftAnd,
    ];

    /// Returns the name of the entry in `scan.cu`.
    pub(crate) fn entry(self, lists: bool) -> &'static str {
        let (count, list) = match self {
            Kernel::Dfa => ("scan_dfa_count", "scan_dfa_list"),
            Kernel::Dfa4 => ("scan_dfa_4_count", "scan_dfa_4_list"),
            Kernel::Dfa8 => ("scan_dfa_8_count", "scan_dfa_8_list"),
            Kernel::DfaWide => ("scan_dfa_wide_count", "scan_dfa_wide_list"),
            Kernel::DfaLarge => ("scan_dfa_large_count", "scan_dfa_large_list"),
            Kernel::Literal => ("scan_literal_count", "scan_literal_list"),
            Kernel::LiteralStart => ("scan_literal_start_count", "scan_literal_start_list"),
            Kernel::Glushkov => ("scan_glushkov_count", "scan_glushkov_list"),
            Kernel::ShiftAnd => ("scan_shift_and_count", "scan_shift_and_list"),
        };
        if lists { list } else { count }
    }
}

/// A kernel launch: kernel, tables, and the queries it answers.
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    /// For each query of the launch, the index of its form among the arguments of [`launches`].
    pub(crate) forms: Vec<usize>,
    /// Tables that each block copies to shared memory; their length is a multiple of 16 bytes.
    pub(crate) image: Vec<u8>,
    /// Table that stays in global memory; empty if all tables are in the image.
    pub(crate) table: Vec<u8>,
    /// Arguments of the matcher; the addresses are set at the launch.
    pub(crate) matcher: Matcher,
    /// Output of each query.
    pub(crate) outputs: [Output; QUERIES_MAX],
}

/// Groups forms into launches.
pub(crate) fn launches(forms: &[&DeviceForm], policy: &Policy) -> Vec<Launch> {
    let mut launches = Vec::new();
    let (mut literals, mut automata) = (Packed::default(), Shared::new(policy));
    for (index, form) in forms.iter().enumerate() {
        match form {
            DeviceForm::Literal(form) => launches.extend(literals.add(index, form)),
            DeviceForm::Dfa(form) => launches.extend(automata.add(index, form)),
            DeviceForm::Glushkov(form) => launches.push(glushkov(index, form)),
        }
    }
    launches.extend(literals.close());
    launches.extend(automata.close());
    launches
}

/// Literals collected for one launch.
#[derive(Default)]
struct Packed<'a> {
    literals: Vec<(usize, &'a LiteralForm)>,
    bits: usize,
}

impl<'a> Packed<'a> {
    fn add(&mut self, index: usize, form: &'a LiteralForm) -> Option<Launch> {
        let bits = form.bytes.len();
        if bits == 0 || bits > PACKED_BITS {
            return Some(literal(index, form));
        }
        let full = self.bits + bits > PACKED_BITS || self.literals.len() == QUERIES_MAX;
        let closed = full.then(|| self.close()).flatten();
        self.literals.push((index, form));
        self.bits += bits;
        closed
    }

    fn close(&mut self) -> Option<Launch> {
        let Packed { literals, .. } = std::mem::take(self);
        match literals.as_slice() {
            [] => None,
            [(index, form)] => Some(literal(*index, form)),
            _ => Some(shift_and(&literals)),
        }
    }
}

/// Returns the launch of a single literal.
fn literal(index: usize, form: &LiteralForm) -> Launch {
    let mut probe = [0u8; 4];
    let mut mask = [0u8; 4];
    for (at, &byte) in form.bytes.iter().take(4).enumerate() {
        (probe[at], mask[at]) = (byte, 0xFF);
    }
    let kernel = if form.at_start {
        Kernel::LiteralStart
    } else {
        Kernel::Literal
    };
    let matcher = Matcher::Literal(LiteralArguments {
        bytes: form.bytes.len() as u32,
        probe: u32::from_le_bytes(probe),
        probe_mask: u32::from_le_bytes(mask),
    });
    Launch::new(kernel, vec![index], form.bytes.clone(), matcher)
}

/// Returns the launch of several literals packed into one word, where each bit is one byte of a literal.
fn shift_and(literals: &[(usize, &LiteralForm)]) -> Launch {
    let mut takes = [0u64; 256];
    let mut arguments = ShiftAndArguments::default();
    let mut bit = 0;
    for (query, (_, form)) in literals.iter().enumerate() {
        let first = 1u64 << bit;
        match form.at_start {
            true => arguments.enter_start |= first,
            false => arguments.enter |= first,
        }
        arguments.inside |= first;
        for &byte in &form.bytes {
            takes[usize::from(byte)] |= 1 << bit;
            bit += 1;
        }
        arguments.last |= 1 << (bit - 1);
        arguments.last_bits[query] = bit - 1;
    }
    arguments.inside = !arguments.inside;
    let forms = literals.iter().map(|(index, _)| *index).collect();
    let matcher = Matcher::ShiftAnd(arguments);
    Launch::new(Kernel::ShiftAnd, forms, words(&takes), matcher)
}

fn glushkov(index: usize, form: &GlushkovForm) -> Launch {
    let mut image = words(form.takes.as_slice());
    form.follow
        .iter()
        .for_each(|follow| image.extend(words(follow)));
    let matcher = Matcher::Glushkov(GlushkovArguments {
        follow_count: form.follow.len() as u32,
        enter: form.enter,
        enter_start: form.enter_start,
        accept: form.accept,
    });
    Launch::new(Kernel::Glushkov, vec![index], image, matcher)
}

/// Automata collected for one launch.
struct Shared<'a> {
    automata: Vec<(usize, &'a DfaForm)>,
    classes: Option<Classes>,
    table_bytes_max: usize,
}

impl<'a> Shared<'a> {
    fn new(policy: &Policy) -> Shared<'a> {
        Shared {
            automata: Vec::new(),
            classes: None,
            table_bytes_max: policy.shared_table_bytes_max,
        }
    }

    fn add(&mut self, index: usize, form: &'a DfaForm) -> Option<Launch> {
        if form.states_count() > usize::from(u8::MAX) + 1 || form.next.len() > self.table_bytes_max
        {
            return Some(wide(index, form, self.table_bytes_max));
        }
        let together = Classes::join(self.classes.as_ref(), &form.classes);
        let full = self.automata.len() == AUTOMATA_MAX
            || self.states() + form.states_count() > self.table_bytes_max / together.count();
        let closed = full.then(|| self.close()).flatten();
        self.classes = Some(match closed {
            Some(_) => Classes::join(None, &form.classes),
            None => together,
        });
        self.automata.push((index, form));
        closed
    }

    fn states(&self) -> usize {
        self.automata
            .iter()
            .map(|(_, form)| form.states_count())
            .sum()
    }

    fn close(&mut self) -> Option<Launch> {
        let automata = std::mem::take(&mut self.automata);
        let classes = self.classes.take();
        classes.map(|classes| shared_tables(&automata, &classes))
    }
}

/// Byte classes that all automata of a launch share.
struct Classes {
    of: [u8; 256],
    /// One byte of each class.
    representatives: Vec<u8>,
}

impl Classes {
    /// Returns the coarsest classes that refine both arguments.
    fn join(one: Option<&Classes>, other: &[u8; 256]) -> Classes {
        let mut known = HashMap::new();
        let mut representatives = Vec::new();
        let of = std::array::from_fn(|byte| {
            let key = (one.map_or(0, |classes| classes.of[byte]), other[byte]);
            *known.entry(key).or_insert_with(|| {
                representatives.push(byte as u8);
                (representatives.len() - 1) as u8
            })
        });
        Classes {
            of,
            representatives,
        }
    }

    fn count(&self) -> usize {
        self.representatives.len()
    }

    /// Returns the table of an automaton over the shared classes, state by state.
    fn table<'a>(&'a self, form: &'a DfaForm) -> impl Iterator<Item = u16> + 'a {
        let states = form.next.chunks(form.classes_count);
        states.flat_map(|row| {
            let class = |&byte: &u8| form.classes[usize::from(byte)];
            self.representatives
                .iter()
                .map(move |byte| row[usize::from(class(byte))])
        })
    }
}

/// Returns the launch of several automata that share byte classes. Each entry of their tables is one byte.
fn shared_tables(automata: &[(usize, &DfaForm)], classes: &Classes) -> Launch {
    let kernel = match automata.len() {
        1 => Kernel::Dfa,
        2..=4 => Kernel::Dfa4,
        _ => Kernel::Dfa8,
    };
    let mut arguments = DfaArguments {
        class_count: classes.count() as u32,
        accept: automata[0].1.accept().into(),
        ..DfaArguments::default()
    };
    let mut image = classes.of.to_vec();
    for (query, (_, form)) in automata.iter().enumerate() {
        arguments.queries[query] = DfaQuery {
            start: form.start.into(),
            accepting: form.accepting.into(),
            table_offset: image.len() as u32,
        };
        // These automata have fewer than 256 states.
        image.extend(classes.table(form).map(|state| state as u8));
    }
    // Unused slots run on the first table. They never match, because no state reaches `accepting`.
    let unused = DfaQuery {
        start: 0,
        accepting: u32::MAX,
        table_offset: arguments.queries[0].table_offset,
    };
    arguments.queries[automata.len()..AUTOMATA_MAX].fill(unused);
    let forms = automata.iter().map(|(index, _)| *index).collect();
    Launch::new(kernel, forms, image, Matcher::Dfa(arguments))
}

/// Returns the launch of one automaton with 16-bit states, whose table is in shared memory if it fits.
fn wide(index: usize, form: &DfaForm, shared_bytes_max: usize) -> Launch {
    let table: Vec<u8> = form
        .next
        .iter()
        .flat_map(|state| state.to_le_bytes())
        .collect();
    let mut arguments = DfaArguments {
        class_count: form.classes_count as u32,
        accept: form.accept().into(),
        ..DfaArguments::default()
    };
    arguments.queries[0] = DfaQuery {
        start: form.start.into(),
        accepting: form.accepting.into(),
        table_offset: form.classes.len() as u32,
    };
    let matcher = Matcher::Dfa(arguments);
    let mut image = form.classes.to_vec();
    if table.len() <= shared_bytes_max {
        image.extend(table);
        return Launch::new(Kernel::DfaWide, vec![index], image, matcher);
    }
    Launch {
        table,
        ..Launch::new(Kernel::DfaLarge, vec![index], image, matcher)
    }
}

impl Launch {
    /// Returns whether any query wants a list of rows.
    pub(crate) fn lists(&self) -> bool {
        self.outputs.iter().any(|output| output.wants_rows != 0)
    }

    /// Returns the number of bytes of `image` and `table` together, rounded up so that the tables of the next launch
    /// are aligned.
    pub(crate) fn image_bytes(&self) -> usize {
        (self.image.len() + self.table.len()).next_multiple_of(IMAGE_GRANULE_BYTES)
    }

    fn new(kernel: Kernel, forms: Vec<usize>, mut image: Vec<u8>, matcher: Matcher) -> Launch {
        image.resize(image.len().next_multiple_of(16), SEPARATOR);
        Launch {
            kernel,
            forms,
            image,
            table: Vec::new(),
            matcher,
            outputs: [Output::default(); QUERIES_MAX],
        }
    }
}

/// Returns the bytes of words in the device's byte order.
fn words(words: &[u64]) -> Vec<u8> {
    DeviceType::bytes_of(words)
}
