//! The little of PCRE2's interface that this crate needs; no other file but the launches on a device holds `unsafe`.
//!
//! The safe crate over the same library is no choice: it hands PCRE2 10.42 a dangling pointer for an empty subject,
//! and the matcher then computes `end - n` of an address next to zero and reads what that wraps to.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use pcre2_sys as sys;

use crate::stop::{Stop, Stopped};

/// Options of [`Code::compile`].
pub(crate) mod option {
    pub(crate) use pcre2_sys::{PCRE2_CASELESS, PCRE2_DOTALL, PCRE2_EXTENDED, PCRE2_MULTILINE};
}

/// Errors of [`Code::find`].
pub(crate) mod error {
    pub(crate) use pcre2_sys::{
        PCRE2_ERROR_DEPTHLIMIT, PCRE2_ERROR_HEAPLIMIT, PCRE2_ERROR_MATCHLIMIT,
    };
}

/// Steps a value may take in one call before it is searched start by start, with a look at [`Stop`] between them.
const QUICK_MATCH_LIMIT: u32 = 10_000;

/// A compiled pattern with its limits. Any number of threads may match with it at the same time.
pub(crate) struct Code {
    code: NonNull<sys::pcre2_code_8>,
    context: NonNull<sys::pcre2_match_context_8>,
    quick: NonNull<sys::pcre2_match_context_8>,
    /// Whether a match at each start by itself is what one call over all starts finds: not if the pattern asks where
    /// the call began, or steers the starts itself.
    starts_are_independent: bool,
}

thread_local! {
    /// Where a thread's calls put their matches, whatever the pattern. It may hold a few hundred kilobytes of backtracking
    /// frames.
    static MATCH_DATA: MatchData = new_match_data();
}

// SAFETY: PCRE2 documents compiled patterns and match contexts as shareable between threads as long as nobody changes
// them (pcre2api(3), "Multithreading"); all are only written in `compile`, before any other thread can see them. Match
// data belongs to a thread and is used by one call at a time, as no call of PCRE2 made here calls back.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

/// Why a pattern was refused.
#[derive(Debug)]
pub(crate) struct CompileError {
    pub(crate) code: i32,
    pub(crate) offset: usize,
    pub(crate) message: String,
}

struct MatchData(NonNull<sys::pcre2_match_data_8>);

impl Drop for MatchData {
    fn drop(&mut self) {
        // SAFETY: the pointer came from PCRE2's constructor and is freed once, here.
        unsafe { sys::pcre2_match_data_free_8(self.0.as_ptr()) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the pointers came from PCRE2's constructors, are freed once, here, and `&mut self` shows that no
        // match is running.
        unsafe {
            sys::pcre2_match_context_free_8(self.context.as_ptr());
            sys::pcre2_match_context_free_8(self.quick.as_ptr());
            sys::pcre2_code_free_8(self.code.as_ptr());
        }
    }
}

impl Code {
    /// Compiles a pattern in UTF mode, without Unicode properties and without JIT. Newline is the library's default,
    /// LF (a test says so).
    pub(crate) fn compile(
        pattern: &str,
        options: u32,
        match_limit: u32,
        depth_limit: u32,
    ) -> Result<Code, CompileError> {
        let (mut error, mut offset): (c_int, usize) = (0, 0);
        let options = options | sys::PCRE2_UTF;
        // SAFETY: the pattern's pointer and length are of one live slice, the two results are live locals, and no
        // context is given, which means the defaults.
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
        let Some(code) = NonNull::new(code) else {
            return Err(CompileError {
                code: error,
                offset,
                message: message(error),
            });
        };
        Ok(Code {
            code,
            context: match_context(match_limit, depth_limit),
            quick: match_context(match_limit.min(QUICK_MATCH_LIMIT), depth_limit),
            starts_are_independent: !pattern.contains("\\G") && !pattern.contains("(*"),
        })
    }

    /// The first match at or after byte `from` of the subject, or PCRE2's error number.
    ///
    /// # Panics
    /// If `from` is beyond the subject.
    pub(crate) fn find(&self, subject: &[u8], from: usize) -> Result<Option<(usize, usize)>, i32> {
        self.call(subject, from, 0, self.context)
    }

    /// Whether the subject matches, as [`is_match`](Code::is_match) says, with a look at `stop` every so often: PCRE2's
    /// match limit holds for each place a match may start at, so that a long value may take minutes.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` said so.
    pub(crate) fn is_match_until(&self, subject: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        stop.check()?;
        if !self.starts_are_independent {
            return Ok(self.is_match(subject));
        }
        match self.call(subject, 0, 0, self.quick) {
            Err(sys::PCRE2_ERROR_MATCHLIMIT) => self.is_match_by_starts(subject, stop),
            quick => Ok(matches!(quick, Ok(Some(_)))),
        }
    }

    /// Asks for a match at each start in turn; the first error ends the search, as it does in one call over all.
    fn is_match_by_starts(&self, subject: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        let is_start = |&at: &usize| subject.get(at).is_none_or(|byte| !is_continuation(*byte));
        for at in (0..=subject.len()).filter(is_start) {
            stop.check()?;
            match self.call(subject, at, sys::PCRE2_ANCHORED, self.context) {
                Ok(None) => {}
                found => return Ok(found.is_ok()),
            }
        }
        Ok(false)
    }

