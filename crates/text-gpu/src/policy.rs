//! Tuning parameters of the kernels for each architecture: compiled into the kernels, and used to launch them.

use forebay_device::cuda::Arch;

/// Lanes of a warp.
const WARP_THREADS: u32 = 32;

/// Bytes of shared memory that the driver reserves in each block.
#[cfg(test)]
const SHARED_BYTES_RESERVED: usize = 1 << 10;

/// Compile and launch parameters of the kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Threads per block; a multiple of 32.
    pub threads: u32,
    /// Blocks that run on a multiprocessor at the same time; the compiler limits the registers per thread accordingly.
    pub blocks: u32,
    /// Read-ahead of the kernels for one deterministic automaton.
    pub dfa: Reads,
    /// Read-ahead of the kernels for several deterministic automata.
    pub several_dfas: Reads,
    /// Read-ahead of the kernels for one literal.
    pub literal: Reads,
    /// Read-ahead of the kernels for a Glushkov automaton.
    pub glushkov: Reads,
    /// Read-ahead of the kernels for several literals.
    pub shift_and: Reads,
    /// Maximum bytes of tables that a block copies to shared memory; larger tables are read from global memory.
    pub shared_table_bytes_max: usize,
    /// Size of a chunk, the unit of work of a thread block, in bytes of row data. A chunk has at least one tile for
    /// each warp.
    pub chunk_bytes: usize,
    /// How row numbers are written to the host.
    pub lists: Lists,
}

/// Amount of data that a warp loads before it matches the first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reads {
    /// Number of tiles, for rows of one word.
    pub short_tiles: u32,
    /// Number of words of a longer row that a thread reads ahead.
    pub words_ahead: u32,
}

/// How row numbers are written to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lists {
    /// A warp writes the rows of a tile as soon as it has matched them.
    Direct,
    /// A warp collects rows in shared memory and writes 32 at a time. Searches that share a launch, or that end after
    /// few matches, still write directly.
    Staged,
}

impl Reads {
    const fn new(short_tiles: u32, words_ahead: u32) -> Reads {
        Reads {
            short_tiles,
            words_ahead,
        }
    }

    fn option(self, name: &str) -> String {
        format!("-D{name}={},{}", self.short_tiles, self.words_ahead)
    }
}

impl Policy {
    /// Returns the policy of an architecture. An architecture newer than all known ones gets the newest policy.
    pub fn of(arch: Arch) -> Policy {
        match arch.major {
            ..=8 => Policy::sm_80(),
            9 => Policy::sm_90(),
            _ => Policy::sm_100(),
        }
    }

    /// Returns the policy of Ampere, which has not been measured. It has Hopper's parameters except for the shared
    /// memory: a multiprocessor has 164 KiB, so each of four blocks can have 40 KiB, of which the driver reserves 1
    /// KiB.
    fn sm_80() -> Policy {
        Policy {
            shared_table_bytes_max: 37 << 10,
            ..Policy::sm_90()
        }
    }

    /// Returns the policy of Hopper.
    ///
    /// PERF: `--bench policy` on an H100 80GB HBM3, 23 November 2026, GB/s of values
    /// (`bench/record/2026-11-23-h100.jsonl`). Staged and direct lists: 4,331 and 1,800 where 1 % of rows of 100 bytes
    /// match, 3,120 and 1,080 at 10 %; 1,712 and 509 at 1 % of rows of 8 bytes. One automaton over rows of 100 bytes
    /// with 1, 2, 4 and 8 words ahead: 2,162, 2,464, 2,393 and 2,510; but eight words take 64 registers, and direct
    /// lists drop from 1,800 to 1,619. One literal: 2,343, 2,638, 2,720 and 2,697. No other parameter, changed alone,
    /// improved all cases.
    fn sm_90() -> Policy {
        Policy {
            threads: 256,
            blocks: 4,
            dfa: Reads::new(4, 2),
            several_dfas: Reads::new(2, 2),
            literal: Reads::new(4, 4),
            glushkov: Reads::new(1, 1),
            shift_and: Reads::new(2, 2),
            shared_table_bytes_max: 48 << 10,
            chunk_bytes: 16 << 10,
            lists: Lists::Staged,
        }
    }

    /// Returns the policy of Blackwell, which has not been measured: Hopper's parameters, because the multiprocessors
    /// of both have equal shared memory.
    fn sm_100() -> Policy {
        Policy::sm_90()
    }

    /// Returns the warps per block.
    pub(crate) fn warps(&self) -> usize {
        (self.threads / WARP_THREADS) as usize
    }

    /// Returns the policy as compiler options; see `policy.cuh`.
    pub(crate) fn options(&self) -> Vec<String> {
        vec![
            format!("-DFOREBAY_THREADS={}", self.threads),
            format!("-DFOREBAY_BLOCKS={}", self.blocks),
            format!(
                "-DFOREBAY_STAGED_LISTS={}",
                u8::from(self.lists == Lists::Staged)
            ),
            self.dfa.option("FOREBAY_DFA_READS"),
            self.several_dfas.option("FOREBAY_SEVERAL_DFA_READS"),
            self.literal.option("FOREBAY_LITERAL_READS"),
            self.glushkov.option("FOREBAY_GLUSHKOV_READS"),
            self.shift_and.option("FOREBAY_SHIFT_AND_READS"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared memory of a multiprocessor by compute capability, from the CUDA C++ Programming Guide, "Technical
    /// Specifications per Compute Capability".
    const SHARED_BYTES: [((u32, u32), usize); 3] = [
        ((8, 0), 164 << 10),
        ((9, 0), 228 << 10),
        ((10, 0), 228 << 10),
    ];

    #[test]
    fn a_multiprocessor_has_room_for_the_blocks_of_the_largest_tables() {
        for ((major, minor), bytes) in SHARED_BYTES {
            let policy = Policy::of(Arch { major, minor });
            let classes = 256;
            // Bytes of the stages for lists: each warp stages up to twice as many rows as it has lanes.
            let stages = policy.threads as usize * 2 * size_of::<u32>();
            let block = SHARED_BYTES_RESERVED + stages + classes + policy.shared_table_bytes_max;
            assert!(
                block * policy.blocks as usize <= bytes,
                "{block} bytes a block on sm_{major}{minor}"
            );
        }
    }

    #[test]
    fn later_architectures_have_a_policy() {
        let newest = Policy::of(Arch {
            major: 10,
            minor: 0,
        });
        let later = Policy::of(Arch {
            major: 12,
            minor: 1,
        });
        assert_eq!(later, newest);
    }
}
