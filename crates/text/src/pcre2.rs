//! Bindings to the part of PCRE2's interface that this crate needs. No other file of this crate has `unsafe`.
//!
//! The safe crate for the library cannot be used: for an empty subject, that crate passes PCRE2 10.42 a dangling
//! pointer close to address zero. The matcher then computes the address `end - n`, which wraps around, and reads from
//! that address.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use pcre2_sys as sys;

use forebay_cancel::{Stop, StopReason, Stopped};
use forebay_memory::{Account, FREE_BYTES, Full, Share};

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

/// Maximum bytes of match data and backtracking frames that a thread keeps for its next call. Between calls, they are
/// not charged.
///
/// PERF: a call with 600 KiB of frames takes 24 us with kept frames, and 462 us with new ones, because the system has
/// to map each page again. PCRE2 10.42 by `gcc -O2`, `(?:(a)|(b))*c` on 1,001 bytes, two cores under load, 2026-11-24.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Bytes before each block of PCRE2, which hold the size of the allocation.
const HEADER_BYTES: usize = 16;

/// Message of a panic. The account cannot refuse match data, which is smaller than the bytes that are not charged.
const NO_MEMORY: &str = "the system has no memory for match data";

/// PCRE2's error number for a compilation without memory.
const COMPILE_ERROR_NO_MEMORY: c_int = sys::PCRE2_ERROR_HEAP_FAILED as c_int;

/// The account of calls that charge no client.
pub(crate) static UNLIMITED: LazyLock<Account> = LazyLock::new(Account::default);

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
    /// The account that is charged for the compiled pattern and for matches.
    memory: Account,
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
struct Compiled {
    code: NonNull<sys::pcre2_code_8>,
    /// Whether the pattern begins with a limit of memory (`(*LIMIT_HEAP=...)`).
    has_heap_limit: bool,
    meter: Arc<Meter>,
}

/// Memory of a match call: match data with backtracking frames, and a match context with limits.
struct Scratch {
    data: NonNull<sys::pcre2_match_data_8>,
    context: NonNull<sys::pcre2_match_context_8>,
    meter: Arc<Meter>,
}

/// The bytes that PCRE2 has allocated for one [`Compiled`] or [`Scratch`], and the share of an account that covers
/// them.
struct Meter {
    share: Share,
    bytes: AtomicUsize,
    /// Maximum bytes that are not charged. If PCRE2 holds more, all bytes are charged, but not between calls.
    free_bytes: usize,
}

/// PCRE2's allocator, which charges a [`Meter`].
struct Allocator(NonNull<sys::pcre2_general_context_8>);

thread_local! {
    /// Scratch memory of the thread, shared by all patterns of an account. `None` during a call, and after a call that
    /// took more than [`KEPT_BYTES_MAX`].
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
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
// "Multithreading"). They are written only in `compile`, before any other thread can see them. `Meter` is `Sync`.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

/// Why a pattern was not compiled.
#[derive(Debug)]
pub(crate) enum CompileError {
    /// PCRE2 refused the pattern.
    Invalid {
        code: i32,
        offset: usize,
        message: String,
    },
    /// The account has no room for the compiled pattern.
    NoMemory(Full),
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
        unsafe { sys::pcre2_code_free_8(self.code.as_ptr()) }
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        // SAFETY: the pointer came from PCRE2's constructor and is freed only here.
        unsafe { sys::pcre2_general_context_free_8(self.0.as_ptr()) }
    }
}