    /// One call of the matcher.
    fn call(
        &self,
        subject: &[u8],
        from: usize,
        options: u32,
        context: NonNull<sys::pcre2_match_context_8>,
    ) -> Result<Option<(usize, usize)>, i32> {
        assert!(from <= subject.len(), "a search starts within the subject");
        MATCH_DATA.with(|data| self.call_into(data, subject, from, options, context))
    }

    fn call_into(
        &self,
        data: &MatchData,
        subject: &[u8],
        from: usize,
        options: u32,
        context: NonNull<sys::pcre2_match_context_8>,
    ) -> Result<Option<(usize, usize)>, i32> {
        // SAFETY: code, context and match data are live and used as their types say; the subject's pointer and length
        // are of one live slice (or of no bytes inside a live array), and `from` is within it. PCRE2 checks the
        // subject's encoding itself, as `PCRE2_NO_UTF_CHECK` is not given.
        let count = unsafe {
            let (code, data, context) = (self.code.as_ptr(), data.0.as_ptr(), context.as_ptr());
            let (start, length) = (start(subject), subject.len());
            sys::pcre2_match_8(code, start, length, from, options, data, context)
        };
        match count {
            sys::PCRE2_ERROR_NOMATCH => Ok(None),
            count if count < 0 => Err(count),
            _ => Ok(Some(ends(data))),
        }
    }

    /// Whether the subject matches; errors count as no match.
    pub(crate) fn is_match(&self, subject: &[u8]) -> bool {
        matches!(self.find(subject, 0), Ok(Some(_)))
    }
}

/// The release of the library, as in `10.42 2022-12-11`.
#[cfg(test)]
pub(crate) fn version() -> String {
    let mut buffer = [0u8; 64];
    // SAFETY: the buffer is longer than any version (24 bytes are documented as enough).
    let length =
        unsafe { sys::pcre2_config_8(sys::PCRE2_CONFIG_VERSION, buffer.as_mut_ptr().cast()) };
    let length = usize::try_from(length).expect("the option exists");
    String::from_utf8_lossy(&buffer[..length.saturating_sub(1)]).into_owned()
}

/// Whether a byte goes on with a character of UTF-8 that began before it.
fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// The address of a slice, never a dangling one: PCRE2 10.42 subtracts from the end of the subject.
fn start(bytes: &[u8]) -> *const u8 {
    static SOMEWHERE: [u8; 1] = [0];
    if bytes.is_empty() {
        SOMEWHERE.as_ptr()
    } else {
        bytes.as_ptr()
    }
}

fn match_context(match_limit: u32, depth_limit: u32) -> NonNull<sys::pcre2_match_context_8> {
    // SAFETY: no general context means the default allocator; the context is checked before it is used, and not yet
    // shared.
    unsafe {
        let context = NonNull::new(sys::pcre2_match_context_create_8(ptr::null_mut()));
        let context = context.expect("out of memory for a match context");
        sys::pcre2_set_match_limit_8(context.as_ptr(), match_limit);
        sys::pcre2_set_depth_limit_8(context.as_ptr(), depth_limit);
        context
    }
}

/// Match data with room for the ends of the whole match only.
fn new_match_data() -> MatchData {
    // SAFETY: no general context means the default allocator.
    let data = unsafe { sys::pcre2_match_data_create_8(1, ptr::null_mut()) };
    MatchData(NonNull::new(data).expect("out of memory for match data"))
}

/// Where the match starts and ends that was just found with this match data.
fn ends(data: &MatchData) -> (usize, usize) {
    // SAFETY: match data made for one pair has two offsets, and a successful match has set them.
    unsafe {
        let offsets = sys::pcre2_get_ovector_pointer_8(data.0.as_ptr());
        (*offsets, *offsets.add(1))
    }
}

fn message(error: c_int) -> String {
    let mut buffer = [0u8; 240];
    // SAFETY: the length given is the buffer's; PCRE2 ends what it writes within it.
    let length =
        unsafe { sys::pcre2_get_error_message_8(error, buffer.as_mut_ptr(), buffer.len()) };
    String::from_utf8_lossy(&buffer[..usize::try_from(length).unwrap_or(0)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_the_release_mongodb_builds() {
        assert!(version().starts_with("10.42 "), "{}", version());
    }

    #[test]
    fn an_empty_subject_is_read_nowhere() {
        // With a dangling pointer this reads before address zero.
        let code = Code::compile(
            "😀*\\o{373000}*+|.?",
            option::PCRE2_MULTILINE,
            200_000,
            4_000,
        )
        .expect("a valid pattern");
        assert_eq!(code.find(b"", 0), Ok(Some((0, 0))));
    }

    #[test]
    fn many_threads_share_a_pattern() {
        let code = Code::compile("(a+)b", 0, 200_000, 4_000).expect("a valid pattern");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..1_000).for_each(|_| assert_eq!(code.find(b"xaab", 0), Ok(Some((1, 4)))))
                });
            }
        });
    }
}
