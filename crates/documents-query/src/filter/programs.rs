//! How the patterns of a command are compiled: within a budget, aside from other work, and not again where they are
//! known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_text::{Budget, Program};

/// What all programs cost that are kept, by what is known of them: PCRE2's code and its room for backtracking.
const PROGRAM_BYTES: usize = 16 << 10;

/// How the patterns of one command are compiled.
#[derive(Debug, Clone)]
pub struct Compilation {
    /// What they may cost together.
    pub budget: Arc<Budget>,
    /// The programs of earlier commands.
    pub programs: Arc<Programs>,
    /// Runs what may take long, such as compiling, where it holds up nothing else: once, or not at all and returns
    /// false if there is no room now.
    pub aside: fn(&mut dyn FnMut()) -> bool,
}

impl Compilation {
    /// What the patterns of one command may cost together by default, in bytes.
    pub const BUDGET_BYTES: usize = 64 << 20;
}

impl Default for Compilation {
    /// For a command by itself.
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

/// The programs of patterns that were compiled before; those used longest ago make room for others.
///
/// All patterns that share them are compiled with the same limits.
#[derive(Debug)]
pub struct Programs {
    bytes_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By source and options.
    entries: HashMap<(Box<str>, Box<str>), Entry>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
}

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
    /// Room for programs of about so many bytes.
    pub fn new(bytes_max: usize) -> Programs {
        Programs {
            bytes_max,
            kept: Mutex::default(),
        }
    }

    /// The program of a pattern, if it is known.
    pub(super) fn get(&self, source: &str, options: &str) -> Option<Arc<Program>> {
        let mut kept = self.lock();
        kept.clock += 1;
        let now = kept.clock;
        let entry = kept.entries.get_mut(&(source.into(), options.into()))?;
        entry.used = now;
        Some(entry.program.clone())
    }

    /// Keeps the program of a pattern.
    pub(super) fn keep(&self, source: &str, options: &str, program: &Arc<Program>) {
        let bytes = PROGRAM_BYTES + source.len() + program.host_bytes();
        if bytes > self.bytes_max {
            return;
        }
        let mut kept = self.lock();
        let entry = Entry {
            bytes,
            used: kept.clock,
            program: program.clone(),
        };
        kept.insert((source.into(), options.into()), entry);
        while kept.bytes > self.bytes_max && kept.remove_oldest() {}
    }

    /// No use of the lock leaves what it guards half changed, so that a panic elsewhere is no reason to stop.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn insert(&mut self, key: (Box<str>, Box<str>), entry: Entry) {
        self.bytes += entry.bytes;
        if let Some(before) = self.entries.insert(key, entry) {
            self.bytes -= before.bytes;
        }
    }

    /// Removes the program used longest ago; false if there is none.
    fn remove_oldest(&mut self) -> bool {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else {
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
        let regex = Regex::new(source, "", limits).expect("it is valid");
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
        let other = Regex::new("a[bc]", "i", &limits).expect("it is valid");
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
        assert!(limits.compilation.programs.lock().bytes <= 2 * PROGRAM_BYTES + 1024);
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
