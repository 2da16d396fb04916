// Matcher for one literal. Compares the literal's first four bytes at every byte of a word in registers. Compares its
// remaining bytes only where the first four match.
#pragma once

#include "tiles.cuh"

// The image is the literal. A literal that must end the row has a padding byte at its end.
template <bool kAtStart>
struct Literal {
    using Arguments = LiteralArguments;

    static constexpr u32 kQueries = 1;
    static constexpr u32 kQueriesUnrolled = 1;
    static constexpr u32 kShortTiles = kLiteralReads.short_tiles;
    static constexpr u32 kWordsAhead = kAtStart ? 1 : kLiteralReads.words_ahead;
    static constexpr bool kFirstWordOnly = kAtStart;
    static constexpr bool kEndsEarly = false;

    struct State {
        bool found;
    };

    const u8* literal;
    u32 bytes;
    u32 probe;
    u32 mask;

    __device__ Literal(const LiteralArguments& arguments, const u8* image)
        : literal(image), bytes(arguments.bytes), probe(arguments.probe), mask(arguments.probe_mask) {}

    __device__ void begin(State& state) const { state.found = false; }

    __device__ void word(State& state, const Row& row, u32 index, u64 word, u64 next) const {
        const u32 low = low_half(word), high = high_half(word), ahead = low_half(next);
        u32 places = 0;
#pragma unroll
        for (u32 shift = 0; shift < (kAtStart ? 1 : 4); ++shift) {
            const u32 first = __funnelshift_r(low, high, shift * 8), second = __funnelshift_r(high, ahead, shift * 8);
            if (((first ^ probe) & mask) == 0) places |= 1u << shift;
            if (!kAtStart && ((second ^ probe) & mask) == 0) places |= 16u << shift;
        }
        if (places != 0 && !state.found) state.found = bytes <= 4 || confirm(row, index * 8, places);
    }

    __device__ bool confirm(const Row& row, u32 first, u32 places) const {
        for (; places != 0; places &= places - 1) {
            const u32 at = first + __ffs(places) - 1;
            u32 same = 4;
            while (same < bytes && row.byte(at + same) == literal[same]) ++same;
            if (same == bytes) return true;
        }
        return false;
    }

    // Handles matches after the last word: an empty literal, a literal that is only a padding byte, and, for
    // `kAtStart`, an empty row.
    __device__ void end(State& state, const Row& row) const {
        const bool here = kAtStart ? row.words == 0 : bytes <= 1;
        if (here && ((0xFFFFFFFFu ^ probe) & mask) == 0 && bytes <= 4) state.found = true;
    }

    __device__ bool is_decided(const State& state) const { return state.found; }
    __device__ bool matches(const State& state, u32) const { return state.found; }
    __device__ bool matches_any(const State& state) const { return state.found; }
};
