// Matcher for deterministic automata, several at a time: they share byte classes, and each has its own table.
#pragma once

#include "tiles.cuh"

// The image has the class of each of the 256 byte values, followed by the tables of the automata. State 0 rejects a row
// and the last state accepts it, whatever bytes follow: both states lead only to themselves. A row matches if the state
// after its last byte is at least the query's `accepting`.
template <class Entry, u32 kCount, bool kTableInShared>
struct Dfa {
    using Arguments = DfaArguments;

    static constexpr u32 kQueries = kCount;
    static constexpr u32 kQueriesUnrolled = kCount;
    static constexpr u32 kShortTiles = kCount == 1 ? kDfaReads.short_tiles : kSeveralDfaReads.short_tiles;
    static constexpr u32 kWordsAhead = kCount == 1 ? kDfaReads.words_ahead : kSeveralDfaReads.words_ahead;
    static constexpr bool kFirstWordOnly = false;
    static constexpr bool kEndsEarly = kCount == 1;

    struct State {
        u32 of[kCount];
    };

    const u8* classes;
    const Entry* tables[kCount];
    u32 starts[kCount];
    u32 accepting[kCount];
    u32 class_count;
    u32 accept;

    __device__ Dfa(const DfaArguments& arguments, const u8* image)
        : classes(image), class_count(arguments.class_count), accept(arguments.accept) {
#pragma unroll
        for (u32 query = 0; query < kCount; ++query) {
            const DfaQuery& wanted = arguments.queries[query];
            tables[query] = reinterpret_cast<const Entry*>(kTableInShared ? image + wanted.table_offset : arguments.table);
            starts[query] = wanted.start;
            accepting[query] = wanted.accepting;
        }
    }

    __device__ void begin(State& state) const {
#pragma unroll
        for (u32 query = 0; query < kCount; ++query) state.of[query] = starts[query];
    }

    __device__ void word(State& state, const Row&, u32, u64 word, u64) const {
        const u32 halves[2] = {low_half(word), high_half(word)};
#pragma unroll
        for (u32 index = 0; index < 8; ++index) {
            const u32 byte = halves[index / 4] >> (index % 4 * 8) & 0xFF;
            const u32 column = classes[byte];
#pragma unroll
            for (u32 query = 0; query < kCount; ++query)
                state.of[query] = tables[query][state.of[query] * class_count + column];
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
