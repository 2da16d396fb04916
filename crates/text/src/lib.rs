//! The pattern engine: from a pattern as MongoDB accepts it to a program that searches blocks of rows.
//!
//! PCRE2 10.42 defines the meaning of a [`Pattern`], under the settings of MongoDB's build: UTF on, Unicode properties
//! off, newline LF, no JIT, match limit 200,000 and depth limit 4,000. PCRE2 decides which patterns are valid and which
//! values match; the rest of the crate gives the same answers faster.
//!
//! A [`Program`] is a compiled pattern. Its [`Tier`] names the search method: comparison with a literal, an automaton,
//! an over-approximating automaton whose candidates PCRE2 confirms, or PCRE2 alone. The crate's own parser of PCRE2's
//! syntax decides which tiers are possible. The parser refuses constructs that it does not know, and the pattern then
//! gets a slower tier.
//!
//! A block is a concatenation of rows, each followed by [`SEPARATOR`], a byte that valid UTF-8 never contains. A UTF-8
//! automaton therefore never matches across two rows, and one call searches a whole block.
//!
//! ```
//! use forebay_cancel::Stop;
//! use forebay_text::{Limits, Options, Pattern, Program, Rows};
//!
//! let limits = Limits::default();
//! let pattern = Pattern::new("^ca[rt]$", Options::default(), &limits)?;
//! let program = Program::compile(pattern, &limits);
//! let block = b"cat\xffdog\xffcar\xff";
//! let rows = Rows { bytes: block, offsets: &[0, 4, 8, 12] };
//! assert_eq!(program.count_rows(rows, &Stop::never()), Ok(2));
//! # Ok::<(), forebay_text::PatternError>(())
//! ```

#![deny(unsafe_code)]

mod automaton;
mod budget;
mod compile;
mod describe;
mod engine;
mod error;
pub mod form;
mod limits;
mod lower;
mod options;
mod pattern;
#[expect(unsafe_code, reason = "PCRE2 is a C library")]
mod pcre2;
mod program;
mod rows;
mod syntax;
mod tier;

pub use budget::Budget;
pub use describe::{ProgramDescription, Refusal};
pub use error::PatternError;
pub use limits::Limits;
pub use options::Options;
pub use pattern::{Pattern, PcreOutcome};
pub use program::Program;
pub use rows::{Rows, SEPARATOR};
pub use tier::Tier;
