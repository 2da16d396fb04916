//! cuFile's own statistics: the only proof of the path that operations took.

use std::fmt;
use std::ops::{Add, Sub};

use super::CuFileError;
use super::sys::Functions;

/// The most detailed level of statistics: counts for each GPU.
const LEVEL: i32 = 3;

// The library fills a struct (`CUfileStatsLevel3_t`) of 64-bit words, apart from the number of GPUs, which is a 32-bit
// word with padding after it. It starts with `CUfileStatsLevel1_t`, which has grown, so it is read by index.

/// Words of `CUfileStatsLevel1_t` before vectored operations were counted.
const BASIC_WORDS: usize = 64;
/// Words that vectored operations added.
const VECTORED_WORDS: usize = 14;
/// Words of the two histograms of `CUfileStatsLevel2_t`.
const HISTOGRAM_WORDS: usize = 64;
/// Words of `CUfilePerGpuStats_t`.
const GPU_WORDS: usize = 31;
/// Number of `CUfilePerGpuStats_t`.
const GPUS_MAX: usize = 16;
/// Words of the largest known struct, and as many again.
const WORDS: usize =
    2 * (BASIC_WORDS + VECTORED_WORDS + HISTOGRAM_WORDS + 1 + GPU_WORDS * GPUS_MAX);

/// Index of the number of operations of batches by path, in `CUfileStatsLevel1_t`.
const BATCH_POSIX: usize = 38;
const BATCH_NVIDIA_FS: usize = 40;
const BATCH_PEER: usize = 42;
/// Index of the number of reads by path, in `CUfilePerGpuStats_t`; those of writes follow at the same distances.
const READS_PEER: usize = 7;
const READS_NVIDIA_FS: usize = 8;
const READS_POSIX: usize = 9;
const WRITES_PEER: usize = 20;

/// The functions of the library that count.
#[derive(Debug)]
pub(super) struct Statistics<'a> {
    functions: &'a Functions,
}

impl<'a> Statistics<'a> {
    /// Returns `None` if the library does not count.
    pub(super) fn of(functions: &'a Functions) -> Option<Statistics<'a>> {
        let complete = functions.set_statistics_level.is_some()
            && functions.start_statistics.is_some()
            && functions.statistics.is_some();
        complete.then_some(Statistics { functions })
    }

    /// Starts the counting.
    pub(super) fn start(&self) -> Result<(), CuFileError> {
        if let Some(set_level) = self.functions.set_statistics_level {
            // SAFETY: the library is loaded.
            let code = unsafe { set_level(LEVEL) };
            code.check()
                .map_err(CuFileError::call("cuFileSetStatsLevel"))?;
        }
        if let Some(start) = self.functions.start_statistics {
            // SAFETY: the driver is open, and the level is set.
            let code = unsafe { start() };
            code.check()
                .map_err(CuFileError::call("cuFileStatsStart"))?;
        }
        Ok(())
    }

    pub(super) fn counts(&self) -> Result<CuFileCounts, CuFileError> {
        let mut words = [0_u64; WORDS];
        if let Some(fill) = self.functions.statistics {
            // SAFETY: the driver is open, and `words` is larger than the struct that the library fills.
            let code = unsafe { fill(words.as_mut_ptr()) };
            code.check()
                .map_err(CuFileError::call("cuFileGetStatsL3"))?;
        }
        let vectored = self.functions.read_vectored.is_some();
        Ok(counts_of(&words, vectored))
    }
}

/// Reads the counts from the struct that the library fills.
fn counts_of(words: &[u64], vectored: bool) -> CuFileCounts {
    let basic = BASIC_WORDS + if vectored { VECTORED_WORDS } else { 0 };
    let (head, gpus) = words.split_at(basic + HISTOGRAM_WORDS);
    let count = (gpus[0] as u32 as usize).min(GPUS_MAX);
    let at = |peer: usize| {
        let gpus = gpus[1..].chunks_exact(GPU_WORDS).take(count);
        let counts = gpus.map(|gpu| PathCounts {
            peer_to_peer: gpu[peer],
            nvidia_fs: gpu[peer + READS_NVIDIA_FS - READS_PEER],
            posix: gpu[peer + READS_POSIX - READS_PEER],
        });
        counts.fold(PathCounts::default(), Add::add)
    };
    CuFileCounts {
        reads: at(READS_PEER),
        writes: at(WRITES_PEER),
        batched: PathCounts {
            peer_to_peer: head[BATCH_PEER],
            nvidia_fs: head[BATCH_NVIDIA_FS],
            posix: head[BATCH_POSIX],
        },
    }
}

/// How many operations took each path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathCounts {
    /// From the drive to the GPU, by the kernel's peer-to-peer transfers.
    pub peer_to_peer: u64,
    /// From the drive to the GPU, by the kernel module nvidia-fs.
    pub nvidia_fs: u64,
    /// Through host memory, by ordinary reads and writes.
    pub posix: u64,
}

