//! Bindings to the part of PCRE2's interface that this crate needs. No other file of this crate has `unsafe`.
//!
//! The safe crate for the library cannot be used: for an empty subject, that crate passes PCRE2 10.42 a dangling
//! pointer close to address zero. The matcher then computes the address `end - n`, which wraps around, and reads from
//! that address.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use pcre2_sys as sys;

use forebay_cancel::{Stop, Stopped};

/// Options of [`Code::compile`].
pub(crate) mod option {
    pub(crate) use pcre2_sys::{PCRE2_CASELESS, PCRE2_DOTALL, PCRE2_EXTENDED, PCRE2_MULTILINE};
}

/// Error codes of [`Code::find`].
pub(crate) mod error {
    pub(crate) use pcre2_sys::{
        PCRE2_ERROR_DEPTHLIMIT, PCRE2_ERROR_HEAPLIMIT, PCRE2_ERROR_MATCHLIMIT,
    };
}

/// Maximum bytes that a call without checks of [`Stop`] may read, assuming that each step from each start position
/// reads the whole value. About 0.1 s at worst.
const QUICK_BYTES_MAX: u64 = 100_000_000;

/// Maximum bytes that a call reads between two checks of [`Stop`], unless a single item of the pattern reads more.
const WATCHED_BYTES: usize = 1 << 20;

/// Maximum callouts between two checks of [`Stop`].
const WATCHED_CALLS_MAX: u32 = 1_024;

/// Maximum bytes that the steps from one start position read, if [`Stop`] is checked only between start positions.
const START_BYTES_MAX: u64 = 1 << 30;

/// Maximum bytes of backtracking frames that a thread keeps for its next call.
const KEPT_HEAP_BYTES_MAX: usize = 1 << 20;

// SAFETY: as declared in `pcre2.h` of 10.42. The callout block is only passed on, so its layout does not matter.
unsafe extern "C" {
    fn pcre2_set_callout_8(
        context: *mut sys::pcre2_match_context_8,
        callout: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int>,
        data: *mut c_void,
    ) -> c_int;
}

/// PCRE2's limits of one match.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatchLimits {
    /// Maximum steps of backtracking from each start position.
    pub(crate) steps: u32,
    /// Maximum nested backtracking frames.
    pub(crate) depth: u32,
    /// Maximum bytes of backtracking frames.
    pub(crate) heap_bytes: usize,
}

impl MatchLimits {
    /// No limits, for patterns and subjects that this crate itself creates.
    pub(crate) const NONE: MatchLimits = MatchLimits {
        steps: u32::MAX,
        depth: u32::MAX,
        heap_bytes: usize::MAX,
    };
}

/// A compiled pattern with its limits. Threads may match with it concurrently.
pub(crate) struct Code {
    source: String,
    options: u32,
    limits: MatchLimits,
    plain: Compiled,
    /// The same pattern compiled with callouts that check [`Stop`], created for the first value that may take long.
    /// `None` if the pattern with callouts is too large for PCRE2.
    watched: OnceLock<Option<Watched>>,
}

/// A pattern compiled with callouts to [`look`].
struct Watched {
    code: Compiled,
    /// Whether each item of the pattern has a callout; otherwise there is only one, at the start of the pattern.
    at_items: bool,
}

/// A pattern compiled by PCRE2.
struct Compiled(NonNull<sys::pcre2_code_8>);

/// Memory of a match call: match data, and a match context with limits and backtracking frames.
struct Scratch {
    data: NonNull<sys::pcre2_match_data_8>,
    context: NonNull<sys::pcre2_match_context_8>,
}

thread_local! {
    /// Scratch memory of the thread, shared by all patterns. Large backtracking frames are freed after a call.
    static SCRATCH: Scratch = Scratch::new();
}

/// State of the checks of [`Stop`] during one call.
struct Watch<'a> {
    stop: &'a Stop,
    /// Callouts between two checks.
    interval: u32,
    /// Callouts until the next check.
    left: u32,
    stopped: Option<Stopped>,
}

// SAFETY: PCRE2 documents compiled patterns as shareable between threads while no thread changes them (pcre2api(3),
// "Multithreading"). They are written only in `compile`, before any other thread can see them.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

/// Why PCRE2 refused a pattern.
#[derive(Debug)]
pub(crate) struct CompileError {
    pub(crate) code: i32,
    pub(crate) offset: usize,
    pub(crate) message: String,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the pointers came from PCRE2's constructors and are freed only here.
        unsafe {
            sys::pcre2_match_data_free_8(self.data.as_ptr());
            sys::pcre2_match_context_free_8(self.context.as_ptr());
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: the pointer came from PCRE2's constructor and is freed only here; `&mut self` shows that no match is
        // running.
        unsafe { sys::pcre2_code_free_8(self.0.as_ptr()) }
    }
}