impl Meter {
    fn new(memory: &Account, free_bytes: usize) -> Arc<Meter> {
        Arc::new(Meter {
            share: memory.share(),
            bytes: AtomicUsize::new(0),
            free_bytes,
        })
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes` from the account. Only one thread at a time calls this function and `give_back`.
    fn take(&self, bytes: usize) -> Result<(), Full> {
        let held = self.bytes().saturating_add(bytes);
        if held > self.free_bytes {
            self.share.try_grow(held - self.share.bytes() as usize)?;
        }
        self.bytes.store(held, Ordering::Relaxed);
        Ok(())
    }

    /// Charges `memory` again for the bytes that were kept between calls. Returns false if `memory` has no room, or is
    /// not the meter's account.
    fn resume(&self, memory: &Account) -> bool {
        self.share.is_of(memory)
            && (self.bytes() <= self.free_bytes || self.share.grow_if_room(self.bytes()))
    }

    /// Stops charging the account until [`Meter::resume`].
    fn pause(&self) {
        if self.bytes() > self.free_bytes {
            self.share.shrink_to(0);
        }
    }

    fn give_back(&self, bytes: usize) {
        let held = self.bytes() - bytes;
        self.bytes.store(held, Ordering::Relaxed);
        let charged = if held > self.free_bytes { held } else { 0 };
        self.share.shrink_to(charged);
    }
}

impl Allocator {
    /// Returns an allocator for `meter`; `None` if the account has no room. All objects that PCRE2 creates with it must
    /// be freed before the meter is dropped.
    fn new(meter: &Arc<Meter>) -> Option<Allocator> {
        let meter = Arc::as_ptr(meter).cast_mut().cast();
        // SAFETY: both functions require a pointer to a live `Meter`. The owner of the objects owns the meter too, and
        // frees the objects first.
        let context =
            unsafe { sys::pcre2_general_context_create_8(Some(allocate), Some(release), meter) };
        NonNull::new(context).map(Allocator)
    }
}

/// Returns the layout of a block for `bytes` of PCRE2 and the header.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(HEADER_BYTES)?, HEADER_BYTES).ok()
}

/// Allocates a block for PCRE2. Returns null if the account of the meter has no room.
///
/// # Safety
/// `meter` must point to a live [`Meter`].
unsafe extern "C" fn allocate(bytes: usize, meter: *mut c_void) -> *mut c_void {
    // SAFETY: as the caller promises. A meter is changed through shared references only.
    let meter = unsafe { &*meter.cast::<Meter>() };
    let Some(layout) = layout(bytes).filter(|layout| meter.take(layout.size()).is_ok()) else {
        return ptr::null_mut();
    };
    // SAFETY: the layout has the header's bytes at least.
    let block = unsafe { alloc(layout) };
    if block.is_null() {
        meter.give_back(layout.size());
        return ptr::null_mut();
    }
    // SAFETY: the block begins with a header, which is aligned for a `usize`.
    unsafe {
        block.cast::<usize>().write(layout.size());
        block.add(HEADER_BYTES).cast()
    }
}

/// Frees a block of PCRE2, or does nothing for a null pointer.
///
/// # Safety
/// `block` must be null or come from [`allocate`] with the same `meter`, which must point to a live [`Meter`].
unsafe extern "C" fn release(block: *mut c_void, meter: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: as the caller promises: the header before the block has the size of the allocation, made by `allocate`
    // with this alignment.
    unsafe {
        let block = block.cast::<u8>().sub(HEADER_BYTES);
        let bytes = block.cast::<usize>().read();
        dealloc(
            block,
            Layout::from_size_align_unchecked(bytes, HEADER_BYTES),
        );
        (*meter.cast::<Meter>()).give_back(bytes);
    }
}

impl Compiled {
    /// Compiles a pattern in UTF mode, without Unicode properties and JIT. Newline is the library's default, LF
    /// (checked by a test). Charges `memory` for the compiled pattern.
    fn new(pattern: &str, options: u32, memory: &Account) -> Result<Compiled, CompileError> {
        let meter = Meter::new(memory, 0);
        let (mut error, mut offset): (c_int, usize) = (COMPILE_ERROR_NO_MEMORY, 0);
        let code = Allocator::new(&meter).and_then(|allocator| {
            let options = options | sys::PCRE2_UTF;
            compile(pattern, options, &allocator, (&mut error, &mut offset))
        });
        match code {
            Some(code) => Ok(Compiled {
                code,
                has_heap_limit: has_heap_limit(code),
                meter,
            }),
            None if error == COMPILE_ERROR_NO_MEMORY => Err(CompileError::NoMemory(full(memory))),
            None => Err(CompileError::Invalid {
                code: error,
                offset,
                message: message(error),
            }),
        }
    }

    /// Calls the matcher once, starting at byte `from` of the subject. Charges `memory` during the call if the thread's
    /// scratch memory has more than [`FREE_BYTES`].
    ///
    /// A pattern with a limit of memory gets new scratch memory, because PCRE2 checks the limit only when it allocates
    /// frames: with the kept frames of another pattern, the answer would depend on that pattern.
    fn find(
        &self,
        (subject, from): (&[u8], usize),
        limits: MatchLimits,
        memory: &Account,
        watch: Option<&mut Watch<'_>>,
    ) -> Result<Option<(usize, usize)>, i32> {
        assert!(from <= subject.len(), "a search starts within the subject");
        let kept = match self.has_heap_limit {
            true => None,
            false => SCRATCH.take().filter(|kept| kept.meter.resume(memory)),
        };
        let scratch = kept.unwrap_or_else(|| Scratch::new(memory));
        let found = self.find_with(&scratch, (subject, from), limits, watch);
        if scratch.meter.bytes() <= KEPT_BYTES_MAX {
            scratch.meter.pause();
            SCRATCH.set(Some(scratch));
        }
        found
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
            let (code, data) = (self.code.as_ptr(), scratch.data.as_ptr());
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
    /// Creates match data with room only for the offsets of the whole match. The backtracking frames, which the match
    /// data owns, are charged to `memory`.
    fn new(memory: &Account) -> Scratch {
        let meter = Meter::new(memory, FREE_BYTES);
        let allocator = Allocator::new(&meter).expect(NO_MEMORY);
        // SAFETY: the allocator is live. PCRE2 copies it into the match data. The match context gets the default
        // allocator.
        let (data, context) = unsafe {
            let data = sys::pcre2_match_data_create_8(1, allocator.0.as_ptr());
            (data, sys::pcre2_match_context_create_8(ptr::null_mut()))
        };
        Scratch {
            data: NonNull::new(data).expect(NO_MEMORY),
            context: NonNull::new(context).expect(NO_MEMORY),
            meter,
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
    /// Compiles a pattern. Charges `memory` for the compiled pattern and for matches by [`Code::is_match_until`].
    pub(crate) fn compile(
        pattern: &str,
        options: u32,
        limits: MatchLimits,
        memory: &Account,
    ) -> Result<Code, CompileError> {
        Ok(Code {
            plain: Compiled::new(pattern, options, memory)?,
            source: pattern.to_owned(),
            options,
            limits,
            memory: memory.clone(),
            watched: OnceLock::new(),
        })
    }

    /// Compiles a pattern that this crate itself creates, without limits.
    pub(crate) fn own(pattern: &str, options: u32) -> Result<Code, CompileError> {
        Code::compile(pattern, options, MatchLimits::NONE, &UNLIMITED)
    }

    /// Returns the source text of the pattern.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Returns the bytes of the compiled pattern.
    pub(crate) fn bytes(&self) -> usize {
        let watched = self.watched.get().and_then(Option::as_ref);
        self.plain.meter.bytes() + watched.map_or(0, |watched| watched.code.meter.bytes())
    }

    /// Returns the first match at or after byte `from` of the subject, or PCRE2's error number. Charges no account.
    ///
    /// # Panics
    /// If `from` is beyond the subject.
    pub(crate) fn find(&self, subject: &[u8], from: usize) -> Result<Option<(usize, usize)>, i32> {
        self.plain
            .find((subject, from), self.limits, &UNLIMITED, None)
    }

    /// Returns whether the subject matches, and checks `stop` while matching. PCRE2's limits count as no match, but not
    /// a lack of memory. PCRE2's match limit applies per start position, so matching a long value may take hours.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` is cancelled or past its deadline, or if the account has no room.
    pub(crate) fn is_match_until(&self, subject: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        stop.check()?;
        let quick = MatchLimits {
            steps: quick_steps(subject.len()).min(self.limits.steps),
            ..self.limits
        };
        if quick.steps > 0 {
            match self.plain.find((subject, 0), quick, &self.memory, None) {
                Err(sys::PCRE2_ERROR_MATCHLIMIT) => {}
                found => return is_found(found, &self.memory),
            }
        }
        match self.watched()? {
            Some(watched) => watched.is_match_until(subject, (self.limits, &self.memory), stop),
            None => Ok(false),
        }
    }

    fn watched(&self) -> Result<Option<&Watched>, Stopped> {
        if let Some(made) = self.watched.get() {
            return Ok(made.as_ref());
        }
        let made = Watched::new(&self.source, self.options, &self.memory).map_err(stopped)?;
        Ok(self.watched.get_or_init(|| made).as_ref())
    }

    /// Returns whether the subject matches; errors count as no match. Charges no account.
    pub(crate) fn is_match(&self, subject: &[u8]) -> bool {
        matches!(self.find(subject, 0), Ok(Some(_)))
    }
}

impl Watched {
    /// Compiles the pattern with callouts; returns `None` if it is then too large for PCRE2.
    fn new(source: &str, options: u32, memory: &Account) -> Result<Option<Watched>, Full> {
        let compiled = |source: &str, options| match Compiled::new(source, options, memory) {
            Ok(code) => Ok(Some(code)),
            Err(CompileError::NoMemory(full)) => Err(full),
            Err(CompileError::Invalid { .. }) => Ok(None),
        };
        if let Some(code) = compiled(source, options | sys::PCRE2_AUTO_CALLOUT)? {
            return Ok(Some(Watched {
                code,
                at_items: true,
            }));
        }
        let (settings, rest) = source.split_at(settings_bytes(source));
        let code = compiled(&format!("{settings}(?C){rest}"), options)?;
        Ok(code.map(|code| Watched {
            code,
            at_items: false,
        }))
    }

