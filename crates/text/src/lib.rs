//! The pattern engine: from a pattern as MongoDB accepts it to a program that searches blocks of rows.
//!
//! A [`Pattern`] is judged by PCRE2 10.42 under the settings MongoDB builds it with: UTF on, Unicode properties off,
//! newline LF, no JIT, match limit 200,000 and depth limit 4,000. PCRE2 decides what is valid and, for any pattern and
//! value, what matches; everything else here exists to give the same answers sooner.
//!
//! A [`Program`] is a pattern made ready to search. Its [`Tier`] says how: by comparing literals, by an automaton, by
//! an automaton that matches too much followed by PCRE2 on what survives, or by PCRE2 alone. An own parser of PCRE2's
//! syntax decides which tiers are possible; what the parser does not know it refuses, and the pattern goes to a slower
//! tier rather than to a guess.
//!
//! Rows stand one after the other in a block, each followed by [`SEPARATOR`], a byte that valid UTF-8 never contains.
//! A UTF-8 automaton therefore never matches across two rows, and a whole block is searched in one call.
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