impl Add for PathCounts {
    type Output = PathCounts;

    fn add(self, other: PathCounts) -> PathCounts {
        PathCounts {
            peer_to_peer: self.peer_to_peer + other.peer_to_peer,
            nvidia_fs: self.nvidia_fs + other.nvidia_fs,
            posix: self.posix + other.posix,
        }
    }
}

impl Sub for PathCounts {
    type Output = PathCounts;

    fn sub(self, before: PathCounts) -> PathCounts {
        PathCounts {
            peer_to_peer: self.peer_to_peer.saturating_sub(before.peer_to_peer),
            nvidia_fs: self.nvidia_fs.saturating_sub(before.nvidia_fs),
            posix: self.posix.saturating_sub(before.posix),
        }
    }
}

/// How many operations of this process took each path; the difference of two counts is that of the operations between
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CuFileCounts {
    /// Reads.
    pub reads: PathCounts,
    /// Writes.
    pub writes: PathCounts,
    /// Operations of batches, as submitted; the library also counts them as reads and writes.
    pub batched: PathCounts,
}

impl CuFileCounts {
    /// Returns the path that the counted operations took.
    pub fn path(&self) -> PathTaken {
        let all = self.reads + self.writes + self.batched;
        match (all.peer_to_peer, all.nvidia_fs, all.posix) {
            (0, 0, 0) => PathTaken::Unknown,
            (0, 0, _) => PathTaken::Posix,
            (_, 0, 0) => PathTaken::PeerToPeer,
            (0, _, 0) => PathTaken::NvidiaFs,
            _ => PathTaken::Mixed,
        }
    }
}

impl Sub for CuFileCounts {
    type Output = CuFileCounts;

    fn sub(self, before: CuFileCounts) -> CuFileCounts {
        CuFileCounts {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            batched: self.batched - before.batched,
        }
    }
}

/// The path that operations of cuFile took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathTaken {
    /// From the drive to the GPU, by the kernel's peer-to-peer transfers.
    PeerToPeer,
    /// From the drive to the GPU, by the kernel module nvidia-fs.
    NvidiaFs,
    /// Through host memory: compat mode.
    Posix,
    /// Some directly, some through host memory.
    Mixed,
    /// The library counted no operation.
    Unknown,
}

impl fmt::Display for PathTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathTaken::PeerToPeer => "direct (peer to peer)",
            PathTaken::NvidiaFs => "direct (nvidia-fs)",
            PathTaken::Posix => "direct API, POSIX path",
            PathTaken::Mixed => "direct API, partly POSIX path",
            PathTaken::Unknown => "direct API, path unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of a library that counted `posix` reads on the last of two GPUs.
    fn words(vectored: bool, posix: u64) -> Vec<u64> {
        let gpus = BASIC_WORDS + if vectored { VECTORED_WORDS } else { 0 } + HISTOGRAM_WORDS;
        let mut words = vec![0; WORDS];
        // The upper half is padding.
        words[gpus] = 2 | 7 << 32;
        words[gpus + 1 + GPU_WORDS + READS_POSIX] = posix;
        words[gpus + 1 + WRITES_PEER] = 5;
        words[gpus + 1 + 2 * GPU_WORDS + READS_POSIX] = 1000;
        words[BATCH_NVIDIA_FS] = 3;
        words
    }

    #[test]
    fn counts_of_all_gpus_are_added() {
        for vectored in [false, true] {
            let counts = counts_of(&words(vectored, 9), vectored);
            assert_eq!(counts.reads.posix, 9);
            assert_eq!(counts.writes.peer_to_peer, 5);
            assert_eq!(counts.batched.nvidia_fs, 3);
            assert_eq!(counts.path(), PathTaken::Mixed);
        }
    }

    #[test]
    fn the_path_is_that_of_the_operations_between_two_counts() {
        let before = counts_of(&words(false, 9), false);
        let after = counts_of(&words(false, 12), false);
        assert_eq!((after - before).path(), PathTaken::Posix);
        assert_eq!((after - after).path(), PathTaken::Unknown);
        assert_eq!((after - before).reads.posix, 3);
    }
}
