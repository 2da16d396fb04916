// Deterministic automata, several at a time: all read the class of a byte once and step through tables of their own.
#pragma once

#include "tiles.cuh"

// The image holds 256 classes of bytes, then the tables. State `reject` is 0 and `accept` the last; both lead to
// themselves. A row matches when its last state is at least the query's `accepting`.
template <class Entry, u32 kCount, bool kTableInShared>
struct Dfa {
    static constexpr u32 kQueries = kCount;
    static constexpr u32 kQueriesUnrolled = kCount;
    static constexpr u32 kShortTiles = kCount == 1 ? 4 : 2;
    static constexpr u32 kWordsAhead = kCount == 1 ? 4 : 2;
    static constexpr bool kFirstWordOnly = false;
    static constexpr bool kEndsEarly = kCount == 1;

    struct State {
        u32 of[kCount];
    };

    const u8* classes;
    const Entry* tables[kCount];
    u32 starts[kCount];
    u32 accepting[kCount];
    u32 stride;
    u32 accept;

    __device__ Dfa(const ScanArguments& arguments, const u8* image)
        : classes(image), stride(arguments.stride), accept(arguments.accept_state) {
#pragma unroll
        for (u32 query = 0; query < kCount; ++query) {
            const Query& wanted = arguments.queries[query];
            tables[query] = kTableInShared ? (const Entry*)(image + wanted.table_offset) : (const Entry*)arguments.table;
            starts[query] = wanted.start;
            accepting[query] = wanted.accepting;
        }
    }

    __device__ void begin(State& state) const {
#pragma unroll
        for (u32 query = 0; query < kCount; ++query) state.of[query] = starts[query];
    }

    __device__ void word(State& state, const Row&, u32, u64 word, u64) const {
        const u32 halves[2] = {(u32)word, (u32)(word >> 32)};
#pragma unroll
        for (u32 index = 0; index < 8; ++index) {
            const u32 byte = halves[index / 4] >> (index % 4 * 8) & 0xFF;
            const u32 column = classes[byte];
#pragma unroll
            for (u32 query = 0; query < kCount; ++query)
                state.of[query] = tables[query][state.of[query] * stride + column];
        }
    }

    __device__ void end(State&, const Row&) const {}
    __device__ bool is_decided(const State& state) const { return state.of[0] == 0 || state.of[0] == accept; }
    __device__ bool matches(const State& state, u32 query) const {
        bool found = false;
#pragma unroll
        for (u32 index = 0; index < kCount; ++index)
            if (index == query) found = state.of[index] >= accepting[index];
        return found;
    }
    __device__ bool matches_any(const State& state) const {
        bool found = false;
#pragma unroll
        for (u32 query = 0; query < kCount; ++query) found |= state.of[query] >= accepting[query];
        return found;
    }
};
