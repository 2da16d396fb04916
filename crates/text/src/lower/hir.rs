//! Lowers a tree to an expression of `regex-syntax`: an exact one if possible, otherwise an over-approximation.
//!
//! The expression applies to rows in a block: the start and end of a value are line boundaries with the row separator
//! as line terminator. Constructs that an automaton cannot express are replaced by constructs that match more values.
//! The result is then inexact, and PCRE2 must confirm its candidates.

use regex_syntax::hir::{Hir, Look as HirLook, Repetition};

use crate::syntax::{CharSet, Look, Node, Repeat};

/// A lowered pattern.
#[derive(Clone, Debug)]
pub(crate) struct Lowered {
    /// The expression. It matches every value that the pattern matches.
    pub(crate) hir: Hir,
    /// Why the expression may match more than the pattern; `None` if it matches the same values.
    pub(crate) inexact: Option<&'static str>,
}

/// Lowers a simplified pattern.
pub(crate) fn lower(node: &Node) -> Lowered {
    let mut lowering = Lowering {
        inexact: None,
        between_bytes: false,
    };
    let hir = lowering.node(
        node,
        &Place {
            first: true,
            last: true,
            chars_follow: false,
            next: None,
        },
    );
    if lowering.between_bytes && hir.properties().minimum_len() == Some(0) {
        // A byte-based automaton would match `\B` inside a character.
        lowering.loosen("an empty match at \\B");
    }
    Lowered {
        hir,
        inexact: lowering.inexact,
    }
}

struct Lowering {
    inexact: Option<&'static str>,
    between_bytes: bool,
}

/// Context of a node in the pattern.
struct Place {
    /// Whether the node is the first of the pattern.
    first: bool,
    /// Whether the node is the last of the pattern.
    last: bool,
    /// Whether at least one character must follow.
    chars_follow: bool,
    /// Set that contains the next character, if known.
    next: Option<CharSet>,
}

impl Place {
    /// Returns whether a repeat of `set` at this place may be treated as possessive. This is so if no character that
    /// the repeat releases by backtracking can lead to a match.
    fn cannot_use(&self, set: &CharSet) -> bool {
        self.last || self.next.as_ref().is_some_and(|next| next.is_disjoint(set))
    }
}

impl Lowering {
    fn loosen(&mut self, why: &'static str) {
        self.inexact.get_or_insert(why);
    }

    fn node(&mut self, node: &Node, place: &Place) -> Hir {
        match node {
            Node::Empty => Hir::empty(),
            Node::Set(set) => set.to_hir(),
            Node::Look(look) => self.look(*look, place),
            Node::Concat(nodes) => self.concat(nodes, place),
            Node::Alternate(nodes) => {
                Hir::alternation(nodes.iter().map(|node| self.node(node, place)).collect())
            }
            Node::Repeat(repeat) => self.repeat(repeat, place),
            Node::Atomic(inner) => self.atomic(inner, place),
            Node::Around(_) => {
                self.loosen("a look-around");
                Hir::empty()
            }
            Node::Opaque(what) => {
                self.loosen(what);
                repetition(CharSet::all().to_hir(), 0, None)
            }
        }
    }

    fn concat(&mut self, nodes: &[Node], place: &Place) -> Hir {
        let hirs = (0..nodes.len()).map(|index| {
            let (before, after) = (&nodes[..index], &nodes[index + 1..]);
            if is_implied(&nodes[index], before.last(), after, place) {
                return Hir::empty();
            }
            let inner = Place {
                first: place.first && before.is_empty(),
                last: place.last && after.is_empty(),
                chars_follow: place.chars_follow || after.iter().any(takes_chars),
                next: first_chars(after, place.next.as_ref()),
            };
            self.node(&nodes[index], &inner)
        });
        Hir::concat(hirs.collect())
    }

    fn repeat(&mut self, repeat: &Repeat, place: &Place) -> Hir {
        let once = repeat.max == Some(1);
        let inner = Place {
            first: place.first && once,
            last: place.last && once,
            chars_follow: place.chars_follow && once,
            next: if once { place.next.clone() } else { None },
        };
        if repeat.possessive && !self.may_keep(repeat, place) {
            self.loosen("a possessive quantifier");
        }
        let hir = self.node(&repeat.node, &inner);
        repetition(hir, repeat.min, repeat.max)
    }

    /// Returns whether a possessive repeat at `place` matches the same rows as a plain repeat.
    fn may_keep(&self, repeat: &Repeat, place: &Place) -> bool {
        match &repeat.node {
            Node::Set(set) => place.cannot_use(set),
            _ => place.last,
        }
    }

    fn atomic(&mut self, inner: &Node, place: &Place) -> Hir {
        let same = place.last
            || !has_choice(inner)
            || (is_line_break(inner) && place.cannot_use(&newline()));
        if !same {
            self.loosen("an atomic group");
        }
        self.node(inner, place)
    }

