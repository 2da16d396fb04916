//! Compilation of a command's patterns: with a cache, within a memory budget, and on other threads if it takes long.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_text::{Budget, Program};

/// Estimated bytes of a cached program besides its tables and PCRE2's compiled pattern.
const PROGRAM_BYTES: usize = 16 << 10;

/// How a command's patterns are compiled.
#[derive(Debug, Clone)]
pub struct Compilation {
    /// The budget for all patterns of the command.
    pub budget: Arc<Budget>,
    /// The cache of compiled programs, shared with other commands.
    pub programs: Arc<Programs>,
    /// Runs work that may take long, such as a compilation, on a thread where it delays no other work. Returns false
    /// without running the work if too much long work is already running.
    pub aside: fn(&mut dyn FnMut()) -> bool,
}

impl Compilation {
    /// Default budget for the patterns of one command, in bytes.
    pub const BUDGET_BYTES: usize = 64 << 20;
}

impl Default for Compilation {
    /// Returns the settings of a command that does not share a cache.
    fn default() -> Compilation {
        Compilation {
            budget: Arc::new(Budget::new(Compilation::BUDGET_BYTES, Arc::default())),
            programs: Arc::default(),
            aside: |work| {
                work();
                true
            },
        }
    }
}

/// A cache of programs, which are compiled patterns. Evicts the least recently used programs.
///
/// All patterns that share a cache must be compiled with the same limits and charge the same memory account.
#[derive(Debug)]
pub struct Programs {
    bytes_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<Key, Entry>,
    /// Maps the value of `clock` at an entry's last use to the entry's key.
    by_use: BTreeMap<u64, Key>,
    bytes: usize,
    /// Logical clock that counts uses.
    clock: u64,
}

/// The source and the options of a pattern.
type Key = Arc<(Box<str>, Box<str>)>;

#[derive(Debug)]
struct Entry {
    program: Arc<Program>,
    bytes: usize,
    used: u64,
}

impl Default for Programs {
    fn default() -> Programs {
        Programs::new(64 << 20)
    }
}

impl Programs {
    /// Creates a cache for programs of about `bytes_max` bytes in total.
    pub fn new(bytes_max: usize) -> Programs {
        Programs {
            bytes_max,
            kept: Mutex::default(),
        }
    }

    /// Returns the program of a pattern if it is cached.
    pub(super) fn get(&self, source: &str, options: &str) -> Option<Arc<Program>> {
        let mut kept = self.lock();
        let kept = &mut *kept;
        let entry = kept.entries.get_mut(&(source.into(), options.into()))?;
        kept.clock += 1;
        if let Some(key) = kept.by_use.remove(&entry.used) {
            kept.by_use.insert(kept.clock, key);
        }
        entry.used = kept.clock;
        Some(entry.program.clone())
    }

    /// Caches the program of a pattern.
    pub(super) fn keep(&self, source: &str, options: &str, program: &Arc<Program>) {
        let bytes = PROGRAM_BYTES + source.len() + program.host_bytes();
        if bytes > self.bytes_max {
            return;
        }
        let mut kept = self.lock();
        kept.insert(Key::new((source.into(), options.into())), bytes, program);
        while kept.bytes > self.bytes_max && kept.remove_oldest() {}
    }

    /// Locks the cache. Ignores poisoning, because no panic leaves the cache in an inconsistent state.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn insert(&mut self, key: Key, bytes: usize, program: &Arc<Program>) {
        self.clock += 1;
        let entry = Entry {
            bytes,
            used: self.clock,
            program: program.clone(),
        };
        self.bytes += bytes;
        self.by_use.insert(self.clock, key.clone());
        if let Some(before) = self.entries.insert(key, entry) {
            self.bytes -= before.bytes;
            self.by_use.remove(&before.used);
        }
    }

    /// Evicts the least recently used program. Returns false if the cache is empty.
    fn remove_oldest(&mut self) -> bool {
        let Some((_, key)) = self.by_use.pop_first() else {
            return false;
        };
        if let Some(entry) = self.entries.remove(&key) {
            self.bytes -= entry.bytes;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Regex;
    use crate::limits::Limits;

    fn program(source: &str, limits: &Limits) -> Arc<Program> {
        let regex = Regex::new(source, "", limits).expect("a valid pattern");
        regex.program().clone()
    }

    fn limits(programs: Programs) -> Limits {
        let compilation = Compilation {
            programs: Arc::new(programs),
            ..Compilation::default()
        };
        Limits {
            compilation,
            ..Limits::default()
        }
    }

    #[test]
    fn a_pattern_is_compiled_once() {
        let limits = limits(Programs::default());
        let first = program("a[bc]", &limits);
        assert!(Arc::ptr_eq(&first, &program("a[bc]", &limits)));
        let other = Regex::new("a[bc]", "i", &limits).expect("a valid pattern");
        assert!(!Arc::ptr_eq(&first, other.program()));
    }

    #[test]
    fn programs_used_longest_ago_make_room() {
        let limits = limits(Programs::new(2 * PROGRAM_BYTES + 1024));
        let (first, second) = (program("a", &limits), program("b", &limits));
        program("a", &limits);
        program("c", &limits);
        assert!(Arc::ptr_eq(&first, &program("a", &limits)));
        assert!(!Arc::ptr_eq(&second, &program("b", &limits)));
        let again = program("b", &limits);
        limits.compilation.programs.keep("b", "", &again);
        let kept = limits.compilation.programs.lock();
        assert!(kept.bytes <= 2 * PROGRAM_BYTES + 1024);
        let keys = kept.by_use.iter();
        let all_kept = keys.map(|(used, key)| kept.entries[key].used == *used);
        assert_eq!(Vec::from_iter(all_kept), [true, true]);
        assert_eq!(kept.entries.len(), 2);
    }

    #[test]
    fn a_program_made_with_too_small_a_budget_is_not_kept() {
        let budget = |bytes| Arc::new(Budget::new(bytes, Arc::default()));
        let mut limits = Limits::default();
        limits.compilation.budget = budget(1);
        let slow = program("a[bc]", &limits);
        limits.compilation.budget = budget(Compilation::BUDGET_BYTES);
        assert!(program("a[bc]", &limits).tier() < slow.tier());
    }
}