impl Compiled {
    /// Compiles a pattern in UTF mode, without Unicode properties and JIT. Newline is the library's default, LF
    /// (checked by a test).
    fn new(pattern: &str, options: u32) -> Result<Compiled, CompileError> {
        let (mut error, mut offset): (c_int, usize) = (0, 0);
        let options = options | sys::PCRE2_UTF;
        // SAFETY: the pattern's pointer and length are those of a live slice, and the two results are live locals. No
        // context is passed, which means the defaults.
        let code = unsafe {
            let context = ptr::null_mut();
            sys::pcre2_compile_8(
                start(pattern.as_bytes()),
                pattern.len(),
                options,
                &mut error,
                &mut offset,
                context,
            )
        };
        NonNull::new(code)
            .map(Compiled)
            .ok_or_else(|| CompileError {
                code: error,
                offset,
                message: message(error),
            })
    }

    /// Returns the number of bytes of one backtracking frame, which holds all groups.
    fn frame_bytes(&self) -> usize {
        let mut bytes: usize = 0;
        // SAFETY: the code is live, and the result is a live local of the type documented for this query.
        unsafe {
            let result = ptr::from_mut(&mut bytes).cast();
            sys::pcre2_pattern_info_8(self.0.as_ptr(), sys::PCRE2_INFO_FRAMESIZE, result);
        }
        bytes
    }

    /// Calls the matcher once, starting at byte `from` of the subject.
    fn find(
        &self,
        (subject, from): (&[u8], usize),
        limits: MatchLimits,
        watch: Option<&mut Watch<'_>>,
    ) -> Result<Option<(usize, usize)>, i32> {
        assert!(from <= subject.len(), "a search starts within the subject");
        let heap_bytes = self.frame_bytes().saturating_mul(limits.depth as usize);
        if heap_bytes.min(limits.heap_bytes) > KEPT_HEAP_BYTES_MAX {
            return self.find_with(&Scratch::new(), (subject, from), limits, watch);
        }
        SCRATCH.with(|scratch| self.find_with(scratch, (subject, from), limits, watch))
    }

    fn find_with(
        &self,
        scratch: &Scratch,
        (subject, from): (&[u8], usize),
        limits: MatchLimits,
        watch: Option<&mut Watch<'_>>,
    ) -> Result<Option<(usize, usize)>, i32> {
        scratch.prepare(limits, watch);
        // SAFETY: code, context and match data are live and used as their types require. The subject's pointer and
        // length are those of a live slice (or of no bytes inside a live array), and `from` is within it. The watch in
        // the context is borrowed for longer than the call. PCRE2 checks the subject's encoding, because
        // `PCRE2_NO_UTF_CHECK` is not set.
        let count = unsafe {
            let (code, data) = (self.0.as_ptr(), scratch.data.as_ptr());
            let (start, length) = (start(subject), subject.len());
            sys::pcre2_match_8(code, start, length, from, 0, data, scratch.context.as_ptr())
        };
        match count {
            sys::PCRE2_ERROR_NOMATCH => Ok(None),
            count if count < 0 => Err(count),
            _ => Ok(Some(scratch.ends())),
        }
    }
}

impl Scratch {
    /// Creates match data with room only for the offsets of the whole match.
    fn new() -> Scratch {
        // SAFETY: no general context means the default allocator.
        let (data, context) = unsafe {
            let data = sys::pcre2_match_data_create_8(1, ptr::null_mut());
            (data, sys::pcre2_match_context_create_8(ptr::null_mut()))
        };
        Scratch {
            data: NonNull::new(data).expect("out of memory for match data"),
            context: NonNull::new(context).expect("out of memory for a match context"),
        }
    }

    /// Sets the limits and the watch of the next call.
    fn prepare(&self, limits: MatchLimits, watch: Option<&mut Watch<'_>>) {
        let heap_kib = u32::try_from(limits.heap_bytes >> 10).unwrap_or(u32::MAX >> 10);
        let context = self.context.as_ptr();
        let callout = watch.is_some().then_some(look as _);
        let data = watch.map_or(ptr::null_mut(), |watch| ptr::from_mut(watch).cast());
        // SAFETY: the context is live and belongs to this thread. `data` points to a `Watch`, as `look` requires, or is
        // null if there is no callout.
        unsafe {
            sys::pcre2_set_match_limit_8(context, limits.steps);
            sys::pcre2_set_depth_limit_8(context, limits.depth);
            sys::pcre2_set_heap_limit_8(context, heap_kib);
            pcre2_set_callout_8(context, callout, data);
        }
    }