    fn look(&mut self, look: Look, place: &Place) -> Hir {
        match look {
            Look::TextStart => row_start(),
            Look::TextEnd => row_end(),
            Look::WordBoundary => Hir::look(HirLook::WordAscii),
            Look::NotWordBoundary => {
                self.between_bytes = true;
                Hir::look(HirLook::WordAsciiNegate)
            }
            Look::LineStart => self.line_start(place),
            Look::LineEnd => self.end(place, newline().to_hir()),
            Look::TextEndNewline => {
                self.end(place, Hir::concat(vec![newline().to_hir(), row_end()]))
            }
        }
    }

    /// Lowers `^` with the option `m`: after a newline or at the start. At the start of the pattern, the match may
    /// include that newline.
    fn line_start(&mut self, place: &Place) -> Hir {
        if !place.first {
            self.loosen("^ inside the pattern");
            return Hir::empty();
        }
        if !place.chars_follow {
            // PCRE2 does not match after a newline that ends the value.
            self.loosen("^ that may match at the end");
        }
        Hir::alternation(vec![row_start(), newline().to_hir()])
    }

    /// Lowers an assertion that holds before `newline` and at the end of the row. If the assertion comes last in the
    /// pattern, the match may include that newline.
    fn end(&mut self, place: &Place, newline: Hir) -> Hir {
        if !place.last {
            self.loosen("$ inside the pattern");
            return Hir::empty();
        }
        Hir::alternation(vec![row_end(), newline])
    }
}

fn row_start() -> Hir {
    Hir::look(HirLook::StartLF)
}

fn row_end() -> Hir {
    Hir::look(HirLook::EndLF)
}

fn newline() -> CharSet {
    CharSet::of_char('\n')
}

fn repetition(hir: Hir, min: u32, max: Option<u32>) -> Hir {
    Hir::repetition(Repetition {
        min,
        max,
        greedy: true,
        sub: Box::new(hir),
    })
}

/// Returns whether the node is `^` or `$` with the option `m` next to a newline that makes it true.
fn is_implied(node: &Node, before: Option<&Node>, after: &[Node], place: &Place) -> bool {
    let is_newline =
        |node: Option<&Node>| matches!(node, Some(Node::Set(set)) if *set == newline());
    match node {
        Node::Look(Look::LineEnd) => is_newline(after.first()),
        Node::Look(Look::LineStart) => {
            is_newline(before) && (place.chars_follow || after.iter().any(takes_chars))
        }
        _ => false,
    }
}

/// Returns whether a node consumes at least one character.
fn takes_chars(node: &Node) -> bool {
    match node {
        Node::Empty | Node::Look(_) | Node::Around(_) | Node::Opaque(_) => false,
        Node::Set(_) => true,
        Node::Concat(nodes) => nodes.iter().any(takes_chars),
        Node::Alternate(nodes) => nodes.iter().all(takes_chars),
        Node::Repeat(repeat) => repeat.min > 0 && takes_chars(&repeat.node),
        Node::Atomic(inner) => takes_chars(inner),
    }
}

/// Returns a set that contains the first character of a sequence, if known; `after` is the corresponding set for the
/// text that follows the sequence.
fn first_chars(nodes: &[Node], after: Option<&CharSet>) -> Option<CharSet> {
    let Some((node, rest)) = nodes.split_first() else {
        return after.cloned();
    };
    match node {
        Node::Set(set) => Some(set.clone()),
        Node::Empty => first_chars(rest, after),
        Node::Atomic(inner) => first_chars(std::slice::from_ref(inner), None),
        Node::Concat(inner) if inner.iter().any(takes_chars) => first_chars(inner, None),
        Node::Alternate(inner) if takes_chars(node) => inner
            .iter()
            .map(|node| first_chars(std::slice::from_ref(node), None))
            .reduce(either)?,
        Node::Repeat(repeat) => {
            let once = first_chars(std::slice::from_ref(&repeat.node), None);
            if takes_chars(node) {
                once
            } else {
                either(once, first_chars(rest, after))
            }
        }
        _ => None,
    }
}

fn either(a: Option<CharSet>, b: Option<CharSet>) -> Option<CharSet> {
    let mut set = a?;
    set.union(&b?);
    Some(set)
}

/// Returns whether a node can match a text in several ways, or several texts at one position.
fn has_choice(node: &Node) -> bool {
    match node {
        Node::Empty | Node::Set(_) | Node::Look(_) => false,
        Node::Concat(nodes) => nodes.iter().any(has_choice),
        Node::Repeat(repeat) => repeat.max != Some(repeat.min) || has_choice(&repeat.node),
        Node::Atomic(inner) => has_choice(inner),
        Node::Alternate(_) | Node::Around(_) | Node::Opaque(_) => true,
    }
}

/// Returns whether the contents of an atomic group are those of `\R`. Without the group, backtracking into `\R` could
/// only give back the `\n` of a `\r\n`, so the group has no effect if what follows cannot use a newline.
fn is_line_break(node: &Node) -> bool {
    match node {
        Node::Alternate(nodes) => match nodes.as_slice() {
            [Node::Concat(pair), Node::Set(one)] => {
                let chars = [Node::Set(CharSet::of_char('\r')), Node::Set(newline())];
                pair.as_slice() == chars && one.contains('\r')
            }
            _ => false,
        },
        _ => false,
    }
}
