// Policy of the architecture (`policy.rs`), passed as compiler options.
#pragma once

#include "device.cuh"

// Threads and warps per block, and blocks per multiprocessor. The compiler gives each thread as many registers as fit.
constexpr u32 kThreads = FOREBAY_THREADS;
constexpr u32 kWarps = kThreads / kLanes;
constexpr u32 kBlocks = FOREBAY_BLOCKS;

// Whether lists of a single query are staged in shared memory.
constexpr bool kStagedLists = FOREBAY_STAGED_LISTS;

// Amount of data that a warp loads before it matches the first word.
struct Reads {
    u32 short_tiles;
    u32 words_ahead;
};

constexpr Reads kDfaReads{FOREBAY_DFA_READS};
constexpr Reads kSeveralDfaReads{FOREBAY_SEVERAL_DFA_READS};
constexpr Reads kLiteralReads{FOREBAY_LITERAL_READS};
constexpr Reads kGlushkovReads{FOREBAY_GLUSHKOV_READS};
constexpr Reads kShiftAndReads{FOREBAY_SHIFT_AND_READS};