    /// Returns the start and end of the match that was just found.
    fn ends(&self) -> (usize, usize) {
        // SAFETY: match data created for one pair has two offsets, and a successful match has set them.
        unsafe {
            let offsets = sys::pcre2_get_ovector_pointer_8(self.data.as_ptr());
            (*offsets, *offsets.add(1))
        }
    }
}

impl<'a> Watch<'a> {
    /// Creates a watch that checks `stop` while a value of `value_bytes` is matched.
    fn new(stop: &'a Stop, value_bytes: usize) -> Watch<'a> {
        let interval = (WATCHED_BYTES / value_bytes.max(1)) as u32;
        let interval = interval.clamp(1, WATCHED_CALLS_MAX);
        Watch {
            stop,
            interval,
            left: interval,
            stopped: None,
        }
    }

    fn look(&mut self) -> c_int {
        self.left -= 1;
        if self.left > 0 {
            return 0;
        }
        self.left = self.interval;
        self.stopped = self.stop.check().err();
        match self.stopped {
            Some(_) => sys::PCRE2_ERROR_CALLOUT,
            None => 0,
        }
    }
}

/// Callout that PCRE2 calls while it matches. If it returns zero, PCRE2 continues; if it returns an error code, PCRE2
/// ends the match.
///
/// # Safety
/// `watch` must point to the [`Watch`] of the call, which no other code uses during the call.
unsafe extern "C" fn look(_: *mut c_void, watch: *mut c_void) -> c_int {
    // SAFETY: as the caller promises: `Scratch::prepare` borrows the watch for the whole call.
    unsafe { (*watch.cast::<Watch<'_>>()).look() }
}

impl Code {
    /// Compiles a pattern.
    pub(crate) fn compile(
        pattern: &str,
        options: u32,
        limits: MatchLimits,
    ) -> Result<Code, CompileError> {
        Ok(Code {
            plain: Compiled::new(pattern, options)?,
            source: pattern.to_owned(),
            options,
            limits,
            watched: OnceLock::new(),
        })
    }

    /// Returns the source text of the pattern.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Returns the first match at or after byte `from` of the subject, or PCRE2's error number.
    ///
    /// # Panics
    /// If `from` is beyond the subject.
    pub(crate) fn find(&self, subject: &[u8], from: usize) -> Result<Option<(usize, usize)>, i32> {
        self.plain.find((subject, from), self.limits, None)
    }

    /// Returns whether the subject matches, and checks `stop` while matching; errors count as no match. PCRE2's match
    /// limit applies per start position, so matching a long value may take hours.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` is cancelled or past its deadline.
    pub(crate) fn is_match_until(&self, subject: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        stop.check()?;
        let quick = MatchLimits {
            steps: quick_steps(subject.len()).min(self.limits.steps),
            ..self.limits
        };
        if quick.steps > 0 {
            match self.plain.find((subject, 0), quick, None) {
                Err(sys::PCRE2_ERROR_MATCHLIMIT) => {}
                found => return Ok(matches!(found, Ok(Some(_)))),
            }
        }
        match self.watched() {
            Some(watched) => watched.is_match_until(subject, self.limits, stop),
            None => Ok(false),
        }
    }

    fn watched(&self) -> Option<&Watched> {
        let made = || Watched::new(&self.source, self.options);
        self.watched.get_or_init(made).as_ref()
    }

    /// Returns whether the subject matches; errors count as no match.
    pub(crate) fn is_match(&self, subject: &[u8]) -> bool {
        matches!(self.find(subject, 0), Ok(Some(_)))
    }
}

impl Watched {
    /// Compiles the pattern with callouts; returns `None` if it is then too large for PCRE2.
    fn new(source: &str, options: u32) -> Option<Watched> {
        let by_items = Compiled::new(source, options | sys::PCRE2_AUTO_CALLOUT);
        if let Ok(code) = by_items {
            return Some(Watched {
                code,
                at_items: true,
            });
        }
        let (settings, rest) = source.split_at(settings_bytes(source));
        let code = Compiled::new(&format!("{settings}(?C){rest}"), options).ok()?;
        Some(Watched {
            code,
            at_items: false,
        })
    }

    fn is_match_until(
        &self,
        subject: &[u8],
        limits: MatchLimits,
        stop: &Stop,
    ) -> Result<bool, Stopped> {
        let mut watch = Watch::new(stop, subject.len());
        let limits = match self.at_items {
            true => limits,
            false => {
                watch = Watch {
                    interval: 1,
                    left: 1,
                    ..watch
                };
                MatchLimits {
                    steps: steps(START_BYTES_MAX, subject.len() as u64).min(limits.steps),
                    ..limits
                }
            }
        };
        let found = self.code.find((subject, 0), limits, Some(&mut watch));
        watch.stopped.map_or(Ok(matches!(found, Ok(Some(_)))), Err)
    }
}

/// Returns the maximum number of steps from each start position of a value. The steps from all start positions then
/// take at most 0.1 s, assuming that each step reads the whole value.
fn quick_steps(value_bytes: usize) -> u32 {
    let bytes = value_bytes as u64 + 1;
    steps(QUICK_BYTES_MAX, bytes.saturating_mul(bytes))
}

/// Returns the number of steps of `step_bytes` that fit in `bytes_max`.
fn steps(bytes_max: u64, step_bytes: u64) -> u32 {
    u32::try_from(bytes_max / step_bytes.max(1)).unwrap_or(u32::MAX)
}

/// Returns the length in bytes of the settings at the start of a pattern, such as `(*ANYCRLF)` and `(*LIMIT_MATCH=5)`.
fn settings_bytes(pattern: &str) -> usize {
    let mut rest = pattern;
    while let Some(after) = after_setting(rest) {
        rest = after;
    }
    pattern.len() - rest.len()
}

/// Returns the text after the setting at the start of a pattern; `None` if the pattern does not start with a setting.
fn after_setting(pattern: &str) -> Option<&str> {
    let (name, after) = pattern.strip_prefix("(*")?.split_once(')')?;
    let is_setting = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "_=".contains(c);
    name.chars().all(is_setting).then_some(after)
}

/// Returns the version of the library, as in `10.42 2022-12-11`.
#[cfg(test)]
pub(crate) fn version() -> String {
    let mut buffer = [0u8; 64];
    // SAFETY: the buffer is longer than any version (24 bytes are documented as enough).
    let length =
        unsafe { sys::pcre2_config_8(sys::PCRE2_CONFIG_VERSION, buffer.as_mut_ptr().cast()) };
    let length = usize::try_from(length).expect("the option exists");
    String::from_utf8_lossy(&buffer[..length.saturating_sub(1)]).into_owned()
}

/// Returns the address of a slice. For an empty slice, returns the address of a static instead of Rust's placeholder
/// address near zero, because PCRE2 10.42 subtracts from the end of the subject.
fn start(bytes: &[u8]) -> *const u8 {
    static SOMEWHERE: [u8; 1] = [0];
    if bytes.is_empty() {
        SOMEWHERE.as_ptr()
    } else {
        bytes.as_ptr()
    }
}

fn message(error: c_int) -> String {
    let mut buffer = [0u8; 240];
    // SAFETY: the length is the buffer's; PCRE2 terminates its output within the buffer.
    let length =
        unsafe { sys::pcre2_get_error_message_8(error, buffer.as_mut_ptr(), buffer.len()) };
    String::from_utf8_lossy(&buffer[..usize::try_from(length).unwrap_or(0)]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use forebay_cancel::StopReason;

    const LIMITS: MatchLimits = MatchLimits {
        steps: 200_000,
        depth: 4_000,
        heap_bytes: 16 << 20,
    };

    fn code(pattern: &str) -> Code {
        Code::compile(pattern, 0, LIMITS).expect("a valid pattern")
    }

    #[test]
    fn the_library_is_the_release_mongodb_builds() {
        assert!(version().starts_with("10.42 "), "{}", version());
    }

    #[test]
    fn an_empty_subject_is_read_nowhere() {
        // If PCRE2 got the placeholder address of an empty Rust slice, it would read near address zero for this
        // pattern.
        let pattern = "😀*\\o{373000}*+|.?";
        let code = Code::compile(pattern, option::PCRE2_MULTILINE, LIMITS);
        let code = code.expect("a valid pattern");
        assert_eq!(code.find(b"", 0), Ok(Some((0, 0))));
    }

    #[test]
    fn many_threads_share_a_pattern() {
        let code = code("(a+)b");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..1_000).for_each(|_| assert_eq!(code.find(b"xaab", 0), Ok(Some((1, 4)))))
                });
            }
        });
    }

    /// Matches with a deadline that passes during the match, and asserts that the match was stopped. Returns the time
    /// from the deadline to the stop.
    fn stopped(code: &Code, subject: &[u8]) -> Duration {
        let deadline = Instant::now() + Duration::from_millis(20);
        let stopped = code.is_match_until(subject, &Stop::at(deadline));
        let reason = StopReason::Deadline;
        assert_eq!(stopped, Err(Stopped { reason }), "{:.40}", code.source());
        deadline.elapsed()
    }

    #[test]
    fn every_match_can_be_stopped() {
        // Reasons for a long match: many start positions; many steps from one start position; steps that read the whole
        // value; too many items in the pattern for a callout at each item.
        let starts = r"(a)(?:a?){15}\1[yz]";
        let filler = "c".repeat(10_000);
        for (pattern, length) in [
            (format!("(*ANYCRLF){starts}"), 100_000),
            (format!(r"(?!\G\w{{9}}b){starts}"), 100_000),
            (format!("(?=a){starts}"), 16_000),
            (format!("{starts}(*SKIP)"), 1 << 20),
            (
                r"(?:(?=[^b]*+)a)*(?:(?=[^b]*+)a)*\1?()[yz]".to_owned(),
                4 << 20,
            ),
            (
                format!(r"(*ANYCRLF)(a)(?:a?){{11}}\1[yz]|{filler}"),
                100_000,
            ),
        ] {
            let late = stopped(&code(&pattern), "a".repeat(length).as_bytes());
            // The stop takes some milliseconds; the bound allows for other load on the machine.
            assert!(
                late < Duration::from_secs(10),
                "stopped {late:?} after the deadline: {pattern:.40}"
            );
        }
    }

    #[test]
    fn a_match_that_is_watched_answers_as_one_that_is_not() {
        let patterns = [
            "a(?C1)b",
            "(?(?=ab)ab|c)",
            "(*COMMIT)b",
            "a+(*SKIP)b|a",
            r"\Gab",
            r"(\w+) \1",
            "(?<=a)b+",
            "(?|(a)|(b))\\1",
            "^(a|(?1)b)$",
            "(a|b)*+a",
            "(?:a|b)*?b{2,}$",
            "(*LIMIT_MATCH=2)a*b",
            "(?i)É",
            "a(*THEN)x|ab",
            "(?s).*b",
            "(?>a+)a",
            "b(*ACCEPT)c",
            "(?#x)a",
            "\\Qa.\\E",
            "[^a]b$",
            "(*CRLF)a.b",
        ];
        let values = [
            "",
            "a",
            "b",
            "ab",
            "aab",
            "abb",
            "ab ab",
            "ba",
            "aa",
            "c",
            "a.",
            "aé",
            "a\nb",
            "é",
            "\u{1F600}b",
        ];
        for pattern in patterns {
            let code = code(pattern);
            let by_items = code.watched().expect("a short pattern fits with callouts");
            assert!(by_items.at_items);
            let (settings, rest) = pattern.split_at(settings_bytes(pattern));
            let by_starts = Watched {
                code: Compiled::new(&format!("{settings}(?C){rest}"), 0).expect("as before"),
                at_items: false,
            };
            for value in values {
                let expected = code.is_match(value.as_bytes());
                for watched in [by_items, &by_starts] {
                    let found = watched.is_match_until(value.as_bytes(), LIMITS, &Stop::never());
                    assert_eq!(found, Ok(expected), "/{pattern}/ on {value:?}");
                }
            }
        }
    }

    #[test]
    fn backtracking_has_a_bound_of_memory() {
        // A backtracking frame holds 4,000 groups, and there are about 2,000 frames: 128 MB.
        let pattern = format!(r"(*ANYCRLF){}(?:(a)|(b))*\1[yz]", "()".repeat(4_000));
        let code = code(&pattern);
        let subject = "ab".repeat(1_000);
        assert_eq!(
            code.find(subject.as_bytes(), 0),
            Err(error::PCRE2_ERROR_HEAPLIMIT)
        );
        assert!(code.plain.frame_bytes() > 64_000);
    }

    #[test]
    fn settings_stand_first() {
        for (pattern, bytes) in [
            ("a", 0),
            ("(*ANYCRLF)a", 10),
            ("(*UCP)(*LIMIT_MATCH=5)(a)", 22),
            ("(*pla:a)", 0),
            ("(*", 0),
        ] {
            assert_eq!(settings_bytes(pattern), bytes, "{pattern}");
        }
    }
}
