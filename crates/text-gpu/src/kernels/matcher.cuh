// Interface between matchers and the iteration over tiles.
#pragma once

#include "device.cuh"
#include "arguments.cuh"
#include "policy.cuh"

// Eight bytes of padding after a value; UTF-8 never contains 0xFF.
constexpr u64 kPadding = ~0ull;

// The words of one row of a tile; see `tiles.cuh`.
struct Row {
    const u64* first;
    u32 words;

    __device__ u64 word(u32 index) const { return index < words ? __ldg(first + index * kLanes) : kPadding; }
    __device__ u8 byte(u32 index) const { return static_cast<u8>(word(index / 8) >> (index % 8 * 8)); }
};

__device__ inline u32 low_half(u64 word) { return static_cast<u32>(word); }
__device__ inline u32 high_half(u64 word) { return static_cast<u32>(word >> 32); }

template <class T, class U>
constexpr bool kIsSame = false;
template <class T>
constexpr bool kIsSame<T, T> = true;
template <class T, class U>
concept Same = kIsSame<T, U>;

// Each thread constructs one matcher from the `Arguments` of the launch (`arguments.rs`) and the image: the tables that
// the block has copied to shared memory. The matcher is then immutable; its `State` is the progress on a row.
//
// Constants:
//   kQueries          maximum queries of a launch; each row is reported for each query
//   kQueriesUnrolled  queries whose report is unrolled. Equals kQueries if the state is an array in registers, because
//                     a run-time index would put the array into local memory
//   kShortTiles       tiles of one-word rows that a warp loads before it matches the first (from the policy)
//   kWordsAhead       words of a longer row that a lane loads before it matches the first (from the policy)
//   kFirstWordOnly    true if only the first word of a row is loaded
//   kEndsEarly        true if a warp stops reading its tile once `is_decided` holds in all lanes
//
// Functions:
//   begin(state)                         initialises the state of a row
//   word(state, row, index, word, next)  consumes word `index` of the row; `next` is the following word, or padding
//   end(state, row)                      ends the row; also called for rows without words. A value that fills its last
//                                        word has had no padding byte before this call
//   is_decided(state)                    returns whether further words cannot change the result
//   matches(state, query)                returns, after `end`, whether the row matches the query
//   matches_any(state)                   returns, after `end`, whether the row matches any query
template <class M>
concept Matcher = requires(const M matcher, typename M::State& state, const Row& row, u32 index, u64 word, u32 query,
                           const typename M::Arguments& arguments, const u8* image) {
    requires M::kQueries >= 1 && M::kQueries <= kQueriesMax && M::kQueriesUnrolled >= 1;
    requires M::kShortTiles >= 1 && M::kWordsAhead >= 1;
    requires Same<decltype(M::kFirstWordOnly), const bool> && Same<decltype(M::kEndsEarly), const bool>;
    M(arguments, image);
    { matcher.begin(state) } -> Same<void>;
    { matcher.word(state, row, index, word, word) } -> Same<void>;
    { matcher.end(state, row) } -> Same<void>;
    { matcher.is_decided(state) } -> Same<bool>;
    { matcher.matches(state, query) } -> Same<bool>;
    { matcher.matches_any(state) } -> Same<bool>;
};
