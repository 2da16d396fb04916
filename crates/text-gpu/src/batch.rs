//! Which queries share a launch, and the tables that the launch reads.
//!
//! Queries of one launch share one pass over the bytes: literals are packed side by side into one word of bits, automata
//! share the class of each byte. What cannot be shared has a launch of its own.

use std::collections::HashMap;

use crate::arguments::{QUERIES_MAX, Query, ScanArguments};
use forebay_text::SEPARATOR;
use forebay_text::form::{DeviceForm, DfaForm, GlushkovForm, LiteralForm};

/// Bits of the word that literals are packed into.
const PACKED_BITS: usize = 64;

/// What images of launches begin at a multiple of on a device.
pub(crate) const IMAGE_GRANULE_BYTES: usize = 256;

/// Automata of one launch.
const AUTOMATA_MAX: usize = 8;

/// Bytes of the tables of one launch that fit into shared memory next to those of enough other blocks.
const SHARED_TABLE_BYTES_MAX: usize = 48 << 10;

/// The kernels, each with one entry for counts and one for lists.
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

    /// The name of the entry in `scan.cu`.
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

/// One launch: its kernel, its tables, and the queries it answers.
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    /// Which of the forms, in the order of the queries of the launch.
    pub(crate) forms: Vec<usize>,
    /// Tables that every block copies to shared memory; a multiple of 16 bytes.
    pub(crate) image: Vec<u8>,
    /// A table that stays in global memory.
    pub(crate) table: Vec<u8>,
    /// Everything but addresses, chunks and what becomes of matches.
    pub(crate) arguments: ScanArguments,
}

/// Groups forms into launches.
pub(crate) fn launches(forms: &[&DeviceForm]) -> Vec<Launch> {
    let mut launches = Vec::new();
    let (mut literals, mut automata) = (Packed::default(), Shared::default());
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

/// Literals on their way into one launch.
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

/// A literal alone.
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
    let arguments = ScanArguments {
        literal_bytes: form.bytes.len() as u32,
        probe: u32::from_le_bytes(probe),
        probe_mask: u32::from_le_bytes(mask),
        ..ScanArguments::default()
    };
    Launch::new(kernel, vec![index], form.bytes.clone(), arguments)
}

/// Several literals in one word: bit `i` stands for one byte of one of them.
fn shift_and(literals: &[(usize, &LiteralForm)]) -> Launch {
    let mut takes = [0u64; 256];
    let mut arguments = ScanArguments::default();
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
        arguments.accept |= 1 << (bit - 1);
        arguments.queries[query].accepting = bit - 1;
    }
    arguments.inside = !arguments.inside;
    let forms = literals.iter().map(|(index, _)| *index).collect();
    Launch::new(Kernel::ShiftAnd, forms, words(&takes), arguments)
}

fn glushkov(index: usize, form: &GlushkovForm) -> Launch {
    let mut image = words(form.takes.as_slice());
    form.follow
        .iter()
        .for_each(|follow| image.extend(words(follow)));
    let arguments = ScanArguments {
        stride: form.follow.len() as u32,
        enter: form.enter,
        enter_start: form.enter_start,
        accept: form.accept,
        ..ScanArguments::default()
    };
    Launch::new(Kernel::Glushkov, vec![index], image, arguments)
}

/// Automata on their way into one launch.
#[derive(Default)]
struct Shared<'a> {
    automata: Vec<(usize, &'a DfaForm)>,
    classes: Option<Classes>,
}

impl<'a> Shared<'a> {
    fn add(&mut self, index: usize, form: &'a DfaForm) -> Option<Launch> {
        if form.states_count() > usize::from(u8::MAX) + 1
            || form.next.len() > SHARED_TABLE_BYTES_MAX
        {
            return Some(wide(index, form));
        }
        let together = Classes::join(self.classes.as_ref(), &form.classes);
        let full = self.automata.len() == AUTOMATA_MAX
            || self.states() + form.states_count() > SHARED_TABLE_BYTES_MAX / together.count();
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
        let Shared { automata, classes } = std::mem::take(self);
        classes.map(|classes| shared_tables(&automata, &classes))
    }
}

/// Bytes that no automaton of a launch tells apart.
struct Classes {
    of: [u8; 256],
    /// A byte of each class.
    representatives: Vec<u8>,
}

impl Classes {
    /// The classes that tell apart what either tells apart.
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

    /// The rows of an automaton over these classes.
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

/// Automata with tables of bytes over common classes.
fn shared_tables(automata: &[(usize, &DfaForm)], classes: &Classes) -> Launch {
    let kernel = match automata.len() {
        1 => Kernel::Dfa,
        2..=4 => Kernel::Dfa4,
        _ => Kernel::Dfa8,
    };
    let mut arguments = ScanArguments {
        stride: classes.count() as u32,
        accept_state: u32::from(automata[0].1.accept()),
        ..ScanArguments::default()
    };
    let mut image = classes.of.to_vec();
    for (query, (_, form)) in automata.iter().enumerate() {
        arguments.queries[query] = Query {
            start: form.start.into(),
            accepting: form.accepting.into(),
            table_offset: image.len() as u32,
            ..Query::default()
        };
        // States of these automata are numbered below 256.
        image.extend(classes.table(form).map(|state| state as u8));
    }
    // Queries that are not there step through a table that is, and nobody asks for what they find.
    let absent = Query {
        accepting: u32::MAX,
        table_offset: arguments.queries[0].table_offset,
        ..Query::default()
    };
    arguments.queries[automata.len()..AUTOMATA_MAX].fill(absent);
    let forms = automata.iter().map(|(index, _)| *index).collect();
    Launch::new(kernel, forms, image, arguments)
}

/// An automaton with a table of sixteen-bit states, in shared memory if it fits.
fn wide(index: usize, form: &DfaForm) -> Launch {
    let table: Vec<u8> = form
        .next
        .iter()
        .flat_map(|state| state.to_le_bytes())
        .collect();
    let mut arguments = ScanArguments {
        stride: form.classes_count as u32,
        accept_state: form.accept().into(),
        ..ScanArguments::default()
    };
    arguments.queries[0] = Query {
        start: form.start.into(),
        accepting: form.accepting.into(),
        table_offset: form.classes.len() as u32,
        ..Query::default()
    };
    let mut image = form.classes.to_vec();
    if table.len() <= SHARED_TABLE_BYTES_MAX {
        image.extend(table);
        return Launch::new(Kernel::DfaWide, vec![index], image, arguments);
    }
    Launch {
        table,
        ..Launch::new(Kernel::DfaLarge, vec![index], image, arguments)
    }
}

impl Launch {
    /// Bytes of both tables, rounded up so that the next launch's are aligned.
    pub(crate) fn image_bytes(&self) -> usize {
        (self.image.len() + self.table.len()).next_multiple_of(IMAGE_GRANULE_BYTES)
    }

    fn new(
        kernel: Kernel,
        forms: Vec<usize>,
        mut image: Vec<u8>,
        mut arguments: ScanArguments,
    ) -> Launch {
        image.resize(image.len().next_multiple_of(16), SEPARATOR);
        arguments.image_bytes = image.len() as u32;
        arguments.query_count = forms.len() as u32;
        Launch {
            kernel,
            forms,
            image,
            table: Vec::new(),
            arguments,
        }
    }
}

/// Words as a device reads them.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
