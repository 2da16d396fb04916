// Writes rows of the columns of a join's sides; as `workload.rs`, which has the same formulas.
#include "rows.cuh"

__device__ inline u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * kMixFirst;
    x = (x ^ (x >> 27)) * kMixSecond;
    return x ^ (x >> 31);
}

// Returns another number of as many bits; no two numbers have the same.
__device__ inline u64 shuffled(u64 x, u32 bits) {
    const u64 mask = (1ull << bits) - 1;
    const u32 half = (bits + 1) / 2;
    x = (x * kShuffleFirst + kShuffleAddend) & mask;
    x ^= x >> half;
    x = x * kShuffleSecond & mask;
    return x ^ (x >> half);
}

// Returns the key of a row of the build side: each number below `build_rows` once.
__device__ inline u64 build_key(u64 row, const Generating& a) {
    u64 key = row;
    do {
        key = shuffled(key, a.key_bits);
    } while (key >= a.build_rows);
    return key;
}

// Returns the key of a row of the probe side: a uniform random key of the build side, or one above them if the row
// has no match.
__device__ inline u64 foreign_key(u64 row, const Generating& a) {
    const u64 key = __umul64hi(mixed(row + kForeignSeed), a.build_rows);
    const bool has_match = mixed(row ^ kMatchSeed) >> 32 < a.match_limit;
    return has_match ? key : key + a.build_rows;
}

// Returns the key that is made of a number.
template <class Key>
__device__ inline Key key_of(u64 number, const Generating&) {
    return static_cast<Key>(number);
}
template <>
__device__ inline CompositeKey key_of<CompositeKey>(u64 number, const Generating& a) {
    const u32 second_bits = a.key_bits / 2;
    return {number >> second_bits, number & ((1ull << second_bits) - 1)};
}

// Writes `count` rows of both columns of a side.
template <class R>
__global__ void __launch_bounds__(kThreads) generate(const __grid_constant__ Generating a) {
    using Key = typename R::Key;
    using Payload = typename R::Payload;
    Key* keys = reinterpret_cast<Key*>(a.keys);
    Payload* payloads = reinterpret_cast<Payload*>(a.payloads);
    for (u64 i = this_thread(); i < a.count; i += threads()) {
        const u64 row = a.first + i;
        const u64 number = a.is_probe ? foreign_key(row, a) : build_key(row, a);
        keys[i] = key_of<Key>(number, a);
        payloads[i] = static_cast<Payload>(a.is_probe ? mixed(row ^ kProbeSeed) : mixed(number ^ kBuildSeed));
    }
}
