// Matchers for automata of at most 64 positions, whose state is one 64-bit word.
#pragma once

#include "tiles.cuh"

// A Glushkov automaton. The set of active positions is one 64-bit word. The image begins with a table of 256 words: for
// each value of a row's byte, the positions that accept it. A follower table of 256 words comes next for each byte of
// the 64-bit word: for each value of that byte, the positions that may follow the positions set in it.
struct Glushkov {
    using Arguments = GlushkovArguments;

    static constexpr u32 kQueries = 1;
    static constexpr u32 kQueriesUnrolled = 1;
    static constexpr u32 kShortTiles = kGlushkovReads.short_tiles;
    static constexpr u32 kWordsAhead = kGlushkovReads.words_ahead;
    static constexpr bool kFirstWordOnly = false;
    static constexpr bool kEndsEarly = true;

    struct State {
        u64 positions;
        bool at_start;
        bool found;
    };

    const u64* takes;
    const u64* follow;
    u32 follow_count;
    u64 enter;
    u64 enter_start;
    u64 accept;

    __device__ Glushkov(const GlushkovArguments& arguments, const u8* image)
        : takes(reinterpret_cast<const u64*>(image)), follow(takes + 256), follow_count(arguments.follow_count),
          enter(arguments.enter), enter_start(arguments.enter_start), accept(arguments.accept) {}

    __device__ void begin(State& state) const { state = State{0, true, false}; }

    __device__ void byte(State& state, u32 byte) const {
        u64 entered = enter | (state.at_start ? enter_start : 0);
        for (u32 index = 0; index < follow_count; ++index)
            entered |= follow[index * 256 + (state.positions >> (index * 8) & 0xFF)];
        state.positions = entered & takes[byte];
        state.at_start = false;
        state.found |= (state.positions & accept) != 0;
    }

    __device__ void word(State& state, const Row&, u32, u64 word, u64) const {
        for (u32 index = 0; index < 8; ++index) byte(state, word >> (index * 8) & 0xFF);
    }

    __device__ void end(State& state, const Row&) const { byte(state, 0xFF); }
    __device__ bool is_decided(const State& state) const { return state.found; }
    __device__ bool matches(const State& state, u32) const { return state.found; }
    __device__ bool matches_any(const State& state) const { return state.found; }
};

// Several literals packed into one word, the Shift-And algorithm (Baeza-Yates and Gonnet, "A new approach to text
// searching", 1992). Each bit stands for one byte of a literal, and is set if the text so far ends with that literal up
// to and including this byte. The image has a word for each byte value: the bits of all literal bytes with this value.
struct ShiftAnd {
    using Arguments = ShiftAndArguments;

    static constexpr u32 kQueries = kQueriesMax;
    static constexpr u32 kQueriesUnrolled = 1;
    static constexpr u32 kShortTiles = kShiftAndReads.short_tiles;
    static constexpr u32 kWordsAhead = kShiftAndReads.words_ahead;
    static constexpr bool kFirstWordOnly = false;
    static constexpr bool kEndsEarly = false;

    struct State {
        u64 bits;
        u64 found;
    };

    const u64* takes;
    const u32* last_bits;
    u64 enter;
    u64 enter_start;
    u64 inside;
    u64 last;

    __device__ ShiftAnd(const ShiftAndArguments& arguments, const u8* image)
        : takes(reinterpret_cast<const u64*>(image)), last_bits(arguments.last_bits), enter(arguments.enter),
          enter_start(arguments.enter_start), inside(arguments.inside), last(arguments.last) {}

    __device__ void begin(State& state) const { state = State{0, 0}; }

    __device__ void byte(State& state, u64 entered, u32 byte) const {
        state.bits = ((state.bits << 1 & inside) | entered) & takes[byte];
        state.found |= state.bits & last;
    }

    __device__ void word(State& state, const Row&, u32 index, u64 word, u64) const {
        const u32 halves[2] = {low_half(word), high_half(word)};
        u64 entered = enter | (index == 0 ? enter_start : 0);
#pragma unroll
        for (u32 at = 0; at < 8; ++at) {
            byte(state, entered, halves[at / 4] >> (at % 4 * 8) & 0xFF);
            entered = enter;
        }
    }

    __device__ void end(State& state, const Row& row) const {
        byte(state, row.words == 0 ? enter | enter_start : enter, 0xFF);
    }

    __device__ bool is_decided(const State&) const { return false; }
    __device__ bool matches(const State& state, u32 query) const { return state.found >> last_bits[query] & 1; }
    __device__ bool matches_any(const State& state) const { return state.found != 0; }
};