    fn is_match_until(
        &self,
        subject: &[u8],
        (limits, memory): (MatchLimits, &Account),
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
        let found = self
            .code
            .find((subject, 0), limits, memory, Some(&mut watch));
        match watch.stopped {
            Some(stopped) => Err(stopped),
            None => is_found(found, memory),
        }
    }
}

/// Compiles a pattern, or returns `None` and writes PCRE2's error number and its byte offset to `error`.
fn compile(
    pattern: &str,
    options: u32,
    allocator: &Allocator,
    (error, offset): (&mut c_int, &mut usize),
) -> Option<NonNull<sys::pcre2_code_8>> {
    // SAFETY: the allocator is live; PCRE2 copies it into the compile context, which is freed here, and from there into
    // the code. The pattern's pointer and length are those of a live slice, and the two results are live references.
    unsafe {
        let context = NonNull::new(sys::pcre2_compile_context_create_8(allocator.0.as_ptr()))?;
        let context = context.as_ptr();
        let (start, bytes) = (start(pattern.as_bytes()), pattern.len());
        let code = sys::pcre2_compile_8(start, bytes, options, error, offset, context);
        sys::pcre2_compile_context_free_8(context);
        NonNull::new(code)
    }
}

/// Returns whether a pattern sets its own limit of memory.
fn has_heap_limit(code: NonNull<sys::pcre2_code_8>) -> bool {
    let mut limit = 0u32;
    // SAFETY: the code is live, and this property is a `u32`.
    let found = unsafe {
        sys::pcre2_pattern_info_8(
            code.as_ptr(),
            sys::PCRE2_INFO_HEAPLIMIT,
            ptr::from_mut(&mut limit).cast(),
        )
    };
    found == 0
}

/// Returns whether a match was found. Errors count as no match, except a lack of memory, because the same call finds
/// the match when there is memory.
fn is_found(found: Result<Option<(usize, usize)>, i32>, memory: &Account) -> Result<bool, Stopped> {
    match found {
        Err(sys::PCRE2_ERROR_NOMEMORY) => Err(stopped(full(memory))),
        found => Ok(matches!(found, Ok(Some(_)))),
    }
}

fn full(memory: &Account) -> Full {
    Full {
        limit_bytes: memory.figures().limit_bytes,
    }
}

fn stopped(full: Full) -> Stopped {
    let limit_bytes = full.limit_bytes;
    Stopped {
        reason: StopReason::MemoryFull { limit_bytes },
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
mod tests;
