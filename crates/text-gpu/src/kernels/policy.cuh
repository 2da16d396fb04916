// The policy of the architecture (`policy.rs`), as the compiler's options give it.
#pragma once

#include "device.cuh"

// Threads and warps of every block of a launch, and blocks that a multiprocessor has room for: the compiler gives a
// thread as many registers as fit.
constexpr u32 kThreads = FOREBAY_THREADS;
constexpr u32 kWarps = kThreads / kLanes;
constexpr u32 kBlocks = FOREBAY_BLOCKS;

// Whether lists of one query are staged in shared memory.
constexpr bool kStagedLists = FOREBAY_STAGED_LISTS;

// What a warp loads before it matches the first word.
struct Reads {
    u32 short_tiles;
    u32 words_ahead;
};

constexpr Reads kDfaReads{FOREBAY_DFA_READS};
constexpr Reads kSeveralDfaReads{FOREBAY_SEVERAL_DFA_READS};
constexpr Reads kLiteralReads{FOREBAY_LITERAL_READS};
constexpr Reads kGlushkovReads{FOREBAY_GLUSHKOV_READS};
constexpr Reads kShiftAndReads{FOREBAY_SHIFT_AND_READS};
